"""Chat messages and tool calls, as OpenAI-like tools write them, ↔ turns.

Imported turns have no tokens: their spans are 0. A call counts as executed where a message answers it; whether it
succeeded is not known, and its arguments are not checked against the tool's schema.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from ptctl.converters.json_input import as_object, decode, member
from ptctl.errors import DataError
from ptctl.records import Message, Role, Task, Tool, ToolCall, Turn, canonical_json
from ptctl.tool_calls import replace_lone_surrogates

ROLES = {"developer": Role.SYSTEM, "function": Role.TOOL, **{role.value: role for role in Role}}
"""Role in a message → ours."""
IMPORTED = "imported"
"""Kind of a tool that has no implementation here."""


def text_of(content: Any, where: str) -> str:
    """The text of a message's content: a string, null, or parts of which the text parts are joined."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list):
        raise DataError(f"{where}: `content` is neither text nor an array of parts")
    parts = [as_object(part, f"{where}: `content[{index}]`") for index, part in enumerate(cast("list[Any]", content))]
    return "".join(member(part, "text", "a string", where) or "" for part in parts)


def make_turn(role: str, content: Any, where: str, **columns: Any) -> Turn:
    """A turn without tokens."""
    text, num_replaced = replace_lone_surrogates(text_of(content, where))
    return Turn(
        role=role, content=text, segment=0, token_start=0, token_end=0, num_replaced_surrogates=num_replaced, **columns
    )


def read_messages(messages: Sequence[Mapping[str, Any]], where: str) -> list[Turn]:
    """Messages → turns, in order. Raises DataError for an unknown role."""
    turns: list[Turn] = []
    for index, message in enumerate(messages):
        place = f"{where}: message {index}"
        role = member(message, "role", "a string", place, required=True)
        if role not in ROLES:
            raise DataError(f"{place}: unknown role {role!r}", hint=f"known: {', '.join(ROLES)}")
        calls = member(message, "tool_calls", "an array", place) or []
        turns.append(
            make_turn(
                ROLES[role].value,
                message.get("content"),
                place,
                tool_calls=tuple(read_call(call, f"{place}: call {n}") for n, call in enumerate(calls)),
                tool_call_id=member(message, "tool_call_id", "a string", place),
            )
        )
    return turns


def read_call(value: Any, where: str) -> ToolCall:
    """A call: `{"id", "function": {"name", "arguments"}}`, the same without `function`, ATIF's, or JSON text of one."""
    outer = as_object(decode(value.encode("utf-8", "surrogatepass"), where) if isinstance(value, str) else value, where)
    inner = as_object(outer["function"], where) if isinstance(outer.get("function"), dict) else outer
    name = inner.get("name", inner.get("function_name"))
    call_id = outer.get("id", outer.get("tool_call_id"))
    arguments_json, error = _read_arguments(inner.get("arguments"))
    if not isinstance(name, str):
        name, arguments_json, error = None, None, "the call has no name"
    raw = json.dumps(outer, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return ToolCall(
        call_id=call_id if isinstance(call_id, str) else "",
        raw=replace_lone_surrogates(raw)[0],
        name=replace_lone_surrogates(name)[0] if name is not None else None,
        arguments_json=arguments_json,
        parsed=error is None,
        known_tool=False,
        valid_arguments=False,
        executed=False,
        succeeded=None,
        error=error,
    )


def _read_arguments(arguments: Any) -> tuple[str | None, str | None]:
    """(canonical JSON of the arguments, why there is none)."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        if not isinstance(value, dict):
            return None, "the arguments are no JSON object"
        return replace_lone_surrogates(canonical_json(value))[0], None
    except (ValueError, RecursionError) as error:
        return None, f"the arguments are no JSON: {error}"


def with_progress(turns: Sequence[Turn], tools: Sequence[Tool]) -> tuple[Turn, ...]:
    """The turns with how far each call got, as far as the conversation shows it."""
    declared = {tool.name for tool in tools}
    answered: set[str | None] = {turn.tool_call_id for turn in turns if turn.role == Role.TOOL and turn.tool_call_id}
    return tuple(
        replace(turn, tool_calls=tuple(_progress(call, declared, answered) for call in turn.tool_calls))
        for turn in turns
    )


def _progress(call: ToolCall, declared: set[str], answered: set[str | None]) -> ToolCall:
    executed = call.parsed and call.call_id in answered
    known = call.parsed and (executed or call.name in declared)
    return replace(call, known_tool=known, valid_arguments=known, executed=executed)


def write_messages(turns: Sequence[Turn]) -> list[dict[str, Any]]:
    """Turns → chat messages."""
    return [_message(turn) for turn in turns]


def _message(turn: Turn) -> dict[str, Any]:
    message: dict[str, Any] = {"role": turn.role, "content": spoken(turn)}
    if calls := [_chat_call(call) for call in turn.tool_calls if call.parsed]:
        message["tool_calls"] = calls
    if turn.tool_call_id is not None:
        message["tool_call_id"] = turn.tool_call_id
    return message


def spoken(turn: Turn) -> str:
    """The text outside the calls: where a policy wrote a call as text, that text is not said twice."""
    text = turn.content
    written = [call.raw for call in turn.tool_calls if call.parsed and call.raw and call.raw in text]
    for raw in written:
        text = text.replace(raw, "", 1)
    return text.strip() if written else text


def source_call(call: ToolCall, key: str) -> dict[str, Any] | None:
    """The call as its source wrote it, where that was JSON with the member `key`."""
    try:
        value = json.loads(call.raw)
    except ValueError:
        return None
    return cast("dict[str, Any]", value) if isinstance(value, dict) and key in value else None


def _chat_call(call: ToolCall) -> dict[str, Any]:
    written = source_call(call, "function") or source_call(call, "arguments")
    if written is not None and "function_name" not in written:
        return written
    function = {"name": call.name, "arguments": call.arguments_json}
    return {"id": call.call_id, "type": "function", "function": function}


def read_tools(values: Sequence[Any], where: str) -> tuple[Tool, ...]:
    """Function definitions, with or without the outer `function`."""
    tools: list[Tool] = []
    for index, value in enumerate(values):
        place = f"{where}: tool {index}"
        outer = as_object(value, place)
        inner = as_object(outer["function"], place) if "function" in outer else outer
        parameters = member(inner, "parameters", "an object", place) or {}
        try:
            parameters_json = canonical_json(parameters)
        except ValueError as error:
            raise DataError(f"{place}: `parameters`: {error}") from error
        tools.append(
            Tool(
                name=member(inner, "name", "a string", place, required=True),
                description=member(inner, "description", "a string", place) or "",
                parameters_json=parameters_json,
                kind=IMPORTED,
            )
        )
    return tuple(tools)


def write_tools(tools: Sequence[Tool]) -> list[dict[str, Any]]:
    """Tools → function definitions."""
    return [
        {
            "type": "function",
            "function": {
                "name": tool.name,
                "description": tool.description,
                "parameters": json.loads(tool.parameters_json),
            },
        }
        for tool in tools
    ]


def prompt_of(turns: Sequence[Turn]) -> tuple[Message, ...]:
    """Turns that open an episode, as the prompt of its task."""
    return tuple(Message(role=turn.role, content=turn.content, tool_call_id=turn.tool_call_id) for turn in turns)


def num_prompt_turns(turns: Sequence[Turn], task: Task) -> int:
    """Turns that belong to the prompt: those of the task, else all before the first assistant message."""
    opening = [(message.role, message.content) for message in task.prompt]
    if opening == [(turn.role, turn.content) for turn in turns[: len(opening)]]:
        return len(opening)
    return next((n for n, turn in enumerate(turns) if turn.role == Role.ASSISTANT), len(turns))


def final_answer(turns: Sequence[Turn], num_prompt: int) -> str | None:
    """Text of the last message, where it is the policy's and makes no call."""
    last = turns[-1] if len(turns) > num_prompt else None
    return last.content if last is not None and last.role == Role.ASSISTANT and not last.tool_calls else None
