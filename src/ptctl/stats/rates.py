"""Success rates over tasks: means, Wilson intervals with an effective size, coverage.

A task is a cluster. Several attempts at one task are not independent, so everything here works on the task means
y_i = c_i / k_i (c_i successes in k_i scored slots). Sums go through `math.fsum`, which rounds once: the order in which
tasks arrive cannot change a bit of the report.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ptctl.errors import DataError, UsageError
from ptctl.stats.distributions import two_sided_z

SUCCESS_TOLERANCE = 1e-6
"""A reward of at least 1 - SUCCESS_TOLERANCE is a success. A positive partial reward is not."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Interval:
    """A success rate over tasks with its confidence interval.

    `rate`, `ci_low`, `ci_high`, `n_eff` and `deff` are None when no task has a scored slot; `thin` marks an interval
    that rests on a single task, where the variance between tasks cannot be seen.
    """

    n_tasks: int
    n_slots: int
    rate: float | None
    ci_low: float | None
    ci_high: float | None
    n_eff: float | None
    deff: float | None
    thin: bool


def is_success(reward: float) -> bool:
    """Say whether a known reward counts as a success (>= 1 - SUCCESS_TOLERANCE)."""
    return reward >= 1.0 - SUCCESS_TOLERANCE


def coverage(num_scored: int, num_expected: int) -> float | None:
    """Return scored slots over expected slots, None when none was expected.

    A trajectory without a reward is neither a failure nor dropped: it lowers this number.
    """
    if not 0 <= num_scored <= num_expected:
        raise DataError(f"{num_scored} scored slots of {num_expected} expected ones")
    return num_scored / num_expected if num_expected else None


def task_means(successes_per_task: Sequence[int], slots_per_task: Sequence[int]) -> list[float]:
    """Return y_i = c_i / k_i of every task that has a scored slot, in the given order."""
    _check_counts(successes_per_task, slots_per_task)
    return [c / k for c, k in zip(successes_per_task, slots_per_task, strict=True) if k]


def macro_mean(successes_per_task: Sequence[int], slots_per_task: Sequence[int]) -> float | None:
    """Return the mean of the task means, None without a scored task. This is the rate that is reported."""
    means = task_means(successes_per_task, slots_per_task)
    return math.fsum(means) / len(means) if means else None


def micro_mean(successes_per_task: Sequence[int], slots_per_task: Sequence[int]) -> float | None:
    """Return successes over slots, None without a scored slot.

    Show it only where `equal_slots` holds: otherwise it weighs a task by how often it happened to be attempted.
    """
    _check_counts(successes_per_task, slots_per_task)
    total = sum(slots_per_task)
    return sum(successes_per_task) / total if total else None


def equal_slots(slots_per_task: Sequence[int]) -> bool:
    """Say whether every task has the same number of scored slots."""
    return len(set(slots_per_task)) <= 1


def wilson_interval(
    num_successes: float, num_trials: float, *, confidence: float = 0.95, deff: float = 1.0
) -> tuple[float, float] | None:
    """Return the Wilson score interval (low, high), or None for no trials.

    Args:
        num_successes: may be fractional, as rate x effective size is.
        num_trials: trials before the division by `deff`.
        confidence: two-sided, 0.95 by default.
        deff: design effect >= 1; both counts are divided by it.

    Source: Wilson (1927), J. Am. Stat. Assoc. 22; effective size after Korn and Graubard (1998).
    Raises DataError for counts that contradict each other, UsageError for a bad confidence or design effect.
    """
    z = two_sided_z(confidence)
    if not deff >= 1.0:
        raise UsageError(f"a design effect must be at least 1, got {deff!r}")
    if not 0.0 <= num_successes <= num_trials:
        raise DataError(f"{num_successes!r} successes in {num_trials!r} trials")
    if num_trials == 0.0:
        return None
    rate, size = num_successes / num_trials, num_trials / deff
    spread = z * z / size
    centre = (rate + spread / 2.0) / (1.0 + spread)
    half = z * math.sqrt(rate * (1.0 - rate) / size + spread / (4.0 * size)) / (1.0 + spread)
    # At the borders the bound is 0 or 1 in exact arithmetic; rounding would leave 1e-17 or 0.9999999999999999.
    low = 0.0 if num_successes == 0.0 else max(0.0, centre - half)
    high = 1.0 if num_successes == num_trials else min(1.0, centre + half)
    return low, high


def rate_interval(
    successes_per_task: Sequence[int], slots_per_task: Sequence[int], *, confidence: float = 0.95
) -> Interval:
    """Return the macro rate of a stratum with a Wilson interval on its effective size.

    N_eff = n k / deff with deff = clamp(s2_y / (p (1 - p) / k), 1, k): between one observation a task and one a slot.
    Where the k_i differ, k is their harmonic mean, for which p (1 - p) / (n k) is the binomial variance of the macro
    mean. With p = 0 or 1, or a single task, the spread between tasks is not observable and deff = k.

    Args:
        successes_per_task: c_i, [n].
        slots_per_task: k_i, [n]: scored slots. A task with k_i = 0 has no rate; it is not counted here and shows up in
            `coverage`.
        confidence: two-sided, 0.95 by default.

    Raises DataError when the lengths differ or some c_i is not in 0..k_i.
    """
    means = task_means(successes_per_task, slots_per_task)
    slots = [k for k in slots_per_task if k]
    n_tasks = len(means)
    if n_tasks == 0:
        return Interval(n_tasks=0, n_slots=0, rate=None, ci_low=None, ci_high=None, n_eff=None, deff=None, thin=False)
    rate = math.fsum(means) / n_tasks
    slots_mean = n_tasks / math.fsum(1.0 / k for k in slots)
    num_successes = sum(successes_per_task)
    degenerate = num_successes == 0 or num_successes == sum(slots) or n_tasks == 1
    deff = slots_mean if degenerate else _clustering(means, rate, slots_mean)
    n_eff = n_tasks * slots_mean / deff
    bounds = wilson_interval(rate * n_eff, n_eff, confidence=confidence)
    low, high = bounds if bounds is not None else (None, None)
    return Interval(
        n_tasks=n_tasks,
        n_slots=sum(slots),
        rate=rate,
        ci_low=low,
        ci_high=high,
        n_eff=n_eff,
        deff=deff,
        thin=n_tasks == 1,
    )


def _clustering(means: Sequence[float], rate: float, slots_mean: float) -> float:
    variance = math.fsum((y - rate) ** 2 for y in means) / (len(means) - 1)
    return min(max(variance * slots_mean / (rate * (1.0 - rate)), 1.0), slots_mean)


def exceeds_allowed_drop(*, baseline: tuple[int, int], candidate: tuple[int, int], allowed_drop: float) -> bool:
    """Say whether the rate fell by more than `allowed_drop`, compared in exact fractions.

    `baseline` and `candidate` are (successes, slots). In doubles 10/10 against 9/10 fails an allowed drop of 0.10 or
    passes it depending on the side the subtraction is written on; here it is allowed.
    """
    for successes, slots in (baseline, candidate):
        if not 0 <= successes <= slots or slots == 0:
            raise DataError(f"{successes} successes in {slots} slots")
    # The shortest decimal of the float is what the user wrote: 0.1 means 1/10 and not the double next to it.
    return Fraction(*baseline) - Fraction(*candidate) > Fraction(repr(allowed_drop))


def _check_counts(successes_per_task: Sequence[int], slots_per_task: Sequence[int]) -> None:
    if len(successes_per_task) != len(slots_per_task):
        raise DataError(f"{len(successes_per_task)} success counts for {len(slots_per_task)} slot counts")
    for index, (successes, slots) in enumerate(zip(successes_per_task, slots_per_task, strict=True)):
        if not 0 <= successes <= slots:
            raise DataError(f"task {index} has {successes} successes in {slots} slots")
