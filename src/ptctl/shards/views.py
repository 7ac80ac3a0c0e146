"""The datasets of a run as views for SQL that reads and does nothing else.

What keeps a query from writing, one lock behind the other:
- one statement, of type SELECT;
- its syntax tree holds queries alone (DuckDB accepts COPY, INSERT, UPDATE and DELETE inside WITH);
- DuckDB may open the shards of the views and its spill directory, and no other file;
- its settings are locked.
"""

from __future__ import annotations

import glob
import json
import os
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import duckdb
import pyarrow as pa

from ptctl.errors import InputNotFound, Interrupted, OutputError, UsageError
from ptctl.records import ROW_TYPES
from ptctl.shards.columns import rows_to_table
from ptctl.shards.database import READ_OPTIONS, Database, literal, open_database, quoted, utf8_text
from ptctl.shards.dataset import expand
from ptctl.shards.follow import read_paths
from ptctl.shards.policies import POLICY_FILE, SKIPPED_PREFIX, published
from ptctl.shards.reader import iter_rows
from ptctl.shards.schema import schema_of
from ptctl.shards.verified import verified_kind

T = TypeVar("T")
BATCH_ROWS = 8192
POLL_S = 0.1
QUERY_NODES = frozenset({"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"})
"""Nodes of DuckDB's syntax tree that compute and write nothing; all others are refused."""
READING_HINT = "a query is one SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE or SHOW; --format and > write results"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What a query reads."""

    shards: Mapping[str, tuple[Path, ...]]
    """Kind → shards in the order of their paths, whatever the order of the arguments: it must not change a number."""
    policies: tuple[Path, ...] = ()
    """Directories of numbered policies."""


def find_sources(arguments: Sequence[str], *, nul: bool = False, allow_empty: bool = False) -> Sources:
    """Shards and policies that arguments name: runs, datasets, shards, globs, or `-` for paths on standard input.

    Every shard is verified. Raises InputNotFound for what names nothing, CorruptShard or SchemaMismatch naming a file.
    """
    shards: dict[Path, str] = {}
    policies: dict[Path, None] = {}
    for argument in arguments:
        places = [argument] if Path(argument).exists() else sorted(glob.glob(argument, recursive=True))
        found = [directory.resolve() for place in places for directory in policy_directories(Path(place))]
        policies.update(dict.fromkeys(found))
        may_be_empty = bool(found) or (allow_empty and Path(argument).is_dir())
        for path in _shards_of(argument, nul=nul, may_be_empty=may_be_empty):
            resolved = path.resolve()  # a run that is named twice, or by a symbolic link too, counts once
            shards[resolved] = shards.get(resolved) or verified_kind(path)
    if not shards and not policies and not allow_empty:
        raise InputNotFound("no shards on standard input", hint="did the stage before fail?")
    by_kind = {kind: tuple(sorted(path for path in shards if shards[path] == kind)) for kind in ROW_TYPES}
    return Sources(shards=by_kind, policies=tuple(sorted(policies)))


def _shards_of(argument: str, *, nul: bool, may_be_empty: bool) -> Iterator[Path]:
    if argument == "-":
        yield from read_paths([argument], nul=nul)
        return
    try:
        yield from expand(argument)
    except InputNotFound:
        if not may_be_empty:
            raise


def policy_directories(directory: Path) -> list[Path]:
    """Directories of numbered policies at `directory`, above it where it is a policy, or below it."""
    if (directory / POLICY_FILE).exists():
        return [directory.parent if directory.name else Path(os.path.abspath(directory)).parent]
    found: list[Path] = []
    for place, children, files in os.walk(directory):
        numbered = {name for name in children if (Path(place) / name / POLICY_FILE).exists()}
        if numbered or any(name.startswith(SKIPPED_PREFIX) and name.endswith(".json") for name in files):
            found.append(Path(place))
        children[:] = [name for name in children if name not in numbered and not name.startswith(".")]
    return found


@contextmanager
def open_views(
    sources: Sources,
    *,
    memory_bytes: int | None = None,
    spill_parent: Path | None = None,
    stopped: Callable[[], bool] = lambda: False,
) -> Generator[Views]:
    """A database with a view of each kind: `tasks`, `draws`, `trajectories`, `scores` and `policies`.

    Kinds that are not there are empty and have their declared columns. `stopped` is asked while a query runs. Raises
    CorruptShard for a policy that cannot be read, CannotCreate where there is no place to spill.
    """
    with open_database(memory_bytes=memory_bytes, spill_parent=spill_parent, keep_order=True) as database:
        for kind in ROW_TYPES:
            _make_view(database, kind, sources)
        paths = [path for shards in sources.shards.values() for path in shards]
        allowed = ", ".join(quoted(name) for path in paths for name in {utf8_text(str(path)), literal(path)})
        database.execute(f"SET allowed_paths = [{allowed}]")
        database.execute("SET enable_external_access = false")
        database.execute("SET lock_configuration = true")
        with ThreadPoolExecutor(1) as thread:
            yield Views(database, thread, sources, stopped)


def _make_view(database: Database, kind: str, sources: Sources) -> None:
    shards = sources.shards.get(kind, ())
    if kind == "policies":
        rows = [policy for directory in sources.policies for policy in published(directory)]
        database.load_table(kind, rows_to_table(kind, [*rows, *iter_rows(shards, kind)]))
    elif shards:
        names = ", ".join(quoted(literal(path)) for path in shards)
        try:
            database.execute(f'CREATE VIEW "{kind}" AS SELECT * FROM read_parquet([{names}], {READ_OPTIONS})')
        except (duckdb.Error, OutputError):
            database.refuse_unreadable(kind, shards)
            raise
    else:
        database.load_table(kind, schema_of(kind).empty_table())


class Views:
    """Runs queries, one after the other."""

    def __init__(
        self, database: Database, thread: ThreadPoolExecutor, sources: Sources, stopped: Callable[[], bool]
    ) -> None:
        self._database = database
        self._connection = database.connection
        self._thread = thread
        self._sources = sources
        self._stopped = stopped

    def query(self, sql: str) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Run one reading statement: the schema of its result and its rows, a batch at a time, as DuckDB makes them.

        Raises UsageError for what DuckDB refuses, OutputError where memory or spill space end, CorruptShard, and
        Interrupted once `stopped` says so.
        """
        statement = self._reading_statement(sql)
        try:
            reader = self._call(lambda: self._connection.sql(statement).to_arrow_reader(BATCH_ROWS))
        except UsageError:
            self._call(lambda: self._connection.execute(f"EXPLAIN {statement}"))  # this way DuckDB tells the place too
            raise
        return reader.schema, self._batches(reader)

    def _reading_statement(self, sql: str) -> str:
        text = utf8_text(sql)
        statements = self._call(lambda: duckdb.extract_statements(text))
        if len(statements) != 1:
            raise UsageError(f"{len(statements)} statements, a query is one", hint=READING_HINT)
        if statements[0].type != duckdb.StatementType.MULTI and statements[0].type != duckdb.StatementType.SELECT:
            raise UsageError(f"{statements[0].type.name} is refused: a query only reads", hint=READING_HINT)
        if statements[0].type == duckdb.StatementType.MULTI:
            raise UsageError("several statements in one", hint="name the values of a PIVOT: PIVOT … ON column IN (…)")
        tree = self._call(
            lambda: self._connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [statements[0].query]).fetchall()
        )
        for node in _nodes(json.loads(tree[0][0])):
            if node not in QUERY_NODES:
                what = node.removesuffix("_NODE").removesuffix("_QUERY")
                raise UsageError(f"{what} inside WITH is refused: a query only reads", hint=READING_HINT)
        return statements[0].query

    def _batches(self, reader: pa.RecordBatchReader) -> Iterator[pa.RecordBatch]:
        while (batch := self._call(lambda: next(reader, None))) is not None:
            yield batch

    def _call(self, work: Callable[[], T]) -> T:
        """Do something in DuckDB on the other thread: this one stays free to notice a signal, and then interrupts."""
        future = self._thread.submit(work)
        try:
            while not wait([future], timeout=POLL_S).done:
                self._raise_if_stopped()
            self._raise_if_stopped()
            return future.result()
        except (duckdb.Error, pa.ArrowException, OSError) as error:
            self._explain(str(error))
            self._refuse_unreadable()
            raise  # a bug
        finally:
            while not future.done():  # more than once: an interrupt that comes before the query begins is lost
                self._connection.interrupt()
                wait([future], timeout=POLL_S)

    def _raise_if_stopped(self) -> None:
        if self._stopped():
            raise Interrupted("stopped while a query ran")

    def _refuse_unreadable(self) -> None:
        for kind, paths in self._sources.shards.items():
            self._database.refuse_unreadable(kind, paths)

    def _explain(self, message: str) -> None:
        """Raise what a message of DuckDB means. While rows stream, Arrow hands its errors on as text alone."""
        kind, _, rest = message.partition(" Error: ")
        if kind == "Out of Memory":
            raise OutputError(
                f"out of memory: {_first_line(rest)}", hint="raise --memory-limit, or give --temp-directory more room"
            )
        if "parquet" in message.lower() or "file" in message:
            self._refuse_unreadable()
        if kind == "IO":
            raise OutputError(f"DuckDB: {_first_line(rest)}", hint="space where --temp-directory or TMPDIR points?")
        if rest and kind not in ("INTERNAL", "FATAL", "INTERRUPT"):
            raise UsageError(_one_line(message), hint=_hint(kind))


def _hint(kind: str) -> str | None:
    if kind == "Permission":
        return "a query reads the views tasks, draws, trajectories, scores and policies; name further datasets after it"
    if kind in ("Catalog", "Binder"):
        return "`ptctl query 'SHOW TABLES'`, `ptctl query 'DESCRIBE scores'`"
    return None


def _nodes(tree: Any) -> Iterator[str]:
    if isinstance(tree, dict):
        kind = tree.get("type")
        if isinstance(kind, str) and kind.endswith("_NODE"):
            yield kind
    if isinstance(tree, dict | list):
        for part in tree.values() if isinstance(tree, dict) else tree:
            yield from _nodes(part)


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _one_line(message: str) -> str:
    """DuckDB's message and the place it points at: `LINE 2: select foo` above `^^^` becomes `(line 2, at 'foo')`."""
    lines = message.splitlines()
    told = [line.strip() for line in lines]
    marked = next((n for n, line in enumerate(lines) if line.strip() and not line.strip("^ ")), 0)
    if not marked or not lines[marked - 1].startswith("LINE "):
        return " ".join(line for line in told if line)
    start, stop = lines[marked].index("^"), len(lines[marked].rstrip())
    number = lines[marked - 1].removeprefix("LINE ").partition(":")[0]
    end = max(stop, start + 20) if stop - start <= 1 else stop
    before = " ".join(line for line in told[: marked - 1] if line)
    return f"{before} (line {number}, at {lines[marked - 1][start:end]!r})"
