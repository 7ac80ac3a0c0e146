"""What the tests of the converters share."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np

from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import (
    Component,
    Message,
    RowError,
    Score,
    Segment,
    StopReason,
    Task,
    Tool,
    ToolCall,
    Trajectory,
    Turn,
    VersionSpan,
)
from ptctl.registry import load
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory


def converter(name: str, **settings: Any) -> Any:
    return load("converters", name)(ConverterSettings(**settings))


def write(name: str, converted: Converted, out: Path, *, scores: bool = True) -> tuple[str, ...]:
    return converter(name).write(
        converted.trajectories,
        {task.task_id: task for task in converted.tasks},
        {score.trajectory_id: score for score in converted.scores} if scores else {},
        out,
    )


def canonical(value: Any) -> str:
    """Equal text for equal JSON values; 1, 1.0 and true differ, NaN equals itself."""
    return json.dumps(value, sort_keys=True)


def json_lines(path: Path) -> list[str]:
    return [canonical(json.loads(line)) for line in path.read_text(encoding="utf-8").split("\n") if line]


def write_lines(path: Path, rows: Iterable[Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows), encoding="utf-8")
    return path


def differing(left: Any, right: Any) -> set[str]:
    """Names of the columns in which two rows differ; arrays compare by value."""
    found: set[str] = set()
    for field in fields(left):
        one, other = getattr(left, field.name), getattr(right, field.name)
        is_stream = isinstance(one, np.ndarray) or isinstance(other, np.ndarray)
        if not (np.array_equal(np.asarray(one), np.asarray(other)) if is_stream else one == other):
            found.add(field.name)
    return found


TOOL = Tool(name="add", description="Adds.", parameters_json='{"properties":{},"type":"object"}', kind="calculator")
TASK = make_simple_task("sums/7", split="train", tools=(TOOL,), prompt=(Message(role="user", content="7+5?"),),
                        strata={"level": "2"}, difficulty=0.5)  # fmt: skip


def _turn(role: str, content: str, segment: int, span: tuple[int, int], **columns: Any) -> Turn:
    return Turn(role=role, content=content, segment=segment, token_start=span[0], token_end=span[1], **columns)


def _calls() -> tuple[ToolCall, ToolCall]:
    raw = '<tool_call>{"name": "add", "arguments": {"x": 7}}</tool_call>'
    good = ToolCall(
        call_id="0", raw=raw, name="add", arguments_json='{"x":7}', parsed=True, known_tool=True,
        valid_arguments=True, executed=True, succeeded=False, error="too few", duration_s=0.25,
    )  # fmt: skip
    bad = ToolCall(
        call_id="1", raw="<tool_call>{", name=None, arguments_json=None, parsed=False, known_tool=False,
        valid_arguments=False, executed=False, succeeded=None, error="no valid JSON",
    )  # fmt: skip
    return good, bad


def native_rows() -> tuple[Task, tuple[Trajectory, ...], tuple[Score, ...]]:
    """A group of two as the rollout stage writes it: one with tools, a rewritten context and every stream; one that
    failed before the policy said anything."""
    draw = make_draw(TASK, batch="3", group_size=2, purpose="train")
    good, bad = _calls()
    turns = (
        _turn("user", "7+5?", 0, (0, 2)),
        _turn("assistant", f"I add. {good.raw} and {bad.raw}", 0, (2, 6), tool_calls=(good, bad), engine_s=0.5,
              finish_reason="stop", num_prompt_tokens=3, num_completion_tokens=3, started_at=12.5, reward=0.125),
        _turn("tool", "12", 1, (6, 10), tool_call_id="0"),
        _turn("tool", "what?", 1, (10, 11), tool_call_id="1"),
        _turn("assistant", "12", 1, (11, 14), finish_reason="stop", num_prompt_tokens=6, num_completion_tokens=2,
              num_cached_tokens=1, num_replaced_surrogates=1),
    )  # fmt: skip
    ids = np.asarray([5, 6, 7, 8, 9, 10, 5, 6, 7, 11, 12, 13, 14, 15], dtype=np.int32)
    mask = np.isin(np.arange(14), (3, 4, 5, 12, 13))
    first = make_trajectory(
        draw, turns=turns, token_ids=ids, loss_mask=mask,
        rollout_logprobs=np.where(mask, np.float32(-0.1), np.float32(0)),
        segments=(Segment(token_start=0, token_end=6, opened_by="start"),
                  Segment(token_start=6, token_end=14, opened_by="template_rewrite")),
        version_spans=(VersionSpan(policy_version=3, token_start=3, token_end=6),
                       VersionSpan(policy_version=4, token_start=12, token_end=14)),
        policy_version_min=3, policy_version_max=4, final_answer="12", workspace_digest="w",
        sampling_mask_offsets=np.arange(15), sampling_mask_ids=np.arange(14, dtype=np.int32),
        routed_experts=np.arange(14, dtype=np.int16), routed_experts_shape=(1, 1),
        final_state_json='{"balance":1}', started_at=12.0, ended_at=13.0, attempt=1,
    )  # fmt: skip
    failed = make_trajectory(
        draw, index=1, turns=turns[:1], token_ids=(), loss_mask=(), rollout_logprobs=(), segments=(), version_spans=(),
        policy_version_min=None, policy_version_max=None, final_answer=None, stop_reason=StopReason.ENV_ERROR.value,
        error=RowError(kind="environment", message="no\u2028box", detail="trace"),
    )  # fmt: skip
    scores = (
        make_score(first, reward=0.1, passed=False, answer="12", evidence_json='{"seen":[1]}', verify_s=0.5,
                   components=(Component(name="tests", value=0.1), Component(name="turn", value=None, turn=1))),
        make_score(failed, reward=None, reason="env_error"),
    )  # fmt: skip
    return TASK, (first, failed), scores


def native() -> Converted:
    task, trajectories, scores = native_rows()
    return Converted(name="3", tasks=(task,), draws=(), trajectories=trajectories, scores=scores)
