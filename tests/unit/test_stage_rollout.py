"""`rollout` over the fake engine: every slot ends in exactly one row, whatever happens."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptctl.composition import environment_maker
from ptctl.episode import Player
from ptctl.errors import ConfigConflict, DigestMismatch, Interrupted, RowFailure, TooManyFailures
from ptctl.protocols import EngineSettings, GenerateRequest, Observation
from ptctl.records import Limits, Sampling, Task, Trajectory
from ptctl.shards.dataset import is_complete, shards_in
from ptctl.shards.reader import read_rows
from ptctl.stages import rollout
from ptctl.testing.factories import make_draw, make_simple_task, write_dataset
from ptctl.testing.fake_engine import FakeEngine


def make_batch(tmp_path: Path, num_groups: int = 6, group_size: int = 3, **columns: Any) -> list[Path]:
    tasks = [make_simple_task(f"f/{i}", split="train", **columns) for i in range(num_groups)]
    pool = write_dataset(tmp_path / "tasks", "tasks", [tasks])
    draws = [
        make_draw(task, batch="1", position=i, group_size=group_size, seed=100 + i) for i, task in enumerate(tasks)
    ]
    return list(write_dataset(tmp_path / "batches" / "1", "draws", [draws], inputs=pool))


def make_player(tmp_path: Path, make_environment: Any = None, **engine: Any) -> Player:
    settings = EngineSettings(policy=tmp_path / "none")
    return Player(
        engine=FakeEngine(settings, policy_version=5, **engine),
        make_environment=make_environment or environment_maker("hermes"),
        sampling=Sampling(max_new_tokens=8),
        context_length=200,
        model="fake",
    )


def options(tmp_path: Path, draws: list[Path], player: Player, **changes: Any) -> rollout.RolloutOptions:
    values: dict[str, Any] = {
        "draws": draws,
        "out": tmp_path / "trajectories" / "1",
        "player": player,
        "policy": "p",
        "tool_call_format": "hermes",
        "max_in_flight": 4,
        "max_attempts": 2,
        "shard_rows": 5,
        "shard_interval_s": 0.02,
        "grace_s": 5.0,
    }
    return rollout.RolloutOptions(**(values | changes))


def run(chosen: rollout.RolloutOptions) -> list[Trajectory]:
    async def go() -> None:
        await chosen.player.engine.start()
        await rollout.run(chosen)

    asyncio.run(go())
    return rows(chosen.out)


def rows(directory: Path) -> list[Trajectory]:
    found = [row for path in shards_in(directory) for row in read_rows(path, "trajectories")]
    return sorted(found, key=lambda row: (row.group_id, row.index))


def content(row: Trajectory) -> tuple[Any, ...]:
    return (row.trajectory_id, list(row.token_ids), list(row.rollout_logprobs), row.stop_reason, row.attempt)


def slow(request: GenerateRequest) -> float:
    return random.Random(request.seed).uniform(0.001, 0.03)


def test_every_slot_has_one_row_whatever_the_order_of_completion(tmp_path: Path) -> None:
    draws = make_batch(tmp_path)
    committed: list[Path] = []
    fast = run(options(tmp_path, draws, make_player(tmp_path), on_commit=committed.append))
    assert [(row.group_id, row.index) for row in fast] == [(f"1/{i:06d}", j) for i in range(6) for j in range(3)]
    assert committed == shards_in(tmp_path / "trajectories" / "1")
    assert is_complete(tmp_path / "trajectories" / "1")
    # Shards are committed while episodes run: none may be lost between two commits.
    other = run(options(tmp_path, draws, make_player(tmp_path, latency_s=slow), out=tmp_path / "slow", shard_rows=2))
    assert [content(row) for row in other] == [content(row) for row in fast]
    assert len(shards_in(tmp_path / "slow")) > 2


def test_rows_hold_what_the_engine_said(tmp_path: Path) -> None:
    row = run(options(tmp_path, make_batch(tmp_path), make_player(tmp_path)))[0]
    assert (row.policy_version_min, row.policy_version_max, row.engine, row.model) == (5, 5, "fake", "fake")
    sampled = [i for i, mask in enumerate(row.loss_mask) if mask]
    assert sampled == list(range(row.version_spans[0].token_start, row.version_spans[0].token_end))
    assert all(row.rollout_logprobs[i] < 0 for i in sampled)
    assert row.costs.num_completion_tokens == len(sampled) == row.turns[-1].num_completion_tokens
    assert row.turns[-1].num_prompt_tokens == row.costs.num_prompt_tokens > 0


def test_resuming_plays_only_what_is_missing(tmp_path: Path) -> None:
    draws = make_batch(tmp_path)
    whole = run(options(tmp_path, draws, make_player(tmp_path)))
    out = tmp_path / "again"
    player = make_player(tmp_path, latency_s=slow)
    calls = 0

    def stop_soon() -> bool:
        nonlocal calls
        calls += 1
        return calls > 2

    with pytest.raises(Interrupted):
        run(options(tmp_path, draws, player, out=out, stopped=stop_soon, shard_rows=1))
    some = rows(out)
    assert 0 < len(some) < len(whole)
    assert not is_complete(out)
    second = make_player(tmp_path)
    assert [content(row) for row in run(options(tmp_path, draws, second, out=out))] == [content(row) for row in whole]
    assert len(second.engine.requests) == len(whole) - len(some)  # type: ignore[attr-defined]
    third = make_player(tmp_path)
    run(options(tmp_path, draws, third, out=out))
    assert third.engine.requests == []  # type: ignore[attr-defined]


def test_another_policy_or_sampling_is_a_conflict(tmp_path: Path) -> None:
    draws = make_batch(tmp_path)
    run(options(tmp_path, draws, make_player(tmp_path)))
    (tmp_path / "trajectories" / "1" / "manifest.json").unlink()
    player = replace(make_player(tmp_path), sampling=Sampling(max_new_tokens=8, temperature=0.5))
    with pytest.raises(ConfigConflict, match=r"temperature: 1\.0 there, 0\.5 now"):
        run(options(tmp_path, draws, player))
    with pytest.raises(ConfigConflict, match="policy: 'p' there, 'q' now"):
        run(options(tmp_path, draws, make_player(tmp_path), policy="q"))


def test_an_engine_failure_is_tried_again_and_then_a_typed_row(tmp_path: Path) -> None:
    def script(fails: Callable[[GenerateRequest], bool]) -> Callable[[GenerateRequest], str]:
        def speak(request: GenerateRequest) -> str:
            if fails(request):
                raise RowFailure("connection reset", kind="engine")
            return "x"

        return speak

    draws = make_batch(tmp_path, num_groups=2, group_size=2)
    seen: set[str] = set()

    def first_time(request: GenerateRequest) -> bool:
        task = request.task
        assert task is not None
        new = task.task_id not in seen
        seen.add(task.task_id)
        return new

    found = run(options(tmp_path, draws, make_player(tmp_path, script=script(first_time))))
    assert sorted(row.attempt for row in found) == [0, 0, 1, 1]
    assert {row.stop_reason for row in found} == {"completed"}

    with pytest.raises(TooManyFailures, match="4 of 4"):
        run(options(tmp_path, draws, make_player(tmp_path, script=script(lambda request: True)), out=tmp_path / "bad"))
    for row in rows(tmp_path / "bad"):
        assert (row.stop_reason, row.attempt, row.final_answer) == ("engine_error", 1, None)
        assert row.error is not None
        assert row.error.message == "connection reset"


class BrokenEnvironment:
    name = "broken"
    version = "1"
    closed = 0

    def __init__(self, where: str) -> None:
        self.where = where

    async def reset(self) -> Any:
        if self.where == "reset":
            raise KeyError("tools")
        return make_simple_task().prompt

    async def step(self, content: str) -> Observation:
        if self.where == "hang":
            await asyncio.sleep(60)
        raise ZeroDivisionError("boom")

    def final_state_json(self) -> None:
        return None

    async def close(self) -> None:
        BrokenEnvironment.closed += 1


@pytest.mark.parametrize(("where", "kind"), [("reset", "KeyError"), ("step", "ZeroDivisionError: boom")])
def test_a_crash_of_the_environment_is_the_rows_failure_with_its_traceback(
    tmp_path: Path, where: str, kind: str
) -> None:
    BrokenEnvironment.closed = 0
    draws = make_batch(tmp_path, num_groups=1, group_size=2)
    player = make_player(tmp_path, lambda task, seed: BrokenEnvironment(where), script=lambda request: "x")
    with pytest.raises(TooManyFailures):
        run(options(tmp_path, draws, player))
    for row in rows(tmp_path / "trajectories" / "1"):
        assert row.stop_reason == "env_error"
        assert row.error is not None
        assert kind in row.error.message
        assert "Traceback" in (row.error.detail or "")
    assert BrokenEnvironment.closed == 4  # two rows, two attempts each


def test_the_whole_episode_has_a_deadline(tmp_path: Path) -> None:
    draws = make_batch(tmp_path, num_groups=1, group_size=1, limits=Limits(episode_timeout_s=0.1))
    player = make_player(tmp_path, lambda task, seed: BrokenEnvironment("hang"), script=lambda request: "x")
    (row,) = run(options(tmp_path, draws, player))
    assert (row.stop_reason, row.final_answer) == ("timeout", "x")


def test_limits_of_tokens_are_typed_and_nothing_is_cut(tmp_path: Path) -> None:
    player = make_player(tmp_path, script=lambda request: "x" * 50)
    (row,) = run(options(tmp_path, make_batch(tmp_path, 1, 1), player))
    assert (row.stop_reason, row.costs.num_completion_tokens, row.final_answer) == ("truncated_tokens", 8, None)
    tight = replace(make_player(tmp_path), context_length=5)
    (row,) = run(options(tmp_path, make_batch(tmp_path / "b", 1, 1), tight, out=tmp_path / "tight"))
    assert (row.stop_reason, row.costs.num_completion_tokens) == ("truncated_context", 0)


def test_a_task_that_was_changed_after_the_draw_is_refused(tmp_path: Path) -> None:
    task = make_simple_task("f/0")
    changed: Task = make_simple_task("f/0", target_json='"43"')
    pool = write_dataset(tmp_path / "tasks", "tasks", [[changed]])
    draws = write_dataset(tmp_path / "batches" / "1", "draws", [[make_draw(task)]], inputs=pool)
    with pytest.raises(DigestMismatch, match="f/0"):
        run(options(tmp_path, list(draws), make_player(tmp_path)))
    assert shards_in(tmp_path / "trajectories" / "1") == []
