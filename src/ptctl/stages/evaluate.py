"""`eval`: tasks ⨝ trajectories ⨝ scores (+ a baseline) → report. Writes nothing; `ptctl.reports` renders it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptctl.errors import DigestMismatch, UsageError
from ptctl.evaluation.comparison import Pairs, compare, pair, success_of
from ptctl.evaluation.frames import EMPTY_COUNTS, Int64Array, TaskCounts, Tasks, open_side, read_call_counts, read_tasks
from ptctl.evaluation.gate import Evidence, Gate, judge
from ptctl.evaluation.lineage import follow
from ptctl.evaluation.process import load_calls, read_cost, read_inputs, read_process
from ptctl.evaluation.report import (
    Change,
    Cost,
    GateResult,
    Outcome,
    Paired,
    Process,
    Report,
    Side,
    SideInputs,
    Stratum,
)
from ptctl.evaluation.strata import (
    BEHAVIOUR_KEY,
    CALL_BOUNDS,
    CALL_VALUES,
    UNKNOWN,
    Partition,
    check_keys,
    cut,
    is_fixed,
)

DEFAULT_STRATA = ("domain", "family")
DEFAULT_CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluateOptions:
    """What one call of `run` needs."""

    scores: Sequence[Path]
    """Score shards of the candidate; none gives NOTHING_EVALUATED."""
    baseline: Sequence[Path] = ()
    """Score shards to compare with."""
    strata: Sequence[str] = DEFAULT_STRATA
    """Keys by which success is broken down: see `ptctl.evaluation.strata`."""
    gate: Gate | None = None
    """What decides the verdict; None reports only."""
    confidence: float = DEFAULT_CONFIDENCE
    """Of intervals; 1 − confidence is the level at which a stratum is called improved or worsened."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Loaded:
    """One side, out of the database."""

    tasks: Tasks
    calls: Mapping[int | None, TaskCounts]
    """Bin of `num_tool_calls` → counts; empty where it was not asked for."""
    side: Side


def run(options: EvaluateOptions) -> Report:
    """Evaluate. The numbers do not depend on the order of shards or arguments.

    Raises UsageError for an unknown stratum key or confidence, and what `lineage.follow`, `frames.open_side` and
    `comparison.pair` raise for data that are not right.
    """
    if not 0.0 < options.confidence < 1.0:
        raise UsageError(f"confidence must be between 0 and 1, not {options.confidence}")
    gate_keys = _gate_keys(options)
    keys = check_keys((*options.strata, *gate_keys))
    candidate = _load(options.scores, keys, options.confidence)
    baseline = _load(options.baseline, keys, options.confidence) if options.baseline else None
    partitions = [_partition(key, candidate, baseline) for key in keys if is_fixed(key)]
    pairs = None if baseline is None else pair(candidate.tasks, baseline.tasks)
    cells = {} if pairs is None else _paired_cells(partitions, candidate.tasks, pairs)
    paired = None if pairs is None else compare(pairs, cells, options.confidence)
    differing = [] if baseline is None else _differing_settings(candidate, baseline)
    outcome, gate = _decide(options, candidate, baseline, pairs, cells, gate_keys, differing)
    return Report(
        outcome=outcome,
        confidence=options.confidence,
        candidate=candidate.side,
        strata=_strata(keys, partitions, candidate, options.confidence),
        baseline=None if baseline is None else baseline.side,
        paired=paired,
        gate=gate,
        warnings=_warnings(candidate, baseline, paired, partitions, differing),
    )


def _gate_keys(options: EvaluateOptions) -> tuple[str, ...]:
    """The gate's strata; where it names none, those of the report that were fixed before the run."""
    if options.gate is None:
        return ()
    keys = tuple(options.strata) if options.gate.strata is None else options.gate.strata
    if options.gate.strata is not None and (moving := [key for key in keys if not is_fixed(key)]):
        raise UsageError(f"{moving[0]!r} is what the candidate did; a gate tests what was fixed before the run")
    return tuple(key for key in keys if is_fixed(key))


def _load(scores: Sequence[Path], keys: Sequence[str], confidence: float) -> _Loaded:
    if not scores:
        nothing = Tasks(facts=dict.fromkeys(keys, ()))
        side = Side(overall=success_of(EMPTY_COUNTS, confidence), process=Process(), cost=Cost(), inputs=SideInputs())
        return _Loaded(tasks=nothing, calls={}, side=side)
    shards = follow(scores)
    with open_side(shards, keys) as database:
        load_calls(database, shards.trajectories)
        tasks = read_tasks(database, keys)
        side = Side(
            overall=success_of(tasks.counts, confidence),
            process=read_process(database),
            cost=read_cost(database),
            inputs=read_inputs(database, shards),
        )
        calls = read_call_counts(database, CALL_BOUNDS) if BEHAVIOUR_KEY in keys else {}
    return _Loaded(tasks=tasks, calls=calls, side=side)


def _partition(key: str, candidate: _Loaded, baseline: _Loaded | None) -> Partition:
    """Cut on the tasks of both sides, each once, so that tasks that one side lacks do not move the cut."""
    facts: dict[str, Any] = {}
    for side in (candidate, baseline):
        if side is not None:
            for task_id, raw in zip(side.tasks.task_ids, side.tasks.facts[key], strict=True):
                facts.setdefault(task_id, raw)
    return cut(key, list(facts.values()))


def _strata(
    keys: Sequence[str], partitions: Sequence[Partition], candidate: _Loaded, confidence: float
) -> tuple[Stratum, ...]:
    by_key = {partition.key: partition for partition in partitions}
    strata: list[Stratum] = []
    for key in keys:
        for value, counts in _cells(by_key.get(key), candidate).items():
            success = success_of(counts, confidence)
            strata.append(Stratum(key=key, value=value, fixed=is_fixed(key), success=success))
    return tuple(strata)


def _cells(partition: Partition | None, candidate: _Loaded) -> dict[str, TaskCounts]:
    if partition is not None:
        members = partition.members(candidate.tasks.facts[partition.key])
        return {value: candidate.tasks.counts.take(positions) for value, positions in members.items()}
    cells = {value: candidate.calls.get(b, EMPTY_COUNTS) for b, value in enumerate(CALL_VALUES)}
    return cells | ({UNKNOWN: candidate.calls[None]} if None in candidate.calls else {})


def _paired_cells(partitions: Sequence[Partition], tasks: Tasks, pairs: Pairs) -> dict[tuple[str, str], Int64Array]:
    """(key, value) → positions in the pairs."""
    cells: dict[tuple[str, str], Int64Array] = {}
    for partition in partitions:
        facts = [tasks.facts[partition.key][position] for position in pairs.candidate_positions]
        for value, members in partition.members(facts).items():
            cells[partition.key, value] = members
    return cells


def _decide(
    options: EvaluateOptions,
    candidate: _Loaded,
    baseline: _Loaded | None,
    pairs: Pairs | None,
    cells: Mapping[tuple[str, str], Int64Array],
    gate_keys: Sequence[str],
    differing: Sequence[str],
) -> tuple[Outcome, GateResult | None]:
    if candidate.side.overall.n_scored == 0:
        return Outcome.NOTHING_EVALUATED, None
    if options.gate is None:
        return Outcome.REPORTED, None
    if differing and not options.gate.allow_differences:
        raise DigestMismatch(
            f"the two sides cannot be compared: {'; '.join(differing)}",
            hint="evaluate the baseline again, or say allow_differences = true in the gate",
        )
    evidence = Evidence(
        candidate=candidate.side.overall,
        baseline=None if baseline is None else baseline.side.overall,
        pairs=pairs,
        cells={name: members for name, members in cells.items() if name[0] in gate_keys},
    )
    return judge(options.gate, evidence)


def _versions(verifiers: Sequence[str]) -> dict[str, list[str]]:
    """Verifier → its versions."""
    versions: dict[str, list[str]] = {}
    for verifier in verifiers:
        name, _, version = verifier.partition(" ")
        versions.setdefault(name, []).append(version)
    return versions


def _differing_settings(candidate: _Loaded, baseline: _Loaded) -> list[str]:
    """What beside the policy is not the same on the two sides."""
    ours, theirs = candidate.side.inputs, baseline.side.inputs
    mine, others = _versions(ours.verifiers), _versions(theirs.verifiers)
    # A verifier that gave no value at all on one side is a matter of coverage.
    differing = [
        f"verifier {name} {', '.join(mine[name])} against {', '.join(others[name])} in the baseline"
        for name in mine
        if name in others and mine[name] != others[name]
    ]
    if ours.sampling != theirs.sampling:
        changed = sorted(
            {
                name
                for setting in ours.sampling
                for other in theirs.sampling
                for name in setting
                if setting[name] != other.get(name)
            }
        )
        differing.append(f"sampling settings ({', '.join(changed)})")
    environments = dict(zip(baseline.tasks.task_ids, baseline.tasks.environments, strict=True))
    changed_tasks = [
        task_id
        for task_id, environment in zip(candidate.tasks.task_ids, candidate.tasks.environments, strict=True)
        if environment and environments.get(task_id) and environments[task_id] != environment
    ]
    if changed_tasks:
        differing.append(f"the environment of {len(changed_tasks)} tasks, such as {changed_tasks[0]}")
    return differing


def _warnings(
    candidate: _Loaded,
    baseline: _Loaded | None,
    paired: Paired | None,
    partitions: Sequence[Partition],
    differing: Sequence[str],
) -> tuple[str, ...]:
    warnings: list[str] = []
    if paired is not None:
        warnings += _pairing_warnings(paired)
    warnings += [f"the two sides differ: {what}" for what in differing]
    for name, side in (("candidate", candidate), ("baseline", baseline)):
        if side is not None:
            warnings += _side_warnings(name, side.side)
    warnings += [
        f"no task says anything of {partition.key}" for partition in partitions if partition.values == (UNKNOWN,)
    ]
    return tuple(warnings)


def _pairing_warnings(paired: Paired) -> list[str]:
    warnings = [
        f"{stratum.name} got worse: {stratum.difference.difference:+.3f} "
        f"(p {stratum.p_adjusted:.2g} adjusted, {stratum.difference.n_tasks} tasks)"
        for stratum in paired.worsened
    ]
    if paired.overall.verdict == Change.WORSENED:
        warnings.insert(0, f"the rate got worse: {paired.overall.difference.difference:+.3f}")
    for names, what in (
        (paired.only_candidate, "only the candidate was given"),
        (paired.only_baseline, "only the baseline was given"),
        (paired.unscored, "are not scored on both sides"),
    ):
        if names.num_tasks:
            warnings.append(f"not compared, {names.num_tasks} tasks that {what}: {names}")
    return warnings


def _side_warnings(name: str, side: Side) -> list[str]:
    success, process = side.overall, side.process
    warnings: list[str] = []
    if success.n_scored < success.n_slots:
        why = ", ".join(f"{count} {reason}" for reason, count in process.unscored.items())
        warnings.append(f"{name}: {success.n_slots - success.n_scored} of {success.n_slots} slots have no score: {why}")
    fallback = process.judged_by.get("rule_fallback", 0)
    if fallback:
        warnings.append(f"{name}: {fallback} of {success.n_scored} scores are by rule because the judge failed")
    return warnings
