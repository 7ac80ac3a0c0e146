"""Draw: a task chosen for a batch, with the reasons."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ptctl.records.columns import Float64, Int32, Int64


class Purpose(StrEnum):
    """Why a task was drawn."""

    TRAIN = "train"
    EVAL = "eval"


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """A task chosen for a batch: one group of `group_size` trajectories, with the reasons for the choice."""

    group_id: str
    """Unique in the run: `BATCH/POSITION`."""
    batch: str
    """Name of the batch."""
    position: Int32
    """Position in the batch, from 0."""
    task_id: str
    """The task."""
    task_digest: str
    """Its digest when it was drawn; another digest later is refused."""
    purpose: str
    """A `Purpose` value."""
    group_size: Int32
    """Trajectories of this group (G)."""
    seed: Int64
    """Seed of the group; trajectory seeds are hashed from it."""
    strategy: str
    """The curriculum strategy that chose."""
    weight: Float64
    """Probability-proportional weight of the task when it was drawn."""
    difficulty: Float64 | None = None
    """1 − posterior mean success of the task; None where the strategy does not look."""
    failure_rate: Float64 | None = None
    """Observed failure rate so far; None where never scored."""
    learnability: Float64 | None = None
    """p(1 − p) of the posterior mean success p."""
    novelty: Float64 | None = None
    """1 for a task never drawn, falling with the number of draws."""
    quota: Float64 | None = None
    """Share of the batch that the task's domain (or family) was given."""
