"""Row lengths -> micro-batches: padded ones of similar length, or packed bins balanced over ranks.

Both are deterministic functions of the lengths. Lengths are in tokens, already rounded up to whatever multiple the
parallel layout asks for.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ptctl.errors import DataError, UsageError

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True, kw_only=True, slots=True)
class Packing:
    """Bins of row indices: `bins[rank][micro_batch]` is an array of rows whose lengths add up to at most `capacity`.

    Every rank has the same number of micro-batches, because collective operations inside one need all ranks. A bin is
    empty only when there are fewer rows than bins a round.
    """

    bins: tuple[tuple[IntArray, ...], ...]
    capacity: int
    num_tokens: int

    @property
    def num_micro_batches(self) -> int:
        """Micro-batches of each rank."""
        return len(self.bins[0])

    @property
    def fill(self) -> float:
        """Share of the bins' tokens that is used; 1 for no bins."""
        available = len(self.bins) * self.num_micro_batches * self.capacity
        return self.num_tokens / available if available else 1.0


def pad_batches(lengths: npt.ArrayLike, max_tokens_per_micro_batch: int) -> list[IntArray]:
    """Group rows of similar length so that rows x longest row <= max_tokens_per_micro_batch.

    Longest first, so that a micro-batch that does not fit in memory fails at once; equal lengths keep the row order.

    Args:
        lengths: [N], tokens of each row, at least 1.
        max_tokens_per_micro_batch: tokens of a padded micro-batch.

    Raises DataError for a row that is longer than the limit, or empty; UsageError for a limit below 1.
    """
    sizes = _checked_lengths(lengths, max_tokens_per_micro_batch, "max_tokens_per_micro_batch")
    order = np.argsort(-sizes, kind="stable").astype(np.int64, copy=False)
    batches: list[IntArray] = []
    start = 0
    while start < order.size:
        stop = start + max_tokens_per_micro_batch // int(sizes[order[start]])
        batches.append(order[start:stop].copy())
        start = stop
    return batches


def pack(lengths: npt.ArrayLike, capacity: int, num_ranks: int = 1) -> Packing:
    """Pack rows into bins of `capacity` tokens (first-fit decreasing) and deal the bins to the ranks.

    The number of bins is a multiple of num_ranks; the at most num_ranks - 1 bins that this adds come from halving the
    bins that cost most. Bins are dealt in rounds of similar cost, the costliest bin of a round to the rank with the
    least so far. The cost of a row of l tokens is l + l^2 / capacity: bins have about equally many tokens, so what
    unbalances the ranks is attention, which grows with the square. First-fit decreasing needs at most 11/9 of the
    fewest bins plus one (Johnson 1973), and in mixes with many short rows almost none more.

    Args:
        lengths: [N], tokens of each row, at least 1.
        capacity: tokens of a bin.
        num_ranks: data-parallel ranks.

    Raises DataError for a row that is longer than the capacity, or empty; UsageError for capacity or num_ranks below 1.
    """
    if num_ranks < 1:
        raise UsageError(f"num_ranks must be at least 1, got {num_ranks}")
    sizes = _checked_lengths(lengths, capacity, "capacity")
    order = np.argsort(-sizes, kind="stable").astype(np.int64, copy=False)
    positions, bin_ends = _first_fit_decreasing(sizes[order], capacity)
    rows = order[positions]
    bins = [rows[start:stop] for start, stop in zip([0, *bin_ends[:-1]], bin_ends, strict=True)] if bin_ends else []
    row_costs = sizes + sizes.astype(np.float64) ** 2 / capacity  # [N]
    costs = [float(row_costs[members].sum()) for members in bins]
    _split_to_multiple(bins, costs, row_costs, num_ranks)
    return Packing(bins=_deal(bins, costs, num_ranks), capacity=capacity, num_tokens=int(sizes.sum()))


def _first_fit_decreasing(descending: IntArray, capacity: int) -> tuple[IntArray, list[int]]:
    """Fill one bin after another; returns positions in `descending` bin by bin, and where each bin ends.

    Taking the longest row that still fits until none does gives the same bins as first-fit decreasing. Rows only ever
    disappear, so "longest row of at most v tokens" is a union-find over lengths: near-linear in rows + capacity.
    """
    left = np.bincount(descending, minlength=capacity + 1).tolist()  # [capacity + 1], rows of each length
    next_position = np.searchsorted(-descending, -np.arange(capacity + 1), side="left").tolist()
    shorter = [length if count else length - 1 for length, count in enumerate(left)]
    shorter[0] = 0
    positions: list[int] = []
    bin_ends: list[int] = []
    while len(positions) < descending.size:
        room = capacity
        while True:
            length = room
            while shorter[length] != length:
                shorter[length] = shorter[shorter[length]]
                length = shorter[length]
            if length == 0:
                break
            count = min(left[length], room // length)
            first = next_position[length]
            positions.extend(range(first, first + count))
            next_position[length] = first + count
            left[length] -= count
            if not left[length]:
                shorter[length] = length - 1
            room -= count * length
        bin_ends.append(len(positions))
    return np.asarray(positions, dtype=np.int64), bin_ends


def _split_to_multiple(
    bins: list[IntArray], costs: list[float], row_costs: npt.NDArray[np.float64], num_ranks: int
) -> None:
    """Halve the costliest divisible bins, in place, until num_ranks divides their number; pad with empty ones."""
    while len(bins) % num_ranks:
        divisible = [index for index, members in enumerate(bins) if members.size > 1]
        if not divisible:
            bins.append(np.empty(0, dtype=np.int64))
            costs.append(0.0)
            continue
        index = max(divisible, key=lambda candidate: (costs[candidate], -candidate))
        members = bins[index]
        for part, target in ((members[::2], index), (members[1::2], len(bins))):
            bins[target : target + 1] = [part]
            costs[target : target + 1] = [float(row_costs[part].sum())]


def _deal(bins: list[IntArray], costs: list[float], num_ranks: int) -> tuple[tuple[IntArray, ...], ...]:
    by_cost = sorted(range(len(bins)), key=lambda index: (-costs[index], index))
    dealt: list[list[IntArray]] = [[] for _ in range(num_ranks)]
    loads = [0.0] * num_ranks
    for start in range(0, len(by_cost), num_ranks):
        least_loaded = sorted(range(num_ranks), key=lambda rank: (loads[rank], rank))
        for rank, index in zip(least_loaded, by_cost[start : start + num_ranks], strict=True):
            dealt[rank].append(bins[index])
            loads[rank] += costs[index]
    return tuple(tuple(rank_bins) for rank_bins in dealt)


def _checked_lengths(lengths: npt.ArrayLike, limit: int, limit_name: str) -> IntArray:
    if limit < 1:
        raise UsageError(f"{limit_name} must be at least 1, got {limit}")
    sizes = np.asarray(lengths)
    if sizes.ndim != 1 or (sizes.size and not np.issubdtype(sizes.dtype, np.integer)):
        raise DataError(f"lengths must be one row of integers, got {sizes.dtype} of shape {sizes.shape}")
    sizes = sizes.astype(np.int64, copy=False)
    for row in np.flatnonzero((sizes > limit) | (sizes < 1))[:1]:
        raise DataError(
            f"row {row} has {sizes[row]} tokens; {limit_name} allows 1 to {limit}",
            hint=f"raise {limit_name} or leave the row out; a row is never cut",
        )
    return sizes
