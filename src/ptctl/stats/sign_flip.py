"""Sign-flip test of paired differences, the default of the gate.

Under the null hypothesis that the two policies are exchangeable on every task, the sign of each difference is a fair
coin. The test compares the observed sum with the sums of all 2^n sign patterns. It assumes no distribution, and it
stays at its level for a handful of tasks, where t on differences that are mostly zero does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

import numpy as np
import numpy.typing as npt

from ptctl.errors import DataError, UsageError

FlipMethod = Literal["exact", "draws"]

MAX_ENUMERATED = 20
"""Up to this many non-zero differences all 2^n patterns are written out (a million sums)."""

DEFAULT_NUM_DRAWS = 100_000

_ZERO = 1e-12
_MAX_DENOMINATOR = 4096
_MAX_COMMON_DENOMINATOR = 10**6
_MAX_LATTICE_WORK = 2 * 10**8
_CHUNK_BYTES = 1 << 25


@dataclass(frozen=True, kw_only=True, slots=True)
class SignFlipTest:
    """Result of the sign-flip test; the p-values are None without any task.

    `p_less` tests for a drop, `p_greater` for a gain. `num_draws` and `seed` are None when the result is exact.
    """

    n_tasks: int
    n_nonzero: int
    p_less: float | None
    p_greater: float | None
    p_two_sided: float | None
    method: FlipMethod
    num_draws: int | None
    seed: int | None


def sign_flip_test(differences: Sequence[float], *, seed: int = 0, num_draws: int = DEFAULT_NUM_DRAWS) -> SignFlipTest:
    """Test whether the task differences d_i, [n], are symmetric about 0, with their sum as the statistic.

    Exact by dynamic programming when the differences are multiples of a common fraction, as differences of c/k are;
    exact by enumeration for up to MAX_ENUMERATED non-zero differences; otherwise `num_draws` seeded random patterns,
    with the observed one counted among them, p = (1 + hits) / (1 + draws), so that p is never 0 (Phipson and Smyth
    2010). Differences of 0 stay 0 under any sign and need no pattern.
    Raises DataError for a difference that is not finite, UsageError for num_draws < 1.
    """
    if num_draws < 1:
        raise UsageError(f"num_draws must be at least 1, got {num_draws}")
    for index, value in enumerate(differences):
        if not math.isfinite(value):
            raise DataError(f"difference of task {index} is {value!r}")
    nonzero = [float(value) for value in differences if abs(value) > _ZERO]
    method: FlipMethod = "exact"
    if not nonzero:
        tails = (1.0, 1.0, 1.0) if differences else (None, None, None)
    elif (units := _lattice_units(nonzero)) is not None:
        tails = _lattice_tails(units)
    elif len(nonzero) <= MAX_ENUMERATED:
        tails = _enumerated_tails(nonzero)
    else:
        method, tails = "draws", _drawn_tails(nonzero, num_draws, seed)
    return SignFlipTest(
        n_tasks=len(differences),
        n_nonzero=len(nonzero),
        p_less=tails[0],
        p_greater=tails[1],
        p_two_sided=tails[2],
        method=method,
        num_draws=num_draws if method == "draws" else None,
        seed=seed if method == "draws" else None,
    )


def _lattice_units(nonzero: Sequence[float]) -> list[int] | None:
    """Write the differences as integers times a common fraction, None when there is none or the table would be too big.

    Integers make ties exact: -0.3 + 0.1 and -0.1 - 0.1 are the same sum and must count as such.
    """
    fractions: list[Fraction] = []
    common = 1
    for value in nonzero:
        fraction = Fraction(value).limit_denominator(_MAX_DENOMINATOR)
        if abs(float(fraction) - value) > _ZERO or fraction == 0:
            return None
        common = math.lcm(common, fraction.denominator)
        if common > _MAX_COMMON_DENOMINATOR:
            return None
        fractions.append(fraction)
    units = [int(fraction * common) for fraction in fractions]
    divisor = math.gcd(*units)
    units = [unit // divisor for unit in units]
    return units if len(units) * sum(abs(unit) for unit in units) <= _MAX_LATTICE_WORK else None


def _lattice_tails(units: Sequence[int]) -> tuple[float, float, float]:
    total = sum(abs(unit) for unit in units)
    # probability[s]: the magnitudes that got a plus add up to s, so that the flipped sum is 2 s - total.
    probability: npt.NDArray[np.float64] = np.zeros(total + 1)  # [total + 1]
    probability[0] = 1.0
    reached = 0
    for unit in sorted(abs(unit) for unit in units):
        shifted = probability[: reached + 1] * 0.5
        probability[: reached + 1] = shifted
        probability[unit : unit + reached + 1] += shifted
        reached += unit
    observed = (sum(units) + total) // 2
    at_most = math.fsum(probability[: observed + 1].tolist())
    at_least = math.fsum(probability[observed:].tolist())
    return min(1.0, at_most), min(1.0, at_least), _two_sided(at_most, at_least)


def _two_sided(at_most: float, at_least: float) -> float:
    # Flipping all signs mirrors the distribution, so |T*| >= |T| is twice the smaller tail, or everything at T = 0.
    return min(1.0, 2.0 * min(at_most, at_least))


def _enumerated_tails(nonzero: Sequence[float]) -> tuple[float, float, float]:
    sums: npt.NDArray[np.float64] = np.zeros(1)
    for value in nonzero:
        sums = np.concatenate((sums + abs(value), sums - abs(value)))  # [2 ** (values so far)]
    tie = _tie_width(nonzero)
    observed = math.fsum(nonzero)
    at_most = float(np.count_nonzero(sums <= observed + tie)) / sums.size
    at_least = float(np.count_nonzero(sums >= observed - tie)) / sums.size
    return at_most, at_least, _two_sided(at_most, at_least)


def _drawn_tails(nonzero: Sequence[float], num_draws: int, seed: int) -> tuple[float, float, float]:
    magnitudes = np.abs(np.asarray(nonzero, dtype=np.float64))  # [n]
    observed, tie = math.fsum(nonzero), _tie_width(nonzero)
    generator = np.random.Generator(np.random.PCG64(seed))
    chunk = max(1, _CHUNK_BYTES // (8 * magnitudes.size))
    low = high = outside = 0
    for start in range(0, num_draws, chunk):
        rows = min(chunk, num_draws - start)
        plus = generator.integers(0, 2, size=(rows, magnitudes.size), dtype=np.uint8)  # [rows, n]
        sums = 2.0 * (plus @ magnitudes) - magnitudes.sum()  # [rows]
        low += int(np.count_nonzero(sums <= observed + tie))
        high += int(np.count_nonzero(sums >= observed - tie))
        outside += int(np.count_nonzero(np.abs(sums) >= abs(observed) - tie))
    total = 1.0 + num_draws
    return (1.0 + low) / total, (1.0 + high) / total, (1.0 + outside) / total


def _tie_width(nonzero: Sequence[float]) -> float:
    return 1e-10 * math.fsum(abs(value) for value in nonzero)
