"""Success of some tasks, and candidate against baseline by task. The formulas are in `ptctl.stats`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import cast

import numpy as np

from ptctl.errors import DigestMismatch
from ptctl.evaluation.frames import Int64Array, TaskCounts, Tasks
from ptctl.evaluation.report import Change, Difference, Paired, PairedOverall, PairedStratum, Success, TaskNames
from ptctl.stats import (
    PairedDifference,
    SignFlipTest,
    benjamini_hochberg,
    coverage,
    paired_difference,
    rate_interval,
    sign_flip_test,
    task_differences,
    task_means,
)

MIN_TASKS = 8
"""A stratum with fewer tasks is shown as thin and not tested."""
MAX_NAMES = 100
"""Names of tasks that are kept where many are to be named."""


def success_of(counts: TaskCounts, confidence: float) -> Success:
    """Rate, interval and coverage of some tasks. A task without a scored slot counts in the coverage alone."""
    interval = rate_interval(_ints(counts.n_success), _ints(counts.n_scored), confidence=confidence)
    n_slots, n_scored = int(counts.n_slots.sum()), int(counts.n_scored.sum())
    known = counts.n_rewards > 0
    rewards = (counts.reward_sum[known] / counts.n_rewards[known]).tolist()
    return Success(
        n_tasks=len(counts.n_slots),
        n_scored_tasks=interval.n_tasks,
        n_slots=n_slots,
        n_scored=n_scored,
        n_success=int(counts.n_success.sum()),
        coverage=coverage(n_scored, n_slots),
        rate=interval.rate,
        ci_low=interval.ci_low,
        ci_high=interval.ci_high,
        thin=interval.n_tasks < MIN_TASKS,
        mean_reward=math.fsum(rewards) / len(rewards) if rewards else None,
    )


def _ints(values: Int64Array) -> list[int]:
    return cast("list[int]", values.tolist())


@dataclass(frozen=True, slots=True, kw_only=True)
class Pairs:
    """Tasks that are scored on both sides, in order of task_id, and those that are not."""

    candidate: TaskCounts  # [n]
    baseline: TaskCounts  # [n]
    candidate_positions: Int64Array  # [n] into the candidate's tasks
    only_candidate: TaskNames
    only_baseline: TaskNames
    unscored: TaskNames

    def take(self, members: Int64Array) -> tuple[TaskCounts, TaskCounts]:
        """Both sides of some of the pairs."""
        return self.candidate.take(members), self.baseline.take(members)


def pair(candidate: Tasks, baseline: Tasks) -> Pairs:
    """Match tasks by task_id. Raises DigestMismatch, naming the task, where the two sides played different tasks."""
    position_in_baseline = {task_id: position for position, task_id in enumerate(baseline.task_ids)}
    ours: list[int] = []
    theirs: list[int] = []
    only_candidate: list[str] = []
    unscored: list[str] = []
    for position, task_id in enumerate(candidate.task_ids):
        other = position_in_baseline.get(task_id)
        if other is None:
            only_candidate.append(task_id)
            continue
        if candidate.task_digests[position] != baseline.task_digests[other]:
            raise DigestMismatch(
                f"task {task_id!r} is another task on the two sides: digest {candidate.task_digests[position][:12]} "
                f"against {baseline.task_digests[other][:12]} in the baseline",
                hint="evaluate the baseline again on the tasks of today",
            )
        if candidate.counts.n_scored[position] and baseline.counts.n_scored[other]:
            ours.append(position)
            theirs.append(other)
        else:
            unscored.append(task_id)
    drawn = set(candidate.task_ids)
    only_baseline = [task_id for task_id in baseline.task_ids if task_id not in drawn]
    positions = np.asarray(ours, dtype=np.int64)
    return Pairs(
        candidate=candidate.counts.take(positions),
        baseline=baseline.counts.take(np.asarray(theirs, dtype=np.int64)),
        candidate_positions=positions,
        only_candidate=_names(only_candidate),
        only_baseline=_names(only_baseline),
        unscored=_names(unscored),
    )


def _names(task_ids: Sequence[str]) -> TaskNames:
    return TaskNames(num_tasks=len(task_ids), first=tuple(task_ids[:MAX_NAMES]))


def differences_of(candidate: TaskCounts, baseline: TaskCounts) -> list[float]:
    """# [n] task means, candidate minus baseline."""
    after = task_means(_ints(candidate.n_success), _ints(candidate.n_scored))
    before = task_means(_ints(baseline.n_success), _ints(baseline.n_scored))
    return task_differences(after, before)


def exact_rate(counts: TaskCounts) -> tuple[int, int]:
    """Macro mean of scored tasks as (numerator, denominator), for comparisons that must not round."""
    total = Fraction(0)
    for slots in np.unique(counts.n_scored):
        total += Fraction(int(counts.n_success[counts.n_scored == slots].sum()), int(slots))
    return (total / max(len(counts.n_scored), 1)).as_integer_ratio()


def difference_of(candidate: TaskCounts, baseline: TaskCounts, confidence: float, *, min_tasks: int = 1) -> Difference:
    """Compare the same tasks on two sides. Below `min_tasks` tasks there is no p-value."""
    values = differences_of(candidate, baseline)
    spread: PairedDifference = paired_difference(values, confidence=confidence)
    flips: SignFlipTest = sign_flip_test(values)
    return Difference(
        n_tasks=len(values),
        candidate_rate=_mean_rate(candidate),
        baseline_rate=_mean_rate(baseline),
        difference=spread.difference,
        se=spread.se,
        ci_low=spread.ci_low,
        ci_high=spread.ci_high,
        p_value=flips.p_two_sided if len(values) >= min_tasks else None,
        test="sign_flip",
        method=flips.method,
        improved=sum(value > 0 for value in values),
        worsened=sum(value < 0 for value in values),
    )


def _mean_rate(counts: TaskCounts) -> float | None:
    return rate_interval(_ints(counts.n_success), _ints(counts.n_scored)).rate


def change_of(difference: Difference, p_adjusted: float | None, alpha: float) -> Change:
    """What a comparison says at the level `alpha`."""
    if p_adjusted is None or difference.difference is None:
        return Change.THIN
    if difference.improved == 0 and difference.worsened == 0:
        return Change.UNCHANGED
    if p_adjusted > alpha:
        return Change.UNCLEAR
    return Change.WORSENED if difference.difference < 0 else Change.IMPROVED


def compare(pairs: Pairs, cells: Mapping[tuple[str, str], Int64Array], confidence: float) -> Paired:
    """The comparison overall and by stratum; `cells` holds positions in the pairs.

    Strata are an exploration: their p-values are adjusted by Benjamini-Hochberg. The gate tests them again, by Holm.
    """
    alpha = 1.0 - confidence
    overall = difference_of(pairs.candidate, pairs.baseline, confidence)
    found = [
        (key, value, difference_of(*pairs.take(members), confidence, min_tasks=MIN_TASKS))
        for (key, value), members in cells.items()
    ]
    adjusted = benjamini_hochberg([difference.p_value for _, _, difference in found])
    strata = [
        PairedStratum(
            key=key, value=value, difference=difference, p_adjusted=p, verdict=change_of(difference, p, alpha)
        )
        for (key, value, difference), p in zip(found, adjusted, strict=True)
    ]
    return Paired(
        overall=PairedOverall(difference=overall, verdict=change_of(overall, overall.p_value, alpha)),
        strata=tuple(sorted(strata, key=_worst_first)),
        only_candidate=pairs.only_candidate,
        only_baseline=pairs.only_baseline,
        unscored=pairs.unscored,
    )


def _worst_first(stratum: PairedStratum) -> tuple[bool, bool, float]:
    difference = stratum.difference.difference
    return stratum.verdict != Change.WORSENED, difference is None, difference or 0.0
