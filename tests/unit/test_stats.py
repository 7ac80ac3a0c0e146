"""Known values of rates, intervals and standard errors: computed by hand, by enumeration or by another program."""

from __future__ import annotations

import itertools
import statistics

import pytest

from ptctl import stats
from ptctl.errors import DataError, UsageError


@pytest.mark.parametrize(
    ("successes", "trials", "deff", "expected"),
    [
        (0, 10, 1.0, (0.0, 0.2775327999)),
        (1, 10, 1.0, (0.0178762131, 0.4041500268)),
        (8, 10, 1.0, (0.4901624715, 0.9433178485)),
        (10, 10, 1.0, (0.7224672001, 1.0)),
        (45, 50, 1.0, (0.7863976856, 0.9565242351)),
        (81, 263, 1.0, (0.2552885199, 0.3662095770)),
        (60, 100, 2.5, (0.4459589366, 0.7365167432)),
    ],
)
def test_wilson(successes: int, trials: int, deff: float, expected: tuple[float, float]) -> None:
    assert stats.wilson_interval(successes, trials, deff=deff) == pytest.approx(expected, abs=1e-10)


def test_wilson_borders_are_exact_and_no_trials_is_null() -> None:
    assert stats.wilson_interval(0, 0) is None
    for trials in range(1, 200):
        low, _ = stats.wilson_interval(0, trials) or (None, None)
        _, high = stats.wilson_interval(trials, trials) or (None, None)
        assert low == 0.0
        assert high == 1.0


def test_wilson_refuses_contradictions() -> None:
    with pytest.raises(DataError):
        stats.wilson_interval(11, 10)
    with pytest.raises(UsageError):
        stats.wilson_interval(1, 10, deff=0.5)
    with pytest.raises(UsageError):
        stats.wilson_interval(1, 10, confidence=1.0)


def test_normal_quantile() -> None:
    assert stats.two_sided_z(0.95) == pytest.approx(1.959963984540054, abs=1e-14)
    assert stats.normal_quantile(0.8) == pytest.approx(0.8416212335729143, abs=1e-14)
    with pytest.raises(UsageError):
        stats.normal_quantile(0.0)


def test_macro_and_micro() -> None:
    successes, slots = [1, 2, 0], [4, 2, 8]
    assert stats.macro_mean(successes, slots) == pytest.approx(0.4166667, abs=1e-7)
    assert stats.micro_mean(successes, slots) == pytest.approx(0.2142857, abs=1e-7)
    assert not stats.equal_slots(slots)
    assert stats.equal_slots([4, 4])
    assert stats.macro_mean([], []) is None
    assert stats.micro_mean([0], [0]) is None


@pytest.mark.parametrize(
    ("reward", "success"), [(1.0, True), (1 - 9e-7, True), (0.999, False), (0.1, False), (2.0, True)]
)
def test_success_is_not_any_positive_reward(reward: float, success: bool) -> None:
    assert stats.is_success(reward) is success


def test_coverage() -> None:
    assert stats.coverage(15, 20) == 0.75
    assert stats.coverage(0, 0) is None
    with pytest.raises(DataError):
        stats.coverage(21, 20)


def test_rate_interval_without_tasks_is_null() -> None:
    for interval in (stats.rate_interval([], []), stats.rate_interval([0], [0])):
        assert interval.n_tasks == 0
        assert interval.rate is None
        assert interval.ci_low is None
        assert interval.ci_high is None
        assert interval.n_eff is None
        assert not interval.thin


def test_rate_interval_of_identical_attempts_counts_tasks() -> None:
    # Every task is all or nothing: 20 x 8 attempts hold the information of 20, s2_y k / (p (1 - p)) = 8 x 20/19 > k.
    interval = stats.rate_interval([8] * 12 + [0] * 8, [8] * 20)
    assert interval.n_eff == pytest.approx(20.0)
    assert interval.deff == pytest.approx(8.0)
    assert (interval.ci_low, interval.ci_high) == pytest.approx(stats.wilson_interval(12, 20))
    assert interval.n_slots == 160


def test_rate_interval_in_between() -> None:
    # y = (.25, .5, .75, 1), p = .625, s2_y = .3125/3, p(1-p)/4 = .05859375: deff = 1.7777..., N_eff = 16/deff = 9.
    interval = stats.rate_interval([1, 2, 3, 4], [4, 4, 4, 4])
    assert interval.deff == pytest.approx(16 / 9)
    assert interval.n_eff == pytest.approx(9.0)
    assert (interval.ci_low, interval.ci_high) == pytest.approx(stats.wilson_interval(5.625, 9))


def test_rate_interval_never_beats_independent_attempts() -> None:
    interval = stats.rate_interval([2, 2, 2, 2], [4, 4, 4, 4])  # s2_y = 0: deff stays 1
    assert interval.deff == 1.0
    assert interval.n_eff == 16.0


@pytest.mark.parametrize(("successes", "expected"), [(0, (0.0, 0.2775327999)), (4, (0.7224672001, 1.0))])
def test_rate_interval_at_the_borders_counts_tasks(successes: int, expected: tuple[float, float]) -> None:
    interval = stats.rate_interval([successes] * 10, [4] * 10)
    assert interval.n_eff == 10.0
    assert (interval.ci_low, interval.ci_high) == pytest.approx(expected, abs=1e-10)


def test_rate_interval_of_one_task_is_thin() -> None:
    interval = stats.rate_interval([3], [4])
    assert interval.thin
    assert interval.n_eff == 1.0
    assert interval.rate == 0.75
    assert not stats.rate_interval([3, 1], [4, 4]).thin


def test_rate_interval_with_unequal_slots() -> None:
    # Harmonic mean of 2 and 6 is 3; y = (.5, .5): no spread, so N_eff = n k = 6.
    interval = stats.rate_interval([1, 3, 0], [2, 6, 0])
    assert interval.n_tasks == 2
    assert interval.n_slots == 8
    assert interval.n_eff == pytest.approx(6.0)


def test_rate_interval_refuses_impossible_counts() -> None:
    with pytest.raises(DataError, match="task 1 has 5 successes in 4 slots"):
        stats.rate_interval([1, 5], [4, 4])
    with pytest.raises(DataError):
        stats.rate_interval([1], [4, 4])


def test_allowed_drop_is_compared_in_fractions() -> None:
    assert not stats.exceeds_allowed_drop(baseline=(10, 10), candidate=(9, 10), allowed_drop=0.10)
    assert stats.exceeds_allowed_drop(baseline=(10, 10), candidate=(9, 10), allowed_drop=0.0999)
    # .8 - .7 > .1 in doubles
    assert not stats.exceeds_allowed_drop(baseline=(8, 10), candidate=(7, 10), allowed_drop=0.1)
    with pytest.raises(DataError):
        stats.exceeds_allowed_drop(baseline=(0, 0), candidate=(0, 1), allowed_drop=0.1)


@pytest.mark.parametrize(
    ("attempts", "successes", "k", "any_of_k", "all_of_k"),
    [
        (5, 2, 1, 0.4, 0.4),
        (5, 2, 2, 0.7, 0.1),
        (5, 2, 3, 0.9, 0.0),
        (10, 3, 5, 0.9166666667, 0.0),
        (200, 1, 100, 0.5, 0.0),
        (4, 0, 2, 0.0, 0.0),
        (4, 4, 4, 1.0, 1.0),
        (8, 3, 4, 0.9285714286, 0.0),
    ],
)
def test_pass_at_k(attempts: int, successes: int, k: int, any_of_k: float, all_of_k: float) -> None:
    assert stats.pass_at_k(attempts, successes, k) == pytest.approx(any_of_k, abs=1e-10)
    assert stats.pass_hat_k(attempts, successes, k) == pytest.approx(all_of_k, abs=1e-10)


def test_pass_at_k_is_null_for_too_few_attempts() -> None:
    assert stats.pass_at_k(3, 1, 4) is None
    assert stats.pass_hat_k(3, 3, 4) is None
    with pytest.raises(UsageError):
        stats.pass_at_k(3, 1, 0)
    with pytest.raises(DataError):
        stats.pass_at_k(3, 4, 1)


def test_mean_pass_at_k() -> None:
    tasks = [(4, 1), (4, 3), (4, 0)]
    assert stats.mean_pass_at_k(tasks, 1).value == pytest.approx(1 / 3)
    assert stats.mean_pass_at_k(tasks, 2).value == pytest.approx(0.5)
    assert stats.mean_pass_hat_k(tasks, 2).value == pytest.approx(1 / 6)
    short = stats.mean_pass_at_k([*tasks, (1, 1)], 2)
    assert (short.value, short.n_tasks, short.n_too_few) == (pytest.approx(0.5), 3, 1)
    assert stats.mean_pass_at_k([(1, 1)], 2).value is None


def _clusters(text: str) -> list[list[int]]:
    return [[int(value) for value in cluster] for cluster in text.split()]


@pytest.mark.parametrize(
    ("text", "without", "with_correction"),
    [("1111 0001 1010", 0.1800205750, 0.2204792759), ("111 00 1010 0", 0.1870828693, 0.2160246899)],
)
def test_clustered_standard_error(text: str, without: float, with_correction: float) -> None:
    clusters = _clusters(text)
    assert stats.clustered_standard_error(clusters) == pytest.approx(with_correction, abs=1e-10)
    assert stats.clustered_standard_error(clusters, small_sample_correction=False) == pytest.approx(without, abs=1e-10)


def test_standard_error_of_attempts_is_too_small_and_of_task_means_is_the_clustered_one() -> None:
    clusters = _clusters("1111 0001 1010")
    attempts = [value for cluster in clusters for value in cluster]
    assert stats.standard_error(attempts) == pytest.approx(0.1486470975, abs=1e-10)
    assert stats.standard_error([sum(c) / len(c) for c in clusters]) == pytest.approx(0.2204792759, abs=1e-10)
    unbalanced = [sum(c) / len(c) for c in _clusters("111 00 1010 0")]
    assert statistics.fmean(unbalanced) == 0.375
    assert stats.standard_error(unbalanced) == pytest.approx(0.2393567769, abs=1e-10)


def test_one_cluster_has_no_standard_error() -> None:
    assert stats.clustered_standard_error([[1, 0, 1], []]) is None
    assert stats.standard_error([1.0]) is None


def test_bootstrap_over_few_tasks_would_be_too_narrow() -> None:
    differences = [0.0, -0.5, -1.0]
    means = [statistics.fmean(draw) for draw in itertools.product(differences, repeat=3)]
    assert statistics.pstdev(means) == pytest.approx(0.2357022604, abs=1e-10)
    assert stats.standard_error(differences) == pytest.approx(0.2886751346, abs=1e-10)


def test_design_effect() -> None:
    assert stats.design_effect(4, 0.5) == 2.5
    assert stats.design_effect(50, 0.04) == pytest.approx(2.96)
    with pytest.raises(UsageError):
        stats.design_effect(0, 0.5)
