"""`score`: three-valued, resumable, and never a reward for what failed around the policy."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ptctl.errors import ConfigConflict, Interrupted, RowFailure, TooManyFailures, UsageError
from ptctl.protocols import Sandbox, Verdict
from ptctl.records import RowError, Score, Task, Trajectory
from ptctl.shards.dataset import is_complete, shards_in
from ptctl.shards.reader import read_rows
from ptctl.stages import score
from ptctl.testing.factories import make_draw, make_simple_task, make_trajectory, write_dataset


class Scripted:
    """A verifier that does what the trajectory's answer says."""

    name = "scripted"
    version = "3"
    needs_sandbox = False

    def __init__(self, config: Mapping[str, Any]) -> None:
        if config:
            raise UsageError(f"unknown setting {next(iter(config))!r}")

    def verify(self, task: Task, trajectory: Trajectory, sandbox: Sandbox | None) -> Verdict:
        answer = trajectory.final_answer
        if answer == "crash":
            raise ZeroDivisionError("in the verifier")
        if answer == "cannot":
            raise RowFailure("sandbox is gone", kind="sandbox")
        assert (sandbox is not None) == self.needs_sandbox
        return Verdict(reward=0.5 if answer == "half" else 1.0, passed=answer == "right", answer=answer)


class InSandbox(Scripted):
    name = "in_sandbox"
    needs_sandbox = True


def make_rows(tmp_path: Path, answers: list[str], shards: int = 1, **columns: Any) -> list[Path]:
    tasks = [make_simple_task(f"f/{i}", split="train", verifier="scripted") for i in range(len(answers))]
    pool = write_dataset(tmp_path / "tasks", "tasks", [tasks])
    draws = [make_draw(task, batch="1", position=i) for i, task in enumerate(tasks)]
    drawn = write_dataset(tmp_path / "batches" / "1", "draws", [draws], inputs=pool)
    rows = [make_trajectory(draw, final_answer=answer, **columns) for draw, answer in zip(draws, answers, strict=True)]
    return list(
        write_dataset(
            tmp_path / "trajectories" / "1", "trajectories", [rows[i::shards] for i in range(shards)], inputs=drawn
        )
    )


def options(
    tmp_path: Path, shards: list[Path], verifier: type[Scripted] = Scripted, **changes: Any
) -> score.ScoreOptions:
    values: dict[str, Any] = {
        "trajectories": shards,
        "out": tmp_path / "scores" / "1",
        "make_verifier": lambda name, config: verifier(config),
        "make_sandbox": lambda: FakeSandbox(),
    }
    return score.ScoreOptions(**(values | changes))


class FakeSandbox:
    name = "fake"
    closed = 0

    def close(self) -> None:
        FakeSandbox.closed += 1


def rows(directory: Path) -> dict[str, Score]:
    return {row.task_id: row for path in shards_in(directory) for row in read_rows(path, "scores")}


def test_value_and_typed_absence_of_one(tmp_path: Path) -> None:
    shards = make_rows(tmp_path, ["right", "wrong", "half", "crash", "cannot"])
    score.run(options(tmp_path, shards))
    found = rows(tmp_path / "scores" / "1")
    assert [(found[f"f/{i}"].reward, found[f"f/{i}"].passed) for i in range(3)] == [
        (1.0, True),
        (1.0, False),
        (0.5, False),
    ]
    crash, cannot = found["f/3"], found["f/4"]
    assert (crash.status, crash.reason, crash.reward, crash.passed) == ("unscored", "verifier_error", None, None)
    assert crash.error is not None
    assert "ZeroDivisionError" in crash.error.message
    assert "Traceback" in (crash.error.detail or "")
    assert (cannot.reason, cannot.reward) == ("sandbox_error", None)
    assert (found["f/0"].verifier, found["f/0"].verifier_version) == ("scripted", "3")
    assert is_complete(tmp_path / "scores" / "1")


@pytest.mark.parametrize(
    ("stop", "reason"), [("env_error", "env_error"), ("engine_error", "engine_error"), ("cancelled", "cancelled")]
)
def test_what_the_infrastructure_broke_is_unscored_and_not_shown_to_the_verifier(
    tmp_path: Path, stop: str, reason: str
) -> None:
    shards = make_rows(tmp_path, ["right"], stop_reason=stop, error=RowError(kind="engine", message="reset"))
    with pytest.raises(TooManyFailures, match="1 of 1"):
        score.run(options(tmp_path, shards))
    found = rows(tmp_path / "scores" / "1")["f/0"]
    assert (found.status, found.reason, found.reward) == ("unscored", reason, None)
    assert found.error == RowError(kind="engine", message="reset")


@pytest.mark.parametrize("stop", ["timeout", "truncated_tokens", "truncated_turns"])
def test_the_policys_own_limits_are_verified(tmp_path: Path, stop: str) -> None:
    score.run(options(tmp_path, make_rows(tmp_path, ["right"], stop_reason=stop)))
    assert rows(tmp_path / "scores" / "1")["f/0"].reward == 1.0


def test_max_errors_counts_and_what_succeeded_is_committed(tmp_path: Path) -> None:
    shards = make_rows(tmp_path, ["right", "crash", "crash"])
    with pytest.raises(TooManyFailures, match="2 of 3"):
        score.run(options(tmp_path, shards, max_errors=1))
    assert rows(tmp_path / "scores" / "1")["f/0"].reward == 1.0
    score.run(options(tmp_path, shards, max_errors=2, out=tmp_path / "b"))


def test_resuming_scores_only_what_is_missing_and_shards_follow_their_input(tmp_path: Path) -> None:
    shards = make_rows(tmp_path, ["right"] * 6, shards=3)
    done: list[Path] = []
    with pytest.raises(Interrupted):
        score.run(options(tmp_path, shards, stopped=lambda: len(done) == 2, on_commit=done.append))
    assert (len(rows(tmp_path / "scores" / "1")), is_complete(tmp_path / "scores" / "1")) == (4, False)
    again: list[Path] = []
    score.run(options(tmp_path, shards, on_commit=again.append))
    assert (again[:2], len(again)) == (done, 3)
    assert len(rows(tmp_path / "scores" / "1")) == 6


def test_a_sandbox_is_made_once_and_only_when_asked_for(tmp_path: Path) -> None:
    FakeSandbox.closed = 0
    shards = make_rows(tmp_path, ["right"] * 20)
    score.run(options(tmp_path, shards))
    assert FakeSandbox.closed == 0
    score.run(options(tmp_path, shards, InSandbox, out=tmp_path / "b"))
    assert FakeSandbox.closed == 1
    assert len(rows(tmp_path / "b")) == 20


def test_another_version_of_a_verifier_is_another_dataset(tmp_path: Path) -> None:
    shards = make_rows(tmp_path, ["right"] * 4, shards=2)
    score.run(options(tmp_path, shards[:1]))
    (tmp_path / "scores" / "1" / "manifest.json").unlink()

    class Next(Scripted):
        version = "4"

    with pytest.raises(ConfigConflict, match="was scored by scripted 3, this is scripted 4"):
        score.run(options(tmp_path, shards, Next))
    score.run(options(tmp_path, shards, Next, out=tmp_path / "beside"))
    assert {row.verifier_version for row in rows(tmp_path / "beside").values()} == {"4"}
