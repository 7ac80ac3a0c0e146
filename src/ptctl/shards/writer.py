"""Rows → committed shard, a row group in memory at a time."""

from __future__ import annotations

import contextlib
import json
import operator
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from ptctl.errors import CannotCreate, DataError, OutputError
from ptctl.records import ROW_TYPES
from ptctl.shards.columns import check_values, columns_to_table, rows_to_table
from ptctl.shards.file_hash import GrowingFileHash
from ptctl.shards.files import committed_file
from ptctl.shards.lineage import CONTENT_KEY, METADATA_KEY, Lineage
from ptctl.shards.row_groups import MIN_ROW_GROUP_BYTES, group_limit_bytes, table_row_bytes
from ptctl.shards.schema import column_types, narrow_columns, schema_of, stream_columns
from ptctl.shards.streams import Stream

__all__ = ["METADATA_KEY", "Compression", "Lineage", "ShardWriter", "shard_name", "write_rows", "write_table"]

Compression = Literal["zstd", "none"]
FIRST_ROWS = 16
"""Rows that are converted at once before their size is known."""
MOST_ROWS = 4096
"""Rows that are converted at once at most: more would not be faster."""


class _Abandoned(Exception):
    """Tells the commit that the shard was given up, so that no error of the caller passes for one of the disk."""


def _leaves(name: str, arrow: pa.DataType) -> dict[str, pa.DataType]:
    """Path in the Parquet schema → type of the values, for what a column consists of."""
    if pa.types.is_struct(arrow):
        return {path: leaf for part in arrow for path, leaf in _leaves(f"{name}.{part.name}", part.type).items()}
    if pa.types.is_list(arrow) or pa.types.is_large_list(arrow):
        return _leaves(f"{name}.list.element", arrow.value_type)
    if pa.types.is_map(arrow):
        return {f"{name}.key_value.key": arrow.key_type, f"{name}.key_value.value": arrow.item_type}
    return {name: arrow}


def _is_text(arrow: pa.DataType) -> bool:
    return pa.types.is_string(arrow) or pa.types.is_large_binary(arrow)


def encodings(kind: str) -> dict[str, Any]:
    """How columns are encoded, as arguments of `pyarrow.parquet.ParquetWriter`.

    Token streams are byte-stream-split (but for bit-packed booleans), without a dictionary. Texts have a dictionary.
    Minima and maxima are kept of plain columns, by which rows are chosen; of all others they would say nothing.
    """
    texts: list[str] = []
    plain: list[str] = []
    split: dict[str, str] = {}
    for name, column in column_types(ROW_TYPES[kind]).items():
        leaves = _leaves(name, column.arrow)
        if column.stream is None:
            texts.extend(path for path, arrow in leaves.items() if _is_text(arrow))
            plain.extend(path for path in leaves if path == name)
        elif column.stream != "bool":
            split.update(dict.fromkeys(leaves, "BYTE_STREAM_SPLIT"))
    return {"use_dictionary": texts, "write_statistics": plain, "column_encoding": split}


class ShardWriter:
    """Writes one shard as rows come: `with ShardWriter(path, "trajectories", lineage) as writer: writer.append(row)`.

    Memory is bounded by the row group (see `ptctl.shards.row_groups`), not by the shard. When the block ends the file
    gets its name, durably and without replacing another; when it is left by an exception nothing remains. The footer
    holds the lineage, the number of rows and the sha256 of all before it (see `ptctl.shards.file_hash`).

    Raises CannotCreate where `path` exists, DataError naming the column for what no column can hold, OutputError where
    the disk is full or fails.
    """

    def __init__(self, path: Path, kind: str, lineage: Lineage, *, compression: Compression = "zstd") -> None:
        self.path = path
        self.kind = kind
        self.num_rows = 0
        """Rows appended so far."""
        self._lineage = lineage
        self._compression: Compression = compression
        self._streams = stream_columns(kind)
        self._narrow = narrow_columns(kind)
        self._stream_values = [operator.attrgetter(name) for name in self._streams]
        self._rows: list[Any] = []
        self._rows_at_once = FIRST_ROWS
        self._stream_elements = 0
        self._pending: list[pa.Table] = []
        self._pending_bytes = 0
        self._written_bytes = 0

    def __enter__(self) -> Self:
        if self.path.exists():
            raise CannotCreate(f"{self.path} exists already", hint="a committed file is never overwritten")
        origin = json.dumps(self._lineage.origin(self.kind, self.path.parent), sort_keys=True).encode()
        self._commit = committed_file(self.path)
        temporary = self._commit.__enter__()
        try:
            self._sink = pa.OSFile(str(temporary), mode="wb")
            self._file = pq.ParquetWriter(
                self._sink,
                schema_of(self.kind).with_metadata({METADATA_KEY: origin}),
                compression=self._compression,
                compression_level=1 if self._compression == "zstd" else None,
                **encodings(self.kind),
            )
            self._hash = GrowingFileHash(temporary)
        except BaseException as error:
            self._commit.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def append(self, row: Any) -> None:
        """Add a row."""
        self._rows.append(row)
        self.num_rows += 1
        with contextlib.suppress(TypeError):  # what has no length is refused by name when it is converted
            self._stream_elements += sum([len(values(row)) for values in self._stream_values])
        if len(self._rows) >= self._rows_at_once or self._stream_elements * 4 >= MIN_ROW_GROUP_BYTES:
            self._convert()

    def append_rows(self, rows: Iterable[Any]) -> None:
        """Add rows, in order."""
        for row in rows:
            self.append(row)

    def append_columns(self, columns: Mapping[str, Stream | Sequence[Any]], num_rows: int) -> None:
        """Add `num_rows` rows given by columns: token streams as offsets and values, of which nothing is copied.

        See `ptctl.shards.columns.columns_to_table`.
        """
        self._convert()
        self._take(columns_to_table(self.kind, columns, num_rows))
        self.num_rows += num_rows

    def append_table(self, table: pa.Table) -> None:
        """Add the rows of a table with the declared columns. Raises DataError for what they cannot hold."""
        self._convert()
        try:
            table = table.cast(schema_of(self.kind))
        except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
            raise DataError(f"the table does not have the schema of {self.kind}: {error}") from error
        check_values(table)
        self._take(table)
        self.num_rows += table.num_rows

    def _convert(self) -> None:
        """Turn the rows at hand into a table; learn from its size how many rows to convert at once."""
        if not self._rows:
            return
        table = rows_to_table(self.kind, self._rows)
        narrow_bytes = max(1, table.select(self._narrow).nbytes // len(self._rows))
        self._rows_at_once = min(max(MIN_ROW_GROUP_BYTES // narrow_bytes, 1), MOST_ROWS)
        self._rows.clear()
        self._stream_elements = 0
        self._take(table)

    def _take(self, table: pa.Table) -> None:
        """Put rows into row groups, each closed before the row that would pass its limit."""
        upto = np.cumsum(table_row_bytes(table))
        start, before = 0, 0
        while start < table.num_rows:
            room = group_limit_bytes(self._written_bytes) - self._pending_bytes
            stop = int(np.searchsorted(upto, before + room, side="right"))
            if stop <= start and self._pending:
                self._write_group()
                continue
            stop = max(stop, start + 1)  # a row over the limit is a group of its own
            self._pending.append(table.slice(start, stop - start))
            self._pending_bytes += int(upto[stop - 1]) - before
            start, before = stop, int(upto[stop - 1])

    def _write_group(self) -> None:
        group = pa.concat_tables(self._pending)
        try:
            self._file.write_table(group, row_group_size=group.num_rows)
            self._hash.advance(self._sink.tell())
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from error
        self._written_bytes += self._pending_bytes
        self._pending, self._pending_bytes = [], 0

    def _finish(self) -> None:
        self._convert()
        if self._pending:
            self._write_group()
        try:
            data_bytes = self._sink.tell()
            data_sha256 = self._hash.hexdigest(data_bytes)
            content = {"num_rows": self.num_rows, "data_bytes": data_bytes, "data_sha256": data_sha256}
            self._file.add_key_value_metadata({CONTENT_KEY: json.dumps(content, sort_keys=True).encode()})
            self._file.close()
            self._sink.close()
        except OSError as error:
            raise OutputError(f"cannot write {self.path}: {error.strerror or error}") from error

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        finished = False
        try:
            if error is None:
                self._finish()
                finished = True
        finally:
            self._hash.close()
            if not finished:
                self._give_up()
        self._commit.__exit__(None, None, None)

    def _give_up(self) -> None:
        with contextlib.suppress(OSError, pa.ArrowException):
            self._file.close()
        with contextlib.suppress(OSError):
            self._sink.close()
        with contextlib.suppress(_Abandoned):
            self._commit.__exit__(_Abandoned, _Abandoned(), None)


def shard_name(ordinal: int) -> str:
    """A name that sorts in order of commitment and that no other process gives."""
    return f"part-{ordinal:05d}-{secrets.token_hex(4)}.parquet"


def write_table(table: pa.Table, kind: str, path: Path, lineage: Lineage, *, compression: Compression = "zstd") -> Path:
    """Commit a table of the declared schema as the shard `path`. Raises DataError, CannotCreate or OutputError."""
    with ShardWriter(path, kind, lineage, compression=compression) as writer:
        writer.append_table(table)
    return path


def write_rows(rows: Iterable[Any], kind: str, directory: Path, lineage: Lineage, *, ordinal: int = 0) -> Path:
    """Commit rows as one shard of the dataset `directory` and return its path."""
    path = directory / shard_name(ordinal)
    with ShardWriter(path, kind, lineage) as writer:
        writer.append_rows(rows)
    return path
