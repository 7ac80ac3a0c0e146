"""DuckDB over explicit lists of shards, in memory, within a limit, with a spill directory of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptctl.errors import OutputError
from ptctl.shards.reader import read_table

MEMORY_SHARE = 0.5
MAX_MEMORY_BYTES = 4 * 1024**3
MIN_MEMORY_BYTES = 256 * 1024**2
MAX_SPILL = "64GiB"
CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
GLOB_CHARACTERS = "*?["


def memory_limit_bytes() -> int:
    """Half of what this machine or this container has, between 256 MiB and 4 GiB."""
    available = [_physical_bytes()]
    for path in CGROUP_LIMITS:
        try:
            text = path.read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():  # version 2 says `max` where there is no limit
            available.append(int(text))
    return max(MIN_MEMORY_BYTES, min(MAX_MEMORY_BYTES, int(MEMORY_SHARE * min(available))))


def _physical_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def literal(path: Path) -> str:
    """The path as DuckDB must be told it: characters of a glob stand for themselves."""
    return "".join(f"[{character}]" if character in GLOB_CHARACTERS else character for character in str(path))


class Database:
    """One connection. Methods raise OutputError where memory or spill space run out; duckdb.Error is a bug."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def load(self, name: str, kind: str, paths: Sequence[Path], columns: Sequence[str]) -> None:
        """Create table `name` from shards of one kind. `columns` are SQL expressions over the shard's columns.

        Raises CorruptShard naming the shard.
        """
        statement = (
            f'CREATE TABLE "{name}" AS SELECT {", ".join(columns)} '
            "FROM read_parquet(?, hive_partitioning = false, union_by_name = false, filename = false)"
        )
        try:
            self._run(statement, [[literal(path) for path in paths]])
        except (duckdb.Error, OutputError):
            for path in paths:  # DuckDB does not always name the file; the reader does, and raises CorruptShard
                read_table(path, kind)
            raise

    def load_table(self, name: str, table: pa.Table) -> None:
        """Create table `name` from an Arrow table."""
        self._connection.register("arrow_source", table)
        self._run(f'CREATE TABLE "{name}" AS SELECT * FROM arrow_source')
        self._connection.unregister("arrow_source")

    def execute(self, statement: str, parameters: Sequence[Any] = ()) -> None:
        """Run a statement without a result."""
        self._run(statement, parameters)

    def rows(self, query: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows of a small result."""
        return self._run(query, parameters).fetchall()

    def one(self, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...]:
        """The only row of an aggregate."""
        return self.rows(query, parameters)[0]

    def first(self, query: str, parameters: Sequence[Any] = ()) -> tuple[Any, ...] | None:
        """The first row, or None."""
        return self._run(query, parameters).fetchone()

    def table(self, query: str) -> pa.Table:
        """A result as an Arrow table."""
        with _storage_errors():
            return self._connection.sql(query).to_arrow_table()

    def _run(self, statement: str, parameters: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        with _storage_errors():
            return self._connection.execute(statement, list(parameters))


@contextmanager
def _storage_errors() -> Generator[None]:
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
        raise OutputError(
            f"cannot evaluate: {str(error).splitlines()[0]}", hint="free memory, or space where TMPDIR points"
        ) from error


@contextmanager
def open_database() -> Generator[Database]:
    """An empty database that is gone with the block, and what it spilled with it."""
    with tempfile.TemporaryDirectory(prefix="ptctl-duckdb-") as spill:
        settings = {
            "memory_limit": f"{memory_limit_bytes()}B",
            "temp_directory": spill,
            "max_temp_directory_size": MAX_SPILL,
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",  # a table name never means a Python variable
            "preserve_insertion_order": "false",  # every query that depends on an order says so
        }
        connection = duckdb.connect(":memory:", config=cast("dict[str, Any]", settings))
        try:
            yield Database(connection)
        finally:
            connection.close()


def integers(column: pa.ChunkedArray[Any]) -> npt.NDArray[np.int64]:
    """# [n] a column without nulls as int64."""
    return column.to_numpy().astype(np.int64)
