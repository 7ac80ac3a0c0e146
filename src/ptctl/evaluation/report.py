"""The report of an evaluation as frozen dataclasses; `eval.json` is `Report.to_json()`, all else a view of it.

Rates, intervals and differences are macro means over tasks. `None` means "not known", never 0.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any, cast

from ptctl.errors import ExitCode

EVAL_SCHEMA_VERSION = 1
"""Version of `eval.json`. A key that is added does not change it; a key that goes or changes its meaning does."""
OVERALL = "overall"


class Outcome(StrEnum):
    """The verdict of an evaluation. Its exit code is a property of it, so that the two cannot disagree."""

    PASS = "PASS"
    REGRESSED = "REGRESSED"
    INCONCLUSIVE = "INCONCLUSIVE"
    NOTHING_EVALUATED = "NOTHING_EVALUATED"
    REPORTED = "REPORTED"
    """There was no gate."""

    @property
    def exit_code(self) -> ExitCode:
        """What the process returns."""
        return _EXIT_CODES[self]


_EXIT_CODES: dict[Outcome, ExitCode] = {
    Outcome.PASS: ExitCode.OK,
    Outcome.REPORTED: ExitCode.OK,
    Outcome.REGRESSED: ExitCode.REGRESSED,
    Outcome.INCONCLUSIVE: ExitCode.INCONCLUSIVE,
    Outcome.NOTHING_EVALUATED: ExitCode.NOTHING_EVALUATED,
}


class Change(StrEnum):
    """What the comparison says of one stratum."""

    IMPROVED = "improved"
    WORSENED = "worsened"
    UNCLEAR = "unclear"
    """There are differences; chance explains them."""
    UNCHANGED = "unchanged"
    """Every task has the same rate on both sides."""
    THIN = "thin"
    """Too few tasks for a test."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Success:
    """Success in a set of slots. A slot is (group_id, index); it is expected as soon as its group was drawn."""

    n_tasks: int
    """Tasks drawn."""
    n_scored_tasks: int
    """Tasks with at least one scored slot: those behind `rate`."""
    n_slots: int
    """Expected slots."""
    n_scored: int
    """Slots whose score has a value."""
    n_success: int
    """Slots that passed."""
    coverage: float | None
    """n_scored / n_slots; None where no slot was expected."""
    rate: float | None
    """Mean over tasks of (passed / scored) slots; None without a scored slot."""
    ci_low: float | None
    """Lower bound of the interval."""
    ci_high: float | None
    """Upper bound."""
    thin: bool
    """Fewer than 8 scored tasks: shown, not tested."""
    mean_reward: float | None
    """Mean over tasks of the mean known reward."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stratum:
    """One cell of a partition."""

    key: str
    """Such as `domain`."""
    value: str
    """Such as `math`; `unknown` where the task does not say."""
    fixed: bool
    """The partition was fixed before the run. False for what the candidate did, which is shown and never gated."""
    success: Success
    """What happened in it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """Candidate minus baseline over tasks scored on both sides, with Student's t interval and the sign-flip test."""

    n_tasks: int
    """Pairs."""
    candidate_rate: float | None
    """Mean over the paired tasks."""
    baseline_rate: float | None
    """Mean over the same tasks."""
    difference: float | None
    """candidate_rate − baseline_rate."""
    se: float | None
    """Standard error over tasks."""
    ci_low: float | None
    """Lower bound of the difference."""
    ci_high: float | None
    """Upper bound."""
    p_value: float | None
    """Two-sided; None where there are too few tasks."""
    test: str
    """`sign_flip`."""
    method: str
    """`exact`, or `draws` where the p-value was estimated by seeded draws."""
    improved: int
    """Tasks whose rate rose."""
    worsened: int
    """Tasks whose rate fell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedOverall:
    """All pairs together."""

    difference: Difference
    verdict: Change


@dataclass(frozen=True, slots=True, kw_only=True)
class PairedStratum:
    """The pairs of one stratum."""

    key: str
    value: str
    difference: Difference
    p_adjusted: float | None
    """Benjamini-Hochberg over all tested strata of the report; None where thin."""
    verdict: Change

    @property
    def name(self) -> str:
        """`key=value`."""
        return f"{self.key}={self.value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskNames:
    """Some tasks: how many, and the first of them by name."""

    num_tasks: int = 0
    first: tuple[str, ...] = ()

    def __str__(self) -> str:
        """`a, b and 3 more`."""
        shown = ", ".join(self.first[:5])
        return f"{shown} and {self.num_tasks - 5} more" if self.num_tasks > 5 else shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Paired:
    """The comparison with a baseline."""

    overall: PairedOverall
    strata: tuple[PairedStratum, ...]
    """Worsened strata first, then by difference, the worst first."""
    only_candidate: TaskNames
    """Tasks that the baseline did not draw."""
    only_baseline: TaskNames
    """Tasks that the candidate did not draw."""
    unscored: TaskNames
    """Tasks drawn on both sides without a scored slot on one of them."""

    @property
    def worsened(self) -> tuple[PairedStratum, ...]:
        """Strata that got significantly worse."""
        return tuple(stratum for stratum in self.strata if stratum.verdict == Change.WORSENED)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateTest:
    """One member of the gate's Holm family."""

    key: str
    """`overall` or a stratum key."""
    value: str
    n_tasks: int
    difference: float | None
    p_value: float | None
    """One-sided, for a drop beyond the margin; None where there are too few tasks to test."""
    p_adjusted: float | None
    """Holm."""
    regressed: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """What the gate decided, and why."""

    settings: Mapping[str, Any]
    """The gate as it was read."""
    reasons: tuple[str, ...]
    """Everything that speaks against PASS; empty for PASS."""
    tests: tuple[GateTest, ...]
    """The family, untested members (p_value None) included."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Count:
    """A count and its share of a total; the share is None where the total is 0."""

    count: int
    share: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """How the episodes went: one trajectory a slot, its last attempt."""

    num_trajectories: int = 0
    num_retries: int = 0
    """Further attempts at slots whose infrastructure failed."""
    turns_per_trajectory: float | None = None
    """Assistant messages."""
    tool_calls_per_trajectory: float | None = None
    """Calls written, valid or not."""
    num_tool_calls: int = 0
    """Calls written, over all trajectories."""
    tool_calls: Mapping[str, Count] = field(default_factory=dict[str, Count])
    """Level (parsed, known, valid, executed, succeeded) → calls that reached it."""
    truncated: Count = field(default_factory=lambda: Count(count=0, share=None))
    """Trajectories that a limit of tokens, turns, calls or context cut off."""
    stop_reasons: Mapping[str, Count] = field(default_factory=dict[str, Count])
    """Stop reason → trajectories."""
    infrastructure_errors: Count = field(default_factory=lambda: Count(count=0, share=None))
    """Expected slots without a value because something failed, or that have no score row at all."""
    unscored: Mapping[str, int] = field(default_factory=dict[str, int])
    """Why slots have no value: an unscored reason, `withheld`, or `missing` for no score row."""
    judged_by: Mapping[str, int] = field(default_factory=dict[str, int])
    """Who gave the value: `verifier`, `judge`, `rule_fallback`, `human`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What the trajectories cost, retries included. Seconds are summed over trajectories unless said otherwise."""

    prompt_tokens: int = 0
    """Context tokens read, summed over turns."""
    cached_tokens: int = 0
    """Part of them from the engine's cache."""
    completion_tokens: int = 0
    """Tokens produced."""
    tokens_per_task: float | None = None
    """Prompt and completion tokens over tasks drawn."""
    tokens_per_success: float | None = None
    """The same over passed slots; None where nothing passed."""
    cached_share: float | None = None
    """cached_tokens / prompt_tokens."""
    queue_s: float = 0.0
    """Waiting for the engine."""
    engine_s: float = 0.0
    """In the engine."""
    environment_s: float = 0.0
    """In environments and tools."""
    sandbox_s: float = 0.0
    """Life time of sandboxes."""
    verify_s: float = 0.0
    """Verification."""
    wall_s: float = 0.0
    """From start to end of each trajectory."""
    elapsed_s: float | None = None
    """From the first start to the last end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SideInputs:
    """What was read for one side, by lineage."""

    scores: tuple[str, ...] = ()
    """Score shards."""
    num_scores: int = 0
    num_trajectories: int = 0
    """Rows, retries included."""
    num_draws: int = 0
    num_tasks: int = 0
    policy_versions: tuple[int, ...] = ()
    """Versions that produced tokens: oldest and newest of every trajectory."""
    models: tuple[str, ...] = ()
    """Model or policy directories that engines served."""
    engines: tuple[str, ...] = ()
    sampling: tuple[Mapping[str, Any], ...] = ()
    """Distinct sampling settings."""
    verifiers: tuple[str, ...] = ()
    """`name version` of each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """One side of the report."""

    overall: Success
    process: Process
    cost: Cost
    inputs: SideInputs


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The whole report."""

    outcome: Outcome
    confidence: float
    candidate: Side
    strata: tuple[Stratum, ...]
    baseline: Side | None = None
    paired: Paired | None = None
    gate: GateResult | None = None
    warnings: tuple[str, ...] = ()

    @property
    def overall(self) -> Success:
        """Success of the candidate."""
        return self.candidate.overall

    @property
    def exit_code(self) -> ExitCode:
        """The exit code that goes with the verdict."""
        return self.outcome.exit_code

    def to_json(self) -> dict[str, Any]:
        """`eval.json`: plain dictionaries, lists, strings, finite numbers, booleans and None."""
        inputs = {"candidate": _plain(self.candidate.inputs)}
        if self.baseline is not None:
            inputs["baseline"] = _plain(self.baseline.inputs)
        return {
            "schema_version": EVAL_SCHEMA_VERSION,
            "verdict": self.outcome.value,
            "exit_code": int(self.exit_code),
            "confidence": self.confidence,
            "overall": _plain(self.overall),
            "strata": [
                {"key": stratum.key, "value": stratum.value, "fixed": stratum.fixed, **_plain(stratum.success)}
                for stratum in self.strata
            ],
            "paired": None if self.paired is None else _paired_json(self.paired),
            "gate": None if self.gate is None else _plain(self.gate),
            "process": _plain(self.candidate.process),
            "cost": _plain(self.candidate.cost),
            "baseline": None if self.baseline is None else _side_json(self.baseline),
            "inputs": inputs,
            "warnings": list(self.warnings),
        }


def _plain(row: Any) -> Any:
    return _lists(asdict(row))


def _lists(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _lists(part) for key, part in cast("dict[str, Any]", value).items()}
    if isinstance(value, list | tuple):
        return [_lists(part) for part in cast("list[Any]", value)]
    return value


def _side_json(side: Side) -> dict[str, Any]:
    return {"overall": _plain(side.overall), "process": _plain(side.process), "cost": _plain(side.cost)}


def _paired_json(paired: Paired) -> dict[str, Any]:
    return {
        "overall": {**_plain(paired.overall.difference), "verdict": paired.overall.verdict.value},
        "strata": [
            {
                "key": stratum.key,
                "value": stratum.value,
                **_plain(stratum.difference),
                "p_adjusted": stratum.p_adjusted,
                "verdict": stratum.verdict.value,
            }
            for stratum in paired.strata
        ],
        "worsened": [stratum.name for stratum in paired.worsened],
        "only_candidate": _plain(paired.only_candidate),
        "only_baseline": _plain(paired.only_baseline),
        "unscored": _plain(paired.unscored),
    }
