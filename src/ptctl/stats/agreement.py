"""How far a judge agrees with humans or rules, and what that does to a rate that the judge measured."""

from __future__ import annotations

from dataclasses import dataclass

from ptctl.errors import DataError


@dataclass(frozen=True, kw_only=True, slots=True)
class Confusion:
    """Counts of a judge's verdicts against the truth. Every rate is None where its denominator is 0."""

    true_positive: int
    false_positive: int
    false_negative: int
    true_negative: int

    def __post_init__(self) -> None:
        """Refuse negative counts."""
        if min(self.true_positive, self.false_positive, self.false_negative, self.true_negative) < 0:
            raise DataError(f"negative count in {self!r}")

    @property
    def total(self) -> int:
        """Number of verdicts."""
        return self.true_positive + self.false_positive + self.false_negative + self.true_negative

    @property
    def agreement(self) -> float | None:
        """Share of verdicts that match the truth."""
        return _ratio(self.true_positive + self.true_negative, self.total)

    @property
    def sensitivity(self) -> float | None:
        """Share of the truly good that the judge passes."""
        return _ratio(self.true_positive, self.true_positive + self.false_negative)

    @property
    def specificity(self) -> float | None:
        """Share of the truly bad that the judge fails."""
        return _ratio(self.true_negative, self.true_negative + self.false_positive)

    @property
    def kappa(self) -> float | None:
        """Cohen's kappa: agreement beyond chance. None when both sides always say the same one thing."""
        total = self.total
        judged = self.true_positive + self.false_positive
        actual = self.true_positive + self.false_negative
        by_chance = judged * actual + (total - judged) * (total - actual)  # times total^2
        observed = (self.true_positive + self.true_negative) * total  # times total^2
        return _ratio(observed - by_chance, total * total - by_chance)


def rogan_gladen(observed_rate: float, *, sensitivity: float, specificity: float) -> float | None:
    """Correct a pass rate that an imperfect judge measured: (q + sp - 1) / (se + sp - 1), clamped to [0, 1].

    None when sensitivity + specificity <= 1: such a judge says nothing about the truth.
    Source: Rogan and Gladen (1978), Am. J. Epidemiol. 107:71.
    """
    for name, value in (
        ("observed rate", observed_rate),
        ("sensitivity", sensitivity),
        ("specificity", specificity),
    ):
        if not 0.0 <= value <= 1.0:
            raise DataError(f"{name} must lie between 0 and 1, got {value!r}")
    informedness = sensitivity + specificity - 1.0
    if informedness <= 0.0:
        return None
    return min(1.0, max(0.0, (observed_rate + specificity - 1.0) / informedness))


def _ratio(numerator: int, denominator: int) -> float | None:
    return numerator / denominator if denominator else None
