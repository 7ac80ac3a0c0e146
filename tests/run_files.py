"""A small run on disk in which one kind of rows can be changed, and what `ptctl check` finds in it."""

from __future__ import annotations

import hashlib
import json
import struct
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ptctl.checking.examine import Examination, examine
from ptctl.checking.places import find_places
from ptctl.checking.problems import ProblemKind
from ptctl.records import Policy
from ptctl.shards.files import write_json
from ptctl.shards.policies import policy_to_json
from ptctl.testing.factories import (
    Batch,
    make_draw,
    make_score,
    make_simple_task,
    make_trajectory,
    write_batch,
    write_dataset,
)

Change = Callable[[list[Any]], Sequence[Any]]


def keep(rows: list[Any]) -> Sequence[Any]:
    return rows


def write_run(
    directory: Path, *, tasks: Change = keep, draws: Change = keep, trajectories: Change = keep, scores: Change = keep
) -> Path:
    """A run of three groups of two, with a change to the rows of one kind that the others do not know of."""
    task_rows = [make_simple_task(f"sum/{n}") for n in range(3)]
    draw_rows = [make_draw(task, batch="0", position=n, group_size=2) for n, task in enumerate(task_rows)]
    rows = [make_trajectory(draw, index=index) for draw in draw_rows for index in range(2)]
    score_rows = [
        make_score(row, reward=reward) for row, reward in zip(rows, [1.0, 0.0, 0.5, None, 0.0, 1.0], strict=True)
    ]
    pool = write_dataset(directory / "tasks", "tasks", [tasks(task_rows)])
    drawn = write_dataset(directory / "batches" / "0", "draws", [draws(draw_rows)], pool)
    played = write_dataset(directory / "trajectories" / "0", "trajectories", [trajectories(rows)], drawn)
    write_dataset(directory / "scores" / "0", "scores", [scores(score_rows)], played)
    (directory / "recipe.toml").write_text("")
    return directory


def make_policy(version: int, **columns: Any) -> Policy:
    """A policy record. Keyword arguments replace its columns."""
    defaults: dict[str, Any] = {
        "parent_version": None, "batch": None, "phase": "p", "algorithm": None, "consumed_group_ids": (),
        "num_steps": 1, "skipped_steps": 0, "num_trajectories": 0, "num_loss_tokens": 0, "recipe_digest": "",
        "backend": "megatron", "weights_sha256": "", "has_checkpoint": False, "metrics_json": "{}",
        "code_version": "0", "created_at": 0.0,
    }  # fmt: skip
    return Policy(policy_version=version, **(defaults | columns))


def write_policy(directory: Path, version: int, consumed: Sequence[str]) -> Path:
    """`policies/VERSION` with a safetensors file of one tensor."""
    place = directory / "policies" / str(version)
    place.mkdir(parents=True)
    header = json.dumps({"weight": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}, "__metadata__": {}}).encode()
    content = struct.pack("<Q", len(header)) + header + bytes(8)
    (place / "model.safetensors").write_bytes(content)
    record = make_policy(
        version, consumed_group_ids=tuple(consumed), weights_sha256=hashlib.sha256(content).hexdigest()
    )
    write_json(place / "policy.json", policy_to_json(record))
    return place


def check(*places: Path, deep: bool = True) -> Examination:
    return examine(find_places([str(place) for place in places]), deep=deep)


def found(*places: Path, deep: bool = True) -> list[tuple[str, ProblemKind, str]]:
    """(directory of the file or its name, what, detail) of each problem."""
    return [
        (one.path.parent.parent.name if one.path.suffix == ".parquet" else one.path.name, one.problem, one.detail)
        for one in check(*places, deep=deep).problems
    ]


def flip(path: Path, position: int) -> None:
    content = bytearray(path.read_bytes())
    content[position] ^= 0x10
    path.write_bytes(content)


def again(rows: list[Any], **columns: Any) -> list[Any]:
    return [*rows, replace(rows[0], **columns)]


def first(**columns: Any) -> Change:
    return lambda rows: [replace(rows[0], **columns), *rows[1:]]


REWARDS = {"sum/0": [1.0, 0.0], "sum/1": [0.5, 0.7], "sum/2": [1.5, -0.5], "sum/3": [None, None]}


def write_scored_run(directory: Path) -> Batch:
    """A run with a policy and eight scores, six of them known, in three shards."""
    tasks = [make_simple_task(task_id) for task_id in REWARDS]
    written = write_batch(directory, tasks, REWARDS, num_shards=3)
    write_policy(directory, 0, [])
    (directory / "recipe.toml").write_text("")
    return written
