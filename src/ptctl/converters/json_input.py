"""Files → JSON values. What is wrong is named with file, line and field."""

from __future__ import annotations

import codecs
import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

from ptctl.errors import DataError, InputNotFound

KINDS: Mapping[str, tuple[type, ...]] = {
    "a string": (str,),
    "an integer": (int,),
    "a number": (int, float),
    "true or false": (bool,),
    "an array": (list,),
    "an object": (dict,),
}


def require_file(path: Path) -> Path:
    """Raise InputNotFound where there is no file at `path`."""
    if not path.is_file():
        raise InputNotFound(f"no file at {path}")
    return path


def decode(raw: bytes, where: str) -> Any:
    """JSON text → value. Raises DataError for what is no JSON or would lose something.

    NaN and infinities are let through, since Python's own writers write them. A member that stands twice is refused:
    all but one of its values would be lost. Raw control characters in strings are common and harmless.
    """
    try:
        return json.loads(raw.removeprefix(codecs.BOM_UTF8).decode("utf-8"), strict=False, object_pairs_hook=_members)
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: not UTF-8: {error.reason} at byte {error.start}") from error
    except (ValueError, RecursionError) as error:
        raise DataError(f"{where}: no JSON: {error}") from error


def _members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"member {next(name for name in names if names.count(name) > 1)!r} stands twice")
    return found


def read_document(path: Path) -> dict[str, Any]:
    """A file that holds one JSON object."""
    return as_object(decode(require_file(path).read_bytes(), str(path)), str(path))


def read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """(place, object) of each line of a JSONL file; only a line feed ends a record, U+2028 and U+0085 do not."""
    with require_file(path).open("rb") as file:
        for number, line in enumerate(file, start=1):
            if line.strip():
                where = f"{path}:{number}"
                yield where, as_object(decode(line, where), where)


def as_object(value: Any, where: str) -> dict[str, Any]:
    """The value, where it is an object. Raises DataError."""
    if not isinstance(value, dict):
        raise DataError(f"{where}: not a JSON object")
    return cast("dict[str, Any]", value)


def member(row: Mapping[str, Any], key: str, kind: str, where: str, *, required: bool = False) -> Any:
    """A member of the given kind (a key of `KINDS`); None where it is null or missing and not required.

    Raises DataError naming place, field and what it is instead.
    """
    value = row.get(key)
    if value is None:
        if required:
            raise DataError(f"{where}: `{key}` is {'null' if key in row else 'missing'}, it must be {kind}")
        return None
    if not isinstance(value, KINDS[kind]) or (isinstance(value, bool) and kind != "true or false"):
        raise DataError(f"{where}: `{key}` is {_kind_of(value)}, not {kind}")
    return value


def objects(row: Mapping[str, Any], key: str, where: str, *, required: bool = False) -> list[dict[str, Any]]:
    """A member that is an array of objects; empty where it is null or missing and not required."""
    values = member(row, key, "an array", where, required=required) or []
    return [as_object(value, f"{where}: `{key}[{index}]`") for index, value in enumerate(values)]


def known_number(row: Mapping[str, Any], key: str, where: str) -> float | None:
    """A number, None where it is missing, null, NaN or infinite: such a number is not known."""
    value = member(row, key, "a number", where)
    return float(value) if value is not None and math.isfinite(value) else None


def _kind_of(value: Any) -> str:
    names = {str: "a string", bool: "true or false", int: "an integer", float: "a number", list: "an array"}
    return names.get(cast("type[Any]", type(value)), "an object")
