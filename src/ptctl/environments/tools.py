"""The environment of function tools: the policy calls, the tools answer, a message without a call ends the episode."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ptctl import registry
from ptctl.environments.json_schema import check_schema, find_violation
from ptctl.environments.task_settings import decode_object, environment_settings
from ptctl.environments.tool_kinds import ToolError, ToolKind
from ptctl.errors import DataError, RowFailure
from ptctl.protocols import EnvironmentSettings, Observation
from ptctl.records import Message, Role, StopReason, Task, Tool, ToolCall
from ptctl.tool_calls import RawCall, parse_calls

MAX_REASON_CHARACTERS = 200
"""Longer reasons are cut, since what the policy wrote may stand in them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReadyTool:
    """A declared tool that can run."""

    schema: Mapping[str, Any]
    kind: ToolKind


class ToolsEnvironment:
    """Runs the calls of each assistant message and answers each with one tool message.

    Every call is recorded with how far it got: parsed → known_tool → valid_arguments → executed → succeeded. A call
    that stops early is the policy's mistake, so it is answered too: with `error: REASON`, or with the task's
    `error_text` where `environment_json` sets one (for vocabularies that cannot spell reasons).

    Bounds of `task.limits`: `max_tool_calls` counts executed calls; a call beyond it is answered with an error and ends
    the episode as `truncated_tool_calls`. Calls in assistant message number `max_turns` still run, since they may have
    effects, and the episode ends as `truncated_turns`.
    """

    name: ClassVar[str] = "tools"
    version: ClassVar[str] = "1"

    def __init__(self, settings: EnvironmentSettings) -> None:
        self._task = settings.task
        self._tool_call_format = settings.tool_call_format
        self._tools: dict[str, _ReadyTool] = {}
        self._error_text: str | None = None
        self._num_turns = 0
        self._num_calls = 0
        self._num_executed = 0

    async def reset(self) -> tuple[Message, ...]:
        """Build the tools and return the prompt. Raises DataError naming task and tool where a declaration is wrong."""
        self._error_text = _read_error_text(self._task)
        self._tools = {}
        for tool in self._task.tools:
            if tool.name in self._tools:
                raise DataError(f"task {self._task.task_id!r} declares the tool {tool.name!r} twice")
            self._tools[tool.name] = _make_ready(self._task, tool)
        return self._task.prompt

    async def step(self, content: str) -> Observation:
        """Run the calls of one assistant message. Raises RowFailure where a tool breaks."""
        self._num_turns += 1
        raw_calls = parse_calls(content, self._task.tools, self._tool_call_format).calls
        if not raw_calls:
            return Observation(done=True, stop_reason=StopReason.COMPLETED)
        calls: list[ToolCall] = []
        messages: list[Message] = []
        stop_reason: StopReason | None = None
        for raw_call in raw_calls:
            call, result = self._run(raw_call)
            if call.valid_arguments and not call.executed:
                stop_reason = StopReason.TRUNCATED_TOOL_CALLS
            calls.append(call)
            messages.append(self._answer(call, result))
        if stop_reason is None and self._num_turns >= self._task.limits.max_turns:
            stop_reason = StopReason.TRUNCATED_TURNS
        return Observation(
            messages=tuple(messages),
            tool_calls=tuple(calls),
            done=stop_reason is not None,
            stop_reason=stop_reason or StopReason.COMPLETED,
        )

    def final_state_json(self) -> str | None:
        """None: the tools of this environment keep no state between calls."""
        return None

    async def close(self) -> None:
        """Let go of the tools."""
        self._tools = {}

    def _run(self, raw_call: RawCall) -> tuple[ToolCall, str]:
        """Take a call as far as it gets; returns the record and the tool's result, empty where there is none."""
        call = ToolCall(
            call_id=f"call_{self._num_calls}",
            raw=raw_call.raw,
            name=raw_call.name,
            arguments_json=raw_call.arguments_json,
            parsed=raw_call.parsed,
            known_tool=False,
            valid_arguments=False,
            executed=False,
            succeeded=None,
        )
        self._num_calls += 1
        if raw_call.name is None or raw_call.arguments_json is None:
            return replace(call, error=_cut(raw_call.error or "not a call")), ""
        tool = self._tools.get(raw_call.name)
        if tool is None:
            return replace(call, error=_cut(f"unknown tool {raw_call.name!r}")), ""
        arguments: dict[str, Any] = json.loads(raw_call.arguments_json)
        violation = find_violation(tool.schema, arguments)
        if violation is not None:
            return replace(call, known_tool=True, error=_cut(violation)), ""
        call = replace(call, known_tool=True, valid_arguments=True)
        limit = self._task.limits.max_tool_calls
        if self._num_executed >= limit:
            return replace(call, error=f"more than {limit} tool calls"), ""
        return self._execute(call, tool, arguments)

    def _execute(self, call: ToolCall, tool: _ReadyTool, arguments: Mapping[str, Any]) -> tuple[ToolCall, str]:
        self._num_executed += 1
        result, error = "", None
        started = time.perf_counter()
        try:
            result = tool.kind.call(arguments)
        except ToolError as mistake:
            error = _cut(str(mistake))
        except Exception as defect:  # the border to code that anyone may plug in: its defects are failures of the row
            raise RowFailure(
                f"tool {call.name!r} broke: {type(defect).__name__}: {_cut(str(defect))}",
                kind="environment",
                detail=traceback.format_exc(limit=-8)[-4000:],
            ) from defect
        duration_s = time.perf_counter() - started
        return replace(call, executed=True, succeeded=error is None, error=error, duration_s=duration_s), result

    def _answer(self, call: ToolCall, result: str) -> Message:
        if call.error is not None:
            result = f"error: {call.error}" if self._error_text is None else self._error_text
        return Message(role=Role.TOOL, content=result, name=call.name, tool_call_id=call.call_id)


def _read_error_text(task: Task) -> str | None:
    error_text = environment_settings(task, known=("error_text",)).get("error_text")
    if error_text is not None and not isinstance(error_text, str):
        raise DataError(f"task {task.task_id!r}: environment_json: error_text is not a string")
    return error_text


def _make_ready(task: Task, tool: Tool) -> _ReadyTool:
    what = f"task {task.task_id!r}: tool {tool.name!r}"
    schema = decode_object(tool.parameters_json, f"{what}: parameters_json")
    check_schema(schema, f"{what}: parameters_json")
    if schema.get("type") != "object":
        raise DataError(f'{what}: parameters_json needs "type": "object"')
    config = decode_object(tool.config_json, f"{what}: config_json")
    try:
        kind: ToolKind = registry.load("tools", tool.kind)(config)
    except DataError as error:
        raise DataError(f"{what}: {error}", hint=error.hint) from error
    return _ReadyTool(schema=schema, kind=kind)


def _cut(reason: str) -> str:
    """One line of bounded length."""
    line = " ".join(reason.split())
    return line if len(line) <= MAX_REASON_CHARACTERS else line[: MAX_REASON_CHARACTERS - 1] + "…"
