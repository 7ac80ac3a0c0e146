"""Values of Arrow columns as JSON, and as text of one cell."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Callable, Sequence
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pyarrow.compute

compute: Any = pyarrow.compute
"""pyarrow makes its kernels when it is imported, out of sight of type checkers."""
types: Any = pa.types
MAX_SHOWN_ELEMENTS = 8
"""Of a token stream or another list of scalars, where it is shown to people."""

Convert = Callable[[Any], Any]


def is_numeric(arrow: Any) -> bool:
    """Whether a column is aligned to the right."""
    return types.is_integer(arrow) or types.is_floating(arrow) or types.is_decimal(arrow)


def is_scalar_list(arrow: Any) -> bool:
    """A list of numbers, booleans or strings, such as a token stream or the groups that a policy consumed."""
    return is_list(arrow) and any(
        test(arrow.value_type) for test in (is_numeric, types.is_boolean, types.is_string, types.is_large_string)
    )


def is_list(arrow: Any) -> bool:
    """A list of any kind."""
    return types.is_list(arrow) or types.is_large_list(arrow) or types.is_fixed_size_list(arrow)


def json_converter(arrow: Any) -> Convert | None:
    """Turns a value, as Arrow gives it to Python, into what JSON can hold; None where it is that already.

    Bytes become base64, maps become objects, decimals become numbers, and what JSON has no form for becomes text.
    """
    if types.is_map(arrow):
        return _map_converter(arrow)
    if types.is_struct(arrow):
        return _struct_converter(arrow)
    if is_list(arrow):
        inner = json_converter(arrow.value_type)
        return None if inner is None else _known(lambda values: [inner(value) for value in values])
    if types.is_decimal(arrow):
        return _known(int if arrow.scale == 0 else float)
    if types.is_binary(arrow) or types.is_large_binary(arrow) or types.is_fixed_size_binary(arrow):
        return _known(lambda value: base64.b64encode(value).decode("ascii"))
    if any(test(arrow) for test in (types.is_string, types.is_large_string, types.is_boolean, types.is_null)):
        return None
    if types.is_integer(arrow) or types.is_floating(arrow):
        return None
    return _plain_or_text


def _known(convert: Convert) -> Convert:
    return lambda value: None if value is None else convert(value)


def _plain_or_text(value: Any) -> Any:
    return value if value is None or isinstance(value, str | int | float | bool) else str(value)


def _map_converter(arrow: Any) -> Convert:
    inner = json_converter(arrow.item_type) or (lambda value: value)
    return _known(lambda pairs: {str(key): inner(value) for key, value in pairs})


def _struct_converter(arrow: Any) -> Convert | None:
    inner = {field.name: json_converter(field.type) for field in arrow}
    converted = {name: convert for name, convert in inner.items() if convert is not None}
    if not converted:
        return None
    return _known(lambda value: value | {name: convert(value[name]) for name, convert in converted.items()})


def json_values(column: Any) -> list[Any]:
    """The values of an Arrow array or chunked array as JSON can hold them (but for NaN and infinity)."""
    arrow = column.type
    if types.is_temporal(arrow) and not types.is_duration(arrow) and not types.is_interval(arrow):
        return compute.cast(column, pa.string()).to_pylist()
    if isinstance(column, pa.Array) and _is_number_list(arrow):
        return _number_lists(column)
    values = column.to_pylist()
    convert = json_converter(arrow)
    return values if convert is None else [convert(value) for value in values]


def _is_number_list(arrow: Any) -> bool:
    if not (types.is_list(arrow) or types.is_large_list(arrow)):
        return False
    element = arrow.value_type
    return types.is_integer(element) or types.is_floating(element) or types.is_boolean(element)


def _number_lists(column: Any) -> list[list[Any] | None]:
    """`to_pylist` of lists of numbers or booleans; through numpy, ten times as fast for token streams."""
    flat = column.flatten()
    if flat.null_count:
        return column.to_pylist()
    values = flat.to_numpy(zero_copy_only=False).tolist()
    lists: list[list[Any] | None] = []
    start = 0
    for length in compute.list_value_length(column).to_pylist():
        stop = start + (length or 0)
        lists.append(None if length is None else values[start:stop])
        start = stop
    return lists


def to_json(value: Any, *, ascii_only: bool = True) -> str:
    """JSON without spaces. NaN and infinity, which JSON has not, become null.

    With `ascii_only` it has neither U+2028 nor anything else that a line reader or a locale could trip over.
    """
    try:
        return json.dumps(value, ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(_finite(value), ensure_ascii=ascii_only, allow_nan=False, separators=(",", ":"))


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {key: _finite(part) for key, part in value.items()}  # pyright: ignore[reportUnknownVariableType]
    if isinstance(value, list):
        return [_finite(part) for part in value]  # pyright: ignore[reportUnknownVariableType]
    return value


def cell_texts(column: Any, *, missing: str, short: bool) -> list[str]:
    """One text for each value: strings as they are, numbers in full, `true` and `false`, JSON for what is nested.

    `missing` stands for NULL. `short` cuts lists of scalars after `MAX_SHOWN_ELEMENTS`, and 32-bit floats to the digits
    that they have.
    """
    arrow = column.type
    if short and is_scalar_list(arrow):
        return _list_texts(column, missing)
    if types.is_decimal(arrow):
        return [missing if value is None else _decimal_text(value) for value in column.to_pylist()]
    values = json_values(column)
    render = _renderer(arrow, short)
    return [missing if value is None else render(value) for value in values]


def _decimal_text(value: Decimal) -> str:
    return format(value, "f")


def _renderer(arrow: Any, short: bool) -> Callable[[Any], str]:
    if types.is_boolean(arrow):
        return lambda value: "true" if value else "false"
    if short and types.is_float32(arrow):
        return lambda value: f"{value:.7g}"
    if is_list(arrow) or types.is_struct(arrow) or types.is_map(arrow):
        return lambda value: to_json(value, ascii_only=False)
    return str


def _list_texts(column: Any, missing: str) -> list[str]:
    """The first elements alone are ever made Python objects."""
    lengths: Sequence[int | None] = compute.list_value_length(column).to_pylist()
    heads = compute.list_slice(column, 0, MAX_SHOWN_ELEMENTS, return_fixed_size_list=False)
    texts = cell_texts(heads, missing=missing, short=False)
    return [
        text if length is None or length <= MAX_SHOWN_ELEMENTS else f"{text[:-1]},… {length - MAX_SHOWN_ELEMENTS} more]"
        for text, length in zip(texts, lengths, strict=True)
    ]
