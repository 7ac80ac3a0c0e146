"""`gate.toml` → verdict. One Holm family, overall and every stratum with enough tasks; sign-flip tests with a margin.

    min_coverage = 0.95         below it on either side the verdict is never PASS
    margin = 0.0                allowed drop of the rate, overall and in each stratum
    alpha = 0.05                level of the whole family
    strata = ["domain"]         what is tested beside overall; left out: the strata of the report
    min_rate = 0.6              the interval of the overall rate is compared with it; needs no baseline
    allow_differences = false   compare although sampling settings, verifiers or environments differ

Left out so far: tiers, non-inferiority, and what would settle an inconclusive result.
"""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from fractions import Fraction
from pathlib import Path
from typing import Any, cast

from ptctl.errors import InputNotFound, UsageError
from ptctl.evaluation.comparison import MIN_TASKS, Pairs, differences_of, exact_rate
from ptctl.evaluation.frames import Int64Array, TaskCounts
from ptctl.evaluation.report import OVERALL, GateResult, GateTest, Outcome, Success
from ptctl.evaluation.strata import check_keys, is_fixed
from ptctl.stats import exceeds_allowed_drop, holm, sign_flip_test


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate:
    """What CI asks of an evaluation. See the module for the meaning of each key."""

    min_coverage: float = 0.95
    margin: float = 0.0
    alpha: float = 0.05
    strata: tuple[str, ...] | None = None
    min_rate: float | None = None
    allow_differences: bool = False


def load_gate(path: Path) -> Gate:
    """Read a gate. Raises InputNotFound, or UsageError that lists everything wrong with it, by line."""
    try:
        text = path.read_text(encoding="utf-8")
        written = tomllib.loads(text)
    except FileNotFoundError as error:
        raise InputNotFound(f"no gate at {path}") from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, OSError) as error:
        raise UsageError(f"cannot read the gate {path}: {error}", hint="a gate is a small TOML file") from error
    known = [field.name for field in fields(Gate)]
    faults = [
        f"{path}:{_line(text, key)}: {fault}"
        for key, value in written.items()
        if (fault := _fault(key, value, known)) is not None
    ]
    if faults:
        raise UsageError("; ".join(faults), hint=f"known: {', '.join(known)}")
    return Gate(**{key: _typed(value) for key, value in written.items()})


def _typed(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(cast("list[str]", value))
    return float(value) if isinstance(value, int) and not isinstance(value, bool) else value


def _line(text: str, key: str) -> int:
    lines = text.splitlines()
    return next((number for number, line in enumerate(lines, start=1) if line.strip().strip("[\"'").startswith(key)), 1)


def _fault(key: str, value: Any, known: Sequence[str]) -> str | None:
    if key not in known:
        near = difflib.get_close_matches(key, known, n=1)
        return f"unknown key {key!r}" + (f", did you mean {near[0]!r}?" if near else "")
    if key == "strata":
        return _strata_fault(value)
    if key == "allow_differences":
        return None if isinstance(value, bool) else f"{key} must be true or false"
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not 0.0 <= value <= 1.0 or (key == "alpha" and not 0.0 < value < 1.0):
        return f"{key} must be a number between 0 and 1, not {value!r}"
    return None


def _strata_fault(value: Any) -> str | None:
    if not isinstance(value, list) or not all(isinstance(key, str) for key in cast("list[Any]", value)):
        return "strata must be a list of names"
    keys = cast("list[str]", value)
    try:
        check_keys(keys)
    except UsageError as error:
        return str(error)
    moving = [key for key in keys if not is_fixed(key)]
    return f"{moving[0]!r} is what the candidate did; a gate tests what was fixed before the run" if moving else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What a gate looks at."""

    candidate: Success
    baseline: Success | None = None
    pairs: Pairs | None = None
    cells: Mapping[tuple[str, str], Int64Array] | None = None
    """(key, value) → positions in the pairs, for the gate's strata."""


def judge(gate: Gate, evidence: Evidence) -> tuple[Outcome, GateResult]:
    """Decide. What is significantly worse is REGRESSED also where the data are incomplete; neither is ever PASS.

    Raises UsageError for a gate that has nothing to compare with.
    """
    if evidence.pairs is None and gate.min_rate is None:
        raise UsageError("the gate has nothing to compare with", hint="give --baseline, or min_rate in the gate")
    tests = () if evidence.pairs is None else _family(gate, evidence.pairs, evidence.cells or {})
    regressions = [_worse(test) for test in tests if test.regressed]
    doubts = _coverage_doubts(gate, evidence)
    if evidence.pairs is not None:
        doubts += _pairing_doubts(gate, evidence.pairs)
    if gate.min_rate is not None:
        below, unsure = _against_min_rate(gate.min_rate, evidence.candidate)
        regressions += below
        doubts += unsure
    outcome = Outcome.REGRESSED if regressions else Outcome.INCONCLUSIVE if doubts else Outcome.PASS
    return outcome, GateResult(settings=asdict(gate), reasons=(*regressions, *doubts), tests=tests)


def _family(gate: Gate, pairs: Pairs, cells: Mapping[tuple[str, str], Int64Array]) -> tuple[GateTest, ...]:
    members: list[tuple[str, str, TaskCounts, TaskCounts]] = [(OVERALL, OVERALL, pairs.candidate, pairs.baseline)]
    members += [(key, value, *pairs.take(positions)) for (key, value), positions in cells.items()]
    drops = [differences_of(candidate, baseline) for _, _, candidate, baseline in members]
    p_values = [
        _p_value(values, gate.margin, 1 if key == OVERALL else MIN_TASKS)
        for (key, *_), values in zip(members, drops, strict=True)
    ]
    return tuple(
        GateTest(
            key=key,
            value=value,
            n_tasks=len(values),
            difference=_mean(candidate, baseline),
            p_value=p_value,
            p_adjusted=p_adjusted,
            regressed=p_adjusted is not None
            and p_adjusted <= gate.alpha
            and exceeds_allowed_drop(
                baseline=exact_rate(baseline), candidate=exact_rate(candidate), allowed_drop=gate.margin
            ),
        )
        for (key, value, candidate, baseline), values, p_value, p_adjusted in zip(
            members, drops, p_values, holm(p_values), strict=True
        )
    )


def _p_value(differences: Sequence[float], margin: float, min_tasks: int) -> float | None:
    if len(differences) < min_tasks:
        return None
    return sign_flip_test([value + margin for value in differences]).p_less


def _mean(candidate: TaskCounts, baseline: TaskCounts) -> float | None:
    if not len(candidate.n_scored):
        return None
    (a, b), (c, d) = exact_rate(candidate), exact_rate(baseline)
    return (a * d - c * b) / (b * d)


def _worse(test: GateTest) -> str:
    where = OVERALL if test.key == OVERALL else f"{test.key}={test.value}"
    return f"{where} fell by {-(test.difference or 0.0):.3f} (p {test.p_adjusted:.2g} after Holm, {test.n_tasks} tasks)"


def _coverage_doubts(gate: Gate, evidence: Evidence) -> list[str]:
    doubts: list[str] = []
    for name, side in (("candidate", evidence.candidate), ("baseline", evidence.baseline)):
        # In exact numbers: 19 of 20 slots are a coverage of .95, which in doubles depends on how it is written.
        if side is not None and side.n_scored < Fraction(repr(gate.min_coverage)) * side.n_slots:
            doubts.append(
                f"{name}: {side.n_scored} of {side.n_slots} slots are scored, "
                f"a coverage of {side.coverage or 0.0:.3f} below {gate.min_coverage:g}"
            )
    return doubts


def _pairing_doubts(gate: Gate, pairs: Pairs) -> list[str]:
    doubts: list[str] = []
    if pairs.only_baseline.num_tasks:
        doubts.append(f"{pairs.only_baseline.num_tasks} tasks of the baseline were not drawn: {pairs.only_baseline}")
    if pairs.only_candidate.num_tasks:
        doubts.append(f"{pairs.only_candidate.num_tasks} tasks are not in the baseline: {pairs.only_candidate}")
    n = len(pairs.candidate.n_scored)
    if 0.5**n > gate.alpha:
        doubts.append(f"{n} pairs of tasks cannot show a drop at the level {gate.alpha:g}, however large it is")
    return doubts


def _against_min_rate(min_rate: float, success: Success) -> tuple[list[str], list[str]]:
    """Regressions and doubts."""
    low, high = success.ci_low, success.ci_high
    if low is None or high is None or low >= min_rate:
        return [], []
    interval = f"the rate {success.rate:.3f} [{low:.3f}, {high:.3f}]"
    if high < min_rate:
        return [f"{interval} is below min_rate {min_rate:g}"], []
    return [], [f"{interval} does not settle whether it reaches min_rate {min_rate:g}"]
