from __future__ import annotations

import json
import os
from collections import Counter, OrderedDict, namedtuple
from decimal import Decimal
from fractions import Fraction
from typing import Any

import pytest

from ptctl.verifiers.test_box.plain_data import NotPlainError, decode, encode, read_frame, write_frame


@pytest.mark.parametrize(
    "value",
    [
        None, True, 0, -1, 2**600, -(3**5000), 0.1, float("inf"), "text \u2028 \ud800", "", [1, [2]], (1, "a"), (),
        {1, 2}, frozenset((1,)), {"a": 1, 2: (3,), (4, 5): None}, b"\x00\xff", bytearray(b"x"), 1 + 2j, Decimal("0.10"),
        Fraction(1, 3), {"!": "tuple", "v": [1]},
    ],
)  # fmt: skip
def test_round_trip_keeps_value_and_type(value: Any) -> None:
    back = decode(json.loads(json.dumps(encode(value))))
    assert back == value
    assert type(back) is type(value)


class Impostor(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __abs__(self) -> int:
        return 0

    __hash__ = int.__hash__


class ListOfLies(list[int]):
    def __iter__(self) -> Any:
        return iter((42,))


def test_subclasses_arrive_as_what_they_hold() -> None:
    point = namedtuple("point", "x y")(1, 2)
    assert decode(encode(point)) == (1, 2)
    assert decode(encode(Counter("aab"))) == {"a": 2, "b": 1}
    assert type(decode(encode(OrderedDict(a=1)))) is dict
    assert decode(encode(ListOfLies([1, 2]))) == [1, 2]
    arrived = decode(encode(Impostor(5)))
    assert type(arrived) is int
    assert arrived != 6


@pytest.mark.parametrize("value", [object(), iter([1]), len, [lambda: 0], {"a": object()}, int])
def test_objects_are_refused(value: Any) -> None:
    with pytest.raises(NotPlainError):
        encode(value)


def test_nesting_without_end_is_refused() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(RecursionError):
        encode(endless)


def test_frames() -> None:
    read, write = os.pipe()
    write_frame(write, {"a": [1, "ü"]})
    write_frame(write, None)
    assert read_frame(read) == {"a": [1, "ü"]}
    assert read_frame(read) is None
    os.write(write, b"\xff" * 8)
    with pytest.raises(ValueError, match="too large"):
        read_frame(read)
    os.write(write, b"\0\0")
    os.close(write)
    with pytest.raises(EOFError):
        read_frame(read)
    os.close(read)
