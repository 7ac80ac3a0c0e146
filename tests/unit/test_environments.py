from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from ptctl import registry
from ptctl.environments.json_schema import check_schema, find_violation
from ptctl.environments.single_turn import SingleTurnEnvironment
from ptctl.environments.tool_kinds import Calculator, Table
from ptctl.environments.tools import ToolsEnvironment
from ptctl.errors import DataError, RowFailure, UsageError
from ptctl.protocols import EnvironmentSettings, Observation
from ptctl.records import Limits, Message, Task, Tool, ToolCall, canonical_json, make_task

TEXT_SCHEMA = {
    "type": "object",
    "properties": {"x": {"type": "string"}},
    "required": ["x"],
    "additionalProperties": False,
}
CALC = Tool(name="calc", description="", parameters_json=canonical_json(TEXT_SCHEMA), kind="calculator")
LOOKUP = replace(CALC, name="lookup", kind="table", config_json='{"rows":{"KIM":34,"BOB":"old"}}')


class Broken:
    """A tool with a defect."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        pass

    def call(self, arguments: Mapping[str, Any]) -> str:
        raise KeyError("lost")


@pytest.fixture(autouse=True)
def tool_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = {"calculator": Calculator, "table": Table, "broken": Broken}

    def load(group: str, name: str) -> Any:
        assert group == "tools"
        if name not in kinds:
            raise UsageError(f"unknown tool {name!r}")
        return kinds[name]

    monkeypatch.setattr(registry, "load", load)


def build_task(**columns: Any) -> Task:
    defaults: dict[str, Any] = {
        "task_id": "t/1",
        "domain": "math",
        "family": "t",
        "split": "train",
        "prompt": (Message(role="user", content="what is 12 plus 34?"),),
        "tools": (CALC, LOOKUP),
        "environment": "tools",
    }
    return make_task(**(defaults | columns))


def play(task: Task, *contents: str, tool_call_format: str = "function") -> list[Observation]:
    async def episode() -> list[Observation]:
        environment = ToolsEnvironment(EnvironmentSettings(task=task, seed=0, tool_call_format=tool_call_format))
        assert await environment.reset() == task.prompt
        observations = [await environment.step(content) for content in contents]
        assert environment.final_state_json() is None
        await environment.close()
        await environment.close()
        return observations

    return asyncio.run(episode())


def levels(call: ToolCall) -> tuple[bool, bool, bool, bool, bool | None]:
    return call.parsed, call.known_tool, call.valid_arguments, call.executed, call.succeeded


# ── single_turn ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_single_turn_ends_with_the_first_message() -> None:
    task = build_task(environment="single_turn")

    async def episode() -> Observation:
        environment = SingleTurnEnvironment(EnvironmentSettings(task=task, seed=0, tool_call_format="hermes"))
        assert await environment.reset() == task.prompt
        observation = await environment.step("46")
        assert environment.final_state_json() is None
        await environment.close()
        return observation

    assert asyncio.run(episode()) == Observation(done=True, stop_reason="completed")


def test_single_turn_has_no_settings() -> None:
    task = build_task(environment_json='{"error_text":"?"}')
    environment = SingleTurnEnvironment(EnvironmentSettings(task=task, seed=0, tool_call_format="hermes"))
    with pytest.raises(DataError, match=r"task 't/1'.*'error_text'"):
        asyncio.run(environment.reset())


# ── tools ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_call_is_answered_and_the_answer_ends_the_episode() -> None:
    called, answered = play(build_task(), "<|call|>calc(12+34)", "46")
    (call,) = called.tool_calls
    assert called.messages == (Message(role="tool", content="46", name="calc", tool_call_id="call_0"),)
    assert not called.done
    assert (call.call_id, call.raw, call.arguments_json) == ("call_0", "<|call|>calc(12+34)", '{"x":"12+34"}')
    assert levels(call) == (True, True, True, True, True)
    assert call.error is None
    assert call.duration_s is not None
    assert answered == Observation(done=True, stop_reason="completed")


def test_several_hermes_calls_in_one_message() -> None:
    def write(name: str, text: str) -> str:
        return f"<tool_call>{canonical_json({'name': name, 'arguments': {'x': text}})}</tool_call>"

    (observation,) = play(
        build_task(), write("lookup", "KIM") + write("lookup", "BOB") + write("calc", "1/4"), tool_call_format="hermes"
    )
    assert [(m.content, m.name, m.tool_call_id) for m in observation.messages] == [
        ("34", "lookup", "call_0"),
        ("old", "lookup", "call_1"),
        ("0.25", "calc", "call_2"),
    ]


@pytest.mark.parametrize(
    ("content", "tool_call_format", "reached", "reason"),
    [
        ("<|call|>calc", "function", (False, False, False, False, None), "not of the form NAME(ARGUMENT)"),
        ("<|call|>dig(1)", "function", (True, False, False, False, None), "unknown tool 'dig'"),
        (
            '<tool_call>{"name":"calc","arguments":{"x":5}}</tool_call>',
            "hermes",
            (True, True, False, False, None),
            "arguments.x: expected string, got integer",
        ),
        (
            '<tool_call>{"name":"calc","arguments":{}}</tool_call>',
            "hermes",
            (True, True, False, False, None),
            "arguments: 'x' is missing",
        ),
        ("<|call|>lookup(ANN)", "function", (True, True, True, True, False), "no row 'ANN'"),
        ("<|call|>calc(1/0)", "function", (True, True, True, True, False), "division by zero"),
    ],
)
def test_mistakes_are_recorded_and_answered(
    content: str, tool_call_format: str, reached: tuple[bool, ...], reason: str
) -> None:
    (observation,) = play(build_task(), content, tool_call_format=tool_call_format)
    (call,) = observation.tool_calls
    (message,) = observation.messages
    assert levels(call) == reached
    assert call.error == reason
    assert message.content == f"error: {reason}"
    assert not observation.done


def test_error_text_replaces_the_reason_for_the_policy_only() -> None:
    (observation,) = play(build_task(environment_json='{"error_text":"?"}'), "<|call|>dig(1)")
    assert observation.messages == (Message(role="tool", content="?", name="dig", tool_call_id="call_0"),)
    assert observation.tool_calls[0].error == "unknown tool 'dig'"


def test_long_reasons_are_cut_to_one_line() -> None:
    (observation,) = play(build_task(), f"<|call|>{'d' * 1000}(1)")
    reason = observation.tool_calls[0].error
    assert reason is not None
    assert (len(reason), reason[-1]) == (200, "…")


def test_the_call_beyond_max_tool_calls_ends_the_episode() -> None:
    task = build_task(limits=Limits(max_turns=9, max_tool_calls=2))
    call = "<|call|>calc(1+1)"
    first, second, third = play(task, call, "<|call|>dig(1)" + call, call)
    assert (first.done, second.done) == (False, False)  # what did not run does not count
    assert (third.done, third.stop_reason) == (True, "truncated_tool_calls")
    assert levels(third.tool_calls[0]) == (True, True, True, False, None)
    assert third.messages[0].content == "error: more than 2 tool calls"
    assert [c.call_id for o in (first, second, third) for c in o.tool_calls] == ["call_0", "call_1", "call_2", "call_3"]


def test_exactly_max_tool_calls_then_an_answer() -> None:
    task = build_task(limits=Limits(max_turns=3, max_tool_calls=2))
    observations = play(task, "<|call|>calc(1+1)", "<|call|>calc(2+2)", "4")
    assert [o.done for o in observations] == [False, False, True]
    assert observations[-1].stop_reason == "completed"


def test_calls_of_the_last_turn_run_and_end_the_episode() -> None:
    task = build_task(limits=Limits(max_turns=2, max_tool_calls=9))
    first, second = play(task, "<|call|>dig(1)", "<|call|>calc(1+1)")
    assert not first.done
    assert (second.done, second.stop_reason) == (True, "truncated_turns")
    assert second.messages[0].content == "2"


def test_a_defect_of_a_tool_fails_the_row() -> None:
    with pytest.raises(RowFailure, match=r"tool 'calc' broke: KeyError: 'lost'") as caught:
        play(build_task(tools=(replace(CALC, kind="broken"),)), "<|call|>calc(1)")
    assert caught.value.kind == "environment"
    assert "KeyError" in (caught.value.detail or "")


@pytest.mark.parametrize(
    ("columns", "message"),
    [
        ({"tools": (CALC, CALC)}, "declares the tool 'calc' twice"),
        ({"tools": (replace(CALC, parameters_json="{"),)}, "tool 'calc': parameters_json is no JSON"),
        ({"tools": (replace(CALC, parameters_json="[]"),)}, "parameters_json is no JSON object"),
        ({"tools": (replace(CALC, parameters_json="{}"),)}, 'needs "type": "object"'),
        (
            {"tools": (replace(CALC, parameters_json='{"type":"object","properties":{"x":{"pattern":"a"}}}'),)},
            "tool 'calc': parameters_json/properties/x: the JSON Schema keyword 'pattern' is not supported",
        ),
        ({"tools": (replace(LOOKUP, config_json="{}"),)}, "tool 'lookup': the configuration of a table needs"),
        ({"tools": (replace(LOOKUP, config_json='{"rows":{},"row":1}'),)}, "unknown key 'row'"),
        ({"tools": (replace(CALC, config_json='{"rows":{}}'),)}, "configuration of a calculator has an unknown key"),
        ({"environment_json": '{"error_txt":"?"}'}, "unknown key 'error_txt'"),
        ({"environment_json": '{"error_text":1}'}, "error_text is not a string"),
        ({"environment_json": "[1]"}, "environment_json is no JSON object"),
    ],
)
def test_wrong_declarations_are_refused_at_reset(columns: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match="task 't/1'") as caught:
        play(build_task(**columns))
    assert message in str(caught.value)


def test_unknown_kind_is_refused_at_reset() -> None:
    with pytest.raises(UsageError, match="'abacus'"):
        play(build_task(tools=(replace(CALC, kind="abacus"),)))


# ── json_schema ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("schema", "value", "violation"),
    [
        ({"type": "string"}, "a", None),
        ({"type": "string"}, 1, "arguments: expected string, got integer"),
        ({"type": "integer"}, 1, None),
        ({"type": "integer"}, 1.0, None),
        ({"type": "integer"}, 1.5, "arguments: expected integer, got number"),
        ({"type": "integer"}, True, "arguments: expected integer, got boolean"),
        ({"type": "number"}, 1, None),
        ({"type": "number"}, False, "arguments: expected number, got boolean"),
        ({"type": ["string", "null"]}, None, None),
        ({"type": ["string", "null"]}, [], "arguments: expected string or null, got array"),
        ({"enum": [1, "a"]}, 1.0, None),
        ({"enum": [1, "a"]}, True, "arguments: not one of the allowed values"),
        ({"enum": [[0, {"a": 1}]]}, [0, {"a": True}], "arguments: not one of the allowed values"),
        ({"const": {"a": [1]}}, {"a": [1.0]}, None),
        ({"const": 1}, 2, "arguments: not the only allowed value"),
        ({"minimum": 2, "maximum": 3}, 2, None),
        ({"minimum": 2, "maximum": 3}, 1, "arguments: less than 2"),
        ({"minimum": 2, "maximum": 3}, 3.5, "arguments: more than 3"),
        ({"minimum": 2}, "a", None),
        ({"required": ["a"]}, {"b": 1}, "arguments: 'a' is missing"),
        ({"required": ["a"]}, "not an object", None),
        ({"properties": {"a": {"type": "string"}}}, {"a": 1}, "arguments.a: expected string, got integer"),
        ({"properties": {"a": False}}, {"a": 1}, "arguments.a: not allowed"),
        ({"properties": {"a": {}}}, {"b": 1}, None),
        ({"properties": {"a": {}}, "additionalProperties": False}, {"b": 1}, "arguments: unknown argument 'b'"),
        ({"additionalProperties": {"type": "null"}}, {"b": 1}, "arguments.b: expected null, got integer"),
        ({"items": {"type": "string"}}, ["a", 1], "arguments[1]: expected string, got integer"),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, None, None),
        ({"anyOf": [{"type": "string"}, {"type": "null"}]}, 1, "arguments: fits none of 2 alternatives"),
    ],
)
def test_find_violation(schema: Any, value: Any, violation: str | None) -> None:
    check_schema(schema, "schema")
    assert find_violation(schema, value) == violation


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "text"},
        {"type": []},
        {"enum": []},
        {"required": "a"},
        {"properties": ["a"]},
        {"properties": {"a": 3}},
        {"items": {"$ref": "#"}},
        {"anyOf": [{"type": "string", "format": "date"}]},
        {"additionalProperties": {"minLength": 1}},
        {"minimum": True},
        {"oneOf": [{}]},
        [],
    ],
)
def test_check_schema_refuses(schema: Any) -> None:
    with pytest.raises(DataError, match=r"^schema"):
        check_schema(schema, "schema")


def test_annotations_are_allowed() -> None:
    check_schema({"title": "T", "description": "d", "default": 1, "examples": [1], "type": "integer"}, "schema")
