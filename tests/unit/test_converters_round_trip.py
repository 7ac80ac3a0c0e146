"""ptctl → foreign → ptctl: every column comes back where the format has a place for it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from converter_rows import TASK, canonical, converter, differing, json_lines, native, write
from ptctl.converters.assembly import Draft, assemble, draft_score, draft_task, draft_trajectory
from ptctl.converters.chat import make_turn
from ptctl.converters.token_streams import check_generation, join, split
from ptctl.errors import DataError, DuplicateRow
from ptctl.protocols import ConverterSettings
from ptctl.records import Turn
from public_data import verifiers_rollouts

ROLLOUTS = verifiers_rollouts()

LOSSLESS = [("atif", "out"), ("verifiers", "out"), ("verl", "out"), ("verl", "out.jsonl")]


@pytest.mark.parametrize(("name", "out"), LOSSLESS)
def test_every_column_comes_back(tmp_path: Path, name: str, out: str) -> None:
    rows = native()
    assert write(name, rows, tmp_path / out) == ()
    back = converter(name).read(tmp_path / out)
    order = {row.trajectory_id: number for number, row in enumerate(back.trajectories)}
    for row, score in zip(rows.trajectories, rows.scores, strict=True):
        number = order[row.trajectory_id]
        # The task's verifier and target are not exported, so that the task is another one.
        assert differing(row, back.trajectories[number]) == {"task_digest"}
        assert differing(score, back.scores[number]) == {"task_digest"}
    assert [draw.group_id for draw in back.draws] == ["3/000000"]
    assert (back.draws[0].group_size, back.draws[0].batch, back.draws[0].purpose) == (2, "3", "train")
    (task,) = back.tasks
    for column in ("task_id", "domain", "family", "split", "strata", "difficulty", "prompt"):
        assert getattr(task, column) == getattr(TASK, column)
    assert task.task_digest == back.trajectories[0].task_digest == back.draws[0].task_digest


@pytest.mark.parametrize(("name", "out"), LOSSLESS)
def test_what_was_written_once_is_written_again(tmp_path: Path, name: str, out: str) -> None:
    write(name, native(), tmp_path / out)
    write(name, converter(name).read(tmp_path / out), tmp_path / f"again-{out}")
    for path in [tmp_path / out] if out.endswith("l") else sorted((tmp_path / out).iterdir()):
        again = Path(str(path).replace(f"/{out}", f"/again-{out}"))
        assert (
            canonical(json.loads(again.read_text())) == canonical(json.loads(path.read_text()))
            if (path.suffix == ".json")
            else json_lines(again) == json_lines(path)
        )


def test_the_target_is_not_exported_with_the_episode(tmp_path: Path) -> None:
    write("atif", native(), tmp_path / "out", scores=False)
    for path in (tmp_path / "out").iterdir():
        assert '"42"' not in path.read_text()


@pytest.mark.parametrize("through", ["atif", "verl"])
def test_a_row_remembers_its_source_through_another_format(tmp_path: Path, through: str) -> None:
    source = ROLLOUTS / "verifiers_wordle"
    write(through, converter("verifiers").read(source), tmp_path / "through")
    write("verifiers", converter(through).read(tmp_path / "through"), tmp_path / "back")
    there = {row["completion"][0]["content"] + str(row["reward"]): row for row in _rows(source)}
    back = {row["completion"][0]["content"] + str(row["reward"]): row for row in _rows(tmp_path / "back")}
    assert there.keys() == back.keys()
    of_the_task = {"answer", "task", "example_id"}
    for key, row in there.items():
        assert canonical({k: v for k, v in row.items() if k not in of_the_task}) == canonical(
            {k: v for k, v in back[key].items() if k not in of_the_task}
        )


def _rows(directory: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in json_lines(directory / "results.jsonl")]


@pytest.mark.parametrize(
    ("envelope", "told"),
    [
        ({"version": 2}, "no version 1"),
        ("text", "no version 1"),
        ({"version": 1, "trajectory": [{"at": ["index"], "was": "5feceb66ffc86f38", "is": "x"}]}, "do not fit"),
        ({"version": 1, "task": [{"at": ["family"], "was": "90b5a7a5"}, {"at": []}]}, "is no difference"),
    ],
)
def test_columns_that_are_none_are_refused(tmp_path: Path, envelope: Any, told: str) -> None:
    path = tmp_path / "1.jsonl"
    path.write_text(json.dumps({"input": "a", "output": "b", "score": 1.0, "ptctl": envelope}) + "\n")
    with pytest.raises(DataError, match=told) as caught:
        converter("verl").read(path)
    assert "1.jsonl:1" in str(caught.value)


# ── token streams ────────────────────────────────────────────────────────────────────────────────────────────────────


def _turns(*roles: str) -> list[Turn]:
    return [make_turn(role, role[0], "here") for role in roles]


def test_generations_become_one_stream() -> None:
    generations = [
        check_generation([1, 2, 3], [4, 5], [-0.5, -0.25], ""),
        check_generation([1, 2, 3, 4, 5, 6, 7], [8], [-1.0], ""),
        check_generation([9, 9], [10], [-2.0], ""),
    ]
    turns = _turns("system", "user", "assistant", "tool", "tool", "assistant", "user", "assistant")
    streams = join(turns, generations)
    assert streams.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9, 9, 10]
    assert streams.loss_mask.tolist() == [bool(bit) for bit in (0, 0, 0, 1, 1, 0, 0, 1, 0, 0, 1)]
    assert streams.rollout_logprobs.tolist() == [0, 0, 0, -0.5, -0.25, 0, 0, -1.0, 0, 0, -2.0]
    spans = [(turn.segment, turn.token_start, turn.token_end) for turn in streams.turns]
    assert spans == [
        (0, 0, 0), (0, 0, 3), (0, 3, 5), (0, 5, 5), (0, 5, 7), (0, 7, 8), (1, 8, 10), (1, 10, 11),
    ]  # fmt: skip
    assert [(part.token_start, part.token_end, part.opened_by) for part in streams.segments] == [
        (0, 8, "start"),
        (8, 11, "template_rewrite"),
    ]
    row = draft_trajectory("x", turns, 2, streams=streams)
    assert split(row) == generations


def test_one_generation_without_log_probabilities_leaves_none() -> None:
    turns = _turns("user", "assistant", "user", "assistant", "assistant")
    streams = join(turns, [check_generation([1], [2], [-1.0], ""), None, check_generation([1, 2, 3], [4], None, "")])
    assert streams.token_ids.tolist() == [1, 2, 3, 4]
    assert len(streams.rollout_logprobs) == 0
    # Two messages of the policy in a row: the context between them has no other place.
    assert [(turn.token_start, turn.token_end) for turn in streams.turns] == [(0, 1), (1, 2), (2, 2), (2, 2), (2, 4)]


@pytest.mark.parametrize(
    ("prompt", "completion", "logprobs", "told"),
    [
        ([1], [2**31], None, "2³¹"), ([-1], [1], None, "2³¹"), ([True], [1], None, "2³¹"), (["a"], [1], None, "2³¹"),
        ([1], [2, 3], [-1.0], "2 token ids but 1 log-probabilities"), ([1], [2], ["x"], "must be numbers"),
    ],
)  # fmt: skip
def test_ids_that_are_none_are_refused(prompt: Any, completion: Any, logprobs: Any, told: str) -> None:
    with pytest.raises(DataError, match=told):
        check_generation(prompt, completion, logprobs, "here")


def test_log_probabilities_that_are_not_finite_are_not_known() -> None:
    assert check_generation([1], [2], [float("-inf")], "").logprobs is None


# ── assembly ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _draft(text: str, answer: str, *, key: str = "1", **columns: Any) -> Draft:
    turns = [make_turn("user", text, ""), make_turn("assistant", answer, "")]
    task = draft_task(key, turns[:1], ConverterSettings(), family="f")
    return Draft(task=task, trajectory=draft_trajectory("x", turns, 1), score=draft_score("x", 1.0), **columns)


def test_rows_of_one_task_are_a_group_in_source_order() -> None:
    found = assemble("b", [_draft("p", "one"), _draft("q", "two", key="2"), _draft("p", "three")], ConverterSettings())
    assert [(row.group_id, row.index, row.group_size) for row in found.trajectories] == [
        ("b/000000", 0, 2), ("b/000001", 0, 1), ("b/000000", 1, 2),
    ]  # fmt: skip
    assert [row.final_answer for row in found.trajectories] == ["one", "two", "three"]
    assert [score.trajectory_id for score in found.scores] == [row.trajectory_id for row in found.trajectories]
    assert [task.task_id for task in found.tasks] == ["f/1", "f/2"]


def test_ids_depend_on_content_and_on_nothing_else() -> None:
    def ids(*answers: str) -> list[str]:
        drafts = [_draft("p", answer) for answer in answers]
        return [row.trajectory_id for row in assemble("b", drafts, ConverterSettings()).trajectories]

    assert ids("a", "b") == ids("a", "b")
    assert not set(ids("a", "b")) & set(ids("a", "c"))


def test_one_name_for_two_contents_is_made_two_names() -> None:
    found = assemble("b", [_draft("p", "a"), _draft("q", "a")], ConverterSettings())
    assert [task.task_id for task in found.tasks] == [f"f/1-{task.task_digest[:8]}" for task in found.tasks]
    assert len({task.task_id for task in found.tasks}) == 2


def test_a_slot_twice_is_refused() -> None:
    draft = _draft("p", "a")
    own = replace(draft, trajectory=replace(draft.trajectory, trajectory_id="t", group_id="g", task_id="f/1"))
    with pytest.raises(DuplicateRow, match="'t'"):
        assemble("b", [own, own], ConverterSettings())


def test_split_decides_the_purpose() -> None:
    settings = ConverterSettings(split="eval", verifier="numeric")
    turns = [make_turn("user", "p", "")]
    draft = Draft(
        task=draft_task("1", turns, settings, family="f"),
        trajectory=draft_trajectory("x", turns, 1),
        score=draft_score("x", None),
    )
    found = assemble("b", [draft], settings)
    assert (found.tasks[0].split, found.tasks[0].verifier) == ("eval", "numeric")
    assert (found.draws[0].purpose, found.trajectories[0].purpose) == ("eval", "eval")
    assert (found.scores[0].status, found.scores[0].reason) == ("unscored", "verifier_error")


def test_nothing_to_read_is_an_error() -> None:
    with pytest.raises(DataError, match="holds no trajectories"):
        assemble("b", [], ConverterSettings())


def test_imported_rows_are_not_trainable_by_accident() -> None:
    row = converter("verifiers").read(ROLLOUTS / "verifiers_wordle").trajectories[0]
    assert len(row.token_ids) == len(row.loss_mask) == len(row.rollout_logprobs) == 0
    assert (row.policy_version_min, row.policy_version_max, row.version_spans) == (None, None, ())
    assert {(turn.token_start, turn.token_end) for turn in row.turns} == {(0, 0)}
    assert [(part.token_start, part.token_end) for part in row.segments] == [(0, 0)]
