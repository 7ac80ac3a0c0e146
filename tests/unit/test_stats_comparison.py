"""Known values of paired tests, multiplicity, power and judge agreement."""

from __future__ import annotations

import math

import pytest

from ptctl import stats
from ptctl.errors import DataError, UsageError


def test_paired_difference() -> None:
    baseline, candidate = [int(x) for x in "1101011011"], [int(x) for x in "1001001010"]
    result = stats.paired_difference(stats.task_differences(candidate, baseline))
    assert result.difference == pytest.approx(-0.3)
    assert result.se == pytest.approx(0.1527525232, abs=1e-10)
    assert result.t == pytest.approx(-1.9639610121, abs=1e-10)
    assert result.df == 9
    assert result.p_two_sided == pytest.approx(0.0811261888, abs=1e-10)
    assert result.p_less == pytest.approx(0.0811261888 / 2, abs=1e-10)
    assert result.p_greater == pytest.approx(1 - 0.0811261888 / 2, abs=1e-10)
    # t(.975, 9) = 2.2621571628
    assert (result.ci_low, result.ci_high) == pytest.approx((-0.64555021, 0.04555021), abs=1e-8)


SIGN_FLIP_EXAMPLE = [-0.5, -0.25, 0, 0.25, -0.75, -0.5, 0, -0.25]


def test_sign_flip_against_t() -> None:
    flip = stats.sign_flip_test(SIGN_FLIP_EXAMPLE)
    assert (flip.p_less, flip.p_two_sided) == (0.0625, 0.125)
    assert (flip.method, flip.num_draws, flip.seed) == ("exact", None, None)
    assert (flip.n_tasks, flip.n_nonzero) == (8, 6)
    assert stats.paired_difference(SIGN_FLIP_EXAMPLE).p_less == pytest.approx(0.0337916469, abs=1e-10)


def test_sign_flip_enumerates_what_has_no_common_fraction() -> None:
    flip = stats.sign_flip_test([value * math.sqrt(2) for value in SIGN_FLIP_EXAMPLE])
    assert (flip.p_less, flip.p_two_sided, flip.method) == (0.0625, 0.125, "exact")


def test_sign_flip_draws_when_it_cannot_enumerate() -> None:
    lattice = [0.25, -0.5, 0.75, -0.25, -1.0, 0.5, -0.5] * 5
    exact = stats.sign_flip_test(lattice)
    drawn = stats.sign_flip_test([value * math.sqrt(2) for value in lattice], seed=7, num_draws=40_000)
    assert exact.method == "exact"
    assert (drawn.method, drawn.num_draws, drawn.seed) == ("draws", 40_000, 7)
    # four standard deviations of a proportion over 40,000 draws: at most .01
    for attribute in ("p_less", "p_greater", "p_two_sided"):
        assert getattr(drawn, attribute) == pytest.approx(getattr(exact, attribute), abs=0.01)
    again = stats.sign_flip_test([value * math.sqrt(2) for value in lattice], seed=7, num_draws=40_000)
    assert drawn == again
    assert drawn != stats.sign_flip_test([value * math.sqrt(2) for value in lattice], seed=8, num_draws=40_000)


def test_sign_flip_by_draws_is_never_zero() -> None:
    flip = stats.sign_flip_test([-math.sqrt(2)] * 30 + [-math.sqrt(3)] * 30, num_draws=999)
    assert flip.p_less == 0.001


def test_sign_flip_ties_of_thirds_count_as_ties() -> None:
    # The observed sum is 0. 2 of the 16 patterns give 0 in fractions and count on both sides: (16 + 2) / 2 / 16.
    flip = stats.sign_flip_test([1 / 3, 1 / 3, 1 / 3, -1.0])
    assert flip.p_two_sided == 1.0
    assert flip.p_less == 9 / 16


def test_tests_without_anything_to_test() -> None:
    empty = stats.sign_flip_test([])
    assert (empty.p_less, empty.p_two_sided, empty.n_tasks) == (None, None, 0)
    zeros = stats.sign_flip_test([0.0, 0.0])
    assert (zeros.p_less, zeros.p_greater, zeros.p_two_sided) == (1.0, 1.0, 1.0)
    assert stats.paired_difference([]) == stats.PairedDifference(n_tasks=0)
    assert stats.paired_difference([0.5]) == stats.PairedDifference(n_tasks=1, difference=0.5)
    assert stats.paired_difference([0.0, 0.0, 0.0]).p_two_sided == 1.0


def test_equal_differences_do_not_make_a_certain_verdict() -> None:
    result = stats.paired_difference([-0.5, -0.5])
    assert (result.se, result.t, result.ci_low) == (0.0, -math.inf, None)
    assert (result.p_less, result.p_two_sided, result.p_greater) == (0.25, 0.5, 1.0)
    flip = stats.sign_flip_test([-0.5, -0.5])
    assert (flip.p_less, flip.p_two_sided, flip.p_greater) == (0.25, 0.5, 1.0)


def test_paired_tests_refuse_what_is_not_a_number() -> None:
    with pytest.raises(DataError, match="task 1"):
        stats.paired_difference([0.0, math.nan])
    with pytest.raises(DataError, match="task 1"):
        stats.sign_flip_test([0.0, math.inf])
    with pytest.raises(DataError):
        stats.task_differences([0.0], [])
    with pytest.raises(UsageError):
        stats.sign_flip_test([1.0], num_draws=0)


@pytest.mark.parametrize(
    ("regressions", "improvements", "one_sided", "two_sided", "mid"),
    [
        (5, 0, 0.03125, 0.0625, 0.03125),
        (8, 1, 0.01953125, 0.0390625, 0.021484375),
        (10, 2, 0.0192871094, 0.0385742188, 0.0224609375),
        (0, 0, 1.0, 1.0, 1.0),
        (3, 3, 0.65625, 1.0, 1.0),
        (0, 5, 1.0, 0.0625, 0.03125),
    ],
)
def test_mcnemar(regressions: int, improvements: int, one_sided: float, two_sided: float, mid: float) -> None:
    result = stats.mcnemar(regressions, improvements)
    assert result.p_regression == pytest.approx(one_sided, abs=1e-10)
    assert result.p_two_sided == pytest.approx(two_sided, abs=1e-10)
    assert result.p_mid_two_sided == pytest.approx(mid, abs=1e-10)


def test_multiplicity() -> None:
    p_values = [0.01, 0.04, 0.03, 0.005]
    assert stats.benjamini_hochberg(p_values) == pytest.approx([0.02, 0.04, 0.04, 0.02])
    assert stats.holm(p_values) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_null_p_values_are_left_out_of_the_family() -> None:
    p_values = [None, 0.01, 0.04, None, 0.03, 0.005]
    for adjust, expected in (
        (stats.holm, [0.03, 0.06, 0.06, 0.02]),
        (stats.benjamini_hochberg, [0.02, 0.04, 0.04, 0.02]),
    ):
        adjusted = adjust(p_values)
        assert adjusted[0] is None
        assert adjusted[3] is None
        assert [value for value in adjusted if value is not None] == pytest.approx(expected)
        assert adjust([]) == []
        assert adjust([None]) == [None]
    with pytest.raises(DataError):
        stats.holm([0.5, 1.5])


MODEL = stats.PairedVariance(between_tasks=1 / 9, within_candidate=1 / 6, within_baseline=1 / 6)


@pytest.mark.parametrize(("attempts", "tasks"), [(1, 3876), (4, 1696), (math.inf, 969)])
def test_required_tasks(attempts: float, tasks: int) -> None:
    assert stats.required_tasks(0.03, MODEL, attempts=attempts) == tasks


@pytest.mark.parametrize(("attempts", "effect"), [(1, 0.1327), (4, 0.0878), (10, 0.0757)])
def test_minimum_detectable_effect(attempts: int, effect: float) -> None:
    assert stats.minimum_detectable_effect(198, MODEL, attempts=attempts) == pytest.approx(effect, abs=5e-5)


def test_required_attempts_inverts_the_minimum_detectable_effect() -> None:
    attempts = stats.required_attempts(0.08, MODEL, 198)
    assert attempts is not None
    effects = [stats.minimum_detectable_effect(198, MODEL, attempts=k) for k in (attempts - 1, attempts)]
    assert (effects[0] or 0) > 0.08 >= (effects[1] or 1)
    assert stats.required_attempts(0.03, MODEL, 198) is None
    assert stats.minimum_detectable_effect(0, MODEL) is None


def test_mcnemar_detectable_effect() -> None:
    assert stats.mcnemar_detectable_effect(1000, 100) == pytest.approx(0.0249, abs=5e-5)
    assert stats.mcnemar_detectable_effect(0, 0) is None
    with pytest.raises(DataError):
        stats.mcnemar_detectable_effect(10, 11)


def test_power_refuses_settings_that_make_no_sense() -> None:
    with pytest.raises(UsageError):
        stats.required_tasks(0.0, MODEL)
    with pytest.raises(UsageError):
        stats.required_tasks(0.1, MODEL, attempts=0)
    with pytest.raises(UsageError):
        stats.power_z(alpha=0.0)
    with pytest.raises(UsageError):
        stats.PairedVariance(between_tasks=-1.0, within_candidate=0.0, within_baseline=0.0)


def test_estimate_variance() -> None:
    # y = (.5, 1, 0, .5) and (.5, .5, .5, .5), k = 2: y(1-y) k/(k-1) = .5 where y = .5. d = (0, .5, -.5, 0), s2_d = 1/6.
    parts = stats.estimate_variance(candidate=([1, 2, 0, 1], [2] * 4), baseline=([1, 1, 1, 1], [2] * 4))
    assert parts is not None
    assert parts.within_candidate == pytest.approx(0.25)
    assert parts.within_baseline == pytest.approx(0.5)
    assert parts.between_tasks == 0.0  # 1/6 is less than the noise .25/2 + .5/2
    assert stats.estimate_variance(candidate=([1, 1], [1, 1]), baseline=([1, 1], [2, 2])) is None
    assert stats.estimate_variance(candidate=([1], [2]), baseline=([1], [2])) is None


def test_judge_agreement() -> None:
    confusion = stats.Confusion(true_positive=40, false_positive=10, false_negative=5, true_negative=45)
    assert confusion.agreement == 0.85
    assert confusion.kappa == pytest.approx(0.70)
    assert confusion.sensitivity == pytest.approx(0.888889, abs=1e-6)
    assert confusion.specificity == pytest.approx(0.818182, abs=1e-6)
    sensitivity, specificity = confusion.sensitivity, confusion.specificity
    corrected = stats.rogan_gladen(0.60, sensitivity=sensitivity or 0, specificity=specificity or 0)
    assert corrected == pytest.approx(0.591429, abs=1e-6)


def test_judge_without_a_denominator_is_null() -> None:
    confusion = stats.Confusion(true_positive=0, false_positive=0, false_negative=0, true_negative=4)
    assert (confusion.sensitivity, confusion.specificity, confusion.kappa) == (None, 1.0, None)
    assert stats.Confusion(true_positive=0, false_positive=0, false_negative=0, true_negative=0).agreement is None
    assert stats.rogan_gladen(0.5, sensitivity=0.5, specificity=0.5) is None
    assert stats.rogan_gladen(0.05, sensitivity=0.9, specificity=0.9) == 0.0
    assert stats.rogan_gladen(0.95, sensitivity=0.9, specificity=0.9) == 1.0
    with pytest.raises(DataError):
        stats.rogan_gladen(1.5, sensitivity=0.9, specificity=0.9)
    with pytest.raises(DataError):
        stats.Confusion(true_positive=-1, false_positive=0, false_negative=0, true_negative=0)
