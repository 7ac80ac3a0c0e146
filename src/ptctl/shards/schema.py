"""Arrow schemas derived from the row dataclasses of `ptctl.records`."""

from __future__ import annotations

import dataclasses
import hashlib
import types
import typing
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any

import pyarrow as pa

from ptctl.records import ROW_TYPES, SCHEMA_VERSION

STREAM_PREFIX = "stream:"
SCALARS: dict[Any, pa.DataType] = {
    str: pa.string(),
    bytes: pa.large_binary(),
    bool: pa.bool_(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "float64": pa.float64(),
}
STREAMS: dict[str, pa.DataType] = {
    "int16": pa.int16(),
    "int32": pa.int32(),
    "int64": pa.int64(),
    "float32": pa.float32(),
    "bool": pa.bool_(),
}


@dataclasses.dataclass(frozen=True, slots=True)
class ColumnType:
    """Annotation of one field, taken apart."""

    arrow: pa.DataType
    nullable: bool
    row_type: type | None = None
    """Dataclass of a struct, or of the elements of a list of structs."""
    is_list: bool = False
    stream: str | None = None
    """Element type of a token stream."""
    is_map: bool = False


def _strip_optional(annotation: Any) -> tuple[Any, bool]:
    if typing.get_origin(annotation) in (types.UnionType, typing.Union):
        inner = [part for part in typing.get_args(annotation) if part is not type(None)]
        if len(inner) != 1:
            raise TypeError(f"a column has one type, not {annotation}")
        return inner[0], True
    return annotation, False


def _annotated(name: str, nullable: bool) -> ColumnType:
    if name.startswith(STREAM_PREFIX):
        element = name.removeprefix(STREAM_PREFIX)
        value = pa.field("element", STREAMS[element], nullable=False)
        return ColumnType(pa.large_list(value), nullable=False, stream=element)
    if name == "map:string":
        return ColumnType(pa.map_(pa.string(), pa.string()), nullable, is_map=True)
    if name.startswith("list:"):
        element = name.removeprefix("list:")
        value = pa.field("element", SCALARS[str if element == "string" else element], nullable=False)
        return ColumnType(pa.list_(value), nullable, is_list=True)
    return ColumnType(SCALARS[name], nullable)


def column_type(annotation: Any) -> ColumnType:
    """Take a resolved annotation (with extras) apart. Raises TypeError for what no column can hold."""
    annotation, nullable = _strip_optional(annotation)
    if typing.get_origin(annotation) is Annotated:
        return _annotated(typing.get_args(annotation)[1], nullable)
    if typing.get_origin(annotation) is tuple:
        row_type = typing.get_args(annotation)[0]
        value = pa.field("element", pa.struct(struct_fields(row_type)), nullable=False)
        return ColumnType(pa.list_(value), nullable, row_type=row_type, is_list=True)
    if dataclasses.is_dataclass(annotation):
        row_type = typing.cast(type, annotation)
        return ColumnType(pa.struct(struct_fields(row_type)), nullable, row_type=row_type)
    if annotation in SCALARS:
        return ColumnType(SCALARS[annotation], nullable)
    raise TypeError(f"no column type for {annotation!r}")


@cache
def column_types(row_type: type) -> Mapping[str, ColumnType]:
    """Field name → column type, in the order of declaration."""
    hints = typing.get_type_hints(row_type, include_extras=True)
    return {field.name: column_type(hints[field.name]) for field in dataclasses.fields(row_type)}


def struct_fields(row_type: type) -> list[pa.Field[Any]]:
    """Arrow fields of a row type."""
    return [pa.field(name, kind.arrow, nullable=kind.nullable) for name, kind in column_types(row_type).items()]


@cache
def schema_of(kind: str) -> pa.Schema:
    """Arrow schema of a dataset kind, without metadata."""
    return pa.schema(struct_fields(ROW_TYPES[kind]))


@cache
def fingerprint(kind: str) -> str:
    """Hash of every name, type and nullability of the schema; stored with each shard, checked by the reader."""
    text = f"{SCHEMA_VERSION}\n" + "\n".join(f"{field.name}:{field.type}:{field.nullable}" for field in schema_of(kind))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def stream_columns(kind: str) -> list[str]:
    """Names of the token-stream columns of a kind."""
    return [name for name, column in column_types(ROW_TYPES[kind]).items() if column.stream is not None]


def narrow_columns(kind: str) -> list[str]:
    """Names of all columns but the token streams, which are nearly all of the bytes."""
    streams = set(stream_columns(kind))
    return [name for name in column_types(ROW_TYPES[kind]) if name not in streams]
