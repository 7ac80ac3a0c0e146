"""Padded micro-batches and packed bins: nothing lost, nothing over the limit, balanced, and the same every time."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ptctl.errors import DataError, UsageError
from ptctl.packing import Packing, pack, pad_batches

LENGTHS = st.lists(st.integers(1, 40), max_size=60)


def _flat(packing: Packing) -> list[int]:
    return [int(row) for rank in packing.bins for members in rank for row in members]


def test_pad_batches_groups_similar_lengths() -> None:
    batches = pad_batches([3, 10, 4, 4, 9, 1], 12)
    assert [batch.tolist() for batch in batches] == [[1], [4], [2, 3, 0], [5]]


def test_pad_batches_breaks_ties_by_row() -> None:
    assert [batch.tolist() for batch in pad_batches([2, 2, 2, 2, 2], 4)] == [[0, 1], [2, 3], [4]]


@settings(deadline=None)
@given(LENGTHS, st.integers(40, 200))
def test_pad_batches_keep_the_limit_and_every_row(lengths: list[int], limit: int) -> None:
    batches = pad_batches(lengths, limit)
    assert sorted(int(row) for batch in batches for row in batch) == list(range(len(lengths)))
    for batch in batches:
        assert len(batch) * max(lengths[row] for row in batch) <= limit
    for batch, following in itertools.pairwise(batches):
        assert min(lengths[row] for row in batch) >= max(lengths[row] for row in following)
        # The next row would not have fitted.
        assert (len(batch) + 1) * lengths[batch[0]] > limit


def test_pack_fills_first_fit_decreasing() -> None:
    packing = pack([4, 8, 1, 4, 2, 1], 10)
    assert [members.tolist() for members in packing.bins[0]] == [[1, 4], [0, 3, 2, 5]]
    assert packing.fill == 1.0
    assert packing.num_micro_batches == 2


def _first_fit_decreasing(lengths: list[int], capacity: int) -> list[list[int]]:
    bins: list[list[int]] = []
    for row in sorted(range(len(lengths)), key=lambda index: (-lengths[index], index)):
        for members in bins:
            if sum(lengths[other] for other in members) + lengths[row] <= capacity:
                members.append(row)
                break
        else:
            bins.append([row])
    return bins


@settings(deadline=None)
@given(LENGTHS, st.integers(40, 120))
def test_pack_is_first_fit_decreasing(lengths: list[int], capacity: int) -> None:
    packed = [members.tolist() for members in pack(lengths, capacity).bins[0]]
    assert sorted(packed) == sorted(_first_fit_decreasing(lengths, capacity))


@settings(deadline=None)
@given(LENGTHS, st.integers(40, 120), st.integers(1, 8))
def test_pack_promises(lengths: list[int], capacity: int, num_ranks: int) -> None:
    packing = pack(lengths, capacity, num_ranks)
    assert sorted(_flat(packing)) == list(range(len(lengths)))
    assert len(packing.bins) == num_ranks
    assert {len(rank) for rank in packing.bins} == {packing.num_micro_batches}
    for rank in packing.bins:
        for members in rank:
            assert sum(lengths[row] for row in members) <= capacity
    if len(lengths) >= num_ranks * packing.num_micro_batches:
        assert all(len(members) for rank in packing.bins for members in rank)
    needed = len(_first_fit_decreasing(lengths, capacity))
    assert packing.num_micro_batches == -(-needed // num_ranks)
    again = pack(lengths, capacity, num_ranks)
    assert all(
        left.tolist() == right.tolist()
        for ours, theirs in zip(packing.bins, again.bins, strict=True)
        for left, right in zip(ours, theirs, strict=True)
    )


@pytest.mark.parametrize(("median", "sigma"), [(1500, 1.0), (4000, 1.0), (2000, 0.8)])
def test_typical_mix_is_full_and_balanced(median: int, sigma: float) -> None:
    generator = np.random.default_rng(11)
    lengths = np.clip(generator.lognormal(np.log(median), sigma, 20_000).astype(np.int64), 16, 32_768)
    packing = pack(lengths, 32_768, 8)
    assert packing.fill >= 0.995
    assert packing.num_tokens == lengths.sum()
    for cost in (lengths.astype(float), lengths.astype(float) ** 2):
        loads = [sum(cost[members].sum() for members in rank) for rank in packing.bins]
        assert max(loads) / min(loads) < 1.02


def test_fewer_rows_than_ranks_leaves_an_empty_bin() -> None:
    packing = pack([5, 6], 10, 4)
    assert packing.num_micro_batches == 1
    assert sorted(len(rank[0]) for rank in packing.bins) == [0, 0, 1, 1]


def test_no_rows() -> None:
    packing = pack([], 10, 2)
    assert packing.bins == ((), ())
    assert packing.num_micro_batches == 0
    assert packing.fill == 1.0
    assert pad_batches([], 10) == []


def test_over_long_row_is_named_and_never_cut() -> None:
    with pytest.raises(DataError, match=r"row 1 has 11 tokens; capacity allows 1 to 10"):
        pack([3, 11, 12], 10, 2)
    with pytest.raises(DataError, match=r"row 2 has 12 tokens; max_tokens_per_micro_batch"):
        pad_batches([3, 10, 12], 10)


def test_bad_arguments() -> None:
    with pytest.raises(DataError, match="row 0 has 0 tokens"):
        pack([0, 1], 10)
    with pytest.raises(DataError, match="integers"):
        pack([1.5], 10)
    for capacity, num_ranks in ((0, 1), (10, 0)):
        with pytest.raises(UsageError):
            pack([1], capacity, num_ranks)
