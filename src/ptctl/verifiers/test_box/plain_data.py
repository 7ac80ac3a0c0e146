"""Plain data as JSON, and frames on a pipe: all that passes between the tester and the candidate.

Decoding makes exact built-in types only. An object of the candidate, with an `__eq__` of its own choosing, cannot reach
the tester: it is refused, or arrives as the plain value that its base class holds.
"""

# Values are of any type here, which strict checking cannot express.
# pyright: basic
from __future__ import annotations

import base64
import decimal
import fractions
import json
import os
import struct
from collections.abc import Callable
from typing import Any

MAX_FRAME_BYTES = 32 * 1024 * 1024
TAG, VALUE = "!", "v"
BIG_INT = 1 << 512
"""Larger integers travel in hexadecimal: Python limits decimal digits."""


class NotPlainError(TypeError):
    """The value holds something that is no plain data."""


def encode(value: Any) -> Any:
    """JSON value of plain data. Raises NotPlainError for anything else and RecursionError where it is too deep."""
    if value is None or isinstance(value, (bool, float)):
        return float(value) if isinstance(value, float) else value
    if isinstance(value, int):
        number = int(value)
        return number if abs(number) < BIG_INT else {TAG: "int", VALUE: hex(number)}
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, list):
        return [encode(item) for item in list.__iter__(value)]
    return _encode_tagged(value)


# The iterators of the built-in classes, whatever a subclass made of its own.
_ITERATORS: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (tuple, tuple.__iter__),
    (set, set.__iter__),
    (frozenset, frozenset.__iter__),
)


def _encode_tagged(value: Any) -> Any:
    for kind, iterate in _ITERATORS:
        if isinstance(value, kind):
            return {TAG: kind.__name__, VALUE: [encode(item) for item in iterate(value)]}
    if isinstance(value, dict):
        return {TAG: "dict", VALUE: [[encode(key), encode(item)] for key, item in dict.items(value)]}
    if isinstance(value, (bytes, bytearray)):
        kind = "bytes" if isinstance(value, bytes) else "bytearray"
        return {TAG: kind, VALUE: base64.b64encode(bytes(value)).decode("ascii")}
    if isinstance(value, complex):
        return {TAG: "complex", VALUE: [value.real, value.imag]}
    if isinstance(value, (decimal.Decimal, fractions.Fraction)):
        kind = "Decimal" if isinstance(value, decimal.Decimal) else "Fraction"
        return {TAG: kind, VALUE: str(value)}
    raise NotPlainError(f"a value of type {type(value).__name__} is no plain data")


_DECODERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda v: int(v, 16),
    "tuple": lambda v: tuple(decode(item) for item in v),
    "set": lambda v: {decode(item) for item in v},
    "frozenset": lambda v: frozenset(decode(item) for item in v),
    "dict": lambda v: {decode(key): decode(item) for key, item in v},
    "bytes": base64.b64decode,
    "bytearray": lambda v: bytearray(base64.b64decode(v)),
    "complex": lambda v: complex(*v),
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
}


def decode(value: Any) -> Any:
    """Inverse of `encode`. Raises ValueError, TypeError, KeyError or RecursionError for what it did not make."""
    if isinstance(value, list):
        return [decode(item) for item in value]
    if isinstance(value, dict):
        return _DECODERS[value[TAG]](value[VALUE])
    return value


def write_frame(descriptor: int, message: Any) -> None:
    """Write one JSON message."""
    content = json.dumps(message).encode("ascii")
    if len(content) > MAX_FRAME_BYTES:
        raise NotPlainError(f"a message of {len(content)} bytes is too large")
    content = struct.pack(">Q", len(content)) + content
    while content:
        content = content[os.write(descriptor, content) :]


def read_frame(descriptor: int) -> Any:
    """Read one message. Raises EOFError where the other side is gone and ValueError where it is no message."""
    (size,) = struct.unpack(">Q", _read_exactly(descriptor, 8))
    if size > MAX_FRAME_BYTES:
        raise ValueError(f"a message of {size} bytes is too large")
    return json.loads(_read_exactly(descriptor, size).decode("ascii"))


def _read_exactly(descriptor: int, size: int) -> bytes:
    parts = []
    while size:
        part = os.read(descriptor, min(size, 1 << 20))
        if not part:
            raise EOFError("the other side closed the pipe")
        parts.append(part)
        size -= len(part)
    return b"".join(parts)
