"""verl: dumped rollouts, in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from converter_rows import canonical, converter, json_lines, native, write, write_lines
from ptctl.errors import CannotCreate, DataError, InputNotFound

ROWS: list[dict[str, Any]] = [
    {"input": "user\n7+5?\nassistant\n", "output": "12", "gts": "12", "score": 1.0, "step": 7, "acc": True,
     "pred": "12", "format": 0.5, "request_id": "a"},
    {"input": "user\n7+5?\nassistant\n", "output": "13\u2028\u0085", "gts": "12", "score": -1.0, "step": 7,
     "acc": False, "pred": "13", "format": float("nan"), "request_id": "b"},
    {"input": "user\n9+8?\nassistant\n", "output": "", "gts": ["17", "17.0"], "score": float("nan"), "step": 7,
     "acc": 0.0, "pred": None, "format": 1, "request_id": "c"},
]  # fmt: skip


def test_a_dump_comes_back_value_for_value(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "7.jsonl", ROWS)
    found = converter("verl").read(source)
    write("verl", found, tmp_path / "out.jsonl")
    assert json_lines(tmp_path / "out.jsonl") == [canonical(row) for row in ROWS]
    write("verl", found, tmp_path / "dumps")
    assert json_lines(tmp_path / "dumps" / "7.jsonl") == [canonical(row) for row in ROWS]


def test_what_becomes_of_a_row(tmp_path: Path) -> None:
    found = converter("verl").read(write_lines(tmp_path / "7.jsonl", ROWS))
    assert found.name == "7"
    assert [draw.group_size for draw in found.draws] == [2, 1]
    assert [json.loads(task.target_json) for task in found.tasks] == ["12", ["17", "17.0"]]
    assert found.tasks[0].prompt[0].content == "user\n7+5?\nassistant\n"
    row, first, second, third = found.trajectories[0], *found.scores
    assert [(turn.role, turn.content) for turn in row.turns][1] == ("assistant", "12")
    assert (first.reward, first.passed, first.status) == (1.0, True, "scored")
    assert (second.reward, second.passed) == (-1.0, False)
    assert (third.reward, third.passed, third.status, third.reason) == (None, None, "unscored", "verifier_error")
    assert [(part.name, part.value, part.passed) for part in second.components] == [
        ("acc", 0.0, False), ("format", None, None),
    ]  # fmt: skip
    # An empty output is an episode: the policy ended it at once.
    assert found.trajectories[2].stop_reason == "completed"


def test_the_same_prompt_at_two_steps_is_two_groups_of_one_task(tmp_path: Path) -> None:
    for step in (9, 10):
        rows = [{"input": "p", "output": str(n), "score": 0.0, "step": step} for n in range(2)]
        write_lines(tmp_path / "dumps" / f"{step}.jsonl", rows)
    found = converter("verl").read(tmp_path / "dumps")
    assert (len(found.tasks), [draw.group_size for draw in found.draws]) == (1, [2, 2])
    write("verl", found, tmp_path / "out")
    for step in (9, 10):
        assert json_lines(tmp_path / "out" / f"{step}.jsonl") == json_lines(tmp_path / "dumps" / f"{step}.jsonl")


def test_older_dumps_without_ground_truth(tmp_path: Path) -> None:
    rows = [{"input": "p", "output": "o", "score": 1, "step": 1}, {"input": "p", "output": "o2"}]
    found = converter("verl").read(write_lines(tmp_path / "1.jsonl", rows))
    assert [score.status for score in found.scores] == ["scored", "unscored"]
    write("verl", found, tmp_path / "out.jsonl")
    assert json_lines(tmp_path / "out.jsonl") == [canonical(row) for row in rows]


def test_a_conversation_is_written_as_text(tmp_path: Path) -> None:
    write("verl", native(), tmp_path / "out.jsonl", scores=False)
    row = json.loads((tmp_path / "out.jsonl").read_text().split("\n")[0])
    assert (row["input"], row["gts"], row["score"], row["step"]) == ("7+5?", "42", None, 3)
    assert row["output"].startswith("assistant\nI add. <tool_call>")
    assert row["output"].endswith("tool\n12\ntool\nwhat?\nassistant\n12")


def test_without_scores_only_the_score_is_missing(tmp_path: Path) -> None:
    found = converter("verl").read(write_lines(tmp_path / "7.jsonl", ROWS[:1]))
    write("verl", found, tmp_path / "out.jsonl", scores=False)
    row = json.loads((tmp_path / "out.jsonl").read_text())
    assert row == {key: value for key, value in ROWS[0].items() if key not in ("acc", "format")} | {"score": None}


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"output": "x"}, "`input` is missing"),
        ({"input": "x"}, "`output` is missing"),
        ({"input": "x", "output": None}, "`output` is null"),
        ({"input": ["x"], "output": "y"}, "`input` is an array, not a string"),
        ({"input": "x", "output": "y", "score": "1"}, "`score` is a string, not a number"),
        ({"input": "x", "output": "y", "step": 1.5}, "`step` is a number, not an integer"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, row: Any, told: str) -> None:
    with pytest.raises(DataError) as caught:
        converter("verl").read(write_lines(tmp_path / "1.jsonl", [ROWS[0], row]))
    assert told in str(caught.value)
    assert "1.jsonl:2" in str(caught.value)


def test_sources_and_outputs(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="jsonl in"):
        converter("verl").read(tmp_path)
    source = write_lines(tmp_path / "1.jsonl", ROWS)
    with pytest.raises(CannotCreate, match="exists already"):
        write("verl", converter("verl").read(source), source)
