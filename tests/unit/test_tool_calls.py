from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptctl.errors import DataError, UsageError
from ptctl.records import ReferenceCall, Tool, canonical_json
from ptctl.tool_calls import FORMATS, RawCall, parse_calls, render_calls, replace_lone_surrogates


def make_tool(name: str, *parameters: str) -> Tool:
    schema = {"type": "object", "properties": {parameter: {"type": "string"} for parameter in parameters}}
    return Tool(name=name, description="", parameters_json=canonical_json(schema), kind="calculator")


CALC = make_tool("calc", "expression")
TOOLS = (CALC, make_tool("now"), make_tool("send", "to", "text"))


def hermes(text: str) -> tuple[RawCall, ...]:
    return parse_calls(text, TOOLS, "hermes").calls


def function(text: str) -> tuple[RawCall, ...]:
    return parse_calls(text, TOOLS, "function").calls


# ── hermes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_hermes_call_with_text_around_it() -> None:
    raw = '<tool_call>\n{"name": "calc", "arguments": {"expression": "12+34"}}\n</tool_call>'
    message = parse_calls(f"Let me see.\n{raw}\n", TOOLS, "hermes")
    assert message.content == "Let me see."
    assert message.calls == (
        RawCall(raw=raw, name="calc", arguments_json='{"expression":"12+34"}', parsed=True, error=None),
    )


def test_text_without_a_call_is_unchanged() -> None:
    for name in FORMATS:
        message = parse_calls("  42 \n", TOOLS, name)
        assert (message.content, message.calls) == ("  42 \n", ())


def test_closing_tag_inside_a_string_does_not_end_the_call() -> None:
    text = '<tool_call>{"name":"send","arguments":{"s":"a</tool_call>b"}}</tool_call>'
    (call,) = hermes(text)
    assert (call.raw, call.arguments_json) == (text, '{"s":"a</tool_call>b"}')


def test_opening_tag_and_braces_inside_a_string() -> None:
    arguments = {"cmd": 'mkdir -p test/{a,b"} <tool_call>{"name":'}
    (call,) = hermes(f"<tool_call>{json.dumps({'name': 'send', 'arguments': arguments})}</tool_call>")
    assert call.arguments_json is not None
    assert json.loads(call.arguments_json) == arguments


@pytest.mark.parametrize(
    ("written", "stored"),
    [
        ("55", "55"),
        ("55.0", "55.0"),
        ("-0.5", "-0.5"),
        ("123456789012345678901", "123456789012345678901"),
        ("1e2", "100.0"),
    ],
)
def test_numbers_stay_what_they_are(written: str, stored: str) -> None:
    (call,) = hermes(f'<tool_call>{{"name": "calc", "arguments": {{"n": {written}}}}}</tool_call>')
    assert call.arguments_json == f'{{"n":{stored}}}'


@pytest.mark.parametrize(
    "body",
    [
        "",
        "{",
        "not json",
        "[1, 2]",
        '{"name": "calc"}',
        '{"name": "", "arguments": {}}',
        '{"name": 3, "arguments": {}}',
        '{"name": "calc", "arguments": "12+34"}',
        '{"name": "calc", "arguments": {"n": NaN}}',
        '{"name": "calc", "arguments": {"n": 1e999}}',
        '{"name": "calc", "arguments": {"n": ' + "9" * 5000 + "}}",
        '{"name": "calc", "arguments": {"n": ' + "[" * 100_000 + "}}",
        '{"name": "calc", "arguments": {}} and more',
        '{"name": "calc", "arguments": {"expression": "1\n2"}}',
    ],
)
def test_unparseable_hermes_call_is_kept(body: str) -> None:
    raw = f"<tool_call>{body}</tool_call>"
    message = parse_calls(f"before {raw} after", TOOLS, "hermes")
    (call,) = message.calls
    assert (call.raw, call.parsed, call.name, call.arguments_json) == (raw, False, None, None)
    assert call.error
    assert "\n" not in call.error
    assert message.content == "before  after"


def test_a_broken_call_does_not_swallow_the_next_one() -> None:
    good = '<tool_call>{"name": "calc", "arguments": {}}</tool_call>'
    broken, call = hermes(f'<tool_call>{{"name": "calc", "arguments": {good}')
    assert not broken.parsed
    assert broken.raw == '<tool_call>{"name": "calc", "arguments": '
    assert (call.raw, call.parsed) == (good, True)


def test_closing_tag_may_lack_only_at_the_end() -> None:
    unclosed = '<tool_call>\n{"name": "calc", "arguments": {}}\n'
    (call,) = hermes(unclosed)
    assert (call.parsed, call.raw) == (True, unclosed)
    first, second = hermes(unclosed + unclosed)
    assert (first.parsed, second.parsed) == (False, True)


def test_surrogate_escapes_in_arguments() -> None:
    (call,) = hermes(r'<tool_call>{"name": "send", "arguments": {"a": "\ud83c\udf78", "b": "\udce9"}}</tool_call>')
    assert call.arguments_json == '{"a":"\U0001f378","b":"\ufffd"}'
    assert call.num_replaced_surrogates == 1


def test_hermes_rendering() -> None:
    calls = [
        ReferenceCall(name="calc", arguments_json='{"expression":"é<b>"}'),
        ReferenceCall(name="now", arguments_json="{}"),
    ]
    assert render_calls(calls, TOOLS, "hermes") == (
        '<tool_call>\n{"name": "calc", "arguments": {"expression": "é<b>"}}\n</tool_call>\n'
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    )


# ── function ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_function_call_is_bound_to_the_declared_parameter() -> None:
    message = parse_calls("<|call|>calc(12+34)", TOOLS, "function")
    assert message.content == ""
    assert message.calls == (
        RawCall(raw="<|call|>calc(12+34)", name="calc", arguments_json='{"expression":"12+34"}', parsed=True),
    )


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ("<|call|>dig(up)", "dig", {"input": "up"}),
        ("<|call|>send(x)", "send", {"input": "x"}),
        ("<|call|>now()", "now", {}),
        ("<|call|>now(x)", "now", {"input": "x"}),
        ("<|call|>calc()", "calc", {"expression": ""}),
        ("<|call|>calc((1+2)*3)", "calc", {"expression": "(1+2)*3"}),
        ("<|call|>calc(1)) ", "calc", {"expression": "1)"}),
        ('<|call|>calc( "a"\n)', "calc", {"expression": ' "a"\n'}),
    ],
)
def test_function_arguments(text: str, name: str, arguments: dict[str, str]) -> None:
    (call,) = function(text)
    assert call.arguments_json is not None
    assert (call.name, json.loads(call.arguments_json), call.raw, call.parsed) == (name, arguments, text, True)


@pytest.mark.parametrize("body", ["", "calc", "calc(1", "calc 1)", "(1)", "calc(1) then", "1calc(2)"])
def test_unparseable_function_call_is_kept(body: str) -> None:
    broken, call = function(f"so <|call|>{body}<|call|>calc(2)")
    assert (broken.parsed, broken.raw, broken.name) == (False, f"<|call|>{body}", None)
    assert (call.parsed, call.arguments_json) == (True, '{"expression":"2"}')


@pytest.mark.parametrize(
    ("name", "arguments_json"),
    [
        ("calc", '{"expression":5}'),
        ("calc", '{"wrong":"5"}'),
        ("calc", "{}"),
        ("send", '{"to":"a","text":"b"}'),
        ("calc", '{"expression":"<|call|>"}'),
        ("a b", '{"input":"x"}'),
        ("calc", "[1]"),
        ("calc", "{"),
    ],
)
def test_function_rendering_refuses_what_it_cannot_express(name: str, arguments_json: str) -> None:
    with pytest.raises(DataError, match=name):
        render_calls([ReferenceCall(name=name, arguments_json=arguments_json)], TOOLS, "function")


def test_broken_tool_declaration_is_named() -> None:
    tool = Tool(name="bad", description="", parameters_json="[", kind="table")
    with pytest.raises(DataError, match="'bad'"):
        parse_calls("<|call|>bad(x)", [tool], "function")


# ── both ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_unknown_format_gets_a_suggestion() -> None:
    with pytest.raises(UsageError, match="'hermess'") as caught:
        parse_calls("", TOOLS, "hermess")
    assert caught.value.hint == "did you mean 'hermes'? Known: function, hermes"
    with pytest.raises(UsageError, match="'zzz'"):
        render_calls([], TOOLS, "zzz")


def test_no_calls_render_to_nothing() -> None:
    assert [render_calls([], TOOLS, name) for name in FORMATS] == ["", ""]


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)
tricky_texts = st.lists(
    st.text(max_size=5) | st.sampled_from(["<tool_call>", "</tool_call>", '"', "\\", "{", "}", "(", ")", "\n", " "])
).map("".join)


@given(
    st.lists(
        st.builds(
            lambda name, arguments: ReferenceCall(name=name, arguments_json=canonical_json(arguments)),
            tricky_texts.filter(bool),
            st.dictionaries(tricky_texts, json_values | tricky_texts, max_size=3),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_hermes_round_trip(calls: list[ReferenceCall]) -> None:
    message = parse_calls(render_calls(calls, TOOLS, "hermes"), TOOLS, "hermes")
    assert message.content == ""
    assert [(c.name, c.arguments_json, c.parsed) for c in message.calls] == [
        (c.name, c.arguments_json, True) for c in calls
    ]


@given(
    st.lists(
        st.one_of(
            st.just(ReferenceCall(name="now", arguments_json="{}")),
            st.builds(
                lambda name_parameter, text: ReferenceCall(
                    name=name_parameter[0], arguments_json=canonical_json({name_parameter[1]: text})
                ),
                st.sampled_from([("calc", "expression"), ("not-declared", "input"), ("send", "input")]),
                tricky_texts,
            ),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_function_round_trip(calls: list[ReferenceCall]) -> None:
    message = parse_calls(render_calls(calls, TOOLS, "function"), TOOLS, "function")
    assert message.content == ""
    assert [(c.name, c.arguments_json, c.parsed) for c in message.calls] == [
        (c.name, c.arguments_json, True) for c in calls
    ]


@given(st.lists(st.sampled_from(["<tool_call>", "</tool_call>", '{"name":"a","arguments":{}}', '"', "{", "x", " "])))
def test_every_hermes_text_is_accounted_for(parts: list[str]) -> None:
    text = "".join(parts)
    message = parse_calls(text, TOOLS, "hermes")
    rest = text
    for call in message.calls:
        before, found, rest = rest.partition(call.raw)
        assert found
        assert "<tool_call>" not in before
    assert bool(message.calls) == ("<tool_call>" in text)
    assert "<tool_call>" not in message.content


# ── surrogates ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("text", "expected", "count"),
    [
        ("plain é \U0001f378", "plain é \U0001f378", 0),
        ("\ud83c\udf78", "\U0001f378", 0),
        ("a\udce9b", "a\ufffdb", 1),
        ("\udf78\ud83c", "\ufffd\ufffd", 2),
        ("\ud83c\ud83c\udf78", "\ufffd\U0001f378", 1),
        ("end\ud83c", "end\ufffd", 1),
        ("\ufffd", "\ufffd", 0),
    ],
)
def test_replace_lone_surrogates(text: str, expected: str, count: int) -> None:
    assert replace_lone_surrogates(text) == (expected, count)


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_replaced_text_is_valid_utf8(text: str) -> None:
    cleaned, _ = replace_lone_surrogates(text)
    assert cleaned.encode().decode() == cleaned
