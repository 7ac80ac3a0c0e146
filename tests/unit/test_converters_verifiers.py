"""verifiers: results and metadata, in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from converter_rows import canonical, converter, json_lines, write, write_lines
from ptctl.errors import CannotCreate, DataError, InputNotFound
from ptctl.records import Trajectory
from public_data import verifiers_rollouts

ROLLOUTS = verifiers_rollouts()

DIRECTORIES = sorted(path.name for path in ROLLOUTS.glob("verifiers_*"))
CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"x": 7}'}}
TOOLS = [{"name": "add", "description": "Adds.", "parameters": {"type": "object", "properties": {}}}]
ROW: dict[str, Any] = {
    "example_id": 4,
    "prompt": [{"role": "user", "content": "7+5?"}],
    "completion": [
        {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "let me add"},
        {"role": "tool", "content": "12", "tool_call_id": "c1", "name": "add"},
        {"role": "assistant", "content": "12"},
    ],
    "answer": "12",
    "info": {"level": 2},
    "reward": 1,
    "error": None,
    "timing": {"start_time": 3.0, "generation_ms": 1500.0, "scoring_ms": 250.0, "total_ms": 1750.5},
    "is_completed": True,
    "is_truncated": False,
    "stop_condition": "no_tools",
    "metrics": {"correct": 1.0, "speed": 0.5},
    "correct": 1.0,
    "speed": 0.5,
    "tool_defs": TOOLS,
    "token_usage": {"input_tokens": 20.0, "output_tokens": 7.0},
    "my_state": {"a": [1, 2.0, None]},
}


def read(tmp_path: Path, *rows: Any, metadata: Any = None) -> Any:
    path = write_lines(tmp_path / "env" / "results.jsonl", rows)
    if metadata is not None:
        path.with_name("metadata.json").write_text(json.dumps(metadata))
    return converter("verifiers").read(path)


@pytest.mark.parametrize("name", DIRECTORIES)
def test_real_results_come_back_value_for_value(tmp_path: Path, name: str) -> None:
    source = ROLLOUTS / name
    write("verifiers", converter("verifiers").read(source), tmp_path / "out")
    assert json_lines(tmp_path / "out" / "results.jsonl") == json_lines(source / "results.jsonl")
    assert canonical(json.loads((tmp_path / "out" / "metadata.json").read_text())) == canonical(
        json.loads((source / "metadata.json").read_text())
    )


def test_wordle_is_grouped_by_example_and_keeps_rewards_above_one() -> None:
    found = converter("verifiers").read(ROLLOUTS / "verifiers_wordle")
    assert [task.task_id for task in found.tasks] == [f"wordle/{number}" for number in range(5)]
    assert [draw.group_size for draw in found.draws] == [2] * 5
    assert [score.reward for score in found.scores[:3]] == [1.4933333333, 1.3266666667, 1.41]
    assert {score.passed for score in found.scores} == {None}
    first = found.scores[0]
    assert [(part.name, part.value, part.weight) for part in first.components][:2] == [
        ("check_answer_reward_func", 1.0, 0.0),
        ("partial_credit_reward_func", 0.0, 0.0),
    ]
    row = found.trajectories[0]
    assert [turn.role for turn in row.turns] == ["system", "user", "assistant", "user", "assistant", "user"]
    assert (row.model, row.stop_reason, row.costs.num_turns) == ("gpt-5-mini", "completed", 2)
    assert row.final_answer is None  # the last message is the environment's
    assert json.loads(found.tasks[0].target_json) == "story"


def test_ids_at_the_wrong_rows_do_not_make_the_groups() -> None:
    """In this file of verifiers 0.1 the ids run 0 0 0 1 1 1 …, while the examples run 0 1 2 3 4 0 1 …"""
    found = converter("verifiers").read(ROLLOUTS / "verifiers_tool_test")
    assert len(found.tasks) == 5
    assert [draw.group_size for draw in found.draws] == [3] * 5
    for task in found.tasks:
        prompts = {row.turns[0].content for row in found.trajectories if row.task_id == task.task_id}
        assert prompts == {task.prompt[0].content}
    assert [tool.name for tool in found.tasks[0].tools] == ["tool_A", "tool_B", "tool_C", "tool_D"]
    call = found.trajectories[0].turns[1].tool_calls[0]
    assert (call.call_id, call.name, call.arguments_json) == ("call_ryXO5un81fNBAZG45nRcIl86", "tool_D", '{"x":true}')
    assert (call.parsed, call.known_tool, call.executed, call.succeeded) == (True, True, False, None)
    assert found.trajectories[0].costs.num_tool_calls == 3


def test_a_reward_without_a_completion_is_no_score() -> None:
    found = converter("verifiers").read(ROLLOUTS / "verifiers_gsm8k")
    assert {(score.status, score.reason, score.reward) for score in found.scores} == {
        ("unscored", "engine_error", None)
    }
    assert {row.stop_reason for row in found.trajectories} == {"engine_error"}
    assert [draw.group_size for draw in found.draws] == [2, 2]


def test_every_member_of_the_newer_dialect_comes_back(tmp_path: Path) -> None:
    found = read(tmp_path, ROW)
    write("verifiers", found, tmp_path / "out")
    assert json_lines(tmp_path / "out" / "results.jsonl") == [canonical(ROW)]
    assert not (tmp_path / "out" / "metadata.json").exists()
    row, score, task = found.trajectories[0], found.scores[0], found.tasks[0]
    assert (row.costs.wall_s, score.verify_s) == (1.5, 0.25)
    assert (row.costs.num_prompt_tokens, row.costs.num_completion_tokens) == (20, 7)
    assert (row.final_answer, score.reward, task.environment) == ("12", 1.0, "tools")
    assert row.turns[1].content == ""
    call = row.turns[1].tool_calls[0]
    assert (call.executed, call.valid_arguments, call.succeeded) == (True, True, None)
    assert [(part.name, part.value) for part in score.components] == [("correct", 1.0), ("speed", 0.5)]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), None, "missing"])
def test_a_reward_that_is_not_known_is_unscored_and_comes_back(tmp_path: Path, reward: Any) -> None:
    row = {key: value for key, value in ROW.items() if key != "reward"}
    if reward != "missing":
        row["reward"] = reward
    found = read(tmp_path, row)
    score = found.scores[0]
    assert (score.status, score.reason, score.reward) == ("unscored", "verifier_error", None)
    write("verifiers", found, tmp_path / "out")
    assert json_lines(tmp_path / "out" / "results.jsonl") == [canonical(row)]


@pytest.mark.parametrize(
    ("columns", "stop", "scored"),
    [
        ({"is_truncated": True}, "truncated_tokens", True),
        ({"stop_condition": "max_turns_reached"}, "truncated_turns", True),
        ({"stop_condition": "prompt_too_long", "is_truncated": True}, "truncated_context", True),
        ({"error": {"error": "APIError", "error_chain_str": "x"}}, "env_error", False),
        ({"completion": []}, "engine_error", False),
        ({"completion": None}, "engine_error", False),
    ],
)
def test_how_it_ended(tmp_path: Path, columns: dict[str, Any], stop: str, scored: bool) -> None:
    row = ROW | columns
    found = read(tmp_path, row)
    assert found.trajectories[0].stop_reason == stop
    assert (found.scores[0].reward is not None) is scored
    assert (found.trajectories[0].error is None) is scored
    write("verifiers", found, tmp_path / "out")
    assert json_lines(tmp_path / "out" / "results.jsonl") == [canonical(row)]


def test_odd_text_stays_one_record_and_surrogates_come_back(tmp_path: Path) -> None:
    texts = ["a\u2028b\u0085c\x1d", "\ud83d", "nul \0"]
    rows = [ROW | {"completion": [{"role": "assistant", "content": text}], "my_state": [text]} for text in texts]
    path = tmp_path / "env" / "results.jsonl"
    path.parent.mkdir()
    lines = [json.dumps(row, ensure_ascii="\ud83d" in json.dumps(row, ensure_ascii=False)) for row in rows]
    path.write_bytes("\r\n".join(lines).encode())
    found = converter("verifiers").read(path)
    assert [row.turns[1].content for row in found.trajectories] == ["a\u2028b\u0085c\x1d", "\ufffd", "nul \0"]
    assert [row.turns[1].num_replaced_surrogates for row in found.trajectories] == [0, 1, 0]
    write("verifiers", found, tmp_path / "out")
    assert json_lines(tmp_path / "out" / "results.jsonl") == [canonical(row) for row in rows]


def test_token_ids_of_the_trajectory_column(tmp_path: Path) -> None:
    def step(prompt: list[int], completion: list[int], logprobs: list[float]) -> dict[str, Any]:
        tokens = {
            "prompt_ids": prompt, "prompt_mask": [0] * len(prompt), "completion_ids": completion,
            "completion_mask": [1] * len(completion), "completion_logprobs": logprobs, "is_truncated": False,
        }  # fmt: skip
        return {"tokens": tokens, "reward": None, "extras": {}}

    # -0.1 is no float32: the column holds the nearest, the leftover the value.
    row = ROW | {"trajectory": [step([1, 2], [3, 4], [-0.5, -0.1]), step([1, 2, 3, 4, 5], [6], [-0.25])]}
    found = read(tmp_path, row)
    kept: Trajectory = found.trajectories[0]
    assert list(kept.token_ids) == [1, 2, 3, 4, 5, 6]
    assert list(kept.loss_mask) == [False, False, True, True, False, True]
    assert list(kept.rollout_logprobs) == pytest.approx([0, 0, -0.5, -0.1, 0, -0.25], rel=1e-7)
    assert [(turn.token_start, turn.token_end) for turn in kept.turns] == [(0, 2), (2, 4), (4, 5), (5, 6)]
    write("verifiers", found, tmp_path / "out")
    assert json_lines(tmp_path / "out" / "results.jsonl") == [canonical(row)]


def test_metadata_is_counted_anew_where_the_rows_changed(tmp_path: Path) -> None:
    rows = [ROW | {"example_id": number, "prompt": f"{number}?", "reward": number} for number in range(3)]
    metadata = {"env_id": "sums", "num_examples": 99, "rollouts_per_example": 1, "avg_reward": 0.25, "note": "x"}
    found = read(tmp_path, *rows, metadata=metadata)
    write("verifiers", found, tmp_path / "same")
    assert json.loads((tmp_path / "same" / "metadata.json").read_text()) == metadata
    tasks = {task.task_id: task for task in found.tasks}
    scores = {score.trajectory_id: score for score in found.scores}
    converter("verifiers").write(found.trajectories[:2], tasks, scores, tmp_path / "part")
    part = json.loads((tmp_path / "part" / "metadata.json").read_text())
    assert part == {"env_id": "sums", "num_examples": 2, "rollouts_per_example": 1, "avg_reward": 0.5, "note": "x"}


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('{"prompt": [], "completion": []', "results.jsonl:2: no JSON"),
        ("[]", "results.jsonl:2: not a JSON object"),
        ('{"completion": []}', "results.jsonl:2: `prompt` is missing"),
        ('{"prompt": 3, "completion": []}', "results.jsonl:2: `prompt` is an integer, not an array"),
        ('{"prompt": [], "completion": [{"role": "robot"}]}', "`completion`: message 0: unknown role 'robot'"),
        ('{"prompt": [], "completion": [{"content": "x"}]}', "message 0: `role` is missing"),
        ('{"prompt": [], "completion": [{"role": "user", "content": 3}]}', "`content` is neither text"),
        ('{"prompt": [], "completion": [], "reward": "1"}', "`reward` is a string, not a number"),
        ('{"prompt": [], "completion": [], "reward": true}', "`reward` is true or false, not a number"),
        ('{"prompt": [], "prompt": [], "completion": []}', "member 'prompt' stands twice"),
        ('{"prompt": [], "completion": [], "tool_defs": [{"name": 3}]}', "tool 0: `name` is an integer"),
        ("\xff", "not UTF-8"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, line: str, told: str) -> None:
    path = tmp_path / "results.jsonl"
    path.write_bytes(json.dumps(ROW).encode() + b"\n" + line.encode("latin-1") + b"\n")
    with pytest.raises(DataError) as caught:
        converter("verifiers").read(path)
    assert told in str(caught.value)
    assert "results.jsonl:2" in str(caught.value)


def test_a_source_that_is_not_there_and_an_output_that_is(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no file at"):
        converter("verifiers").read(tmp_path)
    found = converter("verifiers").read(ROLLOUTS / "verifiers_wordle")
    (tmp_path / "out").mkdir()
    with pytest.raises(CannotCreate, match="out exists already"):
        write("verifiers", found, tmp_path / "out")
