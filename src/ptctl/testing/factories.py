"""Rows with sensible defaults, and whole scored batches on disk with their lineage."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptctl.records import (
    Costs,
    Draw,
    Message,
    Purpose,
    Role,
    Score,
    ScoreStatus,
    Segment,
    StopReason,
    Task,
    ToolCall,
    Trajectory,
    Turn,
    VersionSpan,
    make_task,
)
from ptctl.shards.dataset import shards_in, write_manifest
from ptctl.shards.writer import Lineage, write_rows


def make_simple_task(task_id: str = "sum/0", **columns: Any) -> Task:
    """A single-turn task with a numeric target. Keyword arguments replace its columns; the digest is filled in."""
    defaults: dict[str, Any] = {
        "domain": "math",
        "family": task_id.split("/")[0],
        "split": "eval",
        "prompt": (Message(role=Role.USER, content=f"Solve {task_id}."),),
        "verifier": "exact",
        "target_json": '"42"',
    }
    return make_task(task_id=task_id, **(defaults | columns))


def make_draw(task: Task, *, batch: str = "eval-0", position: int = 0, group_size: int = 1, **columns: Any) -> Draw:
    """A uniform draw of one task."""
    defaults: dict[str, Any] = {
        "group_id": f"{batch}/{position:06d}",
        "purpose": Purpose.EVAL,
        "seed": position,
        "strategy": "uniform",
        "weight": 1.0,
    }
    fixed: dict[str, Any] = {"batch": batch, "position": position, "group_size": group_size}
    return Draw(task_id=task.task_id, task_digest=task.task_digest, **(defaults | fixed | columns))


def make_tool_call(call_id: str = "0", *, level: str = "succeeded", name: str = "calculator") -> ToolCall:
    """A tool call that got as far as `level`: written, parsed, known, valid, executed or succeeded."""
    reached = ("written", "parsed", "known", "valid", "executed", "succeeded").index(level)
    return ToolCall(
        call_id=call_id,
        raw=f'{{"name":"{name}","arguments":{{}}}}',
        name=name if reached >= 1 else None,
        arguments_json="{}" if reached >= 1 else None,
        parsed=reached >= 1,
        known_tool=reached >= 2,
        valid_arguments=reached >= 3,
        executed=reached >= 4,
        succeeded=reached >= 5 if reached >= 4 else None,
    )


def make_trajectory(
    draw: Draw, *, index: int = 0, attempt: int = 0, tool_calls: Sequence[ToolCall] = (), **columns: Any
) -> Trajectory:
    """A finished trajectory of three prompt tokens and two sampled ones; `tool_calls` are made in its only turn."""
    turns = (
        Turn(role=Role.USER, content="a question", segment=0, token_start=0, token_end=3),
        Turn(
            role=Role.ASSISTANT, content="42", segment=0, token_start=3, token_end=5, tool_calls=tuple(tool_calls),
            finish_reason="stop", num_prompt_tokens=3, num_completion_tokens=2,
        ),
    )  # fmt: skip
    key = f"{draw.group_id}\0{draw.seed}\0{index}\0{attempt}"
    defaults: dict[str, Any] = {
        "trajectory_id": hashlib.sha256(key.encode()).hexdigest()[:24],
        "token_ids": (1, 2, 3, 4, 5),
        "loss_mask": (False, False, False, True, True),
        "rollout_logprobs": (0.0, 0.0, 0.0, -0.5, -0.25),
        "turns": turns,
        "segments": (Segment(token_start=0, token_end=5, opened_by="start"),),
        "version_spans": (VersionSpan(policy_version=0, token_start=3, token_end=5),),
        "policy_version_min": 0,
        "policy_version_max": 0,
        "stop_reason": StopReason.COMPLETED,
        "final_answer": "42",
        "engine": "fake",
        "model": "model",
        "environment": "single_turn",
        "environment_digest": "environment",
        "costs": Costs(num_turns=1, num_tool_calls=len(tool_calls), num_prompt_tokens=3, num_completion_tokens=2),
        "seed": index,
    }
    names = ("group_id", "batch", "purpose", "task_id", "task_digest", "group_size")
    of_draw = {name: getattr(draw, name) for name in names}
    return Trajectory(index=index, attempt=attempt, **(defaults | of_draw | columns))


def make_score(trajectory: Trajectory, *, reward: float | None = 1.0, **columns: Any) -> Score:
    """A score with a value, or with reward None an unscored one (`verifier_error` unless `reason` says otherwise)."""
    known = reward is not None
    defaults: dict[str, Any] = {
        "verifier": "exact",
        "verifier_version": "1",
        "status": ScoreStatus.SCORED if known else ScoreStatus.UNSCORED,
        "reason": None if known else "verifier_error",
        "passed": reward == 1.0 if known else None,
    }
    names = ("trajectory_id", "group_id", "index", "attempt", "task_id", "task_digest")
    of_trajectory = {name: getattr(trajectory, name) for name in names}
    return Score(reward=reward, **(defaults | of_trajectory | columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """A scored batch on disk."""

    scores: tuple[Path, ...]
    trajectories: tuple[Path, ...]
    draws: tuple[Path, ...]
    tasks: tuple[Path, ...]


def write_dataset(
    directory: Path, kind: str, shards: Iterable[Sequence[Any]], inputs: Sequence[Path] = ()
) -> tuple[Path, ...]:
    """Commit shards of rows and the manifest."""
    lineage = Lineage(inputs=tuple(inputs))
    for ordinal, rows in enumerate(shards):
        write_rows(rows, kind, directory, lineage, ordinal=ordinal)
    write_manifest(directory, kind, lineage)
    return tuple(shards_in(directory))


def write_batch(
    directory: Path,
    tasks: Sequence[Task],
    rewards: Mapping[str, Sequence[float | None]],
    *,
    pool: Sequence[Path] | None = None,
    batch: str = "eval-0",
    group_size: int | None = None,
    num_shards: int = 1,
    **trajectory_columns: Any,
) -> Batch:
    """Write pool, draws, trajectories and scores of a batch: `rewards` maps task_id → reward of each slot.

    A reward None is an unscored slot; slots up to `group_size` (the longest list by default) that have no entry are
    missing. `pool` names task shards that are there already. `num_shards` cuts trajectories and scores.
    """
    size = group_size or max((len(values) for values in rewards.values()), default=1)
    pool = pool or write_dataset(directory / "tasks", "tasks", [tasks])
    drawn = [task for task in tasks if task.task_id in rewards]
    draws = [make_draw(task, batch=batch, position=n, group_size=size) for n, task in enumerate(drawn)]
    draw_shards = write_dataset(directory / "batches" / batch, "draws", [draws], pool)
    pairs = [
        (make_trajectory(draw, index=index, **trajectory_columns), reward)
        for draw in draws
        for index, reward in enumerate(rewards[draw.task_id])
    ]
    trajectories = write_dataset(
        directory / "trajectories" / batch,
        "trajectories",
        [[trajectory for trajectory, _ in pairs[n::num_shards]] for n in range(num_shards)],
        draw_shards,
    )
    scores = write_dataset(
        directory / "scores" / batch,
        "scores",
        [[make_score(row, reward=reward) for row, reward in pairs[n::num_shards]] for n in range(num_shards)],
        trajectories,
    )
    return Batch(scores=scores, trajectories=trajectories, draws=draw_shards, tasks=tuple(pool))
