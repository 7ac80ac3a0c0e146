"""TRL data sets, in and out, as JSONL and Parquet."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from converter_rows import canonical, converter, json_lines, native, write, write_lines
from ptctl.errors import CannotCreate, CorruptShard, DataError, UsageError
from ptctl.protocols import Converted
from ptctl.records import Score
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory

USER, BLUE, GREEN = (
    {"role": "user", "content": "What colour is the sky?"},
    {"role": "assistant", "content": "Blue."},
    {"role": "assistant", "content": "Green."},
)
CALL = {"type": "function", "function": {"name": "look", "arguments": '{"at": "sky"}'}}
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
TALK = [USER, {"role": "assistant", "content": "", "tool_calls": [CALL]},
        {"role": "tool", "name": "look", "content": "blue"}, BLUE]  # fmt: skip

CASES: dict[str, tuple[str, list[dict[str, Any]]]] = {
    "messages": ("trl-messages", [{"messages": [USER, BLUE]}, {"messages": TALK, "tools": [TOOL], "source": "x"}]),
    "prompt-completion": ("trl", [{"prompt": [USER], "completion": [BLUE], "n": 1},
                                  {"prompt": [USER, GREEN, USER], "completion": [BLUE]}]),
    "prompt-completion text": ("trl", [{"prompt": "The sky is", "completion": " blue.\u2028\u0085"}]),
    "unpaired": ("trl-unpaired", [{"prompt": [USER], "completion": [BLUE], "label": True},
                                  {"prompt": [USER], "completion": [GREEN], "label": False}]),
    "unpaired text": ("trl-unpaired", [{"prompt": "The sky is", "completion": " blue.", "label": True}]),
    "preference": ("trl-preference", [{"prompt": [USER], "chosen": [BLUE], "rejected": [GREEN], "margin": 0.5},
                                      {"prompt": [USER], "chosen": [GREEN], "rejected": [BLUE], "margin": -1}]),
    "preference text": ("trl-preference", [{"prompt": "The sky is", "chosen": " blue.", "rejected": " green."}]),
    "implicit prompt": ("trl-preference", [{"chosen": [USER, BLUE], "rejected": [USER, GREEN]}]),
    "implicit prompt text": ("trl-preference", [{"chosen": "The sky is blue.", "rejected": "The sky is green."}]),
    "prompt beside conversations": ("trl-preference", [{"prompt": "What colour is the sky?", "prompt_id": "a",
                                                        "chosen": [USER, BLUE], "rejected": [USER, GREEN]}]),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_jsonl_comes_back_value_for_value(tmp_path: Path, case: str) -> None:
    name, rows = CASES[case]
    source = write_lines(tmp_path / "set.jsonl", rows)
    for number, reader in enumerate(("trl", name)):
        found = converter(reader).read(source)
        write(name, found, tmp_path / f"{number}.jsonl")
        assert json_lines(tmp_path / f"{number}.jsonl") == [canonical(row) for row in rows]


@pytest.mark.parametrize("case", CASES)
def test_parquet_comes_back_value_for_value(tmp_path: Path, case: str) -> None:
    name, rows = CASES[case]
    columns = {key: [row.get(key) for row in rows] for key in dict.fromkeys(key for row in rows for key in row)}
    pq.write_table(pa.table(columns), tmp_path / "set.parquet")
    write(name, converter("trl").read(tmp_path / "set.parquet"), tmp_path / "out.parquet")
    assert pq.read_table(tmp_path / "out.parquet").to_pydict() == pq.read_table(tmp_path / "set.parquet").to_pydict()


def test_what_becomes_of_each_type(tmp_path: Path) -> None:
    def read(case: str) -> Converted:
        return converter("trl").read(write_lines(tmp_path / "set.jsonl", CASES[case][1]))

    talk = read("messages").trajectories[1]
    assert [turn.role for turn in talk.turns] == ["user", "assistant", "tool", "assistant"]
    assert talk.final_answer == "Blue."
    assert (talk.turns[1].tool_calls[0].name, talk.turns[1].tool_calls[0].known_tool) == ("look", True)
    few_shot = read("prompt-completion").trajectories[1]
    assert (len(few_shot.turns), few_shot.costs.num_turns) == (4, 1)
    unpaired = read("unpaired")
    assert [(score.reward, score.passed) for score in unpaired.scores] == [(1.0, True), (0.0, False)]
    assert [draw.group_size for draw in unpaired.draws] == [2]
    pairs = read("preference")
    assert [(score.reward, score.passed) for score in pairs.scores] == [(1.0, None), (0.0, None)] * 2
    assert [(draw.group_size, draw.task_id) for draw in pairs.draws] == [(2, pairs.tasks[0].task_id)] * 2
    implicit = read("implicit prompt text")
    assert [turn.content for turn in implicit.trajectories[1].turns] == ["The sky is ", "green."]
    assert {score.status for score in read("messages").scores} == {"unscored"}


def _group(*rewards: float | None) -> Converted:
    task = make_simple_task("sum/1", split="train")
    draw = make_draw(task, batch="1", group_size=len(rewards))
    rows = [make_trajectory(draw, index=index) for index in range(len(rewards))]
    rows = [replace(row, turns=(row.turns[0], replace(row.turns[1], content=f"answer {row.index}"))) for row in rows]
    scores = [make_score(row, reward=reward) for row, reward in zip(rows, rewards, strict=True)]
    return Converted(name="1", tasks=(task,), draws=(), trajectories=tuple(rows), scores=tuple(scores))


def test_pairs_of_a_group_are_best_with_worst(tmp_path: Path) -> None:
    told = write("trl-preference", _group(0.5, 1.0, None, 0.0, 1.0, 0.5), tmp_path / "pairs.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "pairs.jsonl").read_text().splitlines()]
    assert [(row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in rows] == [
        ("answer 1", "answer 3"), ("answer 4", "answer 5"),
    ]  # fmt: skip
    assert told[1].startswith("2 of 6 trajectories")


def test_verdicts_of_unpaired_rows(tmp_path: Path) -> None:
    group = _group(1.0, 0.5, None)
    passed: list[Score] = [*group.scores[:1], replace(group.scores[1], passed=None), group.scores[2]]
    told = write("trl-unpaired", replace(group, scores=tuple(passed)), tmp_path / "kto.jsonl")
    rows = [json.loads(line) for line in (tmp_path / "kto.jsonl").read_text().splitlines()]
    assert [row["label"] for row in rows] == [True, False]
    assert told[1].startswith("1 of 3 trajectories")


def test_native_rows_for_sft(tmp_path: Path) -> None:
    """A call that the policy wrote as text is not said twice, and an episode without an answer is left out."""
    told = write("trl", native(), tmp_path / "sft.jsonl")
    row = json.loads((tmp_path / "sft.jsonl").read_text())
    assert row["prompt"] == [{"role": "user", "content": "7+5?"}]
    assert row["completion"][0] == {
        "role": "assistant",
        "content": "I add.  and <tool_call>{",
        "tool_calls": [{"id": "0", "type": "function", "function": {"name": "add", "arguments": '{"x":7}'}}],
    }
    assert [message["role"] for message in row["completion"]] == ["assistant", "tool", "tool", "assistant"]
    assert row["tools"][0]["function"]["name"] == "add"
    assert told == (
        "tokens, log-probabilities, versions, costs and identity",
        "1 of 2 trajectories (each needs a message of the policy)",
    )


def test_an_imported_call_keeps_text_that_looks_like_it(tmp_path: Path) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    rows = [{"prompt": [USER], "completion": [{"role": "assistant", "content": "f {} f", "tool_calls": [call]}]}]
    found = converter("trl").read(write_lines(tmp_path / "set.jsonl", rows))
    write("atif", found, tmp_path / "one.json")
    assert json.loads((tmp_path / "one.json").read_text())["steps"][1]["message"] == "f {} f"


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"prompt": [USER]}, "no trajectory of a TRL type in columns prompt"),
        ({"text": "The sky is blue."}, "no trajectory of a TRL type in columns text"),
        ({}, "(none)"),
        ({"prompt": "a", "completion": "b", "label": 1}, "`label` is an integer, not true or false"),
        ({"prompt": "a", "completion": "b", "label": None}, "`label` is null"),
        ({"prompt": "a", "completion": None}, "`completion` is null"),
        ({"messages": "hello", "x": [USER]}, None),
        ({"messages": [USER, {"role": "robot", "content": ""}]}, "`messages`: message 1: unknown role 'robot'"),
        ({"chosen": "a", "rejected": [BLUE]}, "`rejected` is an array, not a string"),
        ({"messages": [USER], "tools": "[{"}, "`tools`: no JSON"),
        ({"messages": [USER], "tools": '{"a": 1}'}, "`tools` is an object, not an array"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, row: Any, told: str | None) -> None:
    source = write_lines(tmp_path / "set.jsonl", [{"prompt": "a", "completion": "b"}, row])
    if told is None:
        assert converter("trl").read(source).trajectories[1].turns[0].content == "hello"
        return
    with pytest.raises(DataError) as caught:
        converter("trl").read(source)
    assert told in str(caught.value)
    assert "set.jsonl:2" in str(caught.value)


def test_sources_and_outputs(tmp_path: Path) -> None:
    source = write_lines(tmp_path / "set.jsonl", [{"prompt": "a", "completion": "b"}])
    with pytest.raises(DataError, match="a prompt-completion row, not preference"):
        converter("trl-preference").read(source)
    found = converter("trl").read(source)
    with pytest.raises(UsageError, match="neither"):
        write("trl", found, tmp_path / "out")
    with pytest.raises(CannotCreate, match="exists already"):
        write("trl", found, source)
    with pytest.raises(DataError, match="nothing to write as preference"):
        write("trl-preference", found, tmp_path / "pairs.jsonl")
    (tmp_path / "torn.parquet").write_bytes(b"PAR1")
    with pytest.raises(CorruptShard, match="cannot read"):
        converter("trl").read(tmp_path / "torn.parquet")
    pq.write_table(pa.table({"messages": [[USER]], "raw": [b"x"]}), tmp_path / "bytes.parquet")
    with pytest.raises(DataError, match="row 0"):
        converter("trl").read(tmp_path / "bytes.parquet")
