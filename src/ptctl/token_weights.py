"""Masks and lengths -> per-token loss weights, normalised once over the whole optimizer step.

The weights are computed when the step is planned, from all its rows. Every rank, context shard and micro-batch then
only adds up weight x loss, and the sum of the parts is the loss of the step for any partition and order. Dividing by
a local token or row count instead makes the result depend on how the rows happened to be split.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
import numpy.typing as npt

from ptctl.errors import DataError, UsageError

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]

Normalisation = Literal["token_mean", "seq_mean_token_mean", "seq_mean_token_sum", "dr_grpo"]
"""How the token losses of a step become one number; a trajectory counts when it has at least one loss token:

    token_mean           mean over all loss tokens                                      DAPO, arXiv:2503.14476
    seq_mean_token_mean  mean over trajectories of the mean over their loss tokens      GRPO, arXiv:2402.03300
    seq_mean_token_sum   mean over trajectories of the sum over their loss tokens
    dr_grpo              seq_mean_token_sum divided by a constant length                Dr.GRPO, arXiv:2503.20783
"""

NORMALISATIONS: tuple[Normalisation, ...] = get_args(Normalisation)


@dataclass(frozen=True, kw_only=True, slots=True)
class RowWeights:
    """The weight of every loss token of each row of an optimizer step.

    weights        [N] float64; 0 for rows without loss tokens.
    num_loss_tokens  of the step.
    num_trajectories  with at least one loss token.
    empty          no loss token at all: the step must be skipped. The weights are then 0 and not NaN.
    """

    weights: FloatArray
    num_loss_tokens: int
    num_trajectories: int
    normalisation: Normalisation
    empty: bool


def check_normalisation(normalisation: Normalisation, constant_length: float | None) -> None:
    """Refuse an unknown mode, dr_grpo without its length, and a length that another mode would ignore (UsageError)."""
    if normalisation not in NORMALISATIONS:
        raise UsageError(f"unknown loss normalisation {normalisation!r}", hint=f"one of: {', '.join(NORMALISATIONS)}")
    if normalisation != "dr_grpo":
        if constant_length is not None:
            raise UsageError(f"constant_length has no meaning for {normalisation!r}", hint="use dr_grpo or remove it")
    elif constant_length is None or not constant_length > 0.0:
        raise UsageError(f"dr_grpo needs a positive constant_length, got {constant_length!r}")


def row_token_weights(
    num_loss_tokens: npt.ArrayLike,
    normalisation: Normalisation,
    *,
    constant_length: float | None = None,
    trajectory_index: npt.ArrayLike | None = None,
) -> RowWeights:
    """Return the weight of each row's loss tokens, over all rows of one optimizer step.

    Args:
        num_loss_tokens: [N], the sum of each row's loss_mask: tool output and prompt do not count. Put 0 for a row that
            is not trained (reward not known, truncated and masked): it then counts nowhere.
        normalisation: see `Normalisation`.
        constant_length: the L of dr_grpo, in tokens; None for the other modes.
        trajectory_index: [N], any integer that is equal for the segments of one trajectory, so that a trajectory in
            several rows counts once; by default every row is a trajectory.

    Raises:
        UsageError: see `check_normalisation`.
        DataError: a negative count, or arrays of different length.
    """
    check_normalisation(normalisation, constant_length)
    counts = np.asarray(num_loss_tokens, dtype=np.int64)  # [N]
    if counts.ndim != 1 or bool(np.any(counts < 0)):
        raise DataError("num_loss_tokens must be one row of counts that are not negative")
    counts_of_trajectory = _tokens_of_trajectory(counts, trajectory_index)  # [N]
    total = int(counts.sum())
    num_trajectories = _count_trajectories(counts, trajectory_index)
    per_token = np.zeros(counts.size)  # [N]
    active = counts > 0
    if normalisation == "token_mean":
        per_token[active] = 1.0 / total if total else 0.0
    elif normalisation == "seq_mean_token_mean":
        per_token[active] = 1.0 / (num_trajectories * counts_of_trajectory[active].astype(np.float64))
    else:
        length = 1.0 if constant_length is None else constant_length
        per_token[active] = 1.0 / (num_trajectories * length) if num_trajectories else 0.0
    return RowWeights(
        weights=per_token,
        num_loss_tokens=total,
        num_trajectories=num_trajectories,
        normalisation=normalisation,
        empty=total == 0,
    )


def _tokens_of_trajectory(counts: IntArray, trajectory_index: npt.ArrayLike | None) -> IntArray:
    """For each row the loss tokens of its whole trajectory, [N]."""
    if trajectory_index is None:
        return counts
    index = np.asarray(trajectory_index)
    if index.shape != counts.shape:
        raise DataError(f"{counts.shape} rows but trajectory_index of shape {index.shape}")
    _, inverse = np.unique(index, return_inverse=True)
    # bincount adds in float64, which is exact for fewer than 2^53 tokens.
    return np.bincount(inverse, weights=counts)[inverse].astype(np.int64) if counts.size else counts


def _count_trajectories(counts: IntArray, trajectory_index: npt.ArrayLike | None) -> int:
    if trajectory_index is None:
        return int(np.count_nonzero(counts))
    return int(np.unique(np.asarray(trajectory_index)[counts > 0]).size)


def expand_token_weights(
    loss_mask: npt.ArrayLike,
    row_offsets: npt.ArrayLike,
    row_weights: npt.ArrayLike,
    *,
    dtype: npt.DTypeLike = np.float64,
) -> npt.NDArray[np.floating]:
    """Write the token weight column: a row's weight where its loss_mask is True, 0 elsewhere.

    Args:
        loss_mask: [T] bool, all rows one after another.
        row_offsets: [N + 1], from 0 to T.
        row_weights: [N], `RowWeights.weights` or a part of it for a part of the rows.
        dtype: of the result, float32 or float64.

    Raises DataError when the offsets do not partition the mask.
    """
    mask = np.asarray(loss_mask, dtype=np.bool_)
    offsets = np.asarray(row_offsets, dtype=np.int64)
    weights = np.asarray(row_weights, dtype=dtype)
    if mask.ndim != 1 or weights.ndim != 1 or offsets.shape != (weights.size + 1,):
        raise DataError(f"{weights.shape} row weights and a mask of {mask.shape} do not fit offsets of {offsets.shape}")
    lengths = np.diff(offsets)
    if offsets[0] != 0 or offsets[-1] != mask.size or bool(np.any(lengths < 0)):
        raise DataError(f"row offsets must rise from 0 to {mask.size}, the number of tokens")
    return np.where(mask, np.repeat(weights, lengths), np.zeros((), dtype=dtype))


def weighted_sum(values: npt.ArrayLike, token_weights: npt.ArrayLike) -> float:
    """Add up weight x value over the tokens with a weight, [T] and [T].

    What stands behind the mask may be NaN or infinite (padding, log of 0) and 0 x NaN is NaN, so it is not multiplied.
    """
    losses = np.asarray(values, dtype=np.float64)
    weights = np.asarray(token_weights, dtype=np.float64)
    if losses.shape != weights.shape:
        raise DataError(f"{losses.shape} values for {weights.shape} token weights")
    counted = weights != 0.0
    return float(np.dot(losses[counted], weights[counted]))
