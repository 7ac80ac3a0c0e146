"""A strict validator for the part of JSON Schema that tool parameters use.

Known: `type`, `enum`, `const`, `properties`, `required`, `additionalProperties`, `items`, `minimum`, `maximum`,
`anyOf`, and the annotations `title`, `description`, `default`, `examples`. A schema with any other keyword is refused
before the episode: a keyword that is skipped would let arguments through that its author meant to forbid. Semantics are
those of draft 2020-12; `$ref`, `pattern` and `format` are left out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

from ptctl.errors import DataError

_ANNOTATIONS = frozenset({"title", "description", "default", "examples"})
_TYPES = ("object", "array", "string", "integer", "number", "boolean", "null")


def check_schema(schema: Any, what: str) -> None:
    """Raise DataError, beginning with `what`, where `schema` is malformed or has a keyword that is not known."""
    if isinstance(schema, bool):
        return
    if not isinstance(schema, dict):
        raise DataError(f"{what}: a schema is an object or a boolean, not {_type_name(schema)}")
    for keyword, value in cast("dict[str, Any]", schema).items():
        if keyword in _ANNOTATIONS:
            continue
        if keyword not in _FORMS:
            raise DataError(
                f"{what}: the JSON Schema keyword {keyword!r} is not supported", hint=f"known: {', '.join(_FORMS)}"
            )
        if not _FORMS[keyword](value):
            raise DataError(f"{what}: {keyword!r} has a value of the wrong form")
    for place, part in _subschemas(cast("dict[str, Any]", schema)):
        check_schema(part, f"{what}/{place}")


def find_violation(schema: Any, value: Any, where: str = "arguments") -> str | None:
    """Say on one line what in `value` contradicts `schema`, and where; None where nothing does.

    `schema` has passed `check_schema`; `value` is what `json.loads` returns.
    """
    if isinstance(schema, bool):
        return None if schema else f"{where}: not allowed"
    for check in _CHECKS:
        violation = check(schema, value, where)
        if violation is not None:
            return violation
    return None


def _check_type(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    expected = schema.get("type", list(_TYPES))
    names: Sequence[str] = [expected] if isinstance(expected, str) else expected
    if any(_is_of_type(value, name) for name in names):
        return None
    return f"{where}: expected {' or '.join(names)}, got {_type_name(value)}"


def _check_values(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    if "const" in schema and not _equal(value, schema["const"]):
        return f"{where}: not the only allowed value"
    if "enum" in schema and not any(_equal(value, allowed) for allowed in schema["enum"]):
        return f"{where}: not one of the allowed values"
    if _is_of_type(value, "number"):
        if "minimum" in schema and value < schema["minimum"]:
            return f"{where}: less than {schema['minimum']}"
        if "maximum" in schema and value > schema["maximum"]:
            return f"{where}: more than {schema['maximum']}"
    return None


def _check_object(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    if not isinstance(value, dict):
        return None
    entries = cast("dict[str, Any]", value)
    for name in schema.get("required", ()):
        if name not in entries:
            return f"{where}: {name!r} is missing"
    properties: Mapping[str, Any] = schema.get("properties", {})
    for name, entry in entries.items():
        if name not in properties and schema.get("additionalProperties", True) is False:
            return f"{where}: unknown argument {name[:40]!r}"
        part = properties.get(name, schema.get("additionalProperties", True))
        violation = find_violation(part, entry, f"{where}.{name[:40]}")
        if violation is not None:
            return violation
    return None


def _check_items(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    if not isinstance(value, list) or "items" not in schema:
        return None
    for index, entry in enumerate(cast("list[Any]", value)):
        violation = find_violation(schema["items"], entry, f"{where}[{index}]")
        if violation is not None:
            return violation
    return None


def _check_any_of(schema: Mapping[str, Any], value: Any, where: str) -> str | None:
    violations = [find_violation(part, value, where) for part in schema.get("anyOf", ())]
    if not violations or None in violations:
        return None
    return violations[0] if len(violations) == 1 else f"{where}: fits none of {len(violations)} alternatives"


_CHECKS = (_check_type, _check_values, _check_object, _check_items, _check_any_of)


def _subschemas(schema: Mapping[str, Any]) -> list[tuple[str, Any]]:
    """List the schemas inside `schema`, with their places."""
    inner = [(f"properties/{name}", part) for name, part in schema.get("properties", {}).items()]
    inner += [(f"anyOf/{index}", part) for index, part in enumerate(schema.get("anyOf", ()))]
    return inner + [(keyword, schema[keyword]) for keyword in ("items", "additionalProperties") if keyword in schema]


def _is_type_keyword(value: Any) -> bool:
    names: list[Any] = cast("list[Any]", value) if isinstance(value, list) else [value]
    return bool(names) and all(isinstance(name, str) and name in _TYPES for name in names)


def _is_strings(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(name, str) for name in cast("list[Any]", value))


def _is_filled_list(value: Any) -> bool:
    return isinstance(value, list) and bool(cast("list[Any]", value))


def _is_schema(value: Any) -> bool:
    return isinstance(value, bool | dict)


def _is_object(value: Any) -> bool:
    return isinstance(value, dict)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_anything(value: Any) -> bool:
    return True


_FORMS = {
    "type": _is_type_keyword,
    "enum": _is_filled_list,
    "const": _is_anything,
    "properties": _is_object,
    "required": _is_strings,
    "additionalProperties": _is_schema,
    "items": _is_schema,
    "minimum": _is_number,
    "maximum": _is_number,
    "anyOf": _is_filled_list,
}
"""The known keywords, each with what its value must look like."""


def _is_of_type(value: Any, name: str) -> bool:
    if name == "number":
        return _is_number(value)
    if name == "integer":  # 1.0 is an integer in JSON Schema; true is not, though it is an int in Python
        return _is_number(value) and value == int(value)
    return _type_name(value) == name


def _type_name(value: Any) -> str:
    kinds = {dict: "object", list: "array", str: "string", int: "integer", float: "number", bool: "boolean"}
    return "null" if value is None else kinds.get(cast("type[Any]", type(value)), type(value).__name__)


def _equal(left: Any, right: Any) -> bool:
    """Equality of JSON values: 1 is 1.0, but true is not 1."""
    if isinstance(left, list) and isinstance(right, list):
        pairs = list(zip(cast("list[Any]", left), cast("list[Any]", right), strict=False))
        return len(cast("list[Any]", left)) == len(cast("list[Any]", right)) and all(_equal(a, b) for a, b in pairs)
    if isinstance(left, dict) and isinstance(right, dict):
        a, b = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return a.keys() == b.keys() and all(_equal(a[key], b[key]) for key in a)
    return isinstance(left, bool) == isinstance(right, bool) and left == right
