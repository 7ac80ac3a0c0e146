r"""Tool calls as text: how a policy writes them, in each of the known formats.

`parse_calls` splits an assistant message into its text and its calls, and `render_calls` writes reference calls the way
the policy is meant to. Both are pure. What becomes of a call afterwards (known tool, valid arguments, executed) is the
environment's business: a call that cannot be read is kept here with `parsed=False` and its raw text, never dropped.

    hermes     <tool_call>\n{"name": "calc", "arguments": {"expression": "12+34"}}\n</tool_call>
    function   <|call|>calc(12+34)

Stop tokens such as `<|im_end|>` are not part of the text that comes here. A call inside a reasoning block counts as a
call: which blocks are reasoning depends on the chat template, which this module does not know.
"""

from __future__ import annotations

import difflib
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Protocol, cast

from ptctl.errors import DataError, UsageError
from ptctl.records import ReferenceCall, Tool, canonical_json

REPLACEMENT_CHARACTER = "\ufffd"
"""What a lone surrogate becomes; UTF-8, and so Parquet, has no bytes for a lone surrogate."""

_SURROGATE_PAIR = re.compile("[\ud800-\udbff][\udc00-\udfff]")
_SURROGATE = re.compile("[\ud800-\udfff]")


@dataclass(frozen=True, slots=True, kw_only=True)
class RawCall:
    """One call as it stands in the text."""

    raw: str
    """The text of the call, tags included, unchanged."""
    name: str | None
    """Tool name, None where the call could not be parsed."""
    arguments_json: str | None
    """Arguments as a canonical JSON object, None where the call could not be parsed."""
    parsed: bool
    """The text is a call."""
    error: str | None = None
    """Why it is none, on one line."""
    num_replaced_surrogates: int = 0
    """Lone surrogates, written as JSON escapes, that became U+FFFD in name or arguments."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedMessage:
    """An assistant message, taken apart."""

    content: str
    """The text outside the calls: without outer white space where there are calls, unchanged where there are none."""
    calls: tuple[RawCall, ...]
    """The calls in order, unparseable ones included."""


class CallFormat(Protocol):
    """A way of writing calls."""

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """Take an assistant message apart. Never fails for what the policy wrote."""
        ...

    def render(self, calls: Sequence[ReferenceCall], tools: Sequence[Tool]) -> str:
        """Write `calls` so that `parse` gives them back. Raises DataError for a call that the format cannot express."""
        ...


def replace_lone_surrogates(text: str) -> tuple[str, int]:
    """Return `text` as valid Unicode, and how many lone surrogates became U+FFFD.

    Two surrogates that form a pair become the one character that they mean and are not counted.
    """
    if _SURROGATE.search(text) is None:
        return text, 0
    joined = _SURROGATE_PAIR.sub(lambda pair: pair[0].encode("utf-16-le", "surrogatepass").decode("utf-16-le"), text)
    return _SURROGATE.subn(REPLACEMENT_CHARACTER, joined)


def parse_calls(text: str, tools: Sequence[Tool], tool_call_format: str) -> ParsedMessage:
    """Split the text of an assistant message into content and calls.

    Raises UsageError where the format is not known and DataError where a tool's `parameters_json` is no JSON object.
    """
    return _format(tool_call_format).parse(text, tools)


def render_calls(calls: Sequence[ReferenceCall], tools: Sequence[Tool], tool_call_format: str) -> str:
    """Write reference calls as the policy would; the empty text for no calls.

    `parse_calls` gives the calls back, with arguments in canonical JSON. Raises UsageError where the format is not
    known and DataError where the format cannot express a call.
    """
    return _format(tool_call_format).render(calls, tools)


# ── hermes ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class HermesFormat:
    """A JSON object with `name` and `arguments` between `<tool_call>` and `</tool_call>` (Hermes 2 Pro, Qwen, SmolLM).

    The JSON is decoded from the opening tag on, so that a closing tag inside a string is text and does not end the
    call. A complete object at the very end of the message is a call even without the closing tag, which some engines
    strip.
    """

    opening = "<tool_call>"
    closing = "</tool_call>"

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """See CallFormat. The tools are not looked at: this format names its arguments itself."""
        calls: list[RawCall] = []
        outside: list[str] = []
        position = 0
        while (start := text.find(self.opening, position)) >= 0:
            outside.append(text[position:start])
            call, position = self._parse_one(text, start)
            calls.append(call)
        outside.append(text[position:])
        return _message(text, "".join(outside), calls)

    def _parse_one(self, text: str, start: int) -> tuple[RawCall, int]:
        """Read the call whose opening tag is at `start`; returns it and the position after it."""
        body = _skip_space(text, start + len(self.opening))
        try:
            value, end = _DECODER.raw_decode(text, body)
            name, arguments_json, num_replaced = _read_call(value)
        except json.JSONDecodeError as error:
            return self._unparsed(text, start, error.pos, f"no valid JSON: {error.msg}")
        except (ValueError, RecursionError) as error:  # NaN, 1e999, a number or a nesting beyond what can be read
            return self._unparsed(text, start, body, f"no usable call: {error}")
        end = _skip_space(text, end)
        if text.startswith(self.closing, end):
            end += len(self.closing)
        elif end < len(text):
            return self._unparsed(text, start, end, "text between the JSON and the closing tag")
        raw = text[start:end]
        call = RawCall(
            raw=raw, name=name, arguments_json=arguments_json, parsed=True, num_replaced_surrogates=num_replaced
        )
        return call, end

    def _unparsed(self, text: str, start: int, failed_at: int, reason: str) -> tuple[RawCall, int]:
        """End a call that went wrong at `failed_at` with the next closing tag, or before the next opening tag."""
        following = text.find(self.opening, failed_at)
        limit = len(text) if following < 0 else following
        closing = text.find(self.closing, failed_at, limit)
        end = limit if closing < 0 else closing + len(self.closing)
        return _unparsed_call(text[start:end], reason), end

    def render(self, calls: Sequence[ReferenceCall], tools: Sequence[Tool]) -> str:
        """See CallFormat. Spaces in the JSON are those of the `tojson` filter of chat templates."""
        return "\n".join(
            f"{self.opening}\n"
            f"{json.dumps({'name': call.name, 'arguments': _reference_arguments(call)}, ensure_ascii=False)}\n"
            f"{self.closing}"
            for call in calls
        )


def _read_call(value: object) -> tuple[str, str, int]:
    """Name, canonical arguments and number of replaced surrogates. Raises ValueError for JSON that is no call."""
    if not isinstance(value, dict):
        raise ValueError("the call is not a JSON object")
    fields = cast("dict[str, object]", value)
    name, arguments = fields.get("name"), fields.get("arguments")
    if not isinstance(name, str) or not name:
        raise ValueError('"name" is not a non-empty string')
    if not isinstance(arguments, dict):
        raise ValueError('"arguments" is not an object')
    name, num_in_name = replace_lone_surrogates(name)
    arguments_json, num_in_arguments = replace_lone_surrogates(canonical_json(arguments))
    return name, arguments_json, num_in_name + num_in_arguments


# ── function ─────────────────────────────────────────────────────────────────────────────────────────────────────────


class FunctionFormat:
    """`<|call|>NAME(ARGUMENT)`: one unquoted string argument, for models whose vocabulary has no room for JSON.

    The argument is bound to the tool's only declared parameter, and to `input` where the tool is unknown or declares
    several. A tool that declares none is called `NAME()`. A call reaches to the last closing parenthesis before the
    next `<|call|>` or the end of the message, so that an argument may contain parentheses; only white space may follow.
    """

    opening = "<|call|>"
    fallback_parameter = "input"
    _call = re.compile(r"\s*([A-Za-z_][A-Za-z0-9_.\-]*)\((.*)\)\s*", re.DOTALL)

    def parse(self, text: str, tools: Sequence[Tool]) -> ParsedMessage:
        """See CallFormat."""
        content, *bodies = text.split(self.opening)
        return _message(text, content, [self._parse_one(body, tools) for body in bodies])

    def _parse_one(self, body: str, tools: Sequence[Tool]) -> RawCall:
        raw = self.opening + body
        match = self._call.fullmatch(body)
        if match is None:
            return _unparsed_call(raw, "not of the form NAME(ARGUMENT)")
        name, (argument, num_replaced) = match[1], replace_lone_surrogates(match[2])
        parameter = self._parameter(name, tools)
        arguments = {} if parameter is None and not argument else {parameter or self.fallback_parameter: argument}
        return RawCall(
            raw=raw,
            name=name,
            arguments_json=canonical_json(arguments),
            parsed=True,
            num_replaced_surrogates=num_replaced,
        )

    def render(self, calls: Sequence[ReferenceCall], tools: Sequence[Tool]) -> str:
        """See CallFormat. Refuses arguments that are not exactly one string, and what would be read as another call."""
        return "".join(self._render_one(call, tools) for call in calls)

    def _render_one(self, call: ReferenceCall, tools: Sequence[Tool]) -> str:
        arguments = _reference_arguments(call)
        parameter = self._parameter(call.name, tools)
        argument = "" if parameter is None and not arguments else arguments.get(parameter or self.fallback_parameter)
        if len(arguments) > 1 or not isinstance(argument, str):
            raise DataError(
                f"call of {call.name!r}: the function format takes exactly one string argument"
                f" {parameter or self.fallback_parameter!r}, not {call.arguments_json}",
                hint="use the hermes format for tools with several or typed parameters",
            )
        body = f"{call.name}({argument})"
        if self.opening in body or self._call.fullmatch(body) is None:
            raise DataError(f"the function format cannot express the call {body!r}")
        return self.opening + body

    def _parameter(self, name: str, tools: Sequence[Tool]) -> str | None:
        """Return the parameter that the argument is bound to; None for a tool that declares none."""
        tool = next((tool for tool in tools if tool.name == name), None)
        parameters = [self.fallback_parameter] if tool is None else _declared_parameters(tool)
        if not parameters:
            return None
        return parameters[0] if len(parameters) == 1 else self.fallback_parameter


def _declared_parameters(tool: Tool) -> list[str]:
    try:
        schema = json.loads(tool.parameters_json)
        return list(schema.get("properties", {}))
    except (ValueError, AttributeError, TypeError) as error:
        raise DataError(f"tool {tool.name!r}: parameters_json is no JSON Schema of an object: {error}") from error


FORMATS: Mapping[str, CallFormat] = MappingProxyType({"hermes": HermesFormat(), "function": FunctionFormat()})
"""The known formats by name."""


# ── shared by the formats ────────────────────────────────────────────────────────────────────────────────────────────


def _format(name: str) -> CallFormat:
    if name in FORMATS:
        return FORMATS[name]
    close = difflib.get_close_matches(name, FORMATS, n=1)
    known = ", ".join(sorted(FORMATS))
    hint = f"did you mean {close[0]!r}? Known: {known}" if close else f"known: {known}"
    raise UsageError(f"unknown tool-call format {name!r}", hint=hint)


def _message(text: str, outside: str, calls: Sequence[RawCall]) -> ParsedMessage:
    return ParsedMessage(content=outside.strip() if calls else text, calls=tuple(calls))


def _unparsed_call(raw: str, reason: str) -> RawCall:
    return RawCall(raw=raw, name=None, arguments_json=None, parsed=False, error=reason)


def _reference_arguments(call: ReferenceCall) -> dict[str, Any]:
    try:
        arguments = _DECODER.decode(call.arguments_json)
    except ValueError as error:
        raise DataError(f"call of {call.name!r}: arguments_json is no JSON: {error}") from error
    if not isinstance(arguments, dict):
        raise DataError(f"call of {call.name!r}: arguments_json is no JSON object: {call.arguments_json}")
    return cast("dict[str, Any]", arguments)


def _skip_space(text: str, position: int) -> int:
    while position < len(text) and text[position].isspace():
        position += 1
    return position


def _finite_float(literal: str) -> float:
    value = float(literal)
    if not math.isfinite(value):
        raise ValueError(f"the number {literal[:40]} is out of range")
    return value


def _no_constant(literal: str) -> float:
    raise ValueError(f"{literal} is not JSON")


# Integers stay integers. NaN, Infinity and 1e999, which Python's decoder takes by default, are refused: they are not
# JSON and could not be stored as JSON again.
_DECODER = json.JSONDecoder(parse_float=_finite_float, parse_constant=_no_constant)
