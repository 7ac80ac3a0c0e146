"""Whatever stands at any place of a source: it comes back, or is refused by name."""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_converters_atif import DOCUMENT
from test_converters_trl import CASES
from test_converters_verifiers import ROW
from test_converters_verl import ROWS

from converter_rows import canonical, converter, write, write_lines
from ptctl.errors import DataError
from public_data import verifiers_rollouts

ROLLOUTS = verifiers_rollouts()

odd = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=4) | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner, max_size=2),
    max_leaves=4,
)
SOURCES: list[tuple[str, str, dict[str, Any]]] = [
    ("atif", "one.json", DOCUMENT),
    ("verifiers", "env", ROW),
    ("verifiers", "env", json.loads((ROLLOUTS / "verifiers_tool_test" / "results.jsonl").read_text().split("\n")[0])),
    ("verl", "1.jsonl", ROWS[0]),
    *((name, "set.jsonl", rows[-1]) for name, rows in CASES.values()),
]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, part in inner:
        yield from places(part, (*at, key))


def changed(row: Any, at: tuple[Any, ...], value: Any, *, add: bool) -> Any:
    """The row with another value at a place, or with a further member `new` there."""
    row = copy.deepcopy(row)
    inner = row
    for step in at if add else at[:-1]:
        inner = inner[step]
    if not add:
        inner[at[-1]] = value
    elif isinstance(inner, dict):
        inner["new"] = value
    return row


@pytest.mark.parametrize(("name", "place", "row"), SOURCES, ids=lambda value: value if isinstance(value, str) else "")
@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_value_at_any_place_comes_back_or_is_refused(
    name: str, place: str, row: dict[str, Any], data: st.DataObject
) -> None:
    add = data.draw(st.booleans())
    at = data.draw(st.sampled_from([at for at in places(row) if at or add]))
    source_row = changed(row, at, data.draw(odd), add=add)
    with tempfile.TemporaryDirectory() as scratch:
        source, out = Path(scratch) / "in" / place, Path(scratch) / "out" / place
        file = source / "results.jsonl" if name == "verifiers" else source
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(source_row) + "\n")
        try:
            found = converter(name).read(source)
        except DataError as error:
            assert str(source) in str(error)  # noqa: PT017 - one of two outcomes
            return
        write(name, found, out, scores=name != "atif")
        written = (out / "results.jsonl" if name == "verifiers" else out).read_text(encoding="utf-8")
    assert canonical(json.loads(written)) == canonical(source_row)


def test_the_property_would_notice_a_loss(tmp_path: Path) -> None:
    found = converter("verl").read(write_lines(tmp_path / "1.jsonl", ROWS[:1]))
    write("verl", found, tmp_path / "out.jsonl", scores=False)
    assert canonical(json.loads((tmp_path / "out.jsonl").read_text())) != canonical(ROWS[0])
