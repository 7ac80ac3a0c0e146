"""Tools by kind: `calculator` and `table`.

A kind is a class, built once an episode as `Kind(config)` with the tool's decoded `config_json` (DataError where that
is wrong), whose `call(arguments)` returns the text that the policy sees. `ToolError` is the policy's mistake and is
shown to it; any other exception is a defect of the tool. A call runs on the event loop, so it must return at once: what
waits for a process or a network belongs into an environment of its own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from fractions import Fraction
from typing import Any, ClassVar, Protocol, cast

from ptctl.environments.task_settings import refuse_unknown_keys
from ptctl.errors import DataError
from ptctl.records import canonical_json


class ToolError(ValueError):
    """The tool cannot answer this call; the message is one short line for the policy."""


class ToolKind(Protocol):
    """What a class of the registry group `ptctl.tools` offers; built as `Kind(config)`."""

    name: ClassVar[str]

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Run the tool on arguments that satisfy its schema. Raises ToolError where the policy asked for nonsense."""
        ...


class Calculator:
    """Exact arithmetic on integers and decimals: `+ - * / // % **`, signs and parentheses, with Python's precedence.

    The only argument, whatever its name, is the expression. Numbers are rationals: `0.1+0.2` is 0.3, `1/3*3` is 1, and
    only the printed result is rounded, see `format_number`. Sizes are bounded before anything is computed, so that
    `9**9**9**9` is an error at once.
    """

    name: ClassVar[str] = "calculator"

    def __init__(self, config: Mapping[str, Any]) -> None:
        refuse_unknown_keys(config, (), "the configuration of a calculator")

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Value of the expression. Raises ToolError for what is no expression, a division by zero or too large."""
        return format_number(_Expression(_only_text(arguments)).value())


class Table:
    """A look-up: the only argument, whatever its name, is a key of the configured `rows`.

    Texts are returned as they are and other values as JSON.
    """

    name: ClassVar[str] = "table"

    def __init__(self, config: Mapping[str, Any]) -> None:
        refuse_unknown_keys(config, ("rows",), "the configuration of a table")
        rows = config.get("rows")
        if not isinstance(rows, dict):
            raise DataError('the configuration of a table needs "rows", an object from key to value')
        self._rows = cast("dict[str, Any]", rows)

    def call(self, arguments: Mapping[str, Any]) -> str:
        """Value of the row. Raises ToolError where there is none."""
        key = _only_text(arguments)
        if key not in self._rows:
            raise ToolError(f"no row {key[:40]!r}")
        value = self._rows[key]
        return value if isinstance(value, str) else canonical_json(value)


def _only_text(arguments: Mapping[str, Any]) -> str:
    values = list(arguments.values())
    if len(values) != 1 or not isinstance(values[0], str):
        raise ToolError("expected exactly one text argument")
    return values[0]


# ── arithmetic ───────────────────────────────────────────────────────────────────────────────────────────────────────

MAX_CHARACTERS = 400
"""Longest expression."""
MAX_DEPTH = 32
"""Deepest nesting of parentheses, signs and powers."""
MAX_BITS = 512
"""Largest numerator or denominator of any intermediate result, about 154 decimal digits."""
NUM_PLACES = 12
"""Decimal places of a printed result, counted from the first digit that is not 0 where the result is below 0.1."""


def format_number(value: Fraction) -> str:
    """Write an integer or a decimal: exact where `NUM_PLACES` places suffice, otherwise rounded to them, half to even.

    3 is `3`, 7/2 is `3.5`, 1/3 is `0.333333333333`, 1/300 is `0.00333333333333`. There is no exponent notation.
    """
    if value.denominator == 1:
        return str(value.numerator)
    num_places = NUM_PLACES
    while abs(value) * 10**num_places < 10 ** (NUM_PLACES - 1):
        num_places += 1
    scaled = round(abs(value) * 10**num_places)
    digits = str(scaled).rjust(num_places + 1, "0")
    text = f"{digits[:-num_places]}.{digits[-num_places:]}".rstrip("0").rstrip(".")
    return f"-{text}" if value < 0 else text


class _Expression:
    """A recursive-descent evaluator.

    sum := product (("+"|"-") product)*        product := sign (("*"|"/"|"//"|"%") sign)*
    sign := ("+"|"-") sign | power              power := atom ("**" sign)?          atom := NUMBER | "(" sum ")"
    """

    _token = re.compile(r"\s*([0-9]+(?:\.[0-9]*)?|\.[0-9]+|\*\*|//|[-+*/%()])")

    def __init__(self, text: str) -> None:
        if len(text) > MAX_CHARACTERS:
            raise ToolError(f"the expression is longer than {MAX_CHARACTERS} characters")
        self._tokens: list[str] = []
        position, text = 0, text.rstrip()
        while position < len(text):
            match = self._token.match(text, position)
            if match is None:
                raise ToolError(f"unexpected {text[position:].lstrip()[:1]!r} in the expression")
            self._tokens.append(match[1])
            position = match.end()
        self._next = 0
        self._depth = 0

    def value(self) -> Fraction:
        result = self._sum()
        if self._peek():
            raise ToolError(f"unexpected {self._peek()!r} in the expression")
        return result

    def _peek(self) -> str:
        return self._tokens[self._next] if self._next < len(self._tokens) else ""

    def _take(self) -> str:
        token = self._peek()
        self._next += 1
        return token

    def _sum(self) -> Fraction:
        return self._left_associative({"+": Fraction.__add__, "-": Fraction.__sub__}, self._product)

    def _product(self) -> Fraction:
        return self._left_associative({"*": Fraction.__mul__, "/": _divide, "//": _floor, "%": _modulo}, self._sign)

    def _left_associative(
        self, operators: Mapping[str, Callable[[Fraction, Fraction], Fraction]], operand: Callable[[], Fraction]
    ) -> Fraction:
        result = operand()
        while self._peek() in operators:
            operator = operators[self._take()]
            result = _bounded(operator(result, operand()))
        return result

    def _sign(self) -> Fraction:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise ToolError(f"the expression is nested deeper than {MAX_DEPTH}")
        if self._peek() in ("+", "-"):
            result = -self._sign() if self._take() == "-" else self._sign()
        else:
            result = self._power()
        self._depth -= 1
        return result

    def _power(self) -> Fraction:
        base = self._atom()
        if self._peek() != "**":
            return base
        self._take()
        return _power(base, self._sign())

    def _atom(self) -> Fraction:
        token = self._take()
        if token == "(":
            result = self._sum()
            if self._take() != ")":
                raise ToolError("a parenthesis is not closed")
            return result
        if not token or not (token[0].isdigit() or token[0] == "."):
            raise ToolError(f"a number is missing before {token!r}" if token else "the expression ends too early")
        return _bounded(Fraction(token))


def _divide(left: Fraction, right: Fraction) -> Fraction:
    if right == 0:
        raise ToolError("division by zero")
    return left / right


def _floor(left: Fraction, right: Fraction) -> Fraction:
    return Fraction(_divide(left, right).__floor__())


def _modulo(left: Fraction, right: Fraction) -> Fraction:
    return left - right * _floor(left, right)


def _power(base: Fraction, exponent: Fraction) -> Fraction:
    if exponent.denominator != 1:
        raise ToolError("the exponent is not an integer")
    if base == 0 and exponent < 0:
        raise ToolError("division by zero")
    if base in (0, 1, -1):  # no growth: the parity of the exponent decides
        return base ** (2 - exponent.numerator % 2) if exponent else Fraction(1)
    bits = max(base.numerator.bit_length(), base.denominator.bit_length())
    if (bits - 1) * abs(exponent.numerator) > MAX_BITS:  # a lower bound of the result's size
        raise ToolError("the result is too large")
    return _bounded(base**exponent.numerator)


def _bounded(value: Fraction) -> Fraction:
    if max(value.numerator.bit_length(), value.denominator.bit_length()) > MAX_BITS:
        raise ToolError("the result is too large")
    return value
