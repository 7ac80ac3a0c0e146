"""Parsed rows → tasks, draws, trajectories and scores that refer to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from ptctl.converters import chat
from ptctl.converters.leftovers import is_storable
from ptctl.converters.token_streams import Streams
from ptctl.errors import DataError, DuplicateRow
from ptctl.protocols import Converted, ConverterSettings
from ptctl.records import (
    Component,
    Costs,
    Draw,
    Purpose,
    Role,
    RowError,
    Score,
    ScoreStatus,
    Segment,
    StopReason,
    Task,
    Trajectory,
    Turn,
    UnscoredReason,
    canonical_json,
    content_digest,
    make_task,
)
from ptctl.seeds import derive_seed

ID_CHARS = 24
SUFFIX_CHARS = 8
VERSION = "imported"
"""Verifier version of imported scores: their rules are the other tool's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Draft:
    """One row of a source: what it says, before it is known which rows it belongs with."""

    task: Task
    trajectory: Trajectory
    """Without identity (`trajectory_id`, `group_id` … are empty), unless the row carries ptctl's own."""
    score: Score
    """Without identity."""
    group_key: str = ""
    """Rows of one task with the same key are one group."""


def draft_task(
    key: str, turns: Sequence[Turn], settings: ConverterSettings, *, family: str, target: Any = None, **columns: Any
) -> Task:
    """A task that opens with `turns`. A target that canonical JSON cannot hold is not known to the task."""
    target_json = canonical_json(target) if is_storable(target) else "null"
    return make_task(
        task_id=f"{family}/{key or content_digest([[turn.role, turn.content] for turn in turns] + [target_json])[:16]}",
        family=family,
        split=settings.split,
        prompt=chat.prompt_of(turns),
        verifier=settings.verifier,
        target_json=target_json,
        **({"domain": family} | columns),
    )


def draft_trajectory(
    name: str, turns: Sequence[Turn], num_prompt: int, *, streams: Streams | None = None, **columns: Any
) -> Trajectory:
    """A trajectory without identity; `name` is the format, which stands for engine and environment."""
    spans = streams.turns if streams is not None else tuple(turns)
    played = spans[num_prompt:]
    costs = Costs(
        num_turns=sum(turn.role == Role.ASSISTANT for turn in played),
        num_tool_calls=sum(len(turn.tool_calls) for turn in played),
        num_prompt_tokens=sum(turn.num_prompt_tokens for turn in played),
        num_cached_tokens=sum(turn.num_cached_tokens for turn in played),
        num_completion_tokens=sum(turn.num_completion_tokens for turn in played),
    )
    defaults: dict[str, Any] = {
        "stop_reason": StopReason.COMPLETED.value,
        "final_answer": chat.final_answer(spans, num_prompt),
        "engine": name,
        "environment": name,
        "environment_digest": content_digest([name, VERSION]),
        "costs": costs,
    }
    return Trajectory(
        trajectory_id="", group_id="", index=0, attempt=0, batch="", purpose="", task_id="", task_digest="",
        group_size=0, seed=0,
        token_ids=streams.token_ids if streams is not None else (),  # pyright: ignore[reportArgumentType]
        loss_mask=streams.loss_mask if streams is not None else (),  # pyright: ignore[reportArgumentType]
        rollout_logprobs=streams.rollout_logprobs if streams is not None else (),  # pyright: ignore[reportArgumentType]
        turns=spans,
        segments=streams.segments if streams is not None else (Segment(token_start=0, token_end=0, opened_by="start"),),
        version_spans=(), policy_version_min=None, policy_version_max=None,
        **(defaults | columns),
    )  # fmt: skip


def draft_score(
    name: str,
    reward: float | None,
    *,
    stop_reason: str = StopReason.COMPLETED,
    error: RowError | None = None,
    components: tuple[Component, ...] = (),
    **columns: Any,
) -> Score:
    """A score without identity. An episode that the infrastructure ended has none, whatever number stands beside it."""
    failed = {
        StopReason.ENV_ERROR.value: UnscoredReason.ENV_ERROR,
        StopReason.ENGINE_ERROR.value: UnscoredReason.ENGINE_ERROR,
        StopReason.CANCELLED.value: UnscoredReason.CANCELLED,
    }.get(str(stop_reason))
    if failed is None and reward is None:
        failed = UnscoredReason.VERIFIER_ERROR
        error = error or RowError(kind="verifier", message="the source has no reward")
    facts: dict[str, Any] = {"passed": None, "verifier_version": VERSION} | columns
    if failed is not None:
        facts["passed"] = None
    return Score(
        trajectory_id="", group_id="", index=0, attempt=0, task_id="", task_digest="",
        verifier=name,
        status=ScoreStatus.SCORED.value if failed is None else ScoreStatus.UNSCORED.value,
        reason=failed.value if failed is not None else None,
        reward=reward if failed is None else None,
        components=components,
        error=error if failed is not None else None,
        **facts,
    )  # fmt: skip


def assemble(name: str, drafts: Sequence[Draft], settings: ConverterSettings) -> Converted:
    """Give the rows of a batch their identity. Rows that carry ptctl's own keep it.

    Raises DataError where there are none, DuplicateRow where a slot or an id stands twice.
    """
    if not drafts:
        raise DataError(f"{name} holds no trajectories")
    tasks = _named_tasks(drafts)
    groups: dict[tuple[str, str], list[int]] = {}
    for number, draft in enumerate(drafts):
        group_id = draft.trajectory.group_id
        key = ("id", group_id) if group_id else (tasks[number].task_id, draft.group_key)
        groups.setdefault(key, []).append(number)
    draws: list[Draw] = []
    rows: dict[int, tuple[Trajectory, Score]] = {}
    for position, members in enumerate(groups.values()):
        draw = _draw(name, position, tasks[members[0]], [drafts[number] for number in members], settings)
        draws.append(draw)
        for index, number in enumerate(members):
            rows[number] = _identified(drafts[number], draw, index)
    first: dict[str, Task] = {}
    for task in tasks:
        first.setdefault(task.task_id, task)
    ordered = [rows[number] for number in range(len(drafts))]
    _refuse_duplicates([trajectory for trajectory, _ in ordered])
    return Converted(
        name=name,
        tasks=tuple(first.values()),
        draws=tuple(draws),
        trajectories=tuple(trajectory for trajectory, _ in ordered),
        scores=tuple(score for _, score in ordered),
    )


def _named_tasks(drafts: Sequence[Draft]) -> list[Task]:
    """The task of each row. Where one name stands for several contents, each gets its digest as a suffix.

    Rows with ptctl's own identity name their task; the first one says what it is.
    """
    digests: dict[str, set[str]] = {}
    own: dict[str, Task] = {}
    for draft in drafts:
        if draft.trajectory.task_id:
            own.setdefault(draft.trajectory.task_id, replace(draft.task, task_id=draft.trajectory.task_id))
        else:
            digests.setdefault(draft.task.task_id, set()).add(draft.task.task_digest)
    named: list[Task] = []
    for draft in drafts:
        task = own.get(draft.trajectory.task_id, draft.task)
        if not draft.trajectory.task_id and (len(digests[task.task_id]) > 1 or task.task_id in own):
            task = replace(task, task_id=f"{task.task_id}-{task.task_digest[:SUFFIX_CHARS]}")
        named.append(task)
    return named


def _draw(name: str, position: int, task: Task, members: Sequence[Draft], settings: ConverterSettings) -> Draw:
    first = members[0].trajectory
    group_id = first.group_id or f"{name}/{position:06d}"
    content = [[asdict(turn) for turn in member.trajectory.turns] for member in members]
    return Draw(
        group_id=group_id,
        batch=first.batch or name,
        position=position,
        task_id=task.task_id,
        task_digest=task.task_digest,
        purpose=first.purpose or (Purpose.EVAL.value if settings.split == "eval" else Purpose.TRAIN.value),
        group_size=first.group_size or len(members),
        # Of the content, so that two sources of one name have different trajectory ids.
        seed=derive_seed("convert", group_id, task.task_digest, content_digest(content)),
        strategy=VERSION,
        weight=1.0,
    )


def _identified(draft: Draft, draw: Draw, index: int) -> tuple[Trajectory, Score]:
    trajectory = replace(draft.trajectory, task_id=draw.task_id, task_digest=draw.task_digest)
    if not trajectory.trajectory_id:
        key = f"{draw.group_id}\0{draw.seed}\0{index}\0{0}"
        trajectory = replace(
            trajectory,
            trajectory_id=hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()[:ID_CHARS],
            group_id=draw.group_id,
            index=index,
            batch=draw.batch,
            purpose=draw.purpose,
            group_size=draw.group_size,
            seed=derive_seed(draw.seed, index, 0),
        )
    names = ("trajectory_id", "group_id", "index", "attempt", "task_id", "task_digest")
    return trajectory, replace(draft.score, **{name: getattr(trajectory, name) for name in names})


def _refuse_duplicates(trajectories: Sequence[Trajectory]) -> None:
    ids: set[str] = set()
    slots: set[tuple[str, int, int]] = set()
    for row in trajectories:
        slot = (row.group_id, row.index, row.attempt)
        if row.trajectory_id in ids or slot in slots:
            raise DuplicateRow(f"trajectory {row.trajectory_id!r} (slot {row.index} of {row.group_id}) stands twice")
        ids.add(row.trajectory_id)
        slots.add(slot)
