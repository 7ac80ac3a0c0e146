"""`ptctl convert` as a user meets it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from converter_rows import json_lines, write_lines
from ptctl.cli import convert, evaluate, score, show
from ptctl.errors import CannotCreate, DataError, DigestMismatch, InputNotFound, PtctlError, UsageError
from ptctl.shards.dataset import is_complete, shards_in
from ptctl.shards.reader import read_rows
from public_data import verifiers_rollouts

ROLLOUTS = verifiers_rollouts()

WORDLE = ROLLOUTS / "verifiers_wordle"


def run(app: Any, *arguments: Any) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def error(*arguments: Any) -> PtctlError:
    caught = run(convert.app, *arguments).exception
    assert isinstance(caught, PtctlError), caught
    return caught


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("imported") / "run"
    result = run(convert.app, WORDLE, ROLLOUTS / "verifiers_gsm8k", "--from", "verifiers", "-o", out)
    assert result.exit_code == 0, result.output
    printed = [Path(line) for line in result.stdout.splitlines()]
    assert [path.parent.relative_to(out).as_posix() for path in printed] == [
        "tasks",
        *(f"{kind}/{name}" for name in ("verifiers_wordle", "verifiers_gsm8k")
          for kind in ("batches", "trajectories", "scores")),
    ]  # fmt: skip
    assert all(path.is_file() and is_complete(path.parent) for path in printed)
    return out


def test_a_converted_result_is_evaluated(imported: Path) -> None:
    result = run(evaluate.app, imported / "scores" / "verifiers_wordle", "--json")
    assert result.exit_code == 0
    report = json.loads(result.stdout)
    assert (report["overall"]["n_tasks"], report["overall"]["n_slots"], report["overall"]["n_scored"]) == (5, 10, 10)
    assert report["overall"]["rate"] == 1.0
    assert report["process"]["stop_reasons"]["completed"]["count"] == 10


def test_rows_without_a_completion_are_not_evaluated(imported: Path) -> None:
    result = run(evaluate.app, imported / "scores" / "verifiers_gsm8k", "--json")
    assert result.exit_code == 12
    assert json.loads(result.stdout)["process"]["unscored"] == {"engine_error": 4}


def test_a_converted_trajectory_is_shown_with_its_score(imported: Path) -> None:
    row = read_rows(shards_in(imported / "trajectories" / "verifiers_wordle")[0], "trajectories")[0]
    result = run(show.app, row.trajectory_id, imported)
    assert result.exit_code == 0
    assert "score by verifiers imported: reward 1.49333" in result.stdout
    assert "<guess>[crane]</guess>" in result.stdout


def test_converted_trajectories_are_scored_by_the_verifier_that_was_asked_for(tmp_path: Path) -> None:
    rows = [{"input": f"{n}?", "output": f"It is {n}.", "gts": str(n), "score": 0.0, "step": 1} for n in range(3)]
    source = write_lines(tmp_path / "1.jsonl", rows)
    out = tmp_path / "run"
    options = ("--from", "verl", "--verifier", "numeric", "--split", "eval")
    assert run(convert.app, source, *options, "-o", out).exit_code == 0
    result = run(score.app, out / "trajectories" / "1", "-o", tmp_path / "again")
    assert result.exit_code == 0, result.output
    found = [row for shard in shards_in(tmp_path / "again") for row in read_rows(shard, "scores")]
    assert [(row.verifier, row.reward) for row in found] == [("numeric", 1.0)] * 3
    assert {row.split for row in read_rows(shards_in(out / "tasks")[0], "tasks")} == {"eval"}
    # The new scores replace the old ones where the rows go out again.
    back = tmp_path / "back.jsonl"
    options = ("--to", "verl", "--scores", tmp_path / "again")
    assert run(convert.app, out / "trajectories", *options, "-o", back).exit_code == 0
    assert [json.loads(line)["score"] for line in json_lines(back)] == [1.0] * 3


def test_out_again_through_shards(imported: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    scores = imported / "scores" / "verifiers_wordle"
    rows = imported / "trajectories" / "verifiers_wordle"
    result = run(convert.app, rows, "--to", "verifiers", "--scores", scores, "-o", out)
    assert (result.exit_code, result.stdout) == (0, f"{out}\n")
    assert json_lines(out / "results.jsonl") == json_lines(WORDLE / "results.jsonl")
    assert json.loads((out / "metadata.json").read_text()) == json.loads((WORDLE / "metadata.json").read_text())


def test_what_a_format_does_not_hold_is_said(imported: Path, tmp_path: Path) -> None:
    rows = imported / "trajectories" / "verifiers_wordle"
    result = run(convert.app, rows, "--to", "trl", "-o", tmp_path / "sft.jsonl")
    assert result.stdout == f"{tmp_path / 'sft.jsonl'}\n"
    assert "ptctl: trl does not hold: tokens, log-probabilities" in result.stderr


def test_a_pipe_ends_in_convert(imported: Path, tmp_path: Path) -> None:
    paths = "\0".join(str(path) for path in shards_in(imported / "trajectories" / "verifiers_wordle"))
    done = subprocess.run(
        [sys.executable, "-m", "ptctl", "convert", "-", "-0", "--to", "verl", "-o", tmp_path / "1.jsonl"],
        input=paths, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(json_lines(tmp_path / "1.jsonl")) == 10


@pytest.mark.parametrize(
    ("arguments", "kind", "told", "hint"),
    [
        (["x", "-o", "o"], UsageError, "give one of --from and --to", "--help"),
        (["x", "--from", "verl", "--to", "trl", "-o", "o"], UsageError, "give one of", "--help"),
        (["x", "--from", "veril", "-o", "o"], UsageError, "unknown format 'veril'", "did you mean 'verl'?"),
        (["x", "--to", "trl-prefrence", "-o", "o"], UsageError, "unknown format", "did you mean 'trl-preference'?"),
        (["x", "--from", "verl", "--verifier", "exakt", "-o", "o"], UsageError, "unknown verifier 'exakt'", "'exact'"),
        (["x", "--from", "verl", "--scores", "s", "-o", "o"], UsageError, "belong to --to", "drop"),
        (["x", "--to", "verl", "--split", "eval", "-o", "o"], UsageError, "belong to --from", "drop"),
        (["nowhere", "--from", "verl", "-o", "o"], InputNotFound, "no such file or directory: nowhere", ""),
        (["nowhere", "--to", "verl", "-o", "o"], InputNotFound, "no such file or directory: nowhere", ""),
    ],
)
def test_what_is_wrong_is_named_and_nothing_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], kind: type, told: str, hint: str
) -> None:
    monkeypatch.chdir(tmp_path)
    caught = error(*arguments)
    assert isinstance(caught, kind)
    assert told in str(caught)
    assert hint in (caught.hint or "")
    assert list(tmp_path.iterdir()) == []


def test_exit_codes(tmp_path: Path) -> None:
    bad = write_lines(tmp_path / "bad.jsonl", [{"input": "a", "output": "b"}, {"input": 3}])

    def told(*arguments: Any) -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, "-m", "ptctl", "convert", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stderr

    assert told(bad, "--from", "verl", "-o", tmp_path / "o") == (
        65, f"ptctl: error: {bad}:2: `input` is an integer, not a string\n",
    )  # fmt: skip
    assert not (tmp_path / "o").exists()
    (tmp_path / "o" / "tasks").mkdir(parents=True)
    assert told(bad, "--from", "verl", "-o", tmp_path / "o")[0] == 73
    assert told(bad, "--from", "verk", "-o", tmp_path / "o")[0] == 2


def test_existing_output_is_left_alone(imported: Path) -> None:
    with pytest.raises(CannotCreate, match="tasks exists already"):
        raise error(WORDLE, "--from", "verifiers", "-o", imported)


def test_two_sources_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    one = write_lines(tmp_path / "one" / "results.jsonl", [{"example_id": 1, "prompt": "a", "completion": "x"}])
    two = write_lines(tmp_path / "two" / "results.jsonl", [{"example_id": 1, "prompt": "b", "completion": "x"}])
    for path in (one, two):
        path.with_name("metadata.json").write_text('{"env_id": "sums"}')
    assert isinstance(error(one, two, "--from", "verifiers", "-o", tmp_path / "o"), DigestMismatch)
    assert "both named" in str(error(one, one, "--from", "verifiers", "-o", tmp_path / "o"))
    assert not (tmp_path / "o").exists()


def test_scores_of_other_trajectories_are_refused(imported: Path, tmp_path: Path) -> None:
    rows, scores = imported / "trajectories" / "verifiers_wordle", imported / "scores" / "verifiers_gsm8k"
    caught = error(rows, "--to", "verl", "--scores", scores, "-o", tmp_path / "1.jsonl")
    assert isinstance(caught, DataError)
    assert "is of these trajectories" in str(caught)
