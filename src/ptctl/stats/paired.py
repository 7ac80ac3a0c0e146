"""Candidate against baseline on the same tasks: Student t on task differences, and McNemar.

Differences are d_i = y_i(candidate) - y_i(baseline) on task means; attempt i is never paired with attempt i, which have
nothing in common but a number. Negative is worse, so `p_less` is the one-sided test for a regression.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptctl.errors import DataError
from ptctl.stats.clusters import standard_error
from ptctl.stats.distributions import student_t_quantile, student_t_sf

_CONSTANT_SPREAD = 1e-12


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedDifference:
    """Mean of the task differences with its t-test. Everything after `n_tasks` that is not defined is None.

    `difference` is None for no task, the rest for fewer than two. `p_less` tests for a drop, `p_greater` for a gain.
    """

    n_tasks: int
    difference: float | None = None
    se: float | None = None
    t: float | None = None
    df: int | None = None
    p_two_sided: float | None = None
    p_less: float | None = None
    p_greater: float | None = None
    ci_low: float | None = None
    ci_high: float | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class McNemarTest:
    """Exact McNemar test of discordant tasks; `p_regression` is one-sided for more regressions than improvements."""

    num_regressions: int
    num_improvements: int
    p_regression: float
    p_two_sided: float
    p_mid_two_sided: float


def task_differences(candidate: Sequence[float], baseline: Sequence[float]) -> list[float]:
    """Return candidate - baseline of task means that are already aligned by task_id and task digest."""
    if len(candidate) != len(baseline):
        raise DataError(f"{len(candidate)} candidate tasks for {len(baseline)} baseline tasks")
    return [after - before for after, before in zip(candidate, baseline, strict=True)]


def paired_difference(differences: Sequence[float], *, confidence: float = 0.95) -> PairedDifference:
    """Test the mean of the task differences with Student's t on n - 1 degrees of freedom.

    When all differences are the same number the standard error is 0 and t has no distribution. The p-values are then
    those of the sign-flip test, which stays valid: 2^-n one-sided; there is no interval. With all differences 0 they
    are 1.
    Raises DataError for a difference that is not finite.
    """
    for index, value in enumerate(differences):
        if not math.isfinite(value):
            raise DataError(f"difference of task {index} is {value!r}")
    n = len(differences)
    if n == 0:
        return PairedDifference(n_tasks=0)
    mean = math.fsum(differences) / n
    se = standard_error(differences)
    if se is None:
        return PairedDifference(n_tasks=n, difference=mean)
    if max(differences) - min(differences) <= _CONSTANT_SPREAD:
        return _constant(n, mean)
    t = mean / se
    upper = student_t_sf(t, n - 1)
    lower = student_t_sf(-t, n - 1)
    half = student_t_quantile(0.5 + confidence / 2.0, n - 1) * se
    return PairedDifference(
        n_tasks=n,
        difference=mean,
        se=se,
        t=t,
        df=n - 1,
        p_two_sided=min(1.0, 2.0 * min(upper, lower)),
        p_less=lower,
        p_greater=upper,
        ci_low=mean - half,
        ci_high=mean + half,
    )


def _constant(n: int, mean: float) -> PairedDifference:
    if abs(mean) <= _CONSTANT_SPREAD:
        t, tail = 0.0, 1.0
    else:
        t, tail = math.copysign(math.inf, mean), 0.5**n
    return PairedDifference(
        n_tasks=n,
        difference=mean,
        se=0.0,
        t=t,
        df=n - 1,
        p_two_sided=min(1.0, 2.0 * tail),
        p_less=tail if t <= 0.0 else 1.0,
        p_greater=tail if t >= 0.0 else 1.0,
    )


def mcnemar(num_regressions: int, num_improvements: int) -> McNemarTest:
    """Test b regressions against c improvements: under no change b is Binomial(b + c, 1/2).

    Exact in integers. The mid-p value counts half of the observed table's probability (Fagerland et al. 2013,
    doi:10.1186/1471-2288-13-91); it is less conservative and not guaranteed to keep the level.
    """
    if num_regressions < 0 or num_improvements < 0:
        raise DataError(f"negative counts: {num_regressions} regressions, {num_improvements} improvements")
    n = num_regressions + num_improvements
    larger = max(num_regressions, num_improvements)
    tail = _ways_at_least(n, larger)
    return McNemarTest(
        num_regressions=num_regressions,
        num_improvements=num_improvements,
        p_regression=_ways_at_least(n, num_regressions) / 2**n,
        p_two_sided=min(2 * tail, 2**n) / 2**n,
        p_mid_two_sided=min(2 * tail - math.comb(n, larger), 2**n) / 2**n,
    )


def _ways_at_least(n: int, least: int) -> int:
    """Number of subsets of n things with at least `least` members."""
    ways = math.comb(n, least)
    total = 0
    for size in range(least, n + 1):
        total += ways
        ways = ways * (n - size) // (size + 1)
    return total
