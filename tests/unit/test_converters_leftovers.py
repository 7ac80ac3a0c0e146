"""A difference is an exact inverse of forgetting."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from converter_rows import canonical
from ptctl.converters.leftovers import difference, is_storable, restore, same
from ptctl.errors import DataError
from ptctl.records import canonical_json

scalars = st.none() | st.booleans() | st.integers(-3, 3) | st.floats() | st.text(max_size=3)
values = st.recursive(
    scalars,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=300, deadline=None)
@given(original=values, derived=values)
def test_restore_inverts_difference_through_canonical_json(original: Any, derived: Any) -> None:
    changes = json.loads(canonical_json(difference(original, derived)))
    untouched = canonical(derived)
    assert canonical(restore(derived, changes)) == canonical(original)
    assert canonical(derived) == untouched


@settings(max_examples=100, deadline=None)
@given(value=values)
def test_a_value_differs_from_itself_in_nothing(value: Any) -> None:
    assert difference(value, json.loads(json.dumps(value))) == []


@pytest.mark.parametrize(
    ("left", "right", "equal"),
    [
        (1, 1.0, False), (1, True, False), (0, False, False), ([1, 2], [1, 2], True), ([1, 2], [1, 2.0], False),
        ([1, True], [1, 1], False), (math.nan, math.nan, True), (0.0, -0.0, False), ({"a": None}, {}, False),
        ([], [], True), ("1", 1, False),
    ],
)  # fmt: skip
def test_values_are_compared_as_json_writes_them(left: Any, right: Any, equal: bool) -> None:
    assert same(left, right) is equal
    assert (difference(left, right) == []) is equal


def test_changes_are_small_and_readable() -> None:
    original = {"reward": 1, "turns": [{"text": "a"}, {"text": "b", "extra": {"n": 2}}], "ids": [1, 2, 3]}
    derived = {"reward": 1.0, "turns": [{"text": "a"}, {"text": "b"}], "ids": [1, 2, 3], "timing": {}}
    found = [{key: change[key] for key in change if key != "was"} for change in difference(original, derived)]
    assert found == [
        {"at": ["reward"], "is": 1},
        {"at": ["timing"]},
        {"at": ["turns", 1, "extra"], "is": {"n": 2}},
    ]
    assert difference(original, derived)[2]["was"] is None


def test_a_column_that_changed_since_wins() -> None:
    changes = difference({"reward": 1, "id": 7, "old": 1}, {"reward": 1.0, "step": 3})
    assert restore({"reward": 0.5, "step": 4}, changes) == {"reward": 0.5, "step": 4, "id": 7, "old": 1}


def test_a_place_that_is_gone_is_passed_over() -> None:
    changes = difference({"a": [{"b": 1}, {"b": 2, "c": 3}]}, {"a": [{"b": 1}, {"b": 2}]})
    assert restore({"a": [{"b": 1}]}, changes) == {"a": [{"b": 1}]}
    assert restore({"a": "text"}, changes) == {"a": "text"}
    assert restore({}, changes) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, {"a": [-math.inf]}, "\ud800", ["\udfff"]])
def test_what_canonical_json_cannot_hold_is_kept_as_text(value: Any) -> None:
    assert not is_storable(value)
    changes = difference({"x": value}, {"x": None})
    text = canonical_json(changes)
    text.encode("utf-8")
    assert canonical(restore({"x": None}, json.loads(text))) == canonical({"x": value})


@pytest.mark.parametrize(
    "changes", [[{}], [{"at": ["a"]}], [{"at": 3, "was": None}], [{"at": ["a"], "was": None, "text": "{"}]]
)
def test_what_is_no_change_is_refused(changes: Any) -> None:
    with pytest.raises(DataError, match="row 3"):
        restore({}, changes, "row 3")
