"""Rows ↔ Arrow, a column at a time.

Token streams are built from numpy offsets and values. Structs are built field by field over all rows at once: a
dictionary for each turn would cost three times as much.
"""

from __future__ import annotations

import collections
import itertools
import math
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, fields
from functools import cache
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute

from ptctl.errors import DataError
from ptctl.records import ROW_TYPES
from ptctl.shards.schema import ColumnType, column_types, schema_of
from ptctl.shards.streams import Stream, stream_array, stream_of_offsets, stream_views

__all__ = [
    "check_values",
    "columns_to_table",
    "compute",
    "rows_to_table",
    "stream_array",
    "stream_views",
    "table_to_rows",
]

compute: Any = pyarrow.compute
"""pyarrow makes its kernels when it is imported, out of sight of type checkers."""


def _empty_value(column: ColumnType) -> Any:
    """What stands in the fields of a struct that is itself NULL."""
    if column.nullable:
        return None
    if column.stream is not None or column.is_list:
        return ()
    if column.is_map:
        return {}
    if column.row_type is not None:
        return _empty_row(column.row_type)
    if pa.types.is_string(column.arrow):
        return ""
    return b"" if pa.types.is_large_binary(column.arrow) else 0


@cache
def _empty_row(row_type: type) -> Any:
    return row_type(**{name: _empty_value(column) for name, column in column_types(row_type).items()})


def _offsets(path: str, lists: Sequence[Any]) -> pa.Array[Any]:
    lengths = np.fromiter((len(value) for value in lists), dtype=np.int64, count=len(lists))
    offsets = np.zeros(len(lists) + 1, dtype=np.int64)
    np.cumsum(lengths, out=offsets[1:])
    if offsets[-1] > np.iinfo(np.int32).max:
        raise DataError(f"column {path!r} holds {offsets[-1]} elements at once", hint="write fewer rows at a time")
    return pa.array(offsets.astype(np.int32))


def _leaf(path: str, values: Sequence[Any], arrow: pa.DataType) -> pa.Array[Any]:
    try:
        array = cast("pa.Array[Any]", pa.array(values, type=arrow))
    except (pa.ArrowInvalid, pa.ArrowTypeError, UnicodeEncodeError, OverflowError, ValueError) as error:
        raise DataError(f"column {path!r}: {error}") from error
    require_finite(path, array)
    return array


def require_finite(path: str, array: pa.Array[Any]) -> None:
    """Raise DataError naming the column where a floating-point array holds NaN or infinity."""
    if not pa.types.is_floating(array.type) or math.isfinite(compute.sum(array, min_count=0).as_py()):
        return  # a finite sum has finite terms; only finding the term, or an overflow of the sum, is slow
    finite = compute.is_finite(array)
    if not compute.all(finite, min_count=0).as_py():
        value = array.filter(compute.invert(finite))[0].as_py()
        raise DataError(f"column {path!r} holds {value}", hint="what is not known is None, never NaN")


def _struct(
    path: str, rows: Sequence[Any], row_type: type, arrow: pa.DataType, *, nullable: bool = False
) -> pa.Array[Any]:
    absent = [row is None for row in rows]
    if any(absent):
        if not nullable:
            raise DataError(f"column {path!r} holds None", hint="the column is declared without NULL")
        empty = _empty_row(row_type)
        rows = [empty if row is None else row for row in rows]
    arrays = [
        array_of(f"{path}.{name}", list(map(operator.attrgetter(name), rows)), column)
        for name, column in column_types(row_type).items()
    ]
    mask = pa.array(absent) if any(absent) else None
    return pa.StructArray.from_arrays(arrays, fields=list(cast("pa.StructType", arrow)), mask=mask)


def _list(path: str, lists: Sequence[Any], column: ColumnType) -> pa.Array[Any]:
    absent = [value is None for value in lists]
    if any(absent):
        lists = [() if value is None else value for value in lists]
    mask = pa.array(absent) if any(absent) else None
    offsets = _offsets(path, lists)
    if column.is_map:
        keys = _leaf(f"{path}.key", list(itertools.chain.from_iterable(lists)), pa.string())
        items = _leaf(f"{path}.value", [item for value in lists for item in value.values()], pa.string())
        return pa.MapArray.from_arrays(offsets, keys, items, type=column.arrow, mask=mask)
    flat = list(itertools.chain.from_iterable(lists))
    element = cast("pa.ListType[Any]", column.arrow).value_type
    if column.row_type is not None:
        values = _struct(path, flat, column.row_type, element)
    else:
        values = _leaf(path, flat, element)
        _require_values(path, values)
    return pa.ListArray.from_arrays(offsets, values, type=column.arrow, mask=mask)


def _require_values(path: str, array: pa.Array[Any]) -> None:
    if array.null_count:
        raise DataError(f"column {path!r} holds None", hint="the column is declared without NULL")


def _named_stream(path: str, make: Callable[[], pa.Array[Any]]) -> pa.Array[Any]:
    try:
        return make()
    except (DataError, OverflowError, ValueError, TypeError) as error:
        raise DataError(f"column {path!r}: {error}", hint=getattr(error, "hint", None)) from error


def array_of(path: str, values: Sequence[Any], column: ColumnType) -> pa.Array[Any]:
    """Values of one column (one a row) as an array of its declared type. Raises DataError naming `path`."""
    if column.stream is not None:
        stream = column.stream
        return _named_stream(path, lambda: stream_array(values, stream))
    try:
        if column.is_list or column.is_map:
            array = _list(path, values, column)
        elif column.row_type is not None:
            array = _struct(path, values, column.row_type, column.arrow, nullable=column.nullable)
        else:
            array = _leaf(path, values, column.arrow)
    except (AttributeError, TypeError) as error:
        raise DataError(f"column {path!r} holds another kind of value: {error}") from error
    if not column.nullable:
        _require_values(path, array)
    return array


def rows_to_table(kind: str, rows: Sequence[Any]) -> pa.Table:
    """Turn rows of one kind into a table of the declared schema.

    Raises DataError naming the column: NaN, lone surrogates, None where none is declared, numbers out of range.
    """
    types = column_types(ROW_TYPES[kind])
    arrays = [array_of(name, list(map(operator.attrgetter(name), rows)), column) for name, column in types.items()]
    return pa.Table.from_arrays(arrays, schema=schema_of(kind))


def columns_to_table(kind: str, columns: Mapping[str, Stream | Sequence[Any]], num_rows: int) -> pa.Table:
    """Turn columns of one kind into a table of the declared schema; what is left out gets the default of the row.

    A token stream is a `Stream`, of which nothing is copied; every other column is a sequence of `num_rows` values.
    Raises DataError naming the column that is not known, missing without a default, or of another length.
    """
    types = column_types(ROW_TYPES[kind])
    if unknown := sorted(set(columns) - set(types)):
        raise DataError(f"{kind} have no column {unknown[0]!r}")
    arrays: list[pa.Array[Any]] = []
    for field in fields(ROW_TYPES[kind]):
        name, column = field.name, types[field.name]
        values = columns.get(name)
        if values is None:
            if field.default is MISSING and field.default_factory is MISSING:
                raise DataError(f"column {name!r} is missing and has no default")
            default = field.default if field.default_factory is MISSING else field.default_factory()
            values = [default] * num_rows
        if isinstance(values, Stream):
            if column.stream is None:
                raise DataError(f"column {name!r} is no token stream")
            array = _named_stream(name, lambda values=values, stream=column.stream: stream_of_offsets(values, stream))
        else:
            array = array_of(name, values, column)
        if len(array) != num_rows:
            raise DataError(f"column {name!r} has {len(array)} rows, not {num_rows}")
        arrays.append(array)
    return pa.Table.from_arrays(arrays, schema=schema_of(kind))


def check_values(table: pa.Table) -> None:
    """Raise DataError naming the column where a table holds NaN, infinity, or NULL where none is declared."""
    for field, column in zip(table.schema, table.columns, strict=True):
        for chunk in column.chunks:
            _check_array(field.name, chunk, field.nullable)


def _check_array(path: str, array: pa.Array[Any], nullable: bool) -> None:
    if not nullable:
        _require_values(path, array)
    if pa.types.is_struct(array.type):
        there = array if array.null_count == 0 else array.drop_null()  # what lies under NULL is not looked at
        for field, part in zip(cast("pa.StructType", array.type), cast("Any", there).flatten(), strict=True):
            _check_array(f"{path}.{field.name}", part, field.nullable)
    elif pa.types.is_list(array.type) or pa.types.is_large_list(array.type):
        _check_array(f"{path}.element", cast("pa.ListArray[Any]", array).flatten(), nullable=False)
    else:
        require_finite(path, array)


def _plain_values(array: pa.Array[Any]) -> list[Any]:
    """Python values of an array of scalars, several times as fast as `to_pylist`."""
    if array.null_count == 0 or not (pa.types.is_integer(array.type) or pa.types.is_floating(array.type)):
        return array.to_numpy(zero_copy_only=False).tolist()
    values = array.fill_null(0).to_numpy().tolist()
    for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
        values[index] = None
    return values


def _lists(array: pa.Array[Any], flat: list[Any]) -> list[Any]:
    if not flat and array.null_count == 0:
        return [()] * len(array)
    lengths = compute.fill_null(compute.list_value_length(array), 0).to_numpy()
    stops = np.cumsum(lengths).tolist()
    lists: list[Any] = [tuple(flat[start:stop]) for start, stop in zip([0, *stops], stops, strict=False)]
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            lists[index] = None
    return lists


def _new_rows(row_type: type, columns: Mapping[str, Iterable[Any]], num_rows: int) -> list[Any]:
    """Frozen rows, filled field by field through their slots: a quarter of the time of calling `__init__` for each.

    The row types have no `__post_init__` that this would leave out. Raises DataError for a missing field.
    """
    rows = list(map(object.__new__, itertools.repeat(row_type, num_rows)))
    for field in fields(row_type):
        values = columns.get(field.name)
        if values is None:
            if field.default is MISSING and field.default_factory is MISSING:
                raise DataError(f"column {field.name!r} is needed to make rows and was not read")
            default = field.default if field.default_factory is MISSING else field.default_factory()
            values = itertools.repeat(default, num_rows)
        set_field = row_type.__dict__[field.name].__set__
        collections.deque(map(set_field, rows, values), maxlen=0)
    return rows


def _structs(array: pa.Array[Any], row_type: type) -> list[Any]:
    types = column_types(row_type)
    names = [field.name for field in cast("pa.StructType", array.type)]
    parts = {name: _values(part, types[name]) for name, part in zip(names, cast("Any", array).flatten(), strict=True)}
    rows = _new_rows(row_type, parts, len(array))
    if array.null_count:
        for index in np.flatnonzero(array.is_null().to_numpy(zero_copy_only=False)).tolist():
            rows[index] = None
    return rows


def _values(array: pa.Array[Any], column: ColumnType) -> list[Any]:
    """Field values, one a row, of an array that is no token stream."""
    if column.is_map:
        plain: list[Any] = array.to_pylist()
        return [None if value is None else dict(value) for value in plain]
    if column.is_list:
        inner = cast("pa.ListArray[Any]", array).flatten()
        flat = _structs(inner, column.row_type) if column.row_type is not None else _plain_values(inner)
        return _lists(array, flat)
    if column.row_type is not None:
        return _structs(array, column.row_type)
    return _plain_values(array)


def table_to_rows(kind: str, table: pa.Table) -> list[Any]:
    """Turn a table, or a projection of one that keeps every narrow field without a default, back into rows.

    Token streams are numpy arrays in the rows; those that the projection leaves out are empty.
    """
    row_type = ROW_TYPES[kind]
    types = column_types(row_type)
    columns: dict[str, Sequence[Any]] = {}
    for name, column in types.items():
        if name in table.column_names:
            chunked = table.column(name)
            if column.stream is not None:
                columns[name] = stream_views(chunked)
            else:
                columns[name] = [value for chunk in chunked.chunks for value in _values(chunk, column)]
        elif column.stream is not None:
            columns[name] = [()] * table.num_rows
    return _new_rows(row_type, columns, table.num_rows)
