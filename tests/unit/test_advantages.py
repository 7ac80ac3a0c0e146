"""Advantages of groups: known values, unknown rewards, groups that teach nothing, the overlong penalty."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptctl.advantages import (
    ESTIMATORS,
    Estimator,
    broadcast_advantages,
    check_group_size,
    group_advantages,
    overlong_penalty,
)
from ptctl.errors import DataError, UsageError

ONE_OF_FOUR = [1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("estimator", "rewards", "expected"),
    [
        ("grpo", ONE_OF_FOUR, [1.5, -0.5, -0.5, -0.5]),
        ("grpo_ddof0", ONE_OF_FOUR, [1.7321, -0.5774, -0.5774, -0.5774]),
        ("dr_grpo", ONE_OF_FOUR, [0.75, -0.25, -0.25, -0.25]),
        ("rloo", [1.0, 0.0, 0.5, 0.5], [0.6667, -0.6667, 0.0, 0.0]),
    ],
)
def test_known_values(estimator: Estimator, rewards: list[float], expected: list[float]) -> None:
    result = group_advantages(rewards, [0] * 4, estimator=estimator)
    assert result.advantages == pytest.approx(expected, abs=1e-4)
    assert result.trainable.all()
    assert result.has_signal


def test_the_choice_is_recorded() -> None:
    grpo = group_advantages(ONE_OF_FOUR, [0] * 4, eps=1e-4)
    assert (grpo.estimator, grpo.ddof, grpo.eps, grpo.min_group_size) == ("grpo", 1, 1e-4, 2)
    assert group_advantages(ONE_OF_FOUR, [0] * 4, estimator="grpo_ddof0").ddof == 0
    plain = group_advantages(ONE_OF_FOUR, [0] * 4, estimator="dr_grpo")
    assert (plain.ddof, plain.eps) == (None, None)


def test_deviation_is_of_the_group_and_not_of_the_batch() -> None:
    result = group_advantages([0.0, 1.0, 0.0, 10.0], [0, 0, 1, 1])
    assert result.advantages == pytest.approx([-0.7071, 0.7071, -0.7071, 0.7071], abs=5e-5)


def test_batch_estimators() -> None:
    # All of [0, 1, 0, 10]: mean 2.75, deviation sqrt(17.6875); after the group means [-.5, .5, -5, 5]: sqrt(12.625).
    rewards, groups = [0.0, 1.0, 0.0, 10.0], [0, 0, 1, 1]
    batch = group_advantages(rewards, groups, estimator="reinforce_pp", eps=0.0).advantages
    assert batch == pytest.approx([(r - 2.75) / math.sqrt(17.6875) for r in rewards])
    both = group_advantages(rewards, groups, estimator="reinforce_pp_baseline", eps=0.0).advantages
    assert both == pytest.approx([d / math.sqrt(12.625) for d in (-0.5, 0.5, -5.0, 5.0)])


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if e != "reinforce_pp"])
@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_equal_rewards_are_exactly_zero_and_flagged(estimator: Estimator, eps: float) -> None:
    for rewards in (np.ones(4), np.full(8, 0.3, dtype=np.float32), np.full(7, 0.1), [0.1 + 0.2, 0.3, 0.3]):
        result = group_advantages(rewards, [0] * len(rewards), estimator=estimator, eps=eps)
        assert result.advantages.tolist() == [0.0] * len(rewards)
        assert result.zero_variance_groups.tolist() == [True]
        assert result.trainable.all()
        assert not result.has_signal


def test_equal_group_beside_another() -> None:
    result = group_advantages([1, 1, 1, 0, 0.3, 0.3], [0, 0, 1, 1, 2, 2], estimator="dr_grpo", num_groups=4)
    assert result.advantages.tolist() == [0.0, 0.0, 0.5, -0.5, 0.0, 0.0]
    assert result.zero_variance_groups.tolist() == [True, False, True, False]
    assert result.trained_groups.tolist() == [True, True, True, False]
    assert result.num_known.tolist() == [2, 2, 2, 0]


def test_batch_baseline_learns_from_an_equal_group() -> None:
    result = group_advantages([1, 1, 0, 0], [0, 0, 1, 1], estimator="reinforce_pp", eps=0.0)
    assert result.advantages == pytest.approx([1, 1, -1, -1])
    assert result.zero_variance_groups.tolist() == [True, True]
    flat = group_advantages([0.3] * 4, [0, 0, 1, 1], estimator="reinforce_pp")
    assert flat.advantages.tolist() == [0.0] * 4


def test_infrastructure_death_is_no_zero_reward() -> None:
    result = group_advantages([1.0, math.nan, 0.0], [0] * 3, known=[True, False, True], estimator="dr_grpo")
    assert result.advantages.tolist() == [0.5, 0.0, -0.5]
    assert result.trainable.tolist() == [True, False, True]
    assert result.num_known.tolist() == [2]


def test_group_with_too_few_known_rewards_is_not_trained() -> None:
    result = group_advantages([1.0, 0.0, 0.0], [0] * 3, known=[True, False, False], estimator="dr_grpo")
    assert result.advantages.tolist() == [0.0] * 3
    assert not result.trainable.any()
    assert result.trained_groups.tolist() == [False]
    assert not result.has_signal
    three = group_advantages([1.0, 0.0, 0.0], [0] * 3, known=[True, True, False], min_group_size=3)
    assert not three.trainable.any()


@pytest.mark.parametrize("estimator", ESTIMATORS)
def test_what_stands_in_an_unknown_row_does_not_matter(estimator: Estimator) -> None:
    known = [True, True, False, True, False, True]
    groups = [0, 0, 0, 1, 1, 1]
    results = [
        group_advantages([1, 0, filler, 1, filler, 0.5], groups, known=known, estimator=estimator).advantages.tolist()
        for filler in (0.0, 1e9, math.nan, math.inf)
    ]
    assert all(result == results[0] for result in results)
    assert results[0][2] == results[0][4] == 0.0


@pytest.mark.parametrize("estimator", [e for e in ESTIMATORS if e != "reinforce_pp"])
def test_group_size_one_is_a_usage_error(estimator: Estimator) -> None:
    with pytest.raises(UsageError, match="group_size of at least 2"):
        check_group_size(estimator, 1)
    with pytest.raises(UsageError, match="group_size of at least 2"):
        group_advantages([1.0, 0.0], [0, 1], estimator=estimator)
    with pytest.raises(UsageError, match="min_group_size"):
        group_advantages(ONE_OF_FOUR, [0] * 4, estimator=estimator, min_group_size=1)


def test_batch_baseline_needs_no_group() -> None:
    check_group_size("reinforce_pp", 1)
    result = group_advantages([1.0, 0.0], [0, 1], estimator="reinforce_pp", min_group_size=1, eps=0.0)
    assert result.advantages.tolist() == [1.0, -1.0]


def test_bad_settings_and_rows() -> None:
    with pytest.raises(UsageError, match="unknown advantage estimator"):
        group_advantages(ONE_OF_FOUR, [0] * 4, estimator="grpoo")  # pyright: ignore[reportArgumentType]
    with pytest.raises(UsageError, match="eps"):
        group_advantages(ONE_OF_FOUR, [0] * 4, eps=-1.0)
    with pytest.raises(UsageError, match="at least 1"):
        check_group_size("grpo", 0)
    with pytest.raises(DataError, match="row 1 has the reward nan"):
        group_advantages([1.0, math.nan], [0, 0])
    with pytest.raises(DataError, match="shapes differ"):
        group_advantages([1.0, 0.0], [0])
    with pytest.raises(DataError, match=r"0\.\.0"):
        group_advantages([1.0, 0.0], [0, 1], num_groups=1)
    with pytest.raises(DataError, match="integers"):
        group_advantages([1.0, 0.0], [0.0, 0.5])


def test_no_rows() -> None:
    result = group_advantages([], [], num_groups=2)
    assert result.advantages.shape == (0,)
    assert result.trained_groups.tolist() == [False, False]
    assert not result.has_signal


@settings(deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 4), st.floats(-5, 5, width=32), st.booleans()), min_size=6, max_size=40),
    st.sampled_from(ESTIMATORS),
    st.randoms(use_true_random=False),
)
def test_matches_a_plain_loop_in_any_row_order(
    rows: list[tuple[int, float, bool]], estimator: Estimator, random: random.Random
) -> None:
    rows = [*rows, (0, 1.0, True), (0, 0.0, True)]
    random.shuffle(rows)
    groups, rewards, known = (list(column) for column in zip(*rows, strict=True))
    result = group_advantages(rewards, groups, known=known, estimator=estimator, eps=0.01)
    centred = np.zeros(len(rows))
    trained = np.zeros(len(rows), dtype=bool)
    for group in set(groups):
        members = [i for i in range(len(rows)) if groups[i] == group and known[i]]
        if len(members) >= 2:
            values = np.array([rewards[i] for i in members])
            trained[members] = True
            scale = {"grpo": values.std(ddof=1) + 0.01, "grpo_ddof0": values.std() + 0.01}.get(estimator, 1.0)
            if estimator == "rloo":
                centred[members] = [rewards[i] - np.mean([rewards[j] for j in members if j != i]) for i in members]
            else:
                centred[members] = (values - values.mean()) / scale
    if estimator == "reinforce_pp":
        values = np.array(rewards)[trained]
        centred[trained] = (values - values.mean()) / (values.std() + 0.01)
    elif estimator == "reinforce_pp_baseline":
        centred[trained] /= np.sqrt(np.mean(centred[trained] ** 2)) + 0.01
    assert result.trainable.tolist() == trained.tolist()
    assert result.advantages == pytest.approx(centred, rel=1e-9, abs=1e-9)


def test_common_offset_costs_no_digits() -> None:
    shifted = group_advantages([1e9 + 1, 1e9, 1e9, 1e9], [0] * 4).advantages
    assert shifted.tolist() == group_advantages(ONE_OF_FOUR, [0] * 4).advantages.tolist()


def test_edit_of_a_span_stays_in_its_span_and_row() -> None:
    advantages = np.array([1.5, -0.5, 0.25])
    tokens = broadcast_advantages(advantages, [0, 3, 5, 5 + 2])
    tokens[1:2] = 9.0
    assert tokens.tolist() == [1.5, 9.0, 1.5, -0.5, -0.5, 0.25, 0.25]
    assert advantages.tolist() == [1.5, -0.5, 0.25]
    with pytest.raises(DataError):
        broadcast_advantages(advantages, [0, 3, 5])
    with pytest.raises(DataError):
        broadcast_advantages(advantages, [0, 3, 2, 5])


def test_overlong_penalty() -> None:
    penalty = overlong_penalty([0, 79, 80, 85, 90, 100, 500], max_tokens=100, buffer_tokens=20)
    assert penalty.tolist() == [0.0, 0.0, 0.0, -0.25, -0.5, -1.0, -1.0]
    assert not np.signbit(penalty[:3]).any()


@pytest.mark.parametrize("buffer_tokens", [0, -1, 101])
def test_overlong_buffer_must_fit(buffer_tokens: int) -> None:
    with pytest.raises(UsageError, match="buffer_tokens"):
        overlong_penalty([80], max_tokens=100, buffer_tokens=buffer_tokens)
