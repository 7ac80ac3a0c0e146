"""Process, cost and provenance of one side. Text of turns and token streams are never read."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ptctl.evaluation.lineage import Shards
from ptctl.evaluation.report import Cost, Count, Process, SideInputs
from ptctl.records import Sampling, ScoreStatus, StopReason
from ptctl.shards.database import Database
from ptctl.shards.reader import read_table

LEVELS = {
    "parsed": "parsed",
    "known": "known_tool",
    "valid": "valid_arguments",
    "executed": "executed",
    "succeeded": "succeeded",
}
"""Level of a tool call in the report → column of `records.ToolCall`."""
CALL_PATH = "turns.list.element.tool_calls.list.element"
MICROSECONDS = 1_000_000
SECONDS = ("queue_s", "engine_s", "environment_s", "sandbox_s", "wall_s")
TOKENS = ("prompt", "cached", "completion")


def load_calls(database: Database, trajectories: Sequence[Path]) -> None:
    """Create table `calls`: per trajectory, the calls that reached each level.

    Through pyarrow, which reads the five booleans alone; DuckDB would read the text of every turn with them.
    """
    columns = ["trajectory_id", *(f"{CALL_PATH}.{column}" for column in LEVELS.values())]
    tables = [
        _count_calls(batch) for path in trajectories for batch in read_table(path, "trajectories", columns).to_batches()
    ]
    database.load_table("calls", pa.concat_tables(tables) if tables else _no_calls())


def _no_calls() -> pa.Table:
    empty = {level: pa.array([], pa.int64()) for level in LEVELS}
    return pa.table({"trajectory_id": pa.array([], pa.string()), **empty})


def _count_calls(batch: pa.RecordBatch) -> pa.Table:
    turns = cast("pa.ListArray[Any]", batch.column("turns"))
    calls = cast("pa.ListArray[Any]", cast("pa.StructArray", turns.values).field("tool_calls"))
    # Offsets are absolute in the values below them, also for a sliced batch.
    ends = calls.offsets.to_numpy()[turns.offsets.to_numpy()]  # [rows + 1] into the calls
    levels = cast("pa.StructArray", calls.values)
    counts: dict[str, pa.Array[Any]] = {
        level: pa.array(_between(levels.field(column), ends)) for level, column in LEVELS.items()
    }
    return pa.table({"trajectory_id": batch.column("trajectory_id"), **counts})


def _between(flags: pa.Array[Any], ends: npt.NDArray[Any]) -> npt.NDArray[np.int64]:
    """# [rows] number of true flags in each row; null (did not run) is not true."""
    values = flags.fill_null(False).to_numpy(zero_copy_only=False).astype(np.int64)
    before = np.concatenate(([0], np.cumsum(values)))  # [calls + 1]
    return (before[ends[1:]] - before[ends[:-1]]).astype(np.int64)


def share(count: int, total: int) -> Count:
    """A count with its share of a total."""
    return Count(count=count, share=count / total if total else None)


def read_process(database: Database) -> Process:
    """How the episodes went. Needs the tables of `frames.open_side` and `calls`."""
    attempts, trajectories, turns, calls = database.one("""
        SELECT (SELECT count(*) FROM trajectories SEMI JOIN draws USING (group_id)), count(*),
        coalesce(sum(costs.num_turns), 0), coalesce(sum(costs.num_tool_calls), 0) FROM episodes""")
    sums = ", ".join(f"coalesce(sum({level}), 0)" for level in LEVELS)
    reached = database.one(f"SELECT {sums} FROM calls SEMI JOIN episodes USING (trajectory_id)")
    reasons = database.rows("SELECT stop_reason, count(*) FROM episodes GROUP BY 1 ORDER BY 1")
    truncated = sum(count for reason, count in reasons if _is_truncated(reason))
    (num_slots,) = database.one("SELECT sum(n_slots) FROM expected")
    unscored = _unscored(database, int(num_slots))
    judges = database.rows("SELECT judged_by, count(*) FROM final WHERE scored GROUP BY 1 ORDER BY 1")
    failed = sum(unscored.values()) - unscored.get(ScoreStatus.WITHHELD.value, 0)
    return Process(
        num_trajectories=trajectories,
        num_retries=attempts - trajectories,
        turns_per_trajectory=int(turns) / trajectories if trajectories else None,
        tool_calls_per_trajectory=int(calls) / trajectories if trajectories else None,
        num_tool_calls=int(calls),
        tool_calls={level: share(int(count), int(calls)) for level, count in zip(LEVELS, reached, strict=True)},
        truncated=share(truncated, trajectories),
        stop_reasons={reason: share(count, trajectories) for reason, count in reasons},
        infrastructure_errors=share(failed, int(num_slots)),
        unscored=unscored,
        judged_by=dict(judges),
    )


def _is_truncated(reason: str) -> bool:
    return reason in set(StopReason) and StopReason(reason).is_truncated


def _unscored(database: Database, num_slots: int) -> dict[str, int]:
    rows = database.rows(
        """
        SELECT CASE WHEN status = ? THEN status ELSE coalesce(reason, 'unknown') END AS why, count(*)
        FROM final WHERE NOT scored GROUP BY 1 ORDER BY 1""",
        [ScoreStatus.WITHHELD],
    )
    (present,) = database.one("SELECT count(*) FROM final")
    missing = num_slots - int(present)
    return dict(rows) | ({"missing": missing} if missing else {})


def read_cost(database: Database) -> Cost:
    """What all attempts cost together.

    Seconds are added as whole microseconds: integers give the same sum in any order.
    """
    seconds = ", ".join(f"coalesce(sum({_microseconds(f'costs.{name}')}), 0)" for name in SECONDS)
    tokens = ", ".join(f"coalesce(sum(costs.num_{name}_tokens), 0)" for name in TOKENS)
    *totals, elapsed = database.one(f"""
        SELECT {tokens}, {seconds}, max(ended_at) - min(started_at)
        FROM trajectories SEMI JOIN draws USING (group_id)""")
    prompt, cached, completion, *spent = (int(total) for total in totals)
    (verify,) = database.one(f"SELECT coalesce(sum({_microseconds('verify_s')}), 0) FROM scores")
    tasks, passed = database.one("""
        SELECT (SELECT count(*) FROM expected), (SELECT count(*) FROM final WHERE scored AND success)""")
    queue_s, engine_s, environment_s, sandbox_s, wall_s = (total / MICROSECONDS for total in spent)
    return Cost(
        prompt_tokens=prompt,
        cached_tokens=cached,
        completion_tokens=completion,
        tokens_per_task=(prompt + completion) / tasks if tasks else None,
        tokens_per_success=(prompt + completion) / passed if passed else None,
        cached_share=cached / prompt if prompt else None,
        queue_s=queue_s,
        engine_s=engine_s,
        environment_s=environment_s,
        sandbox_s=sandbox_s,
        verify_s=int(verify) / MICROSECONDS,
        wall_s=wall_s,
        elapsed_s=elapsed,
    )


def _microseconds(expression: str) -> str:
    return f"round({expression} * {MICROSECONDS})::BIGINT"


def read_inputs(database: Database, shards: Shards) -> SideInputs:
    """What was read: shards, counts, policy versions, engines, sampling settings, verifiers."""

    def values(query: str) -> tuple[Any, ...]:
        return tuple(row[0] for row in database.rows(query))

    names = [field.name for field in fields(Sampling)]
    columns = ", ".join(f"sampling.{name}" for name in names)
    return SideInputs(
        scores=tuple(str(path) for path in shards.scores),
        num_scores=database.one("SELECT count(*) FROM scores")[0],
        num_trajectories=database.one("SELECT count(*) FROM trajectories")[0],
        num_draws=database.one("SELECT count(*) FROM draws")[0],
        num_tasks=database.one("SELECT count(*) FROM expected")[0],
        policy_versions=values("""
            SELECT DISTINCT unnest([policy_version_min, policy_version_max]) AS v FROM episodes
            WHERE policy_version_min IS NOT NULL ORDER BY v"""),
        models=values("SELECT DISTINCT model FROM episodes WHERE model <> '' ORDER BY 1"),
        engines=values("SELECT DISTINCT engine FROM episodes WHERE engine <> '' ORDER BY 1"),
        sampling=tuple(
            dict(zip(names, row, strict=True))
            for row in database.rows(f"SELECT DISTINCT {columns} FROM episodes ORDER BY ALL")
        ),
        verifiers=values("SELECT DISTINCT verifier || ' ' || verifier_version AS v FROM final WHERE scored ORDER BY v"),
    )
