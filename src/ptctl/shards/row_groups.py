"""Where row groups end: small enough for memory and for ranks, large enough that 80 columns cost little.

A row group is what a reader holds in memory and the least that it can read. Bounds, in bytes of Arrow memory:

- At least 4 MiB (about 460,000 tokens of id, mask and log-probability) where there is more: a group costs some
  milliseconds and 10 kB of footer for the narrow columns, whatever it holds.
- At most 1/40 of what the shard holds so far, so that 8 ranks get 5 groups each and none reads more than 1.2 times its
  share, without knowing the size of the shard beforehand.
- At most 32 MiB, so that writer and reader stay far below 512 MB. That keeps every stream far below 2²⁷ elements, as
  each element counts for a byte or more. A single longer row is a group of its own: a row cannot be cut.
"""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

MIN_ROW_GROUP_BYTES = 4 * 2**20
MAX_ROW_GROUP_BYTES = 32 * 2**20
GROUPS_IN_SHARD = 40
"""A growing shard has at least so many row groups, once each is larger than the least."""


def group_limit_bytes(shard_bytes: int) -> int:
    """Most bytes of the next row group, after `shard_bytes` in the groups before it."""
    return min(max(shard_bytes // GROUPS_IN_SHARD, MIN_ROW_GROUP_BYTES), MAX_ROW_GROUP_BYTES)


def _list_bytes(array: Any) -> npt.NDArray[np.int64]:
    offsets = array.offsets.to_numpy().astype(np.int64, copy=False)
    first = int(offsets[0])
    inner = array.values.slice(first, int(offsets[-1]) - first) if not pa.types.is_map(array.type) else None
    width = 8 * np.ones(len(array), dtype=np.int64)  # an offset
    if inner is None:
        pairs = row_bytes(array.keys.slice(first, int(offsets[-1]) - first))
        pairs = pairs + row_bytes(array.items.slice(first, int(offsets[-1]) - first))
    elif pa.types.is_primitive(inner.type):
        return width + np.diff(offsets) * max(1, inner.type.bit_width // 8)
    else:
        pairs = row_bytes(inner)
    upto = np.concatenate([[0], np.cumsum(pairs)])
    return width + np.diff(upto[offsets - first])


def row_bytes(array: pa.Array[Any]) -> npt.NDArray[np.int64]:
    """# [num_rows] bytes that each row takes in memory; a boolean counts for a byte."""
    kind = array.type
    if pa.types.is_struct(kind):
        total = np.ones(len(array), dtype=np.int64)
        for part in cast("Any", array).flatten():
            total += row_bytes(part)
        return total
    if pa.types.is_string(kind) or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        offset_type = np.int64 if pa.types.is_large_binary(kind) else np.int32
        offsets = np.frombuffer(cast("Any", array).buffers()[1] or b"\0" * 8, dtype=offset_type)
        return 8 + np.diff(offsets[array.offset : array.offset + len(array) + 1]).astype(np.int64)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_map(kind):
        return _list_bytes(array)
    return np.full(len(array), max(1, kind.bit_width // 8), dtype=np.int64)


def table_row_bytes(table: pa.Table) -> npt.NDArray[np.int64]:
    """# [num_rows] bytes that each row of a table takes in memory."""
    total = np.zeros(table.num_rows, dtype=np.int64)
    for column in table.columns:
        total += np.concatenate([row_bytes(chunk) for chunk in column.chunks] or [np.zeros(0, dtype=np.int64)])
    return total
