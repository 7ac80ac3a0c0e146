"""What kind of rows a shard holds, believed only after its schema was looked at."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.errors import SchemaMismatch
from ptctl.records import ROW_TYPES
from ptctl.shards.reader import check_kind, shard_metadata
from ptctl.shards.schema import schema_of


def verified_kind(path: Path) -> str:
    """Kind of a shard that has this version's schema, in its columns and not only by its own account.

    A file whose `reward` is an integer would change the numbers of the files beside it: DuckDB casts to the types of
    the first. Raises InputNotFound, CorruptShard or SchemaMismatch, naming the file.
    """
    try:
        metadata = shard_metadata(path)
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SchemaMismatch(f"{path} has metadata that is no JSON", hint="restore or remove it") from error
    kind = metadata.get("kind")
    if kind not in ROW_TYPES:
        raise SchemaMismatch(f"{path} holds {kind!r}, which is no kind of dataset", hint="restore or remove it")
    check_kind(metadata, kind, path)
    _check_columns(pq.read_schema(path), kind, path)
    return kind


def _check_columns(found: pa.Schema, kind: str, path: Path) -> None:
    declared = schema_of(kind)
    if found.equals(declared):
        return
    for field in declared:
        position = found.get_field_index(field.name)
        if position < 0:
            raise SchemaMismatch(f"{path} has no column {field.name!r}", hint="restore or remove it")
        if not found.field(position).equals(field):
            raise SchemaMismatch(
                f"{path}: column {field.name!r} is {found.field(position).type}, {kind} have {field.type}",
                hint="restore or remove it",
            )
    raise SchemaMismatch(f"{path} has other columns than {kind}, or in another order", hint="restore or remove it")
