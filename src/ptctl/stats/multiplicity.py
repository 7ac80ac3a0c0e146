"""Adjusted p-values for a family of tests.

A null p-value (a stratum that is empty or too thin to test) is not a test: it does not count in the size of the family
and stays null in the result, at its place.
"""

from __future__ import annotations

from collections.abc import Sequence

from ptctl.errors import DataError


def holm(p_values: Sequence[float | None]) -> list[float | None]:
    """Return Holm-adjusted p-values, which control the probability of any false alarm. The gate uses this.

    Source: Holm (1979), Scand. J. Stat. 6:65.
    """
    order = _ascending(p_values)
    adjusted: list[float | None] = [None] * len(p_values)
    largest = 0.0
    for rank, (p_value, index) in enumerate(order):
        largest = max(largest, min(1.0, (len(order) - rank) * p_value))
        adjusted[index] = largest
    return adjusted


def benjamini_hochberg(p_values: Sequence[float | None]) -> list[float | None]:
    """Return adjusted p-values that control the expected share of false discoveries. For exploration, not for the gate.

    Source: Benjamini and Hochberg (1995), J. R. Stat. Soc. B 57:289.
    """
    order = _ascending(p_values)
    adjusted: list[float | None] = [None] * len(p_values)
    smallest = 1.0
    for rank in range(len(order), 0, -1):
        p_value, index = order[rank - 1]
        smallest = min(smallest, p_value * len(order) / rank)
        adjusted[index] = smallest
    return adjusted


def _ascending(p_values: Sequence[float | None]) -> list[tuple[float, int]]:
    for index, value in enumerate(p_values):
        if value is not None and not 0.0 <= value <= 1.0:
            raise DataError(f"p-value {index} is {value!r}")
    return sorted((value, index) for index, value in enumerate(p_values) if value is not None)
