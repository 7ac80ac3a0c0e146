"""Which rows of a dataset each of many ranks reads, from footers alone and without asking each other.

Ranks get contiguous rows with nearly equal bytes. A cut goes to the end of a row group where one is near, so that no
group is read twice; where groups are too large for that (a small dataset), it goes through the middle of one, and both
neighbours read it. From 5 row groups a rank on, a rank reads at most 1.2 times its share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from ptctl.errors import UsageError
from ptctl.shards.reader import open_shard

NEAR_SHARE = 0.15
"""How far a cut may move to the end of a row group, as part of a rank's share of bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowRange:
    """Rows `[start, stop)` of a shard."""

    path: Path
    start: int
    stop: int


def rank_rows(
    paths: Sequence[Path], kind: str, rank: int, num_ranks: int, columns: Sequence[str] | None = None
) -> list[RowRange]:
    """Rows that `rank` of `num_ranks` reads, in the order of `paths`; over all ranks, each row once.

    Shares are equal in bytes on disk of `columns` (None: all), which every rank computes alike from the footers.
    Raises UsageError for a rank that does not exist, and what opening a shard raises.
    """
    if not 0 <= rank < num_ranks:
        raise UsageError(f"rank {rank} of {num_ranks}", hint="ranks count from 0")
    shards: list[tuple[Path, int]] = []
    num_rows: list[int] = []
    num_bytes: list[int] = []
    for path in paths:
        with open_shard(path, kind) as shard:
            groups = range(shard.num_row_groups)
            num_rows += [shard.group_num_rows(index) for index in groups]
            num_bytes += [shard.group_bytes(index, columns) for index in groups]
            shards.append((path, sum(shard.group_num_rows(index) for index in groups)))
    row_ends = np.cumsum([0, *num_rows])
    byte_ends = np.cumsum([0, *num_bytes])
    start, stop = (_cut(row_ends, byte_ends, place, num_ranks) for place in (rank, rank + 1))
    return list(_ranges(shards, start, stop))


def _cut(row_ends: np.ndarray, byte_ends: np.ndarray, place: int, num_ranks: int) -> int:
    """Row at which the share of rank `place` begins."""
    share = float(byte_ends[-1]) / num_ranks
    wanted = share * place
    nearest = int(np.abs(byte_ends - wanted).argmin())
    if abs(byte_ends[nearest] - wanted) <= NEAR_SHARE * share:
        return int(row_ends[nearest])
    return round(float(np.interp(wanted, byte_ends, row_ends)))


def _ranges(shards: Sequence[tuple[Path, int]], start: int, stop: int) -> Iterator[RowRange]:
    before = 0
    for path, num_rows in shards:
        first, last = max(start - before, 0), min(stop - before, num_rows)
        if first < last:
            yield RowRange(path=path, start=first, stop=last)
        before += num_rows


def iter_ranges(ranges: Sequence[RowRange], kind: str, columns: Sequence[str] | None = None) -> Iterator[pa.Table]:
    """The rows of ranges, in order, one row group in memory at a time; no other group is read."""
    for part in ranges:
        with open_shard(part.path, kind) as shard:
            before = 0
            for index in range(shard.num_row_groups):
                num_rows = shard.group_num_rows(index)
                first, last = max(part.start - before, 0), min(part.stop - before, num_rows)
                if first < last:
                    yield shard.read_group(index, columns).slice(first, last - first)
                before += num_rows
