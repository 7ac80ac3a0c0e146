"""Rows ↔ Arrow.

Token streams are built from numpy offsets and values; only narrow columns pass through Python objects.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute

from ptctl.errors import DataError
from ptctl.records import ROW_TYPES
from ptctl.shards.schema import ColumnType, column_types, schema_of

compute: Any = pyarrow.compute
"""pyarrow makes its kernels when it is imported, out of sight of type checkers."""
NUMPY_TYPES: dict[str, npt.DTypeLike] = {
    "int16": np.int16,
    "int32": np.int32,
    "int64": np.int64,
    "float32": np.float32,
    "bool": np.bool_,
}


@cache
def _plain_maker(row_type: type) -> Callable[[Any], dict[str, Any]]:
    """A function that turns a nested dataclass into dictionaries; made once a type, several times as fast as asdict."""
    converters = [(name, _value_maker(column)) for name, column in column_types(row_type).items()]

    def plain(row: Any) -> dict[str, Any]:
        return {name: convert(getattr(row, name)) for name, convert in converters}

    return plain


def _identity(value: Any) -> Any:
    return value


def _value_maker(column: ColumnType) -> Callable[[Any], Any]:
    if column.row_type is not None:
        inner = _plain_maker(column.row_type)
        if column.is_list:
            return lambda values: None if values is None else [inner(value) for value in values]
        return lambda value: None if value is None else inner(value)
    if column.is_map:
        return lambda value: None if value is None else list(value.items())
    return _identity


def stream_array(rows: Sequence[Sequence[Any]], element: str) -> pa.Array[Any]:
    """Build `large_list<element>` from per-row sequences without a Python object for each token.

    Raises DataError for NaN or infinity: an unknown log-probability is an empty stream, never NaN.
    """
    parts = [np.asarray(row, dtype=NUMPY_TYPES[element]) for row in rows]
    offsets = np.zeros(len(parts) + 1, dtype=np.int64)
    np.cumsum([len(part) for part in parts], out=offsets[1:])
    values = np.concatenate(parts) if parts else np.empty(0, dtype=NUMPY_TYPES[element])
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise DataError("a token stream holds NaN or infinity", hint="a stream that is not known is left empty")
    field = pa.field("element", pa.from_numpy_dtype(values.dtype), nullable=False)
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(values), type=pa.large_list(field))


def _check_finite(name: str, values: Sequence[Any]) -> None:
    for value in values:
        if isinstance(value, float) and not math.isfinite(value):
            raise DataError(f"column {name!r} holds {value}", hint="what is not known is None, never NaN")


def _column(rows: Sequence[Any], name: str, column: ColumnType) -> pa.Array[Any]:
    values = [getattr(row, name) for row in rows]
    if column.stream is not None:
        try:
            return stream_array(values, column.stream)
        except (DataError, OverflowError, ValueError) as error:
            raise DataError(f"column {name!r}: {error}") from error
    if column.arrow in (pa.float64(), pa.float32()):
        _check_finite(name, values)
    convert = _value_maker(column)
    try:
        return cast("pa.Array[Any]", pa.array([convert(value) for value in values], type=column.arrow))
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, OverflowError) as error:
        raise DataError(f"column {name!r}: {error}") from error


def rows_to_table(kind: str, rows: Sequence[Any]) -> pa.Table:
    """Turn rows of one kind into a table of the declared schema. Raises DataError naming the column."""
    types = column_types(ROW_TYPES[kind])
    arrays = [_column(rows, name, column) for name, column in types.items()]
    return pa.Table.from_arrays(arrays, schema=schema_of(kind))


@cache
def _row_maker(row_type: type) -> Callable[[dict[str, Any]], Any]:
    readers = [(name, _value_reader(column)) for name, column in column_types(row_type).items()]

    def make(plain: dict[str, Any]) -> Any:
        return row_type(**{name: read(plain[name]) for name, read in readers if name in plain})

    return make


def _value_reader(column: ColumnType) -> Callable[[Any], Any]:
    if column.row_type is not None:
        inner = _row_maker(column.row_type)
        if column.is_list:
            return lambda values: None if values is None else tuple(inner(value) for value in values)
        return lambda value: None if value is None else inner(value)
    if column.is_map:
        return lambda value: None if value is None else dict(value)
    if column.is_list:
        return lambda value: None if value is None else tuple(value)
    return _identity


def stream_views(column: pa.ChunkedArray[Any]) -> list[npt.NDArray[Any]]:
    """Per-row numpy views (zero-copy but for booleans) of a token-stream column."""
    views: list[npt.NDArray[Any]] = []
    for chunk in column.chunks:
        array = cast("pa.LargeListArray[Any]", chunk)
        offsets = array.offsets.to_numpy()
        values = array.values.to_numpy(zero_copy_only=False)
        views.extend(values[start:stop] for start, stop in itertools.pairwise(offsets))
    return views


def table_to_rows(kind: str, table: pa.Table) -> list[Any]:
    """Turn a table, or a projection of one that keeps every narrow field without a default, back into rows.

    Token streams are numpy arrays in the rows; those that the projection leaves out are empty.
    """
    row_type = ROW_TYPES[kind]
    types = column_types(row_type)
    absent = {name: () for name, column in types.items() if column.stream and name not in table.column_names}
    names = [name for name in table.column_names if name in types]
    columns: list[Sequence[Any]] = []
    for name in names:
        column = types[name]
        if column.stream is not None:
            columns.append(stream_views(table.column(name)))
        else:
            read = _value_reader(column)
            columns.append([read(value) for value in table.column(name).to_pylist()])
    return [row_type(**absent, **dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]
