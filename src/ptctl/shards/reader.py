"""Shard → rows or columns. Another kind, schema or a torn file is refused by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.errors import CorruptShard, InputNotFound, SchemaMismatch
from ptctl.records import SCHEMA_VERSION
from ptctl.shards.columns import table_to_rows
from ptctl.shards.schema import fingerprint
from ptctl.shards.writer import METADATA_KEY


def _open(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        raise InputNotFound(f"no shard at {path}")
    try:
        return pq.ParquetFile(path)
    except (pa.ArrowInvalid, pa.ArrowIOError, OSError) as error:
        raise CorruptShard(f"cannot read {path}: {_first_line(error)}", hint="restore or remove the file") from error


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


def _metadata(file: pq.ParquetFile, path: Path) -> dict[str, Any]:
    raw = (file.schema_arrow.metadata or {}).get(METADATA_KEY)
    if raw is None:
        raise SchemaMismatch(f"{path} was not written by ptctl", hint="import it with `ptctl tasks import`")
    return cast("dict[str, Any]", json.loads(raw))


def shard_metadata(path: Path) -> dict[str, Any]:
    """The lineage object of a shard. Raises InputNotFound, CorruptShard or SchemaMismatch."""
    with _open(path) as file:
        return _metadata(file, path)


def check_kind(metadata: dict[str, Any], kind: str, path: Path) -> None:
    """Raise SchemaMismatch unless the shard is of `kind` and of this version's schema."""
    if metadata.get("kind") != kind:
        raise SchemaMismatch(f"{path} holds {metadata.get('kind')}, not {kind}", hint="check the order of the pipeline")
    if metadata.get("schema_version") != SCHEMA_VERSION or metadata.get("fingerprint") != fingerprint(kind):
        raise SchemaMismatch(
            f"{path} has schema {metadata.get('schema_version')}/{metadata.get('fingerprint')}, "
            f"this ptctl reads {SCHEMA_VERSION}/{fingerprint(kind)}",
            hint=f"it was written by ptctl {metadata.get('code_version')}; read it with that version",
        )


def read_table(path: Path, kind: str, columns: Sequence[str] | None = None) -> pa.Table:
    """Read a shard, or some of its columns. Raises InputNotFound, CorruptShard or SchemaMismatch."""
    with _open(path) as file:
        check_kind(_metadata(file, path), kind, path)
        try:
            return file.read(columns=list(columns) if columns is not None else None)
        except (pa.ArrowInvalid, pa.ArrowIOError, OSError) as error:
            raise CorruptShard(f"cannot read {path}: {_first_line(error)}", hint="restore or remove it") from error


def read_rows(path: Path, kind: str, columns: Sequence[str] | None = None) -> list[Any]:
    """Read the rows of a shard; `columns` must keep every field without a default."""
    return table_to_rows(kind, read_table(path, kind, columns))


def iter_rows(paths: Sequence[Path], kind: str, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Rows of several shards, one shard in memory at a time."""
    for path in paths:
        yield from read_rows(path, kind, columns)


def input_paths(path: Path) -> list[Path]:
    """The inputs that the lineage of a shard names, at their relative place if the run was moved.

    Raises InputNotFound where an input is at neither place.
    """
    found: list[Path] = []
    for entry in shard_metadata(path)["inputs"]:
        for candidate in (path.parent / entry["relative"], Path(entry["path"])):
            if candidate.exists():
                found.append(candidate.resolve())
                break
        else:
            raise InputNotFound(
                f"{path} was made from {entry['path']}, which is gone", hint="restore it beside the run"
            )
    return found
