"""Backend: trains."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Protocol

import numpy as np

from ptctl.protocols.arrays import BoolArray, Float32Array, Float64Array, Int32Array, Int64Array


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerSettings:
    """AdamW with warm-up and decay. Steps count from the start of the phase."""

    learning_rate: float
    min_learning_rate: float
    num_warmup_steps: int
    num_decay_steps: int
    """Optimizer steps of the phase; 0: constant."""
    decay: str
    """`constant`, `cosine` or `linear`."""
    beta1: float
    beta2: float
    epsilon: float
    weight_decay: float
    max_grad_norm: float
    """Clip to this global norm; 0: do not clip."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LossSettings:
    """What is minimised: the sum over loss tokens of token weight × token loss."""

    algorithm: str
    """`sft` (−log p) or `grpo` (clipped policy gradient against `rollout_logprobs`)."""
    clip_low: float
    """Ratio is clipped at 1 − clip_low."""
    clip_high: float
    """… and at 1 + clip_high."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendSettings:
    """How a backend is built."""

    policy: Path
    """Policy or Hugging Face model directory to start from."""
    initialize: str
    """`load` the weights, or `random` where the directory holds none."""
    seed: int
    """Seed of random initialisation."""
    phase: str
    """Name of the phase; optimizer state is resumed only within one phase."""
    optimizer: OptimizerSettings
    loss: LossSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainRows:
    """Trajectories as columns, in canonical order (task_id, group, index, attempt)."""

    token_ids: Int32Array  # [T]
    offsets: Int64Array  # [N + 1] row i is token_ids[offsets[i]:offsets[i + 1]]
    loss_mask: BoolArray  # [T]
    rollout_logprobs: Float32Array  # [T], 0 where not sampled; all 0 where the algorithm does not need them
    advantages: Float64Array  # [N]
    temperatures: Float64Array  # [N] at which log-probabilities are recomputed

    @property
    def num_rows(self) -> int:
        """Number of trajectories N."""
        return len(self.offsets) - 1

    @property
    def lengths(self) -> Int64Array:
        """# [N] tokens of each row."""
        return np.diff(self.offsets)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedStep:
    """One optimizer step. Token weights are normalised over the whole step, so that backends only sum."""

    micro_batches: tuple[Int64Array, ...]  # each [R]: row indices that go through the model together
    token_weights: Float64Array  # [N]: weight of each loss token of row i in this step; 0 where the row takes no part


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMetrics:
    """What one optimizer step did. Means are over loss tokens unless said otherwise."""

    loss: float
    """The optimised loss."""
    grad_norm: float
    """Global norm before clipping."""
    learning_rate: float
    entropy: float
    """Mean entropy of the policy, nats."""
    kl: float
    """k3 estimate of KL(rollout policy ‖ current policy) on the sampled tokens; 0 for SFT."""
    clip_fraction: float
    """Share of loss tokens whose clipped objective was active."""
    max_logprob_difference: float
    """Largest |train − rollout| log-probability of the step; meaningful before the first update of a batch."""
    num_loss_tokens: int
    engine_s: float
    """Wall-clock time of the step."""


class Backend(Protocol):
    """Trains a policy. Built as `Backend(settings)`; loading happens in `start`."""

    name: ClassVar[str]

    def start(self) -> None:
        """Build model and optimizer and load weights, and the checkpoint where policy and phase match."""
        ...

    def begin_phase(self, settings: BackendSettings) -> None:
        """Keep the weights, and start a fresh optimizer with other settings."""
        ...

    def step(self, rows: TrainRows, planned: PlannedStep) -> StepMetrics:
        """One optimizer step. Raises DataError for a non-finite loss or gradient; the weights are then unchanged."""
        ...

    def logprobs(self, rows: TrainRows, micro_batches: Sequence[Int64Array]) -> Float32Array:
        """# [T] log-probability of each token given the ones before it, 0 at each row's first token."""
        ...

    def publish(self, directory: Path, *, with_checkpoint: bool) -> str:
        """Write Hugging Face weights, config and tokenizer, and `checkpoint/`; returns sha256 of the weights.

        Every process calls it with the same directory and returns when all have written their part.
        """
        ...

    def from_main(self, text: str) -> str:
        """What the main process said, on every process. All processes call it."""
        ...

    def is_main(self) -> bool:
        """True in the one process that writes rows and prints paths."""
        ...

    def close(self) -> None:
        """Release everything; safe to call twice."""
        ...
