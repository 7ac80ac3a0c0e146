"""Unbiased estimates over several attempts: pass@k (any of k succeeds) and pass^k (all of k succeed)."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from ptctl.errors import DataError, UsageError


@dataclass(frozen=True, kw_only=True, slots=True)
class PassRate:
    """Mean of pass@k or pass^k over the tasks with at least k attempts.

    `value` is None when there is no such task. `n_too_few` counts the tasks with fewer attempts, which are not in it.
    """

    k: int
    value: float | None
    n_tasks: int
    n_too_few: int


def pass_at_k(num_attempts: int, num_successes: int, k: int) -> float | None:
    """Return 1 - C(n-c, k) / C(n, k), None where n < k.

    Source: Chen et al. (2021), arXiv:2107.03374, equation 1. The integers are exact and the quotient is rounded once.
    """
    _check_attempts(num_attempts, num_successes, k)
    if num_attempts < k:
        return None
    total = math.comb(num_attempts, k)
    return (total - math.comb(num_attempts - num_successes, k)) / total


def pass_hat_k(num_attempts: int, num_successes: int, k: int) -> float | None:
    """Return C(c, k) / C(n, k), None where n < k.

    Source: Yao et al. (2024), arXiv:2406.12045 (tau-bench).
    """
    _check_attempts(num_attempts, num_successes, k)
    if num_attempts < k:
        return None
    return math.comb(num_successes, k) / math.comb(num_attempts, k)


def mean_pass_at_k(attempts_per_task: Iterable[tuple[int, int]], k: int) -> PassRate:
    """Return the mean pass@k over tasks given as (attempts n, successes c)."""
    return _mean(attempts_per_task, k, pass_at_k)


def mean_pass_hat_k(attempts_per_task: Iterable[tuple[int, int]], k: int) -> PassRate:
    """Return the mean pass^k over tasks given as (attempts n, successes c)."""
    return _mean(attempts_per_task, k, pass_hat_k)


def _mean(
    attempts_per_task: Iterable[tuple[int, int]], k: int, estimate: Callable[[int, int, int], float | None]
) -> PassRate:
    estimates = [estimate(n, c, k) for n, c in attempts_per_task]
    known = [value for value in estimates if value is not None]
    return PassRate(
        k=k,
        value=math.fsum(known) / len(known) if known else None,
        n_tasks=len(known),
        n_too_few=len(estimates) - len(known),
    )


def _check_attempts(num_attempts: int, num_successes: int, k: int) -> None:
    if k < 1:
        raise UsageError(f"k must be at least 1, got {k}")
    if not 0 <= num_successes <= num_attempts:
        raise DataError(f"{num_successes} successes in {num_attempts} attempts")
