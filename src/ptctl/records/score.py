"""Score: the verdict on one trajectory."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ptctl.records.columns import Float64, Int32
from ptctl.records.turn import RowError


class ScoreStatus(StrEnum):
    """A score has a value, has none because something failed, or waits for a person."""

    SCORED = "scored"
    UNSCORED = "unscored"
    WITHHELD = "withheld"


class UnscoredReason(StrEnum):
    """Why there is no value. None of these is the policy's failure."""

    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    VERIFIER_ERROR = "verifier_error"
    JUDGE_ERROR = "judge_error"
    SANDBOX_ERROR = "sandbox_error"
    TIMEOUT = "timeout"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """One part of a reward."""

    name: str
    """For example `tests`, `compile`, `format`."""
    value: Float64 | None
    """Its value, None where it could not be told."""
    weight: Float64 = 1.0
    """Factor in the reward; 0 for what is only informative."""
    turn: Int32 | None = None
    """Index of the turn that it judges, None for the whole trajectory."""
    passed: bool | None = None
    """Whether it passed, where that has a meaning."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The verdict on one trajectory: a narrow sidecar that never copies tokens."""

    trajectory_id: str
    """The trajectory."""
    group_id: str
    """Its group."""
    index: Int32
    """Its position in the group."""
    attempt: Int32
    """Its attempt."""
    task_id: str
    """The task."""
    task_digest: str
    """Its digest."""
    verifier: str
    """Verifier plug-in by name."""
    verifier_version: str
    """Version of its rules; another version writes another score dataset."""
    status: str
    """A `ScoreStatus` value."""
    reason: str | None = None
    """An `UnscoredReason` value where there is no value."""
    reward: Float64 | None = None
    """What the optimiser sees; NULL when not known."""
    passed: bool | None = None
    """Success, apart from the reward: filters and evaluation look here. Partial credit is not a pass."""
    components: tuple[Component, ...] = ()
    """Parts of the reward."""
    judged_by: str = "verifier"
    """`verifier`, `judge`, `rule_fallback` or `human`."""
    answer: str | None = None
    """What the verifier extracted."""
    answer_status: str | None = None
    """`ok`, `no_answer` or `ambiguous`, where an answer is extracted."""
    evidence_json: str = "{}"
    """What was run or compared, output, exit status, parsed reports."""
    error: RowError | None = None
    """What failed, where there is no value."""
    verify_s: Float64 = 0.0
    """Time of verification."""
    scored_at: Float64 = 0.0
    """Unix time."""
