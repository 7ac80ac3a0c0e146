"""Normal and Student t distributions with the standard library only.

scipy would bring 100 MB into an installation that only compares two evaluations; it is used in the tests, to check
this.
"""

from __future__ import annotations

import math
from statistics import NormalDist

from ptctl.errors import UsageError

_STANDARD_NORMAL = NormalDist()
_MAX_ITERATIONS = 20_000
_RELATIVE_PRECISION = 1e-15
_SMALLEST = 1e-300


def normal_quantile(probability: float) -> float:
    """Return the z with P(Z <= z) = `probability`, for a standard normal Z.

    Raises UsageError when the probability is not strictly between 0 and 1.
    """
    if not 0.0 < probability < 1.0:
        raise UsageError(f"a probability must lie strictly between 0 and 1, got {probability!r}")
    return _STANDARD_NORMAL.inv_cdf(probability)


def two_sided_z(confidence: float) -> float:
    """Return the half-width of a `confidence` interval in standard errors: 1.959963984540054 for 0.95."""
    if not 0.0 < confidence < 1.0:
        raise UsageError(f"a confidence must lie strictly between 0 and 1, got {confidence!r}")
    return normal_quantile(0.5 + confidence / 2.0)


def incomplete_beta(a: float, b: float, x: float, *, complement: float | None = None) -> float:
    """Regularised incomplete beta function I_x(a, b), to about 1e-12 relative for a, b <= 1e4.

    Continued fraction DLMF 8.17.22, evaluated with the modified Lentz algorithm (Numerical Recipes, 3rd ed., 6.4).

    Args:
        a: first shape, > 0.
        b: second shape, > 0.
        x: in [0, 1].
        complement: 1 - x where the caller knows it better than the subtraction would give it.
    """
    if not (a > 0.0 and b > 0.0 and 0.0 <= x <= 1.0):
        raise UsageError(f"incomplete_beta needs a > 0, b > 0 and 0 <= x <= 1, got a={a!r}, b={b!r}, x={x!r}")
    y = 1.0 - x if complement is None else complement
    if x == 0.0:
        return 0.0
    if y == 0.0:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log(y)
    # The fraction converges fast only on this side of the mean; the other side goes through the symmetry.
    if x <= (a + 1.0) / (a + b + 2.0):
        return math.exp(log_front) * _beta_fraction(a, b, x) / a
    return 1.0 - math.exp(log_front) * _beta_fraction(b, a, y) / b


def _beta_fraction(a: float, b: float, x: float) -> float:
    numerator = 1.0
    denominator = 1.0 / _away_from_zero(1.0 - (a + b) * x / (a + 1.0))
    value = denominator
    for m in range(1, _MAX_ITERATIONS):
        for coefficient in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            denominator = 1.0 / _away_from_zero(1.0 + coefficient * denominator)
            numerator = _away_from_zero(1.0 + coefficient / numerator)
            factor = numerator * denominator
            value *= factor
        if abs(factor - 1.0) <= _RELATIVE_PRECISION:
            return value
    raise ArithmeticError(f"incomplete beta did not converge for a={a!r}, b={b!r}, x={x!r}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _SMALLEST else _SMALLEST


def student_t_sf(t: float, df: float) -> float:
    """Return P(T > t) for Student's t with `df` > 0 degrees of freedom: half of I(df/2, 1/2) at df/(df + t^2)."""
    if not df > 0.0:
        raise UsageError(f"degrees of freedom must be positive, got {df!r}")
    if math.isnan(t):
        raise UsageError("t must be a number")
    if math.isinf(t):
        return 0.0 if t > 0.0 else 1.0
    square = t * t
    tail = 0.5 * incomplete_beta(df / 2.0, 0.5, df / (df + square), complement=square / (df + square))
    return tail if t > 0.0 else 1.0 - tail


def student_t_quantile(probability: float, df: float) -> float:
    """Return the t with P(T <= t) = `probability`, by bisection to full double precision."""
    if not 0.0 < probability < 1.0:
        raise UsageError(f"a probability must lie strictly between 0 and 1, got {probability!r}")
    if probability == 0.5:
        return 0.0
    tail = min(probability, 1.0 - probability)
    low, high = 0.0, 1.0
    while student_t_sf(high, df) > tail:
        low, high = high, high * 2.0
    while True:
        middle = 0.5 * (low + high)
        if middle in (low, high):
            return middle if probability > 0.5 else -middle
        if student_t_sf(middle, df) > tail:
            low = middle
        else:
            high = middle
