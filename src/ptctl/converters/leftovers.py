"""What of one JSON value another one does not say: `restore(derived, difference(original, derived)) == original`.

A difference is a list of changes, one for each innermost place where the two differ:

    {"at": ["steps", 2, "extra"], "was": null, "is": {"retries": 1}}     a member that `derived` does not have
    {"at": ["reward"], "was": "90b5…", "is": 1}                          another value; `was` is the digest of derived's
    {"at": ["timing"], "was": "1c7f…"}                                   a member that the original does not have

A change is applied only where the derived value still is what it was: if a column has been changed since, the column
wins. Values are compared as JSON writes them, so that 1, 1.0 and true are three values. What canonical JSON cannot
hold (NaN, infinities, lone surrogates) stands as ASCII text in `text` instead of `is`.
"""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, cast

from ptctl.errors import DataError
from ptctl.records import canonical_json

Change = dict[str, Any]
ABSENT = object()
"""Stands for a member that is not there; null is a value."""
DIGEST_CHARS = 16
SCALARS = (str, bool, int, float, type(None))


def difference(original: Any, derived: Any) -> list[Change]:
    """Changes that turn `derived` into `original`; empty where they are the same JSON."""
    changes: list[Change] = []
    _compare(original, derived, [], changes)
    return changes


def _compare(original: Any, derived: Any, at: list[str | int], changes: list[Change]) -> None:
    if isinstance(original, dict) and isinstance(derived, dict):
        left, right = cast("dict[str, Any]", original), cast("dict[str, Any]", derived)
        for key in sorted({*left, *right}):
            _compare(left.get(key, ABSENT), right.get(key, ABSENT), [*at, key], changes)
    elif _comparable_lists(original, derived):
        for index, (one, other) in enumerate(zip(original, derived, strict=True)):
            _compare(one, other, [*at, index], changes)
    elif not same(original, derived):
        changes.append({"at": at, "was": _digest(derived), **_value(original)})


def _comparable_lists(original: Any, derived: Any) -> bool:
    """Lists of equal length are compared by element, but for lists of scalars such as token ids."""
    if not isinstance(original, list) or not isinstance(derived, list):
        return False
    left, right = cast("list[Any]", original), cast("list[Any]", derived)
    return len(left) == len(right) and not all(isinstance(value, SCALARS) for value in left)


def same(left: Any, right: Any) -> bool:
    """Whether two values are the same JSON: 1, 1.0 and true differ, NaN equals itself."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        one, other = cast("dict[str, Any]", left), cast("dict[str, Any]", right)
        return one.keys() == other.keys() and all(same(value, other[key]) for key, value in one.items())
    if isinstance(left, list):
        values, others = cast("list[Any]", left), cast("list[Any]", right)
        if set(map(type, values)) == {int}:  # token ids: compared without a loop
            return values == others and set(map(type, others)) == {int}
        return len(values) == len(others) and all(map(same, values, others))
    return repr(left) == repr(right) if isinstance(left, float) else bool(left == right)


def restore(derived: Any, changes: Sequence[Mapping[str, Any]], where: str = "a difference") -> Any:
    """The derived value with the changes applied; it is not modified. Raises DataError for what is no difference."""
    root = [copy.deepcopy(derived)]
    try:
        for change in changes:
            _apply(root, [0, *change["at"]], change)
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{where}: {str(changes)[:80]} is no difference: {error!r}") from error
    return root[0]


def _apply(root: Any, at: Sequence[str | int], change: Mapping[str, Any]) -> None:
    parent = root
    for step in at[:-1]:
        parent = _at(parent, step)
        if parent is ABSENT:
            return
    if not isinstance(parent, dict | list) or _digest(_at(parent, at[-1])) != change["was"]:
        return
    if "text" in change:
        _set(parent, at[-1], json.loads(change["text"]))
    elif "is" in change:
        _set(parent, at[-1], copy.deepcopy(change["is"]))
    else:
        cast("dict[str, Any]", parent).pop(cast("str", at[-1]))


def _at(parent: Any, step: str | int) -> Any:
    if isinstance(parent, dict):
        return cast("dict[Any, Any]", parent).get(step, ABSENT)
    if isinstance(parent, list) and isinstance(step, int):
        values = cast("list[Any]", parent)
        return values[step] if 0 <= step < len(values) else ABSENT
    return ABSENT


def _set(parent: Any, step: str | int, value: Any) -> None:
    if isinstance(parent, dict) or isinstance(step, int):  # of a list, `_apply` has seen the element
        parent[step] = value


def _value(original: Any) -> Change:
    if original is ABSENT:
        return {}
    return {"is": original} if is_storable(original) else {"text": json.dumps(original, sort_keys=True)}


def is_storable(value: Any) -> bool:
    """Whether canonical JSON in a text column can hold the value: no NaN, no infinity, no lone surrogate."""
    try:
        canonical_json(value).encode("utf-8")
    except ValueError:  # UnicodeEncodeError is one
        return False
    return True


def _digest(value: Any) -> str | None:
    if value is ABSENT:
        return None
    text = json.dumps(value, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode("ascii")).hexdigest()[:DIGEST_CHARS]
