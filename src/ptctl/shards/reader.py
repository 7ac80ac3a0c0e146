"""Shard → rows or columns, whole or a row group in memory at a time.

Another kind, schema or a torn file is refused by name.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.errors import CorruptShard, DigestMismatch, InputNotFound, SchemaMismatch, UsageError
from ptctl.records import SCHEMA_VERSION
from ptctl.shards.columns import compute, table_to_rows
from ptctl.shards.file_hash import hash_prefix
from ptctl.shards.lineage import CONTENT_KEY, METADATA_KEY
from ptctl.shards.schema import fingerprint, schema_of

Where = Mapping[str, Collection[Any]]
"""Column → the values that are wanted (None among them for NULL); a row must satisfy every entry."""
FOOTER_END_BYTES = 8
"""Behind the footer: its length and the magic number."""
WHOLE_FILE_BYTES = 2**30
"""Larger shards are read group by group: pyarrow cannot read nested columns with more than 2 GiB of text at once."""


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0] if str(error) else type(error).__name__


@contextmanager
def _reading(path: Path) -> Generator[None]:
    """Turns what pyarrow raises for a torn or damaged file into CorruptShard."""
    try:
        yield
    except (pa.ArrowInvalid, pa.ArrowIOError, OSError) as error:
        raise CorruptShard(f"cannot read {path}: {_first_line(error)}", hint="restore or remove the file") from error


def _open(path: Path) -> pq.ParquetFile:
    if not path.is_file():
        raise InputNotFound(f"no shard at {path}")
    with _reading(path):
        return pq.ParquetFile(path)


def _metadata(file: pq.ParquetFile, path: Path) -> dict[str, Any]:
    stored = file.metadata.metadata or {}
    if METADATA_KEY not in stored:
        raise SchemaMismatch(f"{path} was not written by ptctl", hint="import it with `ptctl tasks import`")
    try:
        lineage = cast("dict[str, Any]", json.loads(stored[METADATA_KEY]))
        return lineage | cast("dict[str, Any]", json.loads(stored.get(CONTENT_KEY, b"{}")))
    except (ValueError, TypeError) as error:
        raise SchemaMismatch(f"{path} has metadata that is no JSON object: {error}", hint="restore the file") from error


def shard_metadata(path: Path) -> dict[str, Any]:
    """The lineage object of a shard, with `num_rows`, `data_bytes` and `data_sha256`.

    Raises InputNotFound, CorruptShard or SchemaMismatch.
    """
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


class Shard:
    """An open shard of a known kind, read by row groups."""

    def __init__(self, path: Path, kind: str, file: pq.ParquetFile) -> None:
        self.path = path
        self.schema = schema_of(kind)
        self.num_row_groups: int = file.metadata.num_row_groups
        self._file = file
        footer = file.metadata
        self._leaves = {footer.schema.column(index).path: index for index in range(footer.num_columns)}

    def read_whole(self, columns: Sequence[str] | None) -> pa.Table:
        """Read all rows at once."""
        footer = self._file.metadata
        if sum(footer.row_group(index).total_byte_size for index in range(self.num_row_groups)) > WHOLE_FILE_BYTES:
            return pa.concat_tables([self.read_group(index, columns) for index in range(self.num_row_groups)])
        with _reading(self.path):
            return self._file.read(columns=None if columns is None else list(columns))

    def read_group(self, index: int, columns: Sequence[str] | None) -> pa.Table:
        """Read one row group."""
        with _reading(self.path):
            return self._file.read_row_group(index, columns=None if columns is None else list(columns))

    def read_matching(self, index: int, columns: Sequence[str] | None, where: Where) -> pa.Table | None:
        """Rows of one row group that satisfy `where`; None where there are none.

        A group whose minima and maxima rule the values out is not read at all; of any other the filtering columns are
        read first, and the rest only where a row matches.
        """
        if not all(self._may_hold(index, name, values) for name, values in where.items()):
            return None
        keys = self.read_group(index, list(where))
        mask: Any = None
        for name, values in where.items():
            wanted = pa.array(list(values), type=self.schema.field(name).type)
            match = compute.is_in(keys.column(name), value_set=wanted)
            mask = match if mask is None else compute.and_(mask, match)
        if not compute.any(mask, min_count=0).as_py():
            return None
        return self.read_group(index, columns).filter(mask)

    def check_filter(self, where: Where) -> None:
        """Raise UsageError for a column by which rows cannot be chosen."""
        for name in where:
            if name not in self.schema.names or name not in self._leaves:
                raise UsageError(f"rows cannot be chosen by {name!r}", hint="only by columns without lists and structs")

    def _may_hold(self, index: int, name: str, values: Collection[Any]) -> bool:
        group = self._file.metadata.row_group(index)
        statistics = group.column(self._leaves[name]).statistics
        if statistics is None or not statistics.has_null_count:
            return True
        if None in values and statistics.null_count > 0:
            return True
        if not statistics.has_min_max:
            return statistics.null_count < group.num_rows  # too long to be kept, or nothing but NULL
        return any(statistics.min <= value <= statistics.max for value in values if value is not None)

    def group_num_rows(self, index: int) -> int:
        """Rows of a row group."""
        return self._file.metadata.row_group(index).num_rows

    def group_bytes(self, index: int, columns: Sequence[str] | None) -> int:
        """Bytes on disk of some columns (None: of all) of a row group."""
        group = self._file.metadata.row_group(index)
        return sum(
            group.column(leaf).total_compressed_size
            for path, leaf in self._leaves.items()
            if columns is None or path.partition(".")[0] in columns
        )


@contextmanager
def open_shard(path: Path, kind: str) -> Generator[Shard]:
    """Open a shard of `kind`. Raises InputNotFound, CorruptShard or SchemaMismatch."""
    with _open(path) as file:
        check_kind(_metadata(file, path), kind, path)
        yield Shard(path, kind, file)


def iter_row_groups(
    path: Path, kind: str, columns: Sequence[str] | None = None, where: Where | None = None
) -> Iterator[pa.Table]:
    """Tables of a shard, one row group in memory at a time; `where` leaves out groups and rows.

    Raises InputNotFound, CorruptShard, SchemaMismatch, or UsageError for a column that cannot be filtered by.
    """
    with open_shard(path, kind) as shard:
        if where:
            shard.check_filter(where)
        for index in range(shard.num_row_groups):
            table = shard.read_matching(index, columns, where) if where else shard.read_group(index, columns)
            if table is not None:
                yield table


def read_table(path: Path, kind: str, columns: Sequence[str] | None = None, where: Where | None = None) -> pa.Table:
    """Read a shard, some of its columns, or the rows whose columns hold one of the values that `where` names.

    Raises InputNotFound, CorruptShard or SchemaMismatch.
    """
    if where:
        tables = list(iter_row_groups(path, kind, columns, where))
        declared = schema_of(kind)
        chosen = declared if columns is None else pa.schema([declared.field(name) for name in columns])
        return pa.concat_tables(tables) if tables else chosen.empty_table()
    with open_shard(path, kind) as shard:
        return shard.read_whole(columns)


def read_rows(path: Path, kind: str, columns: Sequence[str] | None = None, where: Where | None = None) -> list[Any]:
    """Read the rows of a shard; `columns` must keep every field without a default."""
    return table_to_rows(kind, read_table(path, kind, columns, where))


def iter_rows(
    paths: Sequence[Path], kind: str, columns: Sequence[str] | None = None, where: Where | None = None
) -> Iterator[Any]:
    """Rows of several shards, one row group in memory at a time."""
    for path in paths:
        for table in iter_row_groups(path, kind, columns, where):
            yield from table_to_rows(kind, table)


def verify_content(path: Path) -> str:
    """Compare the bytes of a shard with the sha256 in its footer, which is returned; nothing is decoded.

    Raises DigestMismatch where they differ, where bytes or rows are missing, or where no sha256 was recorded.
    """
    with _open(path) as file:
        metadata = _metadata(file, path)
        num_rows, footer_bytes = file.metadata.num_rows, file.metadata.serialized_size
    data_bytes, expected = metadata.get("data_bytes"), metadata.get("data_sha256")
    if not isinstance(data_bytes, int) or not isinstance(expected, str):
        raise DigestMismatch(f"{path} has no sha256 in its footer", hint="it was rewritten by another tool")
    found = hash_prefix(path, data_bytes)
    if found != expected:
        raise DigestMismatch(
            f"{path} has sha256 {found[:12]}, its footer says {expected[:12]}", hint="restore the file"
        )
    if num_rows != metadata.get("num_rows") or data_bytes + footer_bytes + FOOTER_END_BYTES != path.stat().st_size:
        raise DigestMismatch(f"{path} has another length than its footer says", hint="restore the file")
    return expected


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
