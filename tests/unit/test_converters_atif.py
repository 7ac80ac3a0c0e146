"""ATIF: Harbor's trajectory documents, in and out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from converter_rows import canonical, converter, native, write
from ptctl.errors import CannotCreate, DataError, InputNotFound, UsageError

TOOL = {"type": "function", "function": {"name": "bash", "description": "Run.", "parameters": {"type": "object"}}}
DOCUMENT: dict[str, Any] = {
    "schema_version": "ATIF-v1.8",
    "session_id": "run-1",
    "trajectory_id": "root",
    "agent": {"name": "terminus-2", "version": "2.0.0", "model_name": "m-9b", "tool_definitions": [TOOL],
              "extra": {"parser": "json"}},
    "steps": [
        {"step_id": 1, "timestamp": "2025-10-16T14:30:00Z", "source": "system", "message": "You are\u2028careful."},
        {"step_id": 2, "timestamp": "2025-10-16T14:30:01.500000+02:00", "source": "user",
         "message": [{"type": "text", "text": "List "}, {"type": "image", "source": {"media_type": "image/png",
                     "path": "images/a.png"}}, {"type": "text", "text": "files."}]},
        {"step_id": 3, "timestamp": "2025-10-16T14:30:02", "source": "agent", "model_name": "m-9b-b",
         "reasoning_effort": "high", "reasoning_content": "I should look.", "message": "Looking.",
         "tool_calls": [
             {"tool_call_id": "c1", "function_name": "bash", "arguments": {"command": "ls", "n": 1.0}},
             {"tool_call_id": "c2", "function_name": "bash", "arguments": {}, "extra": {"retries": 2}}],
         "observation": {"results": [{"source_call_id": "c1", "content": "a.txt"},
                                     {"source_call_id": "c2", "content": None, "extra": {"x": 1}}]},
         "metrics": {"prompt_tokens": 4, "completion_tokens": 2, "cached_tokens": 0, "cost_usd": 0.00045,
                     "prompt_token_ids": [1, 2, 3, 4], "completion_token_ids": [5, 6], "logprobs": [-0.1, -0.5],
                     "extra": {"r": 12}}},
        {"step_id": 4, "source": "system", "message": "compacted",
         "observation": {"results": [{"content": "context halved", "subagent_trajectory_ref":
                                      [{"trajectory_id": "sub"}]}]}},
        {"step_id": 5, "source": "agent", "message": "There is a.txt.", "llm_call_count": 1,
         "metrics": {"prompt_tokens": 8, "completion_tokens": 1,
                     "prompt_token_ids": [1, 2, 3, 4, 5, 6, 7, 8], "completion_token_ids": [9], "logprobs": [-0.25]}},
    ],
    "notes": "made by hand",
    "final_metrics": {"total_prompt_tokens": 12, "total_completion_tokens": 3, "total_cost_usd": 0.1, "total_steps": 5},
    "continued_trajectory_ref": "trajectory.cont-1.json",
    "extra": {"run": 7},
    "subagent_trajectories": [{"schema_version": "ATIF-v1.8", "trajectory_id": "sub",
                               "agent": {"name": "s", "version": "1"},
                               "steps": [{"step_id": 1, "source": "user", "message": "hi"}]}],
}  # fmt: skip


def changed(*path: Any, to: Any) -> dict[str, Any]:
    document = copy.deepcopy(DOCUMENT)
    inner = document
    for step in path[:-1]:
        inner = inner[step]
    if to is ...:
        del inner[path[-1]]
    else:
        inner[path[-1]] = to
    return document


def read(tmp_path: Path, document: Any) -> Any:
    path = tmp_path / "doc.json"
    path.write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    return converter("atif").read(path)


def round_trip(tmp_path: Path, document: Any) -> Any:
    write("atif", read(tmp_path, document), tmp_path / "back.json", scores=False)
    return json.loads((tmp_path / "back.json").read_text(encoding="utf-8"))


def test_a_document_comes_back_value_for_value(tmp_path: Path) -> None:
    assert canonical(round_trip(tmp_path, DOCUMENT)) == canonical(DOCUMENT)


@pytest.mark.parametrize(
    "document",
    [
        changed("schema_version", to="ATIF-v1.0"),
        changed("steps", 2, "metrics", "prompt_token_ids", to=...),
        changed("steps", 2, "metrics", "logprobs", to=...),
        changed("steps", 4, "metrics", "logprobs", 0, to=float("nan")),
        changed("steps", 2, "metrics", to=None),
        changed("steps", 4, "llm_call_count", to=3),
        changed("steps", 4, "is_copied_context", to=True),
        changed("steps", 4, "metrics", "prompt_token_ids", to=[7, 7]),
        changed("steps", 2, "observation", "results", to=[]),
        changed("steps", 2, "observation", "results", 0, "source_call_id", to="elsewhere"),
        changed("steps", 0, "unknown_to_anybody", to=[1, {"a": None}]),
        changed("steps", 4, "message", to=""),
        changed("agent", "tool_definitions", to=...),
        changed("extra", to={}),
        changed("final_metrics", to=...),
    ],
)
def test_other_documents_come_back_too(tmp_path: Path, document: Any) -> None:
    assert canonical(round_trip(tmp_path, document)) == canonical(document)


def test_ids_and_log_probabilities_are_kept_with_mask_and_spans(tmp_path: Path) -> None:
    row = read(tmp_path, DOCUMENT).trajectories[0]
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert row.loss_mask.tolist() == [bool(bit) for bit in (0, 0, 0, 0, 1, 1, 0, 0, 1)]
    assert np.array_equal(row.rollout_logprobs, np.float32([0, 0, 0, 0, -0.1, -0.5, 0, 0, -0.25]))
    spans = [(turn.role, turn.token_start, turn.token_end) for turn in row.turns]
    assert spans == [
        ("system", 0, 0), ("user", 0, 4), ("assistant", 4, 6), ("tool", 6, 6), ("tool", 6, 6), ("system", 6, 6),
        ("tool", 6, 8), ("assistant", 8, 9),
    ]  # fmt: skip
    assert (row.policy_version_min, row.version_spans, len(row.segments)) == (None, (), 1)


def test_what_becomes_of_a_document(tmp_path: Path) -> None:
    found = read(tmp_path, DOCUMENT)
    (row,), (task,), (score,) = found.trajectories, found.tasks, found.scores
    assert [message.content for message in task.prompt] == ["You are\u2028careful.", "List files."]
    assert (task.environment, [tool.name for tool in task.tools]) == ("tools", ["bash"])
    assert (row.model, row.final_answer, row.engine) == ("m-9b", "There is a.txt.", "atif")
    assert (row.costs.num_turns, row.costs.num_tool_calls) == (2, 2)
    assert (row.costs.num_prompt_tokens, row.costs.num_completion_tokens) == (12, 3)
    call, other = row.turns[2].tool_calls
    assert (call.name, call.arguments_json, call.executed) == ("bash", '{"command":"ls","n":1.0}', True)
    assert (other.call_id, other.executed) == ("c2", True)
    assert row.started_at == 1760617801.5  # 14:30:01.5 at +02:00 is the earliest of the three
    assert (score.status, score.reason, score.error.message) == (
        "unscored", "verifier_error", "the source has no reward",
    )  # fmt: skip


@pytest.mark.parametrize(
    "document",
    [
        changed("steps", 2, "metrics", "prompt_token_ids", to=...),  # sampled behind an unknown context
        changed("steps", 4, "llm_call_count", to=2),  # several generations in one
    ],
)
def test_no_stream_where_the_context_of_sampled_tokens_is_not_known(tmp_path: Path, document: Any) -> None:
    row = read(tmp_path, document).trajectories[0]
    assert len(row.token_ids) == len(row.loss_mask) == 0
    assert [(part.token_start, part.token_end) for part in row.segments] == [(0, 0)]


def test_copied_context_is_not_trained(tmp_path: Path) -> None:
    row = read(tmp_path, changed("steps", 2, "is_copied_context", to=True)).trajectories[0]
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 9]
    assert row.loss_mask.tolist() == [False] * 8 + [True]


def test_a_rewritten_context_opens_a_segment(tmp_path: Path) -> None:
    row = read(tmp_path, changed("steps", 4, "metrics", "prompt_token_ids", to=[7, 7])).trajectories[0]
    assert row.token_ids.tolist() == [1, 2, 3, 4, 5, 6, 7, 7, 9]
    assert [(part.token_start, part.token_end) for part in row.segments] == [(0, 6), (6, 9)]
    assert (row.turns[-1].segment, row.turns[2].segment) == (1, 0)


# ── a trial directory of Harbor ──────────────────────────────────────────────────────────────────────────────────────


def trial(root: Path, name: str, rewards: dict[str, str], task: str = "org/hello") -> None:
    (root / name / "agent").mkdir(parents=True)
    (root / name / "verifier").mkdir()
    (root / name / "user-agent").mkdir()
    document = DOCUMENT | {"session_id": name}
    (root / name / "agent" / "trajectory.json").write_text(json.dumps(document))
    (root / name / "user-agent" / "trajectory.json").write_text(json.dumps(document))
    (root / name / "result.json").write_text(json.dumps({"task_name": task}))
    for file, text in rewards.items():
        (root / name / "verifier" / file).write_text(text)


def test_trials_of_a_job_are_groups_with_the_verifier_s_rewards(tmp_path: Path) -> None:
    job = tmp_path / "job"
    rewards: dict[str, dict[str, str]] = {
        "a": {"reward.txt": "0.5\n", "reward.json": '{"reward": 1, "style": 0.25}'},
        "b": {"reward.txt": "0.5\n"},
        "c": {"reward.txt": ""},
        "d": {"reward.json": '{"tests": 0.75}'},
        "e": {"reward.json": '{"tests": "x"}', "reward.txt": "1"},
        "f": {"reward.txt": "nan"},
        "g": {},
        "h": {"reward.json": '{"x": 1, "y": 0}'},
    }
    for name, files in rewards.items():
        trial(job, name, files)
    found = converter("atif").read(job)
    assert [task.task_id for task in found.tasks] == ["atif/org/hello"]
    assert [draw.group_size for draw in found.draws] == [8]
    assert [score.reward for score in found.scores] == [1.0, 0.5, None, 0.75, None, None, None, None]
    assert {score.reason for score in found.scores if score.reward is None} == {"verifier_error"}
    assert [(part.name, part.value) for part in found.scores[0].components] == [("reward", 1.0), ("style", 0.25)]
    write("atif", found, tmp_path / "out", scores=False)
    written = sorted(path.relative_to(tmp_path / "out").as_posix() for path in (tmp_path / "out").rglob("*.json"))
    assert written == [f"{name}/agent/trajectory.json" for name in rewards]
    for name in written:
        assert canonical(json.loads((tmp_path / "out" / name).read_text())) == canonical(
            json.loads((job / name).read_text())
        )


def test_a_score_goes_along_in_extra(tmp_path: Path) -> None:
    job = tmp_path / "job"
    trial(job, "a", {"reward.txt": "0.5"})
    found = converter("atif").read(job)
    write("atif", found, tmp_path / "out")
    document = json.loads((tmp_path / "out" / "a" / "agent" / "trajectory.json").read_text())
    assert document["extra"]["run"] == 7
    assert set(document["extra"]["ptctl"]) == {"version", "score"}
    assert converter("atif").read(tmp_path / "out").scores[0].reward == 0.5


def test_what_is_edited_in_the_document_is_what_counts(tmp_path: Path) -> None:
    write("atif", native(), tmp_path / "out")
    path = next(path for path in (tmp_path / "out").iterdir() if '"I add.' in path.read_text())
    document = json.loads(path.read_text())
    document["steps"][-1]["message"] = "13"
    document["extra"]["reviewed"] = True
    path.write_text(json.dumps(document))
    rows = {row.index: row for row in converter("atif").read(tmp_path / "out").trajectories}
    assert rows[0].turns[-1].content == "13"
    assert (rows[0].group_id, rows[0].policy_version_max) == ("3/000000", 4)
    found = converter("atif").read(path)
    write("atif", found, tmp_path / "again.json")
    assert canonical(json.loads((tmp_path / "again.json").read_text())) == canonical(document)


def test_an_answer_to_a_call_that_could_not_be_read_names_no_call(tmp_path: Path) -> None:
    """Harbor refuses a result whose call is not among the step's."""
    write("atif", native(), tmp_path / "out")
    document = next(
        document
        for path in (tmp_path / "out").iterdir()
        if len((document := json.loads(path.read_text()))["steps"]) > 1
    )
    step = document["steps"][1]
    assert [call["tool_call_id"] for call in step["tool_calls"]] == ["0"]
    assert step["message"] == "I add.  and <tool_call>{"
    assert step["observation"]["results"] == [{"source_call_id": "0", "content": "12"}, {"content": "what?"}]


@pytest.mark.parametrize(
    ("document", "told"),
    [
        (changed("schema_version", to="ATIF-v2.0"), "`schema_version` is 'ATIF-v2.0'"),
        (changed("schema_version", to=...), "`schema_version` is missing"),
        (changed("agent", to=...), "`agent` is missing"),
        (changed("agent", "tool_definitions", to=[3]), "`agent`: tool 0: not a JSON object"),
        (changed("steps", to={}), "`steps` is an object, not an array"),
        (changed("steps", 1, to=7), "`steps[1]`: not a JSON object"),
        (changed("steps", 1, "source", to="robot"), "`steps[1]`: unknown `source` 'robot'"),
        (changed("steps", 0, "timestamp", to="noon"), "`steps[0]`: `timestamp` 'noon' is no ISO 8601 time"),
        (changed("steps", 2, "tool_calls", 1, "arguments", to="{}"), "tool_calls[1]: `arguments` is a string"),
        (changed("steps", 2, "metrics", "logprobs", to=[-1]), "2 token ids but 1 log-probabilities"),
        (changed("steps", 2, "metrics", "prompt_token_ids", 1, to="x"), "`steps[2]`.metrics: token ids must be"),
        (changed("steps", 2, "metrics", "prompt_tokens", to=1.5), "`prompt_tokens` is a number, not an integer"),
        (changed("steps", 2, "observation", "results", 0, "content", to=3), "`content` is neither text"),
    ],
)
def test_what_is_wrong_is_named(tmp_path: Path, document: Any, told: str) -> None:
    with pytest.raises(DataError) as caught:
        read(tmp_path, document)
    assert told in str(caught.value)
    assert "doc.json" in str(caught.value)


def test_sources_and_outputs(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no trajectory"):
        converter("atif").read(tmp_path)
    (tmp_path / "dir").mkdir()
    with pytest.raises(CannotCreate, match="dir exists"):
        write("atif", native(), tmp_path / "dir")
    with pytest.raises(UsageError, match="2 trajectories are 2 documents"):
        write("atif", native(), tmp_path / "one.json")
    for name in ("x.json", "y.json"):
        (tmp_path / "dir" / name).write_text(json.dumps(DOCUMENT))
    assert len(converter("atif").read(tmp_path / "dir").trajectories) == 2


def test_a_path_in_a_shard_does_not_leave_the_directory(tmp_path: Path) -> None:
    from dataclasses import replace

    found = read(tmp_path, DOCUMENT)
    row = replace(found.trajectories[0], original_json='{"atif":{"changes":[],"path":"../../x.json"}}')
    with pytest.raises(DataError, match="no name inside"):
        write("atif", replace(found, trajectories=(row,)), tmp_path / "out")
    assert not (tmp_path / "out").exists()
