"""`ptctl show`: one trajectory for people and for programs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptctl.records import Component, RowError, Turn, VersionSpan
from ptctl.testing.factories import (
    make_draw,
    make_score,
    make_simple_task,
    make_tool_call,
    make_trajectory,
    write_dataset,
)

HOSTILE = "\x1b[31mred\x1b]0;title\x07"


def ptctl(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ptctl", *map(str, arguments)]
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env={**os.environ, "FORCE_COLOR": "0"}
    )


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("shown")
    draw = make_draw(make_simple_task())
    turns = (
        Turn(role="user", content="a question", segment=0, token_start=0, token_end=3),
        Turn(
            role="assistant", content=f"let me see {HOSTILE}", segment=0, token_start=3, token_end=5, queue_s=0.25,
            engine_s=1.5, environment_s=0.125, reward=0.5, tool_calls=(make_tool_call(),), finish_reason="length",
        ),
    )  # fmt: skip
    spans = (
        VersionSpan(policy_version=3, token_start=3, token_end=4),
        VersionSpan(policy_version=4, token_start=4, token_end=5),
    )
    row = make_trajectory(
        draw, trajectory_id="abc123", turns=turns, version_spans=spans, policy_version_min=3, policy_version_max=4
    )
    components = (
        Component(name="tests", value=0.75, weight=2.0, passed=False),
        Component(name="format", value=None, weight=0.0, turn=1),
    )
    scores = [
        make_score(row, reward=0.5, passed=False, components=components, answer=HOSTILE, judged_by="judge"),
        make_score(row, reward=None, verifier_version="2", error=RowError(kind="verifier", message="it\nfell")),
    ]
    shards = write_dataset(directory / "trajectories", "trajectories", [[row, make_trajectory(draw, index=1)]])
    write_dataset(directory / "scores", "scores", [scores], shards)
    return directory


def test_turns_with_times_versions_calls_and_rewards(run: Path) -> None:
    done = ptctl("show", "abc", run)
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert "engine fake, policy 3-4, temperature 1, seed 0" in lines
    (head,) = [line for line in lines if line.startswith("[1] assistant")]
    assert "tokens 3-5  queue 0.250 s, engine 1.500 s, environment 0.125 s" in head
    assert "policy 3 at 3-4, 4 at 4-5" in head
    assert head.endswith("reward 0.5  ended by length")
    assert "[0] user  tokens 0-3" in lines
    assert "    call calculator {}: parsed, known tool, valid arguments, executed, succeeded" in lines
    assert "score by exact 1: reward 0.5, failed, judged by judge" in lines
    assert "    tests: 0.75 × 2, failed" in lines
    assert "    format: none × 0, turn 1" in lines
    assert "score by exact 2: reward none, verifier_error" in lines


def test_model_text_does_not_reach_the_terminal(run: Path) -> None:
    text = ptctl("show", "abc", run).stdout
    assert not {"\x1b", "\x07", "\r"} & set(text)
    assert "let me see \\x1b[31mred" in text
    assert "    answer \\x1b[31mred" in text


@pytest.mark.parametrize("format_name", ["json", "jsonl"])
def test_the_whole_row_for_programs(run: Path, format_name: str) -> None:
    done = ptctl("show", "abc123", run, "--format", format_name)
    (line,) = done.stdout.splitlines()
    whole = json.loads(line)
    assert whole["trajectory"]["token_ids"] == [1, 2, 3, 4, 5]
    assert whole["trajectory"]["loss_mask"] == [False, False, False, True, True]
    assert whole["trajectory"]["turns"][1]["content"] == f"let me see {HOSTILE}"
    assert [score["reward"] for score in whole["scores"]] == [0.5, None]
    assert whole["scores"][0]["components"][0]["name"] == "tests"


@pytest.mark.parametrize(
    ("format_name", "told"), [("csv", "cannot be shown as csv"), ("parquet", "as parquet"), ("xml", "unknown format")]
)
def test_formats_that_it_has_not(run: Path, format_name: str, told: str) -> None:
    done = ptctl("show", "abc123", run, "--format", format_name)
    assert (done.returncode, done.stdout) == (2, "")
    assert told in done.stderr.splitlines()[0]
    assert "known: table, json, jsonl" in done.stderr.splitlines()[1]


def test_a_reader_that_leaves_ends_it_with_141_and_silence(run: Path) -> None:
    command = f"{sys.executable} -m ptctl show abc {run} | (exec <&-; sleep 0.2); echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")
