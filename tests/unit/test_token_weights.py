"""Token weights: the loss of a step must not depend on how its rows are split, ordered or padded."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptctl.errors import DataError, UsageError
from ptctl.token_weights import (
    NORMALISATIONS,
    Normalisation,
    expand_token_weights,
    row_token_weights,
    weighted_sum,
)


def _length(normalisation: Normalisation) -> float | None:
    return 8.0 if normalisation == "dr_grpo" else None


def _loss(losses: list[list[float]], masks: list[list[int]], normalisation: Normalisation) -> float:
    weights = row_token_weights([sum(m) for m in masks], normalisation, constant_length=_length(normalisation))
    offsets = np.cumsum([0, *(len(m) for m in masks)])
    column = expand_token_weights(np.concatenate(masks), offsets, weights.weights)
    return weighted_sum(np.concatenate(losses), column)


FOUR_ROWS = [[1.0] * 1, [2.0] * 3, [3.0] * 2, [4.0] * 4]
EXPECTED: dict[Normalisation, float] = {
    "token_mean": 2.9,
    "seq_mean_token_mean": 2.5,
    "seq_mean_token_sum": 7.25,
    "dr_grpo": 0.90625,
}


def test_every_normalisation_is_listed() -> None:
    assert set(EXPECTED) == set(NORMALISATIONS)


@pytest.mark.parametrize(("normalisation", "expected"), list(EXPECTED.items()))
@settings(deadline=None)
@given(data=st.data())
def test_any_partition_and_order(normalisation: Normalisation, expected: float, data: st.DataObject) -> None:
    """Ranks, micro-batches and context shards: contiguous pieces of the token stream, of rows in any order."""
    rows = data.draw(st.permutations(range(4)))
    counts = [len(FOUR_ROWS[row]) for row in rows]
    weights = row_token_weights(counts, normalisation, constant_length=_length(normalisation)).weights
    column = expand_token_weights(np.ones(10, dtype=bool), np.cumsum([0, *counts]), weights)
    losses = np.concatenate([FOUR_ROWS[row] for row in rows])
    tokens = np.array(data.draw(st.permutations(range(10))))
    cuts = sorted(data.draw(st.lists(st.integers(0, 10), max_size=4)))
    parts = [weighted_sum(losses[part], column[part]) for part in np.split(tokens, cuts)]
    assert sum(parts) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
def test_a_part_of_the_rows_is_expanded_with_the_weights_of_the_step(normalisation: Normalisation) -> None:
    generator = np.random.default_rng(3)
    lengths = generator.integers(1, 40, 50)
    mask = generator.random(int(lengths.sum())) < 0.6
    losses = generator.normal(size=mask.size)
    offsets = np.concatenate(([0], np.cumsum(lengths)))
    counts = np.add.reduceat(mask, offsets[:-1], dtype=np.int64)
    weights = row_token_weights(counts, normalisation, constant_length=_length(normalisation)).weights
    whole = weighted_sum(losses, expand_token_weights(mask, offsets, weights))
    for _ in range(20):
        total = 0.0
        for rows in np.array_split(generator.permutation(50), generator.integers(1, 9)):
            tokens = np.concatenate([np.arange(offsets[r], offsets[r + 1]) for r in rows])
            part_offsets = np.concatenate(([0], np.cumsum(lengths[rows])))
            total += weighted_sum(losses[tokens], expand_token_weights(mask[tokens], part_offsets, weights[rows]))
        assert total == pytest.approx(whole, abs=1e-12)


def test_ranks_of_different_size() -> None:
    weights = row_token_weights([2, 8], "token_mean").weights
    rank_0 = weighted_sum([1.0, 1.0], expand_token_weights([True] * 2, [0, 2], weights[:1]))
    rank_1 = weighted_sum([0.0] * 8, expand_token_weights([True] * 8, [0, 8], weights[1:]))
    assert rank_0 + rank_1 == pytest.approx(0.2, abs=1e-12)


@pytest.mark.parametrize(
    ("normalisation", "expected"),
    [("seq_mean_token_sum", 2.5), ("seq_mean_token_mean", 1.0), ("dr_grpo", 0.3125)],
)
def test_lengths_one_and_four(normalisation: Normalisation, expected: float) -> None:
    assert _loss([[1.0], [1.0] * 4], [[1], [1] * 4], normalisation) == pytest.approx(expected, abs=1e-12)


def test_tool_tokens_do_not_count() -> None:
    losses, mask = [[1.0, 1.0, 7.0, 7.0, 7.0, 1.0, 1.0, 7.0, 7.0, 7.0]], [[1, 1, 0, 0, 0, 1, 1, 0, 0, 0]]
    assert _loss(losses, mask, "token_mean") == pytest.approx(1.0, abs=1e-12)
    assert _loss(losses, mask, "seq_mean_token_mean") == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("normalisation", ["token_mean", "seq_mean_token_mean"])
def test_truncated_and_masked_row_is_not_there(normalisation: Normalisation) -> None:
    assert _loss([[1.0] * 4, [5.0] * 6], [[1] * 4, [0] * 6], normalisation) == pytest.approx(1.0, abs=1e-12)


def test_masked_row_is_not_in_the_sequence_mean() -> None:
    for normalisation, expected in (
        ("seq_mean_token_mean", 2.0),
        ("seq_mean_token_sum", 2.0),
        ("dr_grpo", 0.25),
    ):
        assert _loss([[2.0], [9.0, 9.0]], [[1], [0, 0]], normalisation) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("counts", [[0, 0, 0], []])
def test_step_without_loss_tokens_is_empty_and_not_nan(normalisation: Normalisation, counts: list[int]) -> None:
    weights = row_token_weights(counts, normalisation, constant_length=_length(normalisation))
    assert weights.empty
    assert weights.weights.tolist() == [0.0] * len(counts)
    assert (weights.num_loss_tokens, weights.num_trajectories) == (0, 0)


def test_counts_of_the_step() -> None:
    weights = row_token_weights([3, 0, 2], "token_mean")
    assert (weights.num_loss_tokens, weights.num_trajectories, weights.empty) == (5, 2, False)
    assert weights.weights.tolist() == [0.2, 0.0, 0.2]


def test_what_stands_behind_the_mask_is_not_read() -> None:
    values, mask = [[1.0, math.nan, math.inf]], [[1, 0, 0]]
    for normalisation in ("seq_mean_token_sum", "token_mean", "seq_mean_token_mean"):
        assert _loss(values, mask, normalisation) == 1.0


def test_segments_of_a_trajectory_count_once() -> None:
    # Trajectory 7 in two segments of 2 + 2 tokens with loss 1, trajectory 3 with 1 token of loss 3, 5 with none.
    counts, index = [2, 1, 2, 0], [7, 3, 7, 5]
    losses, offsets = [1.0, 1.0, 3.0, 1.0, 1.0], [0, 2, 3, 5, 5]
    for normalisation, expected in (
        ("token_mean", 7 / 5),
        ("seq_mean_token_mean", (1 + 3) / 2),
        ("seq_mean_token_sum", (4 + 3) / 2),
        ("dr_grpo", (4 + 3) / 2 / 8),
    ):
        weights = row_token_weights(
            counts, normalisation, constant_length=_length(normalisation), trajectory_index=index
        )
        column = expand_token_weights([True] * 5, offsets, weights.weights)
        assert weighted_sum(losses, column) == pytest.approx(expected, abs=1e-12)
        assert weights.num_trajectories == 2


def test_float32_column() -> None:
    column = expand_token_weights([True, False, True], [0, 2, 3], [0.1, 0.2], dtype=np.float32)
    assert column.dtype == np.float32
    assert column.tolist() == [np.float32(0.1), 0.0, np.float32(0.2)]


def test_an_option_is_never_ignored() -> None:
    with pytest.raises(UsageError, match="no meaning"):
        row_token_weights([1], "token_mean", constant_length=8)
    for length in (None, 0, -1, math.nan):
        with pytest.raises(UsageError, match="constant_length"):
            row_token_weights([1], "dr_grpo", constant_length=length)
    with pytest.raises(UsageError, match="unknown loss normalisation"):
        row_token_weights([1], "mean")  # pyright: ignore[reportArgumentType]


def test_contradicting_arrays() -> None:
    with pytest.raises(DataError):
        row_token_weights([1, -1], "token_mean")
    with pytest.raises(DataError):
        row_token_weights([1, 1], "token_mean", trajectory_index=[0])
    for offsets in ([0, 2], [0, 1, 2], [1, 2, 3], [0, 4, 3]):
        with pytest.raises(DataError):
            expand_token_weights([True] * 3, offsets, [1.0, 1.0])
    with pytest.raises(DataError):
        weighted_sum([1.0], [1.0, 2.0])
