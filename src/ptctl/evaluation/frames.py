"""One side of an evaluation as counts per task. Duplicates, strangers and digests that do not fit are refused."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptctl.errors import DataError, DigestMismatch, DuplicateRow, InputNotFound
from ptctl.evaluation.lineage import Shards
from ptctl.records import ScoreStatus
from ptctl.shards.database import Database, integers, open_database
from ptctl.stats import SUCCESS_TOLERANCE

Int64Array = npt.NDArray[np.int64]
Float64Array = npt.NDArray[np.float64]

SCORE_COLUMNS = (
    "trajectory_id", "group_id", '"index"', "attempt", "task_id", "task_digest", "verifier", "verifier_version",
    "status", "reason", "reward", "passed", "judged_by", "verify_s",
)  # fmt: skip
DRAW_COLUMNS = ("group_id", "task_id", "task_digest", "group_size")
TRAJECTORY_COLUMNS = (
    "trajectory_id", "group_id", '"index"', "attempt", "task_id", "task_digest", "stop_reason",
    "policy_version_min", "policy_version_max", "engine", "model", "sampling", "environment_digest", "costs",
    "started_at", "ended_at",
)  # fmt: skip
TASK_FACTS = {
    "domain": "domain",
    "family": "family",
    "split": "split",
    "difficulty": "difficulty",
    "expected_tool_calls": "expected_tool_calls",
    "verification_difficulty": "verification_difficulty",
    "risk": "risk",
    "prompt_length": "list_sum([length(message.content) for message in prompt])",
}
"""Stratum key → expression over a task shard. The prompt is measured in characters: tokens depend on the policy."""
MAP_KEY = "strata."
"""Prefix of keys that mean an entry of the task's `strata` map."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCounts:
    """Counts of some tasks, parallel arrays [n]."""

    n_slots: Int64Array  # [n] expected
    n_scored: Int64Array  # [n]
    n_success: Int64Array  # [n]
    n_rewards: Int64Array  # [n] scored slots with a known reward
    reward_sum: Float64Array  # [n] over them, added in the order of (group_id, index)

    def take(self, members: Int64Array) -> TaskCounts:
        """The counts of some of the tasks."""
        return TaskCounts(
            n_slots=self.n_slots[members],
            n_scored=self.n_scored[members],
            n_success=self.n_success[members],
            n_rewards=self.n_rewards[members],
            reward_sum=self.reward_sum[members],
        )


EMPTY_COUNTS = TaskCounts(
    n_slots=np.empty(0, np.int64),
    n_scored=np.empty(0, np.int64),
    n_success=np.empty(0, np.int64),
    n_rewards=np.empty(0, np.int64),
    reward_sum=np.empty(0, np.float64),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tasks:
    """The tasks that one side drew, in order of task_id."""

    task_ids: tuple[str, ...] = ()
    task_digests: tuple[str, ...] = ()
    environments: tuple[str, ...] = ()
    """Environment digests of the task's trajectories, joined; empty without a trajectory."""
    counts: TaskCounts = EMPTY_COUNTS
    facts: Mapping[str, Sequence[Any]]
    """Stratum key → raw value of each task, None where it does not say."""


@contextmanager
def open_side(shards: Shards, keys: Sequence[str]) -> Generator[Database]:
    """Load one side and check it.

    Tables: draws, expected and tasks (a row a task drawn), scores, final (a row a slot: its last attempt),
    trajectories, episodes (the last attempts among them).

    Raises CorruptShard, DuplicateRow, DigestMismatch, DataError or InputNotFound, each naming what is wrong.
    """
    with open_database() as database:
        database.load("draws", "draws", shards.draws, DRAW_COLUMNS)
        database.load("scores", "scores", shards.scores, SCORE_COLUMNS)
        database.load("trajectories", "trajectories", shards.trajectories, TRAJECTORY_COLUMNS)
        database.load("pool", "tasks", shards.tasks, ("task_id", "task_digest", *_fact_columns(keys)))
        _refuse_duplicates(database)
        _derive(database)
        _refuse_strangers(database)
        _refuse_other_digests(database)
        yield database


def _fact_columns(keys: Sequence[str]) -> list[str]:
    expressions: list[str] = []
    for position, key in enumerate(keys):
        if key.startswith(MAP_KEY):
            name = key.removeprefix(MAP_KEY).replace("'", "''")
            expressions.append(f"strata['{name}'] AS fact_{position}")
        elif key in TASK_FACTS:
            expressions.append(f"{TASK_FACTS[key]} AS fact_{position}")
    return expressions


def _refuse_duplicates(database: Database) -> None:
    for table, column in (("draws", "group_id"), ("trajectories", "trajectory_id"), ("scores", "trajectory_id")):
        query = f"SELECT {column} FROM {table} GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
        if (row := database.first(query)) is not None:
            raise DuplicateRow(
                f"{column} {row[0]!r} stands twice in the {table}", hint="give each dataset once, and one run a side"
            )
    query = """
        SELECT task_id, group_id, "index" FROM scores GROUP BY ALL
        HAVING count(*) > count(DISTINCT attempt) OR count(*) FILTER (status = ?) > 1 ORDER BY ALL LIMIT 1"""
    if (row := database.first(query, [ScoreStatus.SCORED])) is not None:
        raise DuplicateRow(f"slot {row[2]} of group {row[1]!r} (task {row[0]}) has two final scores")


def _derive(database: Database) -> None:
    database.execute("""
        CREATE TABLE expected AS SELECT task_id, min(task_digest) AS task_digest, max(task_digest) AS other_digest,
        sum(group_size)::BIGINT AS n_slots FROM draws GROUP BY task_id""")
    database.execute(
        """
        CREATE TABLE final AS SELECT *, status = ? AS scored, coalesce(passed, reward >= 1 - ?) AS success FROM scores
        QUALIFY row_number() OVER (PARTITION BY group_id, "index" ORDER BY attempt DESC) = 1""",
        [ScoreStatus.SCORED, SUCCESS_TOLERANCE],
    )
    database.execute("""
        CREATE TABLE episodes AS SELECT * FROM trajectories SEMI JOIN draws USING (group_id)
        QUALIFY row_number() OVER (PARTITION BY group_id, "index" ORDER BY attempt DESC) = 1""")
    database.execute("CREATE TABLE tasks AS SELECT pool.* FROM pool SEMI JOIN expected USING (task_id)")


def _refuse_strangers(database: Database) -> None:
    """Rows that no draw or trajectory accounts for."""
    query = "SELECT group_id FROM scores ANTI JOIN draws USING (group_id) ORDER BY 1 LIMIT 1"
    if (row := database.first(query)) is not None:
        raise DataError(f"scores of group {row[0]!r}, which no draw of their lineage has")
    query = "SELECT trajectory_id FROM scores ANTI JOIN trajectories USING (trajectory_id) ORDER BY 1 LIMIT 1"
    if (row := database.first(query)) is not None:
        raise InputNotFound(f"trajectory {row[0]!r} was scored but is in no trajectory shard of the lineage")
    query = """
        SELECT s.group_id, s."index", d.group_size FROM scores s JOIN draws d USING (group_id)
        WHERE s."index" < 0 OR s."index" >= d.group_size ORDER BY ALL LIMIT 1"""
    if (row := database.first(query)) is not None:
        raise DataError(f"score of slot {row[1]} in group {row[0]!r}, which has {row[2]} slots")
    query = "SELECT trajectory_id FROM final WHERE scored AND success IS NULL ORDER BY 1 LIMIT 1"
    if (row := database.first(query)) is not None:
        raise DataError(f"the score of trajectory {row[0]!r} is `scored` but has neither reward nor passed")
    query = "SELECT task_id FROM expected ANTI JOIN tasks USING (task_id) ORDER BY 1 LIMIT 1"
    if (row := database.first(query)) is not None:
        raise InputNotFound(f"task {row[0]!r} was drawn but is in no pool of the lineage")
    query = "SELECT task_id FROM tasks GROUP BY 1 HAVING count(*) > 1 ORDER BY 1 LIMIT 1"
    if (row := database.first(query)) is not None:
        raise DuplicateRow(f"task {row[0]!r} stands twice in the pool")


def _refuse_other_digests(database: Database) -> None:
    query = "SELECT task_id FROM expected WHERE task_digest <> other_digest ORDER BY 1 LIMIT 1"
    if (row := database.first(query)) is not None:
        raise DigestMismatch(f"task {row[0]!r} was drawn with two digests", hint="evaluate the two pools apart")
    for table, what in (("tasks", "the pool holds"), ("scores", "a score has"), ("trajectories", "a trajectory has")):
        query = f"""
            SELECT t.task_id, t.task_digest, e.task_digest FROM {table} t JOIN expected e USING (task_id)
            WHERE t.task_digest <> e.task_digest ORDER BY ALL LIMIT 1"""
        if (row := database.first(query)) is not None:
            raise DigestMismatch(
                f"task {row[0]!r}: {what} digest {row[1][:12]}, it was drawn with {row[2][:12]}",
                hint="the task was edited after it was drawn; restore it, or draw and roll out again",
            )
    query = """
        SELECT s.group_id, s.task_id, d.task_id FROM scores s JOIN draws d USING (group_id)
        WHERE s.task_id <> d.task_id ORDER BY ALL LIMIT 1"""
    if (row := database.first(query)) is not None:
        raise DataError(f"group {row[0]!r} was drawn for task {row[2]!r}, its score names {row[1]!r}")


COUNTS = """
    count(*) FILTER (scored) AS n_scored, count(*) FILTER (scored AND success) AS n_success,
    count(reward) FILTER (scored) AS n_rewards,
    coalesce(sum(reward ORDER BY group_id, "index") FILTER (scored), 0.0) AS reward_sum"""
"""Aggregates over `final`. Rewards are added in canonical order, so that the order of shards cannot change a bit."""


def _counts(table: pa.Table) -> TaskCounts:
    return TaskCounts(
        n_slots=integers(table.column("n_slots")),
        n_scored=integers(table.column("n_scored")),
        n_success=integers(table.column("n_success")),
        n_rewards=integers(table.column("n_rewards")),
        reward_sum=table.column("reward_sum").to_numpy().astype(np.float64),
    )


def read_tasks(database: Database, keys: Sequence[str]) -> Tasks:
    """Counts and facts of every task drawn."""
    positions = [position for position, key in enumerate(keys) if key in TASK_FACTS or key.startswith(MAP_KEY)]
    facts = "".join(f", fact_{position}" for position in positions)
    table = database.table(f"""
        SELECT e.task_id, e.task_digest, e.n_slots, coalesce(c.n_scored, 0) AS n_scored,
        coalesce(c.n_success, 0) AS n_success, coalesce(c.n_rewards, 0) AS n_rewards,
        coalesce(c.reward_sum, 0.0) AS reward_sum, coalesce(v.environments, '') AS environments {facts}
        FROM expected e JOIN tasks USING (task_id)
        LEFT JOIN (SELECT task_id, {COUNTS} FROM final GROUP BY task_id) c USING (task_id)
        LEFT JOIN (
            SELECT task_id, string_agg(DISTINCT environment_digest, ',' ORDER BY environment_digest) AS environments
            FROM episodes GROUP BY task_id
        ) v USING (task_id)
        ORDER BY e.task_id""")
    return Tasks(
        task_ids=tuple(cast("list[str]", table.column("task_id").to_pylist())),
        task_digests=tuple(cast("list[str]", table.column("task_digest").to_pylist())),
        environments=tuple(cast("list[str]", table.column("environments").to_pylist())),
        counts=_counts(table),
        facts={keys[position]: table.column(f"fact_{position}").to_pylist() for position in positions},
    )


def read_call_counts(database: Database, bounds: Sequence[int]) -> dict[int | None, TaskCounts]:
    """Counts per task by the number of tool calls that the candidate made: bin → tasks with a slot in it.

    Bin b holds the trajectories with at least bounds[b] and fewer than bounds[b + 1] calls; bin None the slots without
    a score row.
    """
    bins = " ".join(f"WHEN calls >= {bound} THEN {b}" for b, bound in reversed(list(enumerate(bounds))))
    table = database.table(f"""
        WITH called AS (
            SELECT final.*, CASE {bins} END AS bin FROM final
            JOIN (SELECT trajectory_id, costs.num_tool_calls AS calls FROM trajectories) USING (trajectory_id)
        ), counted AS (
            SELECT bin, task_id, count(*) AS n_slots, {COUNTS} FROM called GROUP BY bin, task_id
        ), missing AS (
            SELECT task_id, e.n_slots - coalesce(f.present, 0) AS n_slots FROM expected e
            LEFT JOIN (SELECT task_id, count(*) AS present FROM final GROUP BY task_id) f USING (task_id)
        )
        SELECT * FROM counted
        UNION ALL SELECT NULL, task_id, n_slots, 0, 0, 0, 0.0 FROM missing WHERE n_slots > 0
        ORDER BY bin NULLS LAST, task_id""")
    bin_of_row = cast("list[int | None]", table.column("bin").to_pylist())
    counts = _counts(table)
    return {
        b: counts.take(np.asarray([row for row, other in enumerate(bin_of_row) if other == b], dtype=np.int64))
        for b in dict.fromkeys(bin_of_row)
    }
