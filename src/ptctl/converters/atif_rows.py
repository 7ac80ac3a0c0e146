"""An ATIF document ↔ our rows.

step of source system, user     → a turn of that role
step of source agent            → an assistant turn with its tool calls
observation.results[]           → tool turns behind it
metrics.*_token_ids, logprobs   → one masked token stream, where every step of a generation has both kinds of ids
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, ClassVar, cast

from ptctl import __version__
from ptctl.converters import chat, token_streams
from ptctl.converters.assembly import Draft, draft_score, draft_task, draft_trajectory
from ptctl.converters.envelope import MEMBER
from ptctl.converters.json_input import member, objects
from ptctl.converters.token_streams import Generation, Streams
from ptctl.errors import DataError
from ptctl.protocols import ConverterSettings
from ptctl.records import Component, Role, Score, Task, ToolCall, Trajectory, Turn

SCHEMA = "ATIF-v1."
"""Beginning of the schema versions that are read; minor versions only add members."""
WRITTEN_SCHEMA = "ATIF-v1.8"
ROLE_OF_SOURCE = {"system": Role.SYSTEM, "user": Role.USER, "agent": Role.ASSISTANT}
SOURCE_OF_ROLE = {role.value: source for source, role in ROLE_OF_SOURCE.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What a trial directory tells beside the document."""

    task_name: str = ""
    reward: float | None = None
    components: tuple[Component, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AtifRows:
    """The row format. `trials` is asked for each document by its place."""

    name: ClassVar[str] = "atif"

    settings: ConverterSettings
    trials: Mapping[str, Trial]

    def take_envelope(self, row: Mapping[str, Any]) -> tuple[dict[str, Any], Any]:
        """See RowFormat: the member stands in the root's `extra`."""
        extra = row.get("extra")
        if not isinstance(extra, dict) or MEMBER not in extra:
            return dict(row), None
        others = {key: value for key, value in cast("dict[str, Any]", extra).items() if key != MEMBER}
        bare = {key: value for key, value in row.items() if key != "extra"}
        return bare | ({"extra": others} if others else {}), extra[MEMBER]

    def put_envelope(self, row: Mapping[str, Any], envelope: Mapping[str, Any]) -> dict[str, Any]:
        """See RowFormat."""
        return {**row, "extra": {**(row.get("extra") or {}), MEMBER: dict(envelope)}}

    def parse(self, row: Mapping[str, Any], where: str) -> Draft:
        """See RowFormat."""
        version = member(row, "schema_version", "a string", where, required=True)
        if not version.startswith(SCHEMA):
            raise DataError(f"{where}: `schema_version` is {version!r}", hint=f"known: {SCHEMA}*")
        agent = member(row, "agent", "an object", where, required=True)
        tools = chat.read_tools(
            member(agent, "tool_definitions", "an array", f"{where}: `agent`") or [], f"{where}: `agent`"
        )
        steps = objects(row, "steps", where, required=True)
        turns: list[Turn] = []
        generations: list[Generation | None] = []
        for index, step in enumerate(steps):
            place = f"{where}: `steps[{index}]`"
            turns.extend(_step_turns(step, place))
            if step["source"] == "agent":
                generations.append(_generation(step, place))
        num_prompt = next((n for n, turn in enumerate(turns) if turn.role == Role.ASSISTANT), len(turns))
        trial = self.trials.get(where, Trial())
        progressed = chat.with_progress(turns, tools)
        return Draft(
            task=draft_task(
                trial.task_name,
                turns[:num_prompt],
                self.settings,
                family=self.name,
                tools=tools,
                environment="tools" if tools else "single_turn",
                source=self.name,
            ),
            trajectory=draft_trajectory(
                self.name,
                progressed,
                num_prompt,
                streams=_streams(progressed, generations),
                model=member(agent, "model_name", "a string", f"{where}: `agent`") or "",
                started_at=min((turn.started_at for turn in turns if turn.started_at), default=0.0),
                ended_at=max((turn.started_at for turn in turns), default=0.0),
            ),
            score=draft_score(self.name, trial.reward, components=trial.components),
        )

    def derive(self, trajectory: Trajectory, task: Task, score: Score | None, *, own: bool) -> dict[str, Any]:
        """See RowFormat. A value that is not known has no member; a reward has none in this format."""
        agent: dict[str, Any] = {"name": "ptctl", "version": __version__}
        if trajectory.model:
            agent["model_name"] = trajectory.model
        if task.tools:
            agent["tool_definitions"] = chat.write_tools(task.tools)
        costs = trajectory.costs
        steps = _steps(trajectory)
        totals = {
            "total_prompt_tokens": costs.num_prompt_tokens,
            "total_completion_tokens": costs.num_completion_tokens,
            "total_cached_tokens": costs.num_cached_tokens,
        }
        identity = {"session_id": trajectory.trajectory_id, "trajectory_id": trajectory.trajectory_id}
        return {
            "schema_version": WRITTEN_SCHEMA,
            **(identity if own else {}),
            "agent": agent,
            "steps": steps,
            "final_metrics": {key: value for key, value in totals.items() if value} | {"total_steps": len(steps)},
        }


def _step_turns(step: Mapping[str, Any], where: str) -> list[Turn]:
    """The turn of a step, and the tool turns of its observation."""
    source = member(step, "source", "a string", where, required=True)
    if source not in ROLE_OF_SOURCE:
        raise DataError(f"{where}: unknown `source` {source!r}", hint=f"known: {', '.join(ROLE_OF_SOURCE)}")
    metrics = member(step, "metrics", "an object", where) or {}
    place = f"{where}.metrics"
    calls = objects(step, "tool_calls", where)
    turn = chat.make_turn(
        ROLE_OF_SOURCE[source].value,
        step.get("message"),
        where,
        tool_calls=tuple(_read_call(call, f"{where}.tool_calls[{n}]") for n, call in enumerate(calls)),
        num_prompt_tokens=member(metrics, "prompt_tokens", "an integer", place) or 0,
        num_completion_tokens=member(metrics, "completion_tokens", "an integer", place) or 0,
        num_cached_tokens=member(metrics, "cached_tokens", "an integer", place) or 0,
        started_at=_unix_time(member(step, "timestamp", "a string", where), where),
    )
    observation = member(step, "observation", "an object", where) or {}
    results = objects(observation, "results", f"{where}.observation")
    return [turn, *(_result_turn(result, f"{where}.observation.results[{n}]") for n, result in enumerate(results))]


def _read_call(call: Mapping[str, Any], where: str) -> ToolCall:
    member(call, "tool_call_id", "a string", where, required=True)
    member(call, "function_name", "a string", where, required=True)
    member(call, "arguments", "an object", where, required=True)
    return chat.read_call(dict(call), where)


def _result_turn(result: Mapping[str, Any], where: str) -> Turn:
    call_id = member(result, "source_call_id", "a string", where)
    return chat.make_turn(Role.TOOL.value, result.get("content"), where, tool_call_id=call_id)


def _unix_time(text: str | None, where: str) -> float:
    if text is None:
        return 0.0
    try:
        moment = datetime.fromisoformat(text)
    except ValueError as error:
        raise DataError(f"{where}: `timestamp` {text!r} is no ISO 8601 time") from error
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _generation(step: Mapping[str, Any], where: str) -> Generation | None:
    """Ids of the step's generation; None where it has none, was copied, or stands for several generations."""
    metrics = member(step, "metrics", "an object", where) or {}
    place = f"{where}.metrics"
    prompt_ids = member(metrics, "prompt_token_ids", "an array", place)
    completion_ids = member(metrics, "completion_token_ids", "an array", place)
    logprobs = member(metrics, "logprobs", "an array", place)
    if not completion_ids or member(step, "is_copied_context", "true or false", where):
        return None
    if prompt_ids is None or (member(step, "llm_call_count", "an integer", where) or 1) > 1:
        return Generation(prompt_ids=(), completion_ids=(), logprobs=None)  # sampled, but nobody knows behind what
    return token_streams.check_generation(prompt_ids, completion_ids, logprobs, place)


def _streams(turns: Sequence[Turn], generations: Sequence[Generation | None]) -> Streams | None:
    """None where the context of some sampled tokens is not known: they would stand behind the wrong tokens."""
    known = [generation for generation in generations if generation is not None]
    if not known or any(not generation.completion_ids for generation in known):
        return None
    return token_streams.join(turns, generations)


def _steps(trajectory: Trajectory) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    generations = iter(token_streams.split(trajectory))
    for turn in trajectory.turns:
        if turn.role == Role.TOOL and steps:
            observation = steps[-1].setdefault("observation", {"results": []})
            observation["results"].append(_result(turn, steps[-1]))
            continue
        step: dict[str, Any] = {"step_id": len(steps) + 1, "source": SOURCE_OF_ROLE.get(turn.role, "system")}
        if turn.started_at:
            step["timestamp"] = datetime.fromtimestamp(turn.started_at, UTC).isoformat().replace("+00:00", "Z")
        step["message"] = chat.spoken(turn)
        if turn.role == Role.ASSISTANT:
            if calls := [_call(call) for call in turn.tool_calls if call.parsed]:
                step["tool_calls"] = calls
            if metrics := _metrics(turn, next(generations)):
                step["metrics"] = metrics
        steps.append(step)
    return steps


def _result(turn: Turn, step: Mapping[str, Any]) -> dict[str, Any]:
    """A result names a call of its own step; the answer to a call that could not be read names none."""
    written = {call["tool_call_id"] for call in step.get("tool_calls", ())}
    call = {"source_call_id": turn.tool_call_id} if turn.tool_call_id in written else {}
    return {**call, "content": turn.content}


def _call(call: ToolCall) -> dict[str, Any]:
    written = chat.source_call(call, "function_name")
    if written is not None:
        return written
    arguments = json.loads(call.arguments_json or "{}")
    return {"tool_call_id": call.call_id, "function_name": call.name, "arguments": arguments}


def _metrics(turn: Turn, generation: Generation | None) -> dict[str, Any]:
    counts = {
        "prompt_tokens": turn.num_prompt_tokens,
        "completion_tokens": turn.num_completion_tokens,
        "cached_tokens": turn.num_cached_tokens,
    }
    metrics: dict[str, Any] = {key: value for key, value in counts.items() if value}
    if generation is not None:
        metrics["prompt_token_ids"] = list(generation.prompt_ids)
        metrics["completion_token_ids"] = list(generation.completion_ids)
        if generation.logprobs is not None:
            metrics["logprobs"] = list(generation.logprobs)
    return metrics
