"""Token streams: lists of numbers as numpy offsets and values, never a Python object for each token."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptctl.errors import DataError

NUMPY_TYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(name) for name in ("int16", "int32", "int64", "float32", "bool")
}
"""Element type of a token stream → numpy."""


@dataclass(frozen=True, slots=True)
class Stream:
    """A token stream of many rows: row i is `values[offsets[i]:offsets[i + 1]]`."""

    offsets: npt.NDArray[np.integer[Any]]
    """# [num_rows + 1] not falling, from 0 to the number of values."""
    values: npt.NDArray[Any]
    """# [sum of lengths] all rows one after another."""


def _bounds(integers: np.dtype[Any]) -> tuple[int, int]:
    high = 1 << (8 * integers.itemsize - 1)
    return -high, high - 1


def _fitted(values: npt.NDArray[Any], element: str) -> npt.NDArray[Any]:
    """The values as the element type. Raises DataError where one of them would become another number."""
    target = NUMPY_TYPES[element]
    if len(values) == 0:
        return values.astype(target)
    if target.kind == "f":
        if values.dtype.kind not in "fiu":
            raise DataError(f"a stream of {element} holds {values.dtype}")
        with np.errstate(over="ignore"):
            fitted = values.astype(target, copy=False)
        if not np.isfinite(fitted).all():
            raise DataError("a token stream holds NaN or infinity", hint="a stream that is not known is left empty")
        return fitted
    if values.dtype == target:
        return values
    if values.dtype.kind not in "iu":
        raise DataError(f"a stream of {element} holds {values.dtype}")
    low, high = (0, 1) if target.kind == "b" else _bounds(target)
    for value in (values.min(), values.max()):
        if not low <= int(value) <= high:
            raise DataError(f"{value} is out of the range of {element}")
    return values.astype(target)


def stream_of_offsets(stream: Stream, element: str) -> pa.Array[Any]:
    """Build `large_list<element>` of a stream; nothing is copied where the types are right (booleans are packed).

    Raises DataError for NaN, infinity, values out of range, and offsets that do not fit the values.
    """
    offsets = np.ascontiguousarray(stream.offsets, dtype=np.int64)
    if len(offsets) == 0 or offsets[0] != 0 or offsets[-1] != len(stream.values) or (np.diff(offsets) < 0).any():
        raise DataError("offsets do not run from 0 to the number of values", hint="offsets[i] is where row i begins")
    values = pa.array(_fitted(stream.values, element))
    field = pa.field("element", values.type, nullable=False)
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, type=pa.large_list(field))


def stream_array(rows: Sequence[Sequence[Any]], element: str) -> pa.Array[Any]:
    """Build `large_list<element>` from per-row sequences.

    Raises DataError for NaN or infinity (an unknown log-probability is an empty stream, never NaN) and for values that
    the element type cannot hold; nothing wraps around and no fraction is dropped.
    """
    parts = [np.asarray(row) for row in rows]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    filled = [part for part in parts if len(part)]  # an empty list has no type of its own to hand on
    if any(part.ndim != 1 for part in filled):
        raise DataError("a token stream is nested", hint="a stream is one flat list a row")
    if not filled:
        values = np.empty(0, dtype=NUMPY_TYPES[element])
    else:
        values = filled[0] if len(filled) == 1 else np.concatenate(filled)
    return stream_of_offsets(Stream(offsets, values), element)


def stream_views(column: pa.ChunkedArray[Any]) -> list[npt.NDArray[Any]]:
    """Per-row numpy views (zero-copy but for booleans) of a token-stream column."""
    views: list[npt.NDArray[Any]] = []
    for chunk in column.chunks:
        array = cast("pa.LargeListArray[Any]", chunk)
        if len(array) == 0:
            continue
        offsets = array.offsets.to_numpy().tolist()
        # Only the values of this slice: booleans are unpacked, and a slice of a large shard must stay small.
        values = array.values.slice(offsets[0], offsets[-1] - offsets[0]).to_numpy(zero_copy_only=False)
        first = offsets[0]
        views.extend(values[start - first : stop - first] for start, stop in itertools.pairwise(offsets))
    return views
