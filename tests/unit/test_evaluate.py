"""What `eval` counts: slots, coverage, successes, strata, duplicates, lineage."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptctl.errors import (
    CorruptShard,
    DataError,
    DigestMismatch,
    DuplicateRow,
    InputNotFound,
    SchemaMismatch,
    UsageError,
)
from ptctl.evaluation.gate import Gate
from ptctl.evaluation.report import Outcome, Report, Stratum
from ptctl.records import Costs, Message, StopReason
from ptctl.shards.reader import read_rows
from ptctl.shards.writer import Lineage, write_rows
from ptctl.stages.evaluate import EvaluateOptions, run
from ptctl.testing.factories import (
    Batch,
    make_draw,
    make_score,
    make_simple_task,
    make_tool_call,
    make_trajectory,
    write_batch,
    write_dataset,
)


def evaluate(batch: Batch, baseline: Batch | None = None, **options: Any) -> Report:
    return run(EvaluateOptions(scores=batch.scores, baseline=baseline.scores if baseline else (), **options))


def cells(report: Report, key: str) -> dict[str, Stratum]:
    return {stratum.value: stratum for stratum in report.strata if stratum.key == key}


def test_unscored_slots_lower_the_coverage_and_not_the_rate(tmp_path: Path) -> None:
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0] * 6 + [0.0] + [None] * 3})
    report = evaluate(batch, gate=Gate(min_rate=0.0))
    assert (report.overall.n_success, report.overall.n_scored, report.overall.n_slots) == (6, 7, 10)
    assert report.overall.coverage == 0.7
    assert report.overall.rate == pytest.approx(6 / 7)
    assert report.outcome == Outcome.INCONCLUSIVE
    assert report.candidate.process.unscored == {"verifier_error": 3}
    assert "candidate: 3 of 10 slots have no score: 3 verifier_error" in report.warnings


def test_tasks_without_a_score_are_in_the_coverage_only(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}") for n in range(4)]
    report = evaluate(write_batch(tmp_path, tasks, {t.task_id: [1.0 if n == 0 else None] for n, t in enumerate(tasks)}))
    assert report.overall.coverage == 0.25
    assert (report.overall.n_tasks, report.overall.n_scored_tasks, report.overall.rate) == (4, 1, 1.0)
    assert report.outcome == Outcome.REPORTED


def test_missing_slots_are_expected_all_the_same(tmp_path: Path) -> None:
    report = evaluate(write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0]}, group_size=4))
    assert (report.overall.n_slots, report.overall.coverage) == (4, 0.25)
    assert report.candidate.process.unscored == {"missing": 3}
    assert report.candidate.process.infrastructure_errors.count == 3


def test_a_draw_shard_that_nothing_came_of_counts(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}") for n in range(2)]
    pool = write_dataset(tmp_path / "tasks", "tasks", [tasks])
    draws = [make_draw(task, position=n, group_size=2) for n, task in enumerate(tasks)]
    shards = write_dataset(tmp_path / "draws", "draws", [[draws[0]], [draws[1]]], pool)
    played = [make_trajectory(draws[0], index=n) for n in range(2)]
    trajectories = write_dataset(tmp_path / "trajectories", "trajectories", [played], shards[:1])
    scores = write_dataset(tmp_path / "scores", "scores", [[make_score(row) for row in played]], trajectories)
    report = run(EvaluateOptions(scores=scores))
    assert (report.overall.n_slots, report.overall.n_scored, report.overall.coverage) == (4, 2, 0.5)


def test_environment_errors_alone_are_nothing_evaluated(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}") for n in range(5)]
    batch = write_batch(
        tmp_path, tasks, {task.task_id: [None] * 10 for task in tasks}, stop_reason=StopReason.ENV_ERROR
    )
    report = evaluate(batch, gate=Gate(min_rate=0.0))
    assert (report.outcome, int(report.exit_code), report.overall.coverage) == (Outcome.NOTHING_EVALUATED, 12, 0.0)
    assert report.overall.rate is None
    assert report.candidate.process.infrastructure_errors.share == 1.0
    assert report.candidate.process.stop_reasons["env_error"].count == 50


def test_success_is_passed_or_a_whole_reward(tmp_path: Path) -> None:
    assert evaluate(write_batch(tmp_path / "half", [make_simple_task()], {"sum/0": [0.5, 0.5]})).overall.n_success == 0
    task = make_simple_task()
    pool = write_dataset(tmp_path / "tasks", "tasks", [[task]])
    draw = make_draw(task, group_size=4)
    draws = write_dataset(tmp_path / "draws", "draws", [[draw]], pool)
    played = [make_trajectory(draw, index=n) for n in range(4)]
    trajectories = write_dataset(tmp_path / "trajectories", "trajectories", [played], draws)
    rows = [
        make_score(played[0], reward=1 - 1e-7, passed=None),  # within the tolerance
        make_score(played[1], reward=1 - 1e-5, passed=None),
        make_score(played[2], reward=1.0, passed=False),  # `passed` has the last word
        make_score(played[3], reward=0.5, passed=True),
    ]
    report = run(EvaluateOptions(scores=write_dataset(tmp_path / "scores", "scores", [rows], trajectories)))
    assert (report.overall.n_success, report.overall.n_scored) == (2, 4)
    neither = write_dataset(tmp_path / "other", "scores", [[replace(rows[0], reward=None)]], trajectories)
    with pytest.raises(DataError, match="neither reward nor passed"):
        run(EvaluateOptions(scores=neither))


def test_interval_is_wilson_over_tasks(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}") for n in range(10)]
    report = evaluate(write_batch(tmp_path, tasks, {t.task_id: [float(n < 8)] for n, t in enumerate(tasks)}))
    assert (report.overall.rate, report.overall.thin) == (0.8, False)
    assert (report.overall.ci_low, report.overall.ci_high) == pytest.approx((0.4901624715, 0.9433178485), abs=1e-10)


def test_duplicates_are_refused(tmp_path: Path) -> None:
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0, 0.0]})
    rows = read_rows(batch.scores[0], "scores")
    again = write_rows(rows[:1], "scores", tmp_path / "again", Lineage(inputs=batch.trajectories))
    with pytest.raises(DuplicateRow, match=rows[0].trajectory_id) as caught:
        run(EvaluateOptions(scores=[*batch.scores, again]))
    assert caught.value.exit_code == 65
    report = run(EvaluateOptions(scores=[*batch.scores, *batch.scores]))  # the same shard named twice is one shard
    assert report.overall.n_scored == 2


def _attempts(directory: Path, rewards: Sequence[float | None]) -> Batch:
    """One slot, with an attempt for each reward."""
    task = make_simple_task()
    pool = write_dataset(directory / "tasks", "tasks", [[task]])
    draw = make_draw(task)
    draws = write_dataset(directory / "draws", "draws", [[draw]], pool)
    played = [make_trajectory(draw, attempt=n, costs=Costs(num_completion_tokens=10)) for n in range(len(rewards))]
    trajectories = write_dataset(directory / "trajectories", "trajectories", [played], draws)
    rows = [make_score(row, reward=reward) for row, reward in zip(played, rewards, strict=True)]
    scores = write_dataset(directory / "scores", "scores", [rows], trajectories)
    return Batch(scores=scores, trajectories=trajectories, draws=draws, tasks=pool)


def test_the_last_attempt_counts_and_every_attempt_costs(tmp_path: Path) -> None:
    report = evaluate(_attempts(tmp_path, [None, None, 1.0]))
    assert (report.overall.n_slots, report.overall.n_scored, report.overall.n_success) == (1, 1, 1)
    assert (report.candidate.process.num_trajectories, report.candidate.process.num_retries) == (1, 2)
    assert report.candidate.cost.completion_tokens == 30


def test_two_scored_attempts_of_a_slot_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DuplicateRow, match=r"slot 0 of group 'eval-0/000000' \(task sum/0\) has two final scores"):
        evaluate(_attempts(tmp_path, [0.0, 1.0]))


def test_difficulty_zero_is_a_stratum_and_null_is_unknown(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}", difficulty=d) for n, d in enumerate((0.0, 0.0, 10.0, 2.0, None))]
    report = evaluate(write_batch(tmp_path, tasks, {t.task_id: [1.0] for t in tasks}), strata=("difficulty",))
    found = cells(report, "difficulty")
    assert list(found) == ["0", "2", "10", "unknown"]
    assert [stratum.success.n_tasks for stratum in found.values()] == [2, 1, 1, 1]
    assert all(stratum.success.thin for stratum in found.values())


def test_strata_of_the_map_column(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}", strata={"it's": "x"} if n else {}) for n in range(3)]
    batch = write_batch(tmp_path, tasks, {task.task_id: [1.0] for task in tasks})
    report = evaluate(batch, strata=("strata.it's", "strata.nobody"))
    assert {value: s.success.n_tasks for value, s in cells(report, "strata.it's").items()} == {"x": 2, "unknown": 1}
    assert "no task says anything of strata.nobody" in report.warnings


def test_prompt_length_is_cut_at_terciles_of_the_tasks_of_both_sides(tmp_path: Path) -> None:
    prompts = [(Message(role="user", content="x" * n),) for n in range(1, 10)]
    tasks = [make_simple_task(f"sum/{n}", prompt=prompt) for n, prompt in enumerate(prompts)]
    baseline = write_batch(tmp_path / "a", tasks, {task.task_id: [1.0] for task in tasks})
    candidate = write_batch(tmp_path / "b", tasks, {task.task_id: [1.0] for task in tasks[:3]}, pool=baseline.tasks)
    report = evaluate(candidate, baseline, strata=("prompt_length",))
    found = cells(report, "prompt_length")
    assert {value: stratum.success.n_tasks for value, stratum in found.items()} == {
        "1 to 3": 3,
        "4 to 6": 0,
        "7 to 9": 0,
    }
    assert found["4 to 6"].success.rate is None


def test_calls_of_the_candidate_are_shown_and_never_paired(tmp_path: Path) -> None:
    calls = [make_tool_call(str(n)) for n in range(4)]
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0]}, group_size=2, tool_calls=calls)
    report = evaluate(batch, batch, strata=("num_tool_calls",))
    found = cells(report, "num_tool_calls")
    assert found["3-4"].success.n_slots == 1
    assert (found["unknown"].success.n_slots, found["unknown"].success.n_scored) == (1, 0)
    assert not found["3-4"].fixed
    assert report.paired is not None
    assert report.paired.strata == ()


def test_tool_calls_by_level(tmp_path: Path) -> None:
    levels = ("written", "parsed", "known", "valid", "executed", "succeeded", "succeeded")
    calls = [make_tool_call(str(n), level=level) for n, level in enumerate(levels)]
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0, 1.0]}, num_shards=2, tool_calls=calls)
    process = evaluate(batch).candidate.process
    assert process.num_tool_calls == 14
    assert process.tool_calls_per_trajectory == 7
    counts = {level: reached.count for level, reached in process.tool_calls.items()}
    assert counts == {"parsed": 12, "known": 10, "valid": 8, "executed": 6, "succeeded": 4}
    assert process.tool_calls["succeeded"].share == pytest.approx(4 / 14)


def test_costs(tmp_path: Path) -> None:
    costs = Costs(num_turns=3, num_prompt_tokens=100, num_cached_tokens=40, num_completion_tokens=20, engine_s=0.1,
                  environment_s=0.2, sandbox_s=1.5, wall_s=2.0)  # fmt: skip
    tasks = [make_simple_task(f"sum/{n}") for n in range(2)]
    rewards = {"sum/0": [1.0, 0.0], "sum/1": [1.0, 1.0]}
    batch = write_batch(tmp_path, tasks, rewards, costs=costs, started_at=100.0, ended_at=102.5,
                        stop_reason=StopReason.TRUNCATED_TURNS)  # fmt: skip
    report = evaluate(batch)
    cost = report.candidate.cost
    assert (cost.prompt_tokens, cost.completion_tokens, cost.cached_share) == (400, 80, 0.4)
    assert (cost.tokens_per_task, cost.tokens_per_success) == (240.0, 160.0)
    assert (cost.engine_s, cost.environment_s, cost.sandbox_s, cost.wall_s, cost.elapsed_s) == (0.4, 0.8, 6.0, 8.0, 2.5)
    assert report.candidate.process.turns_per_trajectory == 3
    assert report.candidate.process.truncated.share == 1.0


def test_the_order_of_shards_never_changes_a_number(tmp_path: Path) -> None:
    generator = random.Random(0)
    tasks = [make_simple_task(f"sum/{n}", domain=f"d{n % 3}") for n in range(12)]
    rewards = {task.task_id: [generator.random() for _ in range(5)] for task in tasks}
    seen: set[str] = set()
    for num_shards in (1, 2, 5):
        batch = write_batch(tmp_path / str(num_shards), tasks, rewards, num_shards=num_shards,
                            costs=Costs(engine_s=0.1, wall_s=1 / 3))  # fmt: skip
        for scores in (batch.scores, batch.scores[::-1]):
            values = run(EvaluateOptions(scores=scores, strata=("domain", "num_tool_calls"))).to_json()
            del values["inputs"]
            seen.add(json.dumps(values))
    assert len(seen) == 1


def test_mean_reward_over_shards_of_whole_and_broken_numbers(tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{n}") for n in range(6)]
    values = (1, 0.5, 0, 0.7, 1.5, -0.5)
    batch = write_batch(tmp_path, tasks, {t.task_id: [v] for t, v in zip(tasks, values, strict=True)}, num_shards=2)
    assert evaluate(batch).overall.mean_reward == pytest.approx(0.5333333, abs=1e-7)


def test_a_task_that_was_edited_after_it_was_drawn_is_refused(tmp_path: Path) -> None:
    task, edited = make_simple_task(), make_simple_task(target_json='"43"')
    pool = write_dataset(tmp_path / "tasks", "tasks", [[edited]])
    with pytest.raises(DigestMismatch, match="task 'sum/0'"):
        evaluate(write_batch(tmp_path, [task], {"sum/0": [1.0]}, pool=pool))
    ours = write_batch(tmp_path / "a", [task], {"sum/0": [1.0]})
    theirs = write_batch(tmp_path / "b", [edited], {"sum/0": [1.0]})
    with pytest.raises(DigestMismatch, match="task 'sum/0' is another task on the two sides"):
        evaluate(ours, theirs)


def test_what_the_lineage_does_not_have_is_named(tmp_path: Path) -> None:
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0]})
    rows = read_rows(batch.scores[0], "scores")

    def scores(name: str, row: Any, inputs: Sequence[Path]) -> EvaluateOptions:
        return EvaluateOptions(scores=[write_rows([row], "scores", tmp_path / name, Lineage(inputs=tuple(inputs)))])

    with pytest.raises(InputNotFound, match="names no trajectories among its inputs"):
        run(scores("a", rows[0], ()))
    with pytest.raises(InputNotFound, match="trajectory 'nobody' was scored"):
        run(scores("b", replace(rows[0], trajectory_id="nobody"), batch.trajectories))
    with pytest.raises(DataError, match="slot 1 in group 'eval-0/000000', which has 1 slots"):
        run(scores("c", replace(rows[0], index=1), batch.trajectories))
    with pytest.raises(DataError, match="group 'eval-9/000000', which no draw"):
        run(scores("d", replace(rows[0], group_id="eval-9/000000"), batch.trajectories))
    batch.trajectories[0].unlink()
    with pytest.raises(InputNotFound, match="is gone"):
        evaluate(batch)


def test_bad_shards_are_refused_by_name(tmp_path: Path) -> None:
    batch = write_batch(tmp_path, [make_simple_task()], {"sum/0": [1.0] * 40})
    with pytest.raises(SchemaMismatch, match="holds draws, not scores"):
        run(EvaluateOptions(scores=batch.draws))
    content = bytearray(batch.trajectories[0].read_bytes())
    content[4:-2000] = bytes(len(content) - 2004)  # pages are gone, the footer is whole
    batch.trajectories[0].write_bytes(content)
    with pytest.raises(CorruptShard, match=batch.trajectories[0].name):
        evaluate(batch)
    batch.scores[0].write_bytes(content[:100])
    with pytest.raises(CorruptShard, match=batch.scores[0].name):
        evaluate(batch)


def test_paths_are_no_patterns(tmp_path: Path) -> None:
    for name, reward in (("run[1]*", 1.0), ("run1x", 0.0)):
        batch = write_batch(tmp_path / name / "k=v", [make_simple_task()], {"sum/0": [reward]})
        assert evaluate(batch).overall.rate == reward


def test_nothing_at_all(tmp_path: Path) -> None:
    report = run(EvaluateOptions(scores=()))
    assert (report.outcome, int(report.exit_code), report.overall.n_tasks) == (Outcome.NOTHING_EVALUATED, 12, 0)
    assert json.loads(json.dumps(report.to_json(), allow_nan=False)) == report.to_json()


def test_unknown_keys_and_confidence() -> None:
    with pytest.raises(UsageError, match=r"'domian' \(did you mean 'domain'\?\), 'strata.'"):
        run(EvaluateOptions(scores=(), strata=("domian", "strata.")))
    with pytest.raises(UsageError, match="confidence"):
        run(EvaluateOptions(scores=(), confidence=95))


def test_importing_it_is_light() -> None:
    heavy = "('torch', 'transformers', 'megatron')"
    code = f"import sys, ptctl.stages.evaluate; print([m for m in {heavy} if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
