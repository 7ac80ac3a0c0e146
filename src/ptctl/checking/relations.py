"""Keys that must be unique and rows that must exist, over all shards at once; DuckDB spills where they are many."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import duckdb

from ptctl.checking.datasets import Shard
from ptctl.checking.problems import Problem, ProblemKind, counted
from ptctl.errors import InputNotFound, PtctlError
from ptctl.records import ScoreStatus, StopReason
from ptctl.shards.database import Database, literal, open_database, utf8_text
from ptctl.shards.dataset import expand
from ptctl.shards.reader import input_paths, read_table
from ptctl.shards.schema import schema_of
from ptctl.shards.verified import verified_kind

COLUMNS = {
    "tasks": "task_id, task_digest",
    "draws": "group_id, task_id, task_digest, group_size",
    "trajectories": 'trajectory_id, group_id, "index", attempt, task_id, task_digest, stop_reason',
    "scores": (
        'trajectory_id, group_id, "index", attempt, task_id, task_digest, verifier, verifier_version, status, reward'
    ),
}
SLOT = """ '[' || "index" || ']' """
FAILED = ", ".join(f"'{reason.value}'" for reason in StopReason if reason.is_error)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """Columns that stand once in a scope."""

    kind: str
    columns: str
    shown: str
    """SQL for the message."""
    rows: str = "true"
    """Which rows."""
    what: str


KEYS = (
    _Key(kind="tasks", columns="task_id", shown="task_id", what="task_id stands more than once"),
    _Key(kind="draws", columns="group_id", shown="group_id", what="group_id is drawn more than once"),
    _Key(
        kind="trajectories", columns="trajectory_id", shown="trajectory_id", what="trajectory_id stands more than once"
    ),
    _Key(
        kind="trajectories",
        columns='group_id, "index", attempt',
        shown=f"group_id || {SLOT} || ' attempt ' || attempt",
        what="an attempt at a slot has more than one row",
    ),
    _Key(
        kind="trajectories",
        columns='group_id, "index"',
        shown=f"group_id || {SLOT}",
        rows=f"stop_reason NOT IN ({FAILED})",
        what="a slot has more than one final row",
    ),
    _Key(
        kind="scores",
        columns="trajectory_id, verifier, verifier_version",
        shown="trajectory_id || ' by ' || verifier || ' ' || verifier_version",
        what="a trajectory is scored more than once",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reference:
    """Rows of `kind` that name rows of the shards they were made from."""

    kind: str
    parent: str
    key: str
    shown: str
    fits: str
    """SQL over r (the row) and p (the parent)."""
    misfit: str


REFERENCES = (
    _Reference(
        kind="draws", parent="tasks", key="task_id", shown="r.task_id", fits="r.task_digest = p.task_digest",
        misfit="a task was changed since it was drawn",
    ),
    _Reference(
        kind="trajectories", parent="draws", key="group_id", shown="r.trajectory_id",
        fits='r.task_id = p.task_id AND r.task_digest = p.task_digest AND r."index" BETWEEN 0 AND p.group_size - 1',
        misfit="a trajectory has another task, digest or index than its draw allows",
    ),
    _Reference(
        kind="scores", parent="trajectories", key="trajectory_id", shown="r.trajectory_id",
        fits='r.group_id = p.group_id AND r."index" = p."index" AND r.attempt = p.attempt AND r.task_id = p.task_id '
        "AND r.task_digest = p.task_digest",
        misfit="a score has another group, index, attempt, task or digest than its trajectory",
    ),
)  # fmt: skip


def check_relations(shards: Sequence[Shard]) -> list[Problem]:
    """Check keys, references and rewards of shards that can be read."""
    problems: list[Problem] = []
    parents, unknown = _parents(shards, problems)
    with open_database() as database:
        problems += _load(database, shards, parents, unknown)
        for key in KEYS:
            problems += _check_key(database, key)
        for reference in REFERENCES:
            problems += _check_reference(database, reference)
        problems += _check_rewards(database)
    return problems


def _parents(shards: Iterable[Shard], problems: list[Problem]) -> tuple[dict[Path, dict[Path, str]], set[Path]]:
    """Shard → the shards it was made from, with their kinds; and the shards of which not all can be read."""
    parents: dict[Path, dict[Path, str]] = {}
    unknown: set[Path] = set()
    kinds: dict[Path, str | None] = {shard.path.resolve(): shard.kind for shard in shards}
    for shard in shards:
        if shard.kind == "tasks":
            continue
        try:
            found = [path for source in input_paths(shard.path) for path in _shards_of(source)]
        except InputNotFound:
            unknown.add(shard.path)  # the check of its dataset tells it
            continue
        for path in found:
            if path not in kinds:
                kinds[path] = _kind_of(path, shard.path, problems)
            if kinds[path] is None:
                unknown.add(shard.path)
        parents[shard.path] = {path: kind for path in found if (kind := kinds[path]) is not None}
    return parents, unknown


def _shards_of(source: Path) -> list[Path]:
    """Shards of an input; none for a policy, a model or the file of another tool."""
    if source.suffix == ".parquet":
        return [source]
    try:
        return [path.resolve() for path in expand(str(source))] if source.is_dir() else []
    except InputNotFound:
        return []


def _kind_of(path: Path, child: Path, problems: list[Problem]) -> str | None:
    """Kind of a shard that was not checked, None where its keys cannot be read."""
    try:
        kind = verified_kind(path)
        read_table(path, kind, COLUMNS[kind].replace('"', "").split(", ") if kind in COLUMNS else [])
        return kind
    except PtctlError as error:
        problems.append(Problem(path=child, problem=ProblemKind.LINEAGE, detail=f"made from a bad shard: {error}"))
        return None


def _load(
    database: Database, shards: Sequence[Shard], parents: Mapping[Path, Mapping[Path, str]], unknown: set[Path]
) -> list[Problem]:
    """Tables: files (one for each shard checked), lineage (child, parent) and the key columns of each kind.

    `known` is false where a shard was made from something that is gone; what its rows name cannot be looked up then.
    """
    database.execute("CREATE TABLE files (path VARCHAR, scope VARCHAR, shown VARCHAR, known BOOLEAN)")
    database.execute("CREATE TABLE lineage (child VARCHAR, parent VARCHAR)")
    kinds: dict[Path, str] = {}
    for shard in shards:
        path = shard.path.resolve()
        kinds[path] = shard.kind
        values = [*map(_text, (path, shard.dataset.scope, shard.path)), shard.path not in unknown]
        database.execute("INSERT INTO files VALUES (?, ?, ?, ?)", values)
        for parent, kind in parents.get(shard.path, {}).items():
            kinds.setdefault(parent, kind)
            database.execute("INSERT INTO lineage VALUES (?, ?)", [_text(path), _text(parent)])
    problems: list[Problem] = []
    for kind, columns in COLUMNS.items():
        database.load_table("nothing", schema_of(kind).empty_table())
        database.execute(f"CREATE TABLE {kind} AS SELECT {columns}, '' AS path FROM nothing")
        database.execute("DROP TABLE nothing")
        paths = [path for path in sorted(kinds) if kinds[path] == kind]
        try:
            _load_kind(database, kind, paths)
        except duckdb.Error:
            problems += _load_one_by_one(database, kind, paths)
    return problems


def _load_kind(database: Database, kind: str, paths: Sequence[Path]) -> None:
    if paths:
        database.execute(
            f"INSERT INTO {kind} SELECT {COLUMNS[kind]}, filename FROM read_parquet(?, "
            "hive_partitioning = false, union_by_name = false, filename = true)",
            [[literal(path) for path in paths]],
        )


def _load_one_by_one(database: Database, kind: str, paths: Sequence[Path]) -> Iterator[Problem]:
    """What pyarrow can read and DuckDB cannot; what refers to it cannot be looked up."""
    for path in paths:
        try:
            _load_kind(database, kind, [path])
        except duckdb.Error as error:
            detail = f"DuckDB cannot read it: {str(error).partition(chr(10))[0]}"
            yield Problem(path=path, problem=ProblemKind.UNREADABLE, detail=detail)
            database.execute(
                "UPDATE files SET known = false WHERE path IN (SELECT child FROM lineage WHERE parent = ?)",
                [_text(path)],
            )


def _text(path: Path) -> str:
    return utf8_text(str(path))


def _check_key(database: Database, key: _Key) -> list[Problem]:
    query = f"""
        WITH repeated AS (
            SELECT max(shown) AS last, min(shown) AS first, {key.shown} AS name
            FROM {key.kind} JOIN files USING (path) WHERE {key.rows}
            GROUP BY scope, {key.columns} HAVING count(*) > 1
        )
        SELECT last, min(first), count(*), min(name) FROM repeated GROUP BY last ORDER BY last"""
    return [
        Problem(
            path=Path(last),
            problem=ProblemKind.DUPLICATE,
            detail=counted(key.what, count, name) + (f", first in {first}" if first != last else ""),
        )
        for last, first, count, name in database.rows(query)
    ]


def _check_reference(database: Database, reference: _Reference) -> list[Problem]:
    joined = f"""
        FROM {reference.kind} r JOIN files f ON f.path = r.path AND f.known LEFT JOIN (
            SELECT r.rowid AS row, bool_or({reference.fits}) AS fits
            FROM {reference.kind} r JOIN {reference.parent} p ON p.{reference.key} = r.{reference.key}
            JOIN lineage l ON l.child = r.path AND l.parent = p.path GROUP BY r.rowid
        ) matched ON matched.row = r.rowid"""
    unknown = f"{reference.parent} do not have a {reference.key} that {reference.kind} name"
    problems: list[Problem] = []
    for kind, what, wrong, shown in (
        (ProblemKind.UNKNOWN, unknown, "matched.row IS NULL", f"r.{reference.key}"),
        (ProblemKind.CONTRADICTION, reference.misfit, "NOT matched.fits", reference.shown),
    ):
        query = f"SELECT f.shown, count(*), min({shown}) {joined} WHERE {wrong} GROUP BY f.shown ORDER BY f.shown"
        problems += [
            Problem(path=Path(path), problem=kind, detail=counted(what, count, first))
            for path, count, first in database.rows(query)
        ]
    return problems


def _check_rewards(database: Database) -> list[Problem]:
    problems: list[Problem] = []
    for what, wrong in (
        ("a score without a reward has status `scored`", f"reward IS NULL AND status = '{ScoreStatus.SCORED}'"),
        (
            "a score with a reward has another status than `scored`",
            f"reward IS NOT NULL AND status <> '{ScoreStatus.SCORED}'",
        ),
        ("a reward is not finite", "NOT isfinite(reward)"),
    ):
        query = f"""
            SELECT shown, count(*), min(trajectory_id) FROM scores JOIN files USING (path) WHERE {wrong}
            GROUP BY shown ORDER BY shown"""
        problems += [
            Problem(path=Path(path), problem=ProblemKind.REWARD, detail=counted(what, count, first))
            for path, count, first in database.rows(query)
        ]
    return problems
