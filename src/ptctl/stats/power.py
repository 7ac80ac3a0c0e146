"""What an evaluation can see: the minimum detectable effect, and how many tasks or attempts would settle a question.

The variance of a paired difference of task means is omega^2 + sigma_A^2 / K_A + sigma_B^2 / K_B: omega^2 is the
variance over tasks of the true difference, sigma^2 the mean over tasks of p(1 - p), and K the attempts a task.
Source: Miller (2024), arXiv:2411.00640.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ptctl.errors import DataError, UsageError
from ptctl.stats.distributions import normal_quantile
from ptctl.stats.rates import task_means


@dataclass(frozen=True, kw_only=True, slots=True)
class PairedVariance:
    """Parts of the variance of a paired difference: between tasks, and within a task for the two sides."""

    between_tasks: float
    within_candidate: float
    within_baseline: float

    def __post_init__(self) -> None:
        """Refuse negative or undefined variances."""
        if not min(self.between_tasks, self.within_candidate, self.within_baseline) >= 0.0:
            raise UsageError(f"variances must not be negative: {self!r}")

    def of_difference(self, attempts_candidate: float, attempts_baseline: float) -> float:
        """Return the variance of one task's difference; attempts may be `math.inf`."""
        if not (attempts_candidate >= 1.0 and attempts_baseline >= 1.0):
            raise UsageError(f"attempts a task must be at least 1, got {attempts_candidate!r}, {attempts_baseline!r}")
        noise = self.within_candidate / attempts_candidate + self.within_baseline / attempts_baseline
        return self.between_tasks + noise


def power_z(*, alpha: float = 0.05, power: float = 0.8, two_sided: bool = True) -> float:
    """Return z_a + z_b: 2.8016 for a two-sided test at 0.05 with power 0.8."""
    if not 0.0 < alpha < 1.0:
        raise UsageError(f"alpha must lie strictly between 0 and 1, got {alpha!r}")
    return normal_quantile(1.0 - alpha / 2.0 if two_sided else 1.0 - alpha) + normal_quantile(power)


def required_tasks(
    effect: float,
    variance: PairedVariance,
    *,
    attempts: float = 1,
    alpha: float = 0.05,
    power: float = 0.8,
    two_sided: bool = True,
) -> int:
    """Return the tasks needed to find a difference of `effect`, with `attempts` a task on both sides."""
    if not effect > 0.0:
        raise UsageError(f"the effect to be found must be positive, got {effect!r}")
    z = power_z(alpha=alpha, power=power, two_sided=two_sided)
    return max(1, math.ceil(z * z * variance.of_difference(attempts, attempts) / (effect * effect)))


def required_attempts(
    effect: float,
    variance: PairedVariance,
    num_tasks: int,
    *,
    alpha: float = 0.05,
    power: float = 0.8,
    two_sided: bool = True,
) -> int | None:
    """Return the attempts a task needed to find `effect` with `num_tasks`; None when no number of attempts suffices."""
    if not effect > 0.0:
        raise UsageError(f"the effect to be found must be positive, got {effect!r}")
    z = power_z(alpha=alpha, power=power, two_sided=two_sided)
    allowed_noise = num_tasks * effect * effect / (z * z) - variance.between_tasks
    noise = variance.within_candidate + variance.within_baseline
    if allowed_noise <= 0.0:
        return None
    return max(1, math.ceil(noise / allowed_noise))


def minimum_detectable_effect(
    num_tasks: int,
    variance: PairedVariance,
    *,
    attempts: float = 1,
    alpha: float = 0.05,
    power: float = 0.8,
    two_sided: bool = True,
) -> float | None:
    """Return the smallest difference that `num_tasks` find with the given power; None without tasks."""
    if num_tasks < 1:
        return None
    z = power_z(alpha=alpha, power=power, two_sided=two_sided)
    return z * math.sqrt(variance.of_difference(attempts, attempts) / num_tasks)


def mcnemar_detectable_effect(
    num_tasks: int, num_discordant: int, *, alpha: float = 0.05, power: float = 0.8, two_sided: bool = False
) -> float | None:
    """Return the smallest difference of rates that McNemar finds when `num_discordant` of `num_tasks` tasks differ."""
    if num_tasks < 1:
        return None
    if not 0 <= num_discordant <= num_tasks:
        raise DataError(f"{num_discordant} discordant tasks of {num_tasks}")
    return power_z(alpha=alpha, power=power, two_sided=two_sided) * math.sqrt(num_discordant) / num_tasks


def estimate_variance(
    *,
    candidate: tuple[Sequence[int], Sequence[int]],
    baseline: tuple[Sequence[int], Sequence[int]],
) -> PairedVariance | None:
    """Estimate the parts of the variance from (successes, slots) of the same tasks on both sides.

    sigma^2 is the mean of y (1 - y) k / (k - 1) over the tasks, unbiased for p (1 - p); omega^2 is what of the
    variance of the differences they do not explain, at least 0. None for fewer than two tasks, or when some task has
    fewer than two
    slots on a side: one attempt cannot tell its own noise from a difference between tasks.
    """
    slots = (*candidate[1], *baseline[1])
    means = [task_means(*side) for side in (candidate, baseline)]
    if len(candidate[1]) != len(baseline[1]):
        raise DataError(f"{len(candidate[1])} candidate tasks for {len(baseline[1])} baseline tasks")
    n = len(candidate[1])
    if n < 2 or min(slots) < 2:
        return None
    within, noise = [0.0, 0.0], 0.0
    for side, (_, side_slots) in enumerate((candidate, baseline)):
        unbiased = [y * (1.0 - y) * k / (k - 1) for y, k in zip(means[side], side_slots, strict=True)]
        within[side] = math.fsum(unbiased) / n
        noise += math.fsum(value / k for value, k in zip(unbiased, side_slots, strict=True)) / n
    differences = [after - before for after, before in zip(*means, strict=True)]
    mean = math.fsum(differences) / n
    total = math.fsum((value - mean) ** 2 for value in differences) / (n - 1)
    return PairedVariance(between_tasks=max(0.0, total - noise), within_candidate=within[0], within_baseline=within[1])
