"""Trajectories and rewards → the optimizer steps of a batch, with token weights normalised once and globally.

Pure: rows in canonical order and a seed in, index arrays and weights out. Backends only add up weight × loss.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptctl.advantages import Advantages, Estimator, group_advantages
from ptctl.packing import pad_batches
from ptctl.protocols import BoolArray, Float64Array, Int64Array, PlannedStep
from ptctl.seeds import derive_seed
from ptctl.token_weights import Normalisation, row_token_weights

BUCKET_STEPS = 8
"""SFT steps whose rows are sorted by length together: less padding, while any row can still meet most others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanSettings:
    """How a batch becomes optimizer steps."""

    algorithm: str
    estimator: Estimator
    normalisation: Normalisation
    constant_length: float | None
    epochs: int
    rows_per_step: int
    """Rows of one step; 0: `steps_per_epoch` equal parts."""
    steps_per_epoch: int
    micro_batch_tokens: int
    train_truncated: bool
    seed: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardColumns:
    """What planning needs to know of each row, in canonical order."""

    rewards: Float64Array  # [N], anything where not known
    known: BoolArray  # [N]
    group_index: Int64Array  # [N]
    truncated: BoolArray  # [N] cut off by a limit
    failed: BoolArray  # [N] engine or environment failed
    lengths: Int64Array  # [N] tokens
    num_loss_tokens: Int64Array  # [N] sum of the loss mask


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPlan:
    """The steps of a batch."""

    steps: tuple[PlannedStep, ...]
    advantages: Float64Array  # [N]
    trained: BoolArray  # [N] rows that take part
    num_zero_variance_groups: int
    num_unknown: int
    """Rows without a reward."""


def plan_training(columns: RewardColumns, settings: PlanSettings) -> TrainingPlan:
    """Plan a batch. No steps where nothing can be learned (all groups of zero variance, nothing scored).

    Raises UsageError for groups of one row with a group baseline, DataError for a row longer than a micro-batch.
    """
    usable = ~columns.failed & (columns.num_loss_tokens > 0)
    if not settings.train_truncated:
        usable &= ~columns.truncated
    num_zero_variance = 0
    if settings.algorithm == "sft":
        advantages, trained = np.zeros(len(columns.rewards)), usable
    else:
        found = _advantages(columns, settings)
        advantages, trained = found.advantages, usable & found.trainable & (found.advantages != 0.0)
        num_zero_variance = int(found.zero_variance_groups.sum())
    steps = [
        step
        for epoch in range(settings.epochs)
        for rows in _split(np.flatnonzero(trained), columns.lengths, settings, epoch)
        if (step := _plan_step(rows, columns, settings)) is not None
    ]
    return TrainingPlan(
        steps=tuple(steps),
        advantages=advantages,
        trained=trained,
        num_zero_variance_groups=num_zero_variance,
        num_unknown=int((~columns.known).sum()),
    )


def _advantages(columns: RewardColumns, settings: PlanSettings) -> Advantages:
    return group_advantages(
        np.where(columns.known, columns.rewards, 0.0),
        columns.group_index,
        known=columns.known,
        estimator=settings.estimator,
    )


def _split(
    rows: npt.NDArray[np.int64], lengths: Int64Array, settings: PlanSettings, epoch: int
) -> list[npt.NDArray[np.int64]]:
    """Shuffle the rows of one pass and cut them into steps."""
    if len(rows) == 0:
        return []
    rng = np.random.Generator(np.random.Philox(derive_seed(settings.seed, "epoch", epoch)))
    shuffled = rng.permutation(rows)
    size = settings.rows_per_step
    if size == 0:
        return [part for part in np.array_split(shuffled, settings.steps_per_epoch) if len(part)]
    if settings.algorithm != "sft":
        return [shuffled[start : start + size] for start in range(0, len(shuffled), size)]
    parts: list[npt.NDArray[np.int64]] = []
    for start in range(0, len(shuffled), size * BUCKET_STEPS):
        bucket = shuffled[start : start + size * BUCKET_STEPS]
        bucket = bucket[np.argsort(lengths[bucket], kind="stable")]
        parts.extend(bucket[first : first + size] for first in range(0, len(bucket), size))
    return [parts[index] for index in rng.permutation(len(parts))]


def _plan_step(rows: npt.NDArray[np.int64], columns: RewardColumns, settings: PlanSettings) -> PlannedStep | None:
    weights = row_token_weights(
        columns.num_loss_tokens[rows], settings.normalisation, constant_length=settings.constant_length
    )
    if weights.empty:
        return None
    token_weights = np.zeros(len(columns.lengths))
    token_weights[rows] = weights.weights
    batches = pad_batches(columns.lengths[rows], settings.micro_batch_tokens)
    return PlannedStep(micro_batches=tuple(rows[batch] for batch in batches), token_weights=token_weights)
