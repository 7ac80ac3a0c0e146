"""DuckDB over explicit lists of shards, in memory, within a limit, with a spill directory of its own."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptctl.errors import CannotCreate, CorruptShard, OutputError, UsageError
from ptctl.shards.reader import iter_row_groups

MEMORY_SHARE = 0.5
MAX_MEMORY_BYTES = 4 * 1024**3
MIN_MEMORY_BYTES = 256 * 1024**2
SPILL_SHARE = 0.9
MAX_SPILL_BYTES = 64 * 1024**3
SPILL_PREFIX = "ptctl-duckdb-"
CGROUP_ROOT = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
GLOB_CHARACTERS = "*?["
READ_OPTIONS = "hive_partitioning = false, union_by_name = false, filename = false"
"""Of read_parquet: columns are what the shard holds, whatever its directory is called."""


def memory_limit_bytes() -> int:
    """Half of what this machine or this process's control group has, between 256 MiB and 4 GiB."""
    available = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"), *cgroup_limits()]
    return max(MIN_MEMORY_BYTES, min(MAX_MEMORY_BYTES, int(MEMORY_SHARE * min(available))))


def cgroup_limits(root: Path = CGROUP_ROOT, own: Path = OWN_CGROUPS) -> Generator[int]:
    """Limits of the control groups of this process and of those around it; version 2 says `max` where there is none.

    A batch system puts a job into a group far below the root, and there its limit stands.
    """
    try:
        lines = own.read_text(encoding="ascii").splitlines()
    except (OSError, UnicodeDecodeError):
        lines = []
    for line in ["0::/", ":memory:/", *lines]:  # a container may see its own group as the root
        _, controllers, group = line.split(":", 2)
        name = "memory.limit_in_bytes" if "memory" in controllers.split(",") else "memory.max"
        place = root / "memory" if "memory" in controllers.split(",") else root
        for directory in [place / group.lstrip("/"), *(place / group.lstrip("/")).parents]:
            try:
                text = (directory / name).read_text(encoding="ascii").strip()
            except OSError:
                text = ""
            if text.isdigit():
                yield int(text)
            if directory == place:
                break


def utf8_text(text: str) -> str:
    """An argument or a path as UTF-8 text, also where the locale (LC_ALL=C) left its bytes undecoded.

    Raises UsageError where it is no UTF-8, which DuckDB cannot be told.
    """
    try:
        text.encode()
    except UnicodeEncodeError:
        try:
            return os.fsencode(text).decode()
        except UnicodeError as error:
            raise UsageError(f"{text!r} is not UTF-8", hint="rename it") from error
    return text


def literal(path: Path) -> str:
    """The path as DuckDB must be told it: characters of a glob stand for themselves."""
    return "".join(f"[{one}]" if one in GLOB_CHARACTERS else one for one in utf8_text(str(path)))


def quoted(text: str) -> str:
    """A SQL string literal."""
    return "'" + text.replace("'", "''") + "'"


class Database:
    """One connection. Methods raise OutputError where memory or spill space run out; duckdb.Error is a bug."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.connection = connection

    def load(self, name: str, kind: str, paths: Sequence[Path], columns: Sequence[str]) -> None:
        """Create table `name` from shards of one kind. `columns` are SQL expressions over the shard's columns.

        Raises CorruptShard naming the shard.
        """
        statement = f'CREATE TABLE "{name}" AS SELECT {", ".join(columns)} FROM read_parquet(?, {READ_OPTIONS})'
        try:
            self._run(statement, [[literal(path) for path in paths]])
        except (duckdb.Error, OutputError):
            self.refuse_unreadable(kind, paths)
            raise

    def refuse_unreadable(self, kind: str, paths: Sequence[Path]) -> None:
        """After a failure: read all through, since DuckDB does not always name the file that it cannot read.

        Raises CorruptShard naming the first shard that pyarrow or DuckDB cannot read; where all can be read, the
        failure was about something else.
        """
        for path in paths:
            for _ in iter_row_groups(path, kind):
                pass
            statement = f"SELECT * FROM read_parquet([{quoted(literal(path))}], {READ_OPTIONS})"
            try:
                for _ in self.connection.sql(statement).to_arrow_reader():
                    pass
            except duckdb.OutOfMemoryException:
                continue
            except (duckdb.Error, pa.ArrowException, OSError) as error:
                raise CorruptShard(
                    f"cannot read {path}: {str(error).partition(chr(10))[0]}", hint="restore or remove the file"
                ) from error

    def load_table(self, name: str, table: pa.Table) -> None:
        """Create table `name` from an Arrow table."""
        self.connection.register("arrow_source", table)
        self._run(f'CREATE TABLE "{name}" AS SELECT * FROM arrow_source')
        self.connection.unregister("arrow_source")

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
        with storage_errors():
            return self.connection.sql(query).to_arrow_table()

    def _run(self, statement: str, parameters: Sequence[Any] = ()) -> duckdb.DuckDBPyConnection:
        with storage_errors():
            return self.connection.execute(statement, list(parameters))


@contextmanager
def storage_errors() -> Generator[None]:
    """Turn what DuckDB raises where memory, disk or a read fail into OutputError."""
    try:
        yield
    except (duckdb.OutOfMemoryException, duckdb.IOException) as error:
        raise OutputError(
            f"DuckDB: {str(error).splitlines()[0]}", hint="free memory, or space where TMPDIR points"
        ) from error


@contextmanager
def open_database(
    *, memory_bytes: int | None = None, spill_parent: Path | None = None, keep_order: bool = False
) -> Generator[Database]:
    """An empty database that is gone with the block, and what it spilled with it.

    `memory_bytes` limits its memory (default: `memory_limit_bytes`). It spills into a directory of its own below
    `spill_parent` (default: where TMPDIR points). `keep_order` keeps rows in the order of their shards where a query
    asks for none. Raises CannotCreate where there is no place to spill.
    """
    with _spill_directory(spill_parent) as spill:
        settings = {
            "memory_limit": f"{memory_bytes or memory_limit_bytes()}B",
            "temp_directory": str(spill),
            "max_temp_directory_size": f"{_max_spill_bytes(spill)}B",
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "python_enable_replacements": "false",  # a table name never means a Python variable
            "preserve_insertion_order": str(keep_order).lower(),
        }
        connection = duckdb.connect(":memory:", config=cast("dict[str, Any]", settings))
        try:
            yield Database(connection)
        finally:
            connection.close()


@contextmanager
def _spill_directory(parent: Path | None) -> Generator[Path]:
    try:
        directory = tempfile.TemporaryDirectory(prefix=SPILL_PREFIX, dir=parent)
    except OSError as error:
        raise CannotCreate(f"cannot spill to {parent or tempfile.gettempdir()}: {error.strerror}") from error
    with directory as name:
        yield Path(name)


def _max_spill_bytes(directory: Path) -> int:
    return min(MAX_SPILL_BYTES, int(SPILL_SHARE * shutil.disk_usage(directory).free))


def integers(column: pa.ChunkedArray[Any]) -> npt.NDArray[np.int64]:
    """# [n] a column without nulls as int64."""
    return column.to_numpy().astype(np.int64)
