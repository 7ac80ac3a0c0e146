"""Our columns inside a foreign row: what the format has no field for, so that it comes back.

The member `ptctl` holds the differences between our rows and what reading the foreign row gives. Of the task only facts
for reports are in it: verifier, target, files and solutions, which the policy must not see, stay at home. (A score's
evidence, where scores are written, may quote the target.)
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import pyarrow as pa

from ptctl.converters.assembly import Draft
from ptctl.converters.leftovers import Change, difference, restore
from ptctl.errors import DataError
from ptctl.records import Score, Task, Trajectory, canonical_json
from ptctl.shards.columns import table_to_rows
from ptctl.shards.schema import schema_of

MEMBER = "ptctl"
VERSION = 1
IDENTITY = (
    "trajectory_id", "group_id", "index", "attempt", "batch", "purpose", "task_id", "group_size", "seed",
)  # fmt: skip
"""Columns that only rows of ptctl's own making carry; the others get a new identity whenever they are read."""
SCORE_IDENTITY = ("trajectory_id", "group_id", "index", "attempt", "task_id", "task_digest")
TASK_FACTS = (
    "domain", "family", "split", "strata", "difficulty", "expected_tool_calls", "verification_difficulty", "risk",
    "source", "licence",
)  # fmt: skip


def plain(row: Any) -> dict[str, Any]:
    """A row as JSON values."""
    return json.loads(json.dumps(asdict(row), default=lambda value: value.tolist()))


def leftover_of(trajectory: Trajectory, name: str) -> dict[str, Any]:
    """What the format `name` left in the trajectory; empty where it did not come from there."""
    return json.loads(trajectory.original_json or "{}").get(name, {})


def with_leftover(trajectory: Trajectory, name: str, leftover: Mapping[str, Any]) -> Trajectory:
    """The trajectory with what the format `name` leaves, beside what others have left."""
    kept: dict[str, Any] = json.loads(trajectory.original_json or "{}")
    kept.pop(name, None)
    if leftover:
        kept[name] = dict(leftover)
    return replace(trajectory, original_json=canonical_json(kept) if kept else None)


def _trajectory_facts(trajectory: Trajectory, name: str, *, own: bool) -> dict[str, Any]:
    facts = plain(with_leftover(trajectory, name, {}))
    for column in ("task_digest", *(() if own else IDENTITY)):
        del facts[column]
    return facts


def _score_facts(score: Score) -> dict[str, Any]:
    return {column: value for column, value in plain(score).items() if column not in SCORE_IDENTITY}


def _task_facts(task: Task) -> dict[str, Any]:
    facts: dict[str, Any] = {column: getattr(task, column) for column in TASK_FACTS}
    return json.loads(json.dumps(facts | {"strata": dict(task.strata)}))


def seal(
    trajectory: Trajectory, task: Task, score: Score | None, back: Draft, name: str, *, own: bool
) -> dict[str, Any] | None:
    """What must stand in the member, given what the foreign row is read `back` as; None where nothing must.

    `own` rows are of ptctl's making and keep their identity.
    """
    parts: dict[str, list[Change]] = {
        "trajectory": difference(
            _trajectory_facts(trajectory, name, own=own), _trajectory_facts(back.trajectory, name, own=own)
        ),
        "task": difference(_task_facts(task), _task_facts(back.task)) if own else [],
        "score": difference(_score_facts(score), _score_facts(back.score)) if score is not None else [],
    }
    told = {part: changes for part, changes in parts.items() if changes}
    return {"version": VERSION, **told} if told else None


def unseal(draft: Draft, envelope: Any, where: str) -> Draft:
    """The draft with the columns that the member holds. Raises DataError for a member that is none of ours."""
    if not isinstance(envelope, dict) or envelope.get("version") != VERSION:
        raise DataError(f"{where}: `{MEMBER}` is no version {VERSION} of ptctl's columns", hint="remove the member")
    place = f"{where}: `{MEMBER}`"
    facts = restore(_task_facts(draft.task), envelope.get("task", []), place)
    if not isinstance(facts, dict) or set(facts) != set(TASK_FACTS):
        raise DataError(f"{place}: it does not tell a task's facts")
    return Draft(
        task=replace(draft.task, **facts),
        trajectory=_row(draft.trajectory, "trajectories", envelope.get("trajectory", []), place),
        score=_row(draft.score, "scores", envelope.get("score", []), place),
        group_key=draft.group_key,
    )


def _row(row: Any, kind: str, changes: Any, place: str) -> Any:
    if not changes:
        return row
    facts = restore(plain(row), changes, place)
    try:
        return table_to_rows(kind, pa.Table.from_pylist([facts], schema=schema_of(kind)))[0]
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError) as error:
        raise DataError(f"{place}: the {kind} columns do not fit: {error}") from error
