from __future__ import annotations

from fractions import Fraction
from typing import Any

import pytest

from ptctl.environments.tool_kinds import Calculator, Table, ToolError, format_number


@pytest.mark.parametrize(
    ("expression", "result"),
    [
        ("12+34", "46"),
        ("3-9", "-6"),
        ("11*99", "1089"),
        (" 2 * ( 3 + 4 ) ", "14"),
        ("2-3-4", "-5"),
        ("2**3**2", "512"),
        ("-2**2", "-4"),
        ("2**-1", "0.5"),
        ("0**0", "1"),
        ("(-1)**1000001", "-1"),
        ("--3", "3"),
        ("7/2", "3.5"),
        ("6/3", "2"),
        ("7//2", "3"),
        ("-7//2", "-4"),
        ("-7%3", "2"),
        ("7.5%2", "1.5"),
        ("0.1+0.2", "0.3"),
        ("1/3*3", "1"),
        ("1/3", "0.333333333333"),
        ("2/3", "0.666666666667"),
        ("-1/300", "-0.00333333333333"),
        ("007", "7"),
        (".5+1.", "1.5"),
        ("10**100", "1" + "0" * 100),
    ],
)
def test_calculator(expression: str, result: str) -> None:
    assert Calculator({}).call({"whatever": expression}) == result


@pytest.mark.parametrize(
    ("expression", "reason"),
    [
        ("", "the expression ends too early"),
        ("1+", "the expression ends too early"),
        ("1 2", "unexpected '2' in the expression"),
        ("(1", "a parenthesis is not closed"),
        ("1)", r"unexpected '\)' in the expression"),
        ("*3", r"a number is missing before '\*'"),
        ("1/0", "division by zero"),
        ("1//0", "division by zero"),
        ("1%0", "division by zero"),
        ("0**-1", "division by zero"),
        ("2**0.5", "the exponent is not an integer"),
        ("9**9**9**9", "the result is too large"),
        ("(1/9)**9**9", "the result is too large"),
        ("1000000" * 30, "the result is too large"),
        ("*".join(["99999999"] * 30), "the result is too large"),
        ("(" * 33 + "1" + ")" * 33, "nested deeper than 32"),
        ("-" * 33 + "1", "nested deeper than 32"),
        ("1" + "+1" * 200, "longer than 400 characters"),
        ("1e5", "unexpected 'e' in the expression"),
        ("٣+1", "unexpected '٣' in the expression"),
        ("__import__('os')", "unexpected '_' in the expression"),
    ],
)
def test_calculator_refuses(expression: str, reason: str) -> None:
    with pytest.raises(ToolError, match=reason):
        Calculator({}).call({"x": expression})


def test_deepest_allowed_nesting() -> None:
    assert Calculator({}).call({"x": "(" * 31 + "1" + ")" * 31}) == "1"


def test_numbers_round_half_to_even() -> None:
    unit = Fraction(1, 10**12)
    assert format_number(1 + unit / 2) == "1"
    assert format_number(1 + unit * 3 / 2) == "1.000000000002"
    assert format_number(unit / 8) == "0.000000000000125"


def test_table_answers_with_text_or_json() -> None:
    table = Table({"rows": {"a": "x y", "b": 3, "c": [1, None]}})
    assert [table.call({"key": key}) for key in "abc"] == ["x y", "3", "[1,null]"]


@pytest.mark.parametrize("arguments", [{}, {"a": 1}, {"a": "x", "b": "y"}])
def test_kinds_take_one_text(arguments: dict[str, Any]) -> None:
    for kind in (Calculator({}), Table({"rows": {}})):
        with pytest.raises(ToolError, match="exactly one text argument"):
            kind.call(arguments)
