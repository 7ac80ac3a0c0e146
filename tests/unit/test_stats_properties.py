"""Evaluation statistics against scipy, against brute force, and in simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import scipy.special
import scipy.stats
from hypothesis import given, settings
from hypothesis import strategies as st

from ptctl import stats

P_VALUES = st.lists(st.none() | st.floats(0, 1), max_size=12)


@settings(deadline=None)
@given(
    st.floats(0.1, 500),
    st.floats(0.1, 500),
    st.floats(0, 1, allow_subnormal=False),
)
def test_incomplete_beta_is_scipy(a: float, b: float, x: float) -> None:
    assert stats.incomplete_beta(a, b, x) == pytest.approx(float(scipy.special.betainc(a, b, x)), rel=1e-9, abs=1e-13)


@settings(deadline=None)
@given(st.floats(-60, 60), st.integers(1, 5000))
def test_student_t_sf_is_scipy(t: float, df: int) -> None:
    assert stats.student_t_sf(t, df) == pytest.approx(float(scipy.stats.t.sf(t, df)), rel=1e-8, abs=1e-300)


def test_student_t_far_out_and_at_the_ends() -> None:
    assert stats.student_t_sf(math.inf, 3) == 0.0
    assert stats.student_t_sf(-math.inf, 3) == 1.0
    assert stats.student_t_sf(0.0, 3) == 0.5
    assert stats.student_t_sf(1e9, 2) == pytest.approx(float(scipy.stats.t.sf(1e9, 2)), rel=1e-9)


@settings(deadline=None)
@given(st.floats(1e-6, 1 - 1e-6), st.integers(1, 2000))
def test_student_t_quantile_is_scipy(probability: float, df: int) -> None:
    expected = float(scipy.stats.t.ppf(probability, df))
    assert stats.student_t_quantile(probability, df) == pytest.approx(expected, rel=1e-7, abs=1e-9)


@settings(deadline=None)
@given(st.integers(1, 400), st.data(), st.sampled_from([0.8, 0.95, 0.99]))
def test_wilson_is_scipy(trials: int, data: st.DataObject, confidence: float) -> None:
    successes = data.draw(st.integers(0, trials))
    expected = scipy.stats.binomtest(successes, trials).proportion_ci(confidence, method="wilson")
    assert stats.wilson_interval(successes, trials, confidence=confidence) == pytest.approx(tuple(expected), abs=1e-12)


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 8), st.integers(1, 8)).map(lambda pair: (min(pair), pair[1])), min_size=1))
def test_rate_interval_bounds(pairs: list[tuple[int, int]]) -> None:
    successes, slots = [c for c, _ in pairs], [k for _, k in pairs]
    interval = stats.rate_interval(successes, slots)
    assert interval.rate is not None
    assert interval.ci_low is not None
    assert interval.ci_high is not None
    assert interval.n_eff is not None
    assert 0.0 <= interval.ci_low <= interval.rate <= interval.ci_high <= 1.0
    assert len(pairs) - 1e-9 <= interval.n_eff <= sum(slots) + 1e-9
    order = sorted(range(len(pairs)), key=lambda index: hash((index, 17)))
    assert stats.rate_interval([successes[i] for i in order], [slots[i] for i in order]) == interval


QUARTERS = st.lists(st.integers(-4, 4).map(lambda value: value / 4), min_size=2, max_size=40)


@settings(deadline=None)
@given(QUARTERS.filter(lambda differences: len(set(differences)) > 1))
def test_paired_difference_is_scipy(differences: list[float]) -> None:
    result = stats.paired_difference(differences)
    for alternative, p_value in (
        ("two-sided", result.p_two_sided),
        ("less", result.p_less),
        ("greater", result.p_greater),
    ):
        reference = scipy.stats.ttest_1samp(differences, 0.0, alternative=alternative)
        assert p_value == pytest.approx(float(reference.pvalue), rel=1e-8, abs=1e-14)
    interval = scipy.stats.ttest_1samp(differences, 0.0).confidence_interval(0.95)
    assert (result.ci_low, result.ci_high) == pytest.approx(tuple(interval), abs=1e-9)


@settings(deadline=None)
@given(st.lists(st.integers(-6, 6), min_size=1, max_size=9), st.sampled_from([1.0, 1 / 6, 1 / 7, math.pi]))
def test_sign_flip_is_brute_force(units: list[int], scale: float) -> None:
    result = stats.sign_flip_test([unit * scale for unit in units])
    sums = [
        sum(s * u for s, u in zip(signs, units, strict=True)) for signs in itertools.product((-1, 1), repeat=len(units))
    ]
    observed = sum(units)
    assert result.p_less == pytest.approx(sum(s <= observed for s in sums) / len(sums), abs=1e-14)
    assert result.p_greater == pytest.approx(sum(s >= observed for s in sums) / len(sums), abs=1e-14)
    assert result.p_two_sided == pytest.approx(sum(abs(s) >= abs(observed) for s in sums) / len(sums), abs=1e-14)


@settings(deadline=None)
@given(st.integers(0, 60), st.integers(0, 60))
def test_mcnemar_is_the_binomial_test(regressions: int, improvements: int) -> None:
    result = stats.mcnemar(regressions, improvements)
    n = regressions + improvements
    assert result.p_regression == pytest.approx(float(scipy.stats.binom.sf(regressions - 1, n, 0.5)), rel=1e-10)
    if n:
        two_sided = float(scipy.stats.binomtest(regressions, n, 0.5).pvalue)
        assert result.p_two_sided == pytest.approx(two_sided, rel=1e-10)
    assert stats.sign_flip_test([-1.0] * regressions + [1.0] * improvements + [0.0]).p_less == pytest.approx(
        result.p_regression, rel=1e-10
    )
    assert result.p_mid_two_sided <= result.p_two_sided


@settings(deadline=None)
@given(P_VALUES)
def test_adjusted_p_values(p_values: list[float | None]) -> None:
    known = [value for value in p_values if value is not None]
    found = stats.benjamini_hochberg(p_values)
    strict = stats.holm(p_values)
    assert [value is None for value in found] == [value is None for value in p_values]
    assert [value is None for value in strict] == [value is None for value in p_values]
    if known:
        expected = scipy.stats.false_discovery_control(known)
        assert [value for value in found if value is not None] == pytest.approx(list(expected), abs=1e-12)
    for raw, fdr, fwer in zip(p_values, found, strict, strict=True):
        if raw is not None and fdr is not None and fwer is not None:
            assert raw <= fdr + 1e-15
            assert fdr <= fwer + 1e-15
            assert fwer <= 1.0


@settings(deadline=None)
@given(st.integers(1, 60), st.data())
def test_pass_at_k_is_hypergeometric(attempts: int, data: st.DataObject) -> None:
    successes, k = data.draw(st.integers(0, attempts)), data.draw(st.integers(1, attempts))
    none = float(scipy.stats.hypergeom.pmf(0, attempts, successes, k))
    every = float(scipy.stats.hypergeom.pmf(k, attempts, successes, k))
    assert stats.pass_at_k(attempts, successes, k) == pytest.approx(1 - none, abs=1e-10)
    assert stats.pass_hat_k(attempts, successes, k) == pytest.approx(every, abs=1e-10)


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(-2, 2), min_size=1, max_size=5), min_size=2, max_size=8))
def test_clusters_of_one_are_the_plain_standard_error(clusters: list[list[float]]) -> None:
    singles = [[value] for cluster in clusters for value in cluster]
    flat = [value for cluster in clusters for value in cluster]
    assert stats.clustered_standard_error(singles) == pytest.approx(stats.standard_error(flat), abs=1e-12)


def _heterogeneous_tasks(generator: np.random.Generator, num_tasks: int, attempts: int) -> list[int]:
    return [int(c) for c in generator.binomial(attempts, generator.beta(0.5, 0.5, num_tasks))]


def test_effective_size_keeps_the_coverage_that_counting_attempts_loses() -> None:
    generator = np.random.default_rng(20)
    num_tasks, attempts, runs = 40, 8, 600
    naive = effective = 0
    for _ in range(runs):
        successes = _heterogeneous_tasks(generator, num_tasks, attempts)
        interval = stats.rate_interval(successes, [attempts] * num_tasks)
        low, high = stats.wilson_interval(sum(successes), num_tasks * attempts) or (0.0, 0.0)
        naive += low <= 0.5 <= high
        effective += (interval.ci_low or 0.0) <= 0.5 <= (interval.ci_high or 0.0)
    assert naive / runs < 0.81
    assert 0.92 < effective / runs < 0.98


def _alarms(generator: np.random.Generator, drop_in_first: float, attempts: int) -> tuple[bool, bool]:
    """One comparison of 4 strata x 20 tasks: does the 5-point threshold fire, does sign-flip with Holm."""
    strata: list[list[float]] = []
    for index in range(4):
        rate = generator.beta(0.5, 0.5, 20)
        after = np.clip(rate - (drop_in_first if index == 0 else 0.0), 0, 1)
        difference = (generator.binomial(attempts, after) - generator.binomial(attempts, rate)) / attempts
        strata.append([float(value) for value in difference])
    overall = [value for stratum in strata for value in stratum]
    p_values = [stats.sign_flip_test(values).p_less for values in (overall, *strata)]
    threshold = any(sum(stratum) / len(stratum) < -0.05 for stratum in strata)
    return threshold, any(p is not None and p <= 0.05 for p in stats.holm(p_values))


def test_thresholds_raise_false_alarms_and_sign_flip_with_holm_does_not() -> None:
    generator = np.random.default_rng(4)
    outcomes = [_alarms(generator, 0.0, 4) for _ in range(200)]
    assert sum(threshold for threshold, _ in outcomes) / 200 > 0.35
    assert sum(flip for _, flip in outcomes) / 200 <= 0.06


def test_sign_flip_with_holm_finds_a_drop_in_one_stratum() -> None:
    generator = np.random.default_rng(5)
    found = sum(_alarms(generator, 0.2, 8)[1] for _ in range(100))
    assert found > 50
