"""Weights, quotas and draws of the sampler."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptctl.curriculum import CurriculumSettings, History, choose, draw_tasks, posterior_success, quotas, task_weights
from ptctl.errors import UsageError


def settings(**changes: object) -> CurriculumSettings:
    values: dict[str, object] = {
        "strategy": "adaptive",
        "learnability_weight": 1.0,
        "failure_weight": 0.25,
        "novelty_weight": 0.5,
        "floor_weight": 0.1,
        "quota_by": "domain",
        "quota_balance": 0.5,
    }
    return CurriculumSettings(**(values | changes))  # type: ignore[arg-type]


def history(successes: list[int], trials: list[int]) -> History:
    return History(
        successes=np.asarray(successes), trials=np.asarray(trials), num_draws=np.asarray([min(1, n) for n in trials])
    )


def test_posterior_is_shrunk_to_the_family_by_hand() -> None:
    # Family 0: 6 of 8 → mean 7/10; task 0: (6 + 4·.7)/(8 + 4); task 1 was never seen: .7. Family 1: prior 1/2.
    found = posterior_success(history([6, 0, 0], [8, 0, 0]), np.asarray([0, 0, 1]))
    assert found == pytest.approx([8.8 / 12, 0.7, 0.5])


def test_weight_is_the_sum_of_its_parts_by_hand() -> None:
    weights = task_weights(history([6, 0, 0], [8, 0, 0]), np.asarray([0, 0, 1]), settings())
    p = np.asarray([8.8 / 12, 0.7, 0.5])
    expected = 0.1 + 4 * p * (1 - p) + 0.25 * np.asarray([0.25, 0, 0]) + 0.5 * np.asarray([0.5, 1, 1])
    assert weights.weight == pytest.approx(expected)
    assert np.isnan(weights.failure_rate[1])


def test_solved_and_hopeless_tasks_are_drawn_less_than_those_between() -> None:
    weights = task_weights(history([80, 40, 0], [80, 80, 80]), np.arange(3), settings(failure_weight=0.0)).weight
    assert weights[1] > 2 * weights[0]
    assert weights[1] > 2 * weights[2]


def test_unknown_strategy() -> None:
    with pytest.raises(UsageError, match="unknown strategy"):
        task_weights(history([0], [0]), np.asarray([0]), settings(strategy="best"))


@given(
    st.lists(st.tuples(st.floats(0.01, 10), st.integers(0, 4)), min_size=1, max_size=30),
    st.integers(1, 100),
    st.floats(0, 1),
)
def test_quotas_add_up_and_follow_the_shares(tasks: list[tuple[float, int]], num_groups: int, balance: float) -> None:
    weight, part = np.asarray([w for w, _ in tasks]), np.asarray([p for _, p in tasks])
    counts, share = quotas(weight, part, num_groups, balance)
    assert counts.sum() == num_groups
    assert share.sum() == pytest.approx(1)
    assert np.all(np.abs(counts - share * num_groups) <= 1 + 1e-6)
    assert not counts[[i for i in range(len(counts)) if i not in part]].any()


def test_equal_quotas_do_not_starve_a_small_domain() -> None:
    part = np.asarray([0] * 999 + [1])
    counts, _ = quotas(np.ones(1000), part, 10, 1.0)
    assert counts.tolist() == [5, 5]
    counts, _ = quotas(np.ones(1000), part, 10, 0.0)
    assert counts.tolist() == [10, 0]


def test_no_task_is_drawn_twice_before_every_task_was_drawn_once() -> None:
    rng = np.random.default_rng(0)
    assert sorted(choose(np.asarray([1e-9, 1.0, 1.0]), 3, rng)) == [0, 1, 2]
    assert sorted(Counter(choose(np.ones(4), 10, rng).tolist()).values()) == [2, 2, 3, 3]


def test_frequencies_follow_the_weights() -> None:
    rng = np.random.default_rng(1)
    first = Counter(int(choose(np.asarray([1.0, 3.0]), 1, rng)[0]) for _ in range(4000))
    assert first[1] / 4000 == pytest.approx(0.75, abs=0.03)


@given(st.integers(0, 2**62), st.integers(1, 40))
def test_the_same_inputs_give_the_same_draws(seed: int, num_groups: int) -> None:
    weights = task_weights(history([0] * 12, [0] * 12), np.arange(12) % 3, settings())
    part = np.arange(12) % 3
    first = draw_tasks(weights, part, num_groups, settings(), seed)
    again = draw_tasks(weights, part, num_groups, settings(), seed)
    assert first[0].tolist() == again[0].tolist()
    assert len(first[0]) == len(first[1]) == num_groups
