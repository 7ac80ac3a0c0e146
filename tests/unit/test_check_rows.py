"""`ptctl check --deep`: rows that do not fit together, streams and spans that do not fit the tokens."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ptctl.checking.problems import ProblemKind
from ptctl.records import Segment, StopReason, Trajectory, VersionSpan
from ptctl.testing.factories import make_draw, make_simple_task, write_dataset
from run_files import Change, again, check, first, found, write_run


@pytest.mark.parametrize(
    ("change", "place", "kind", "told"),
    [
        ({"tasks": again}, "run", ProblemKind.DUPLICATE, "task_id stands more than once: sum/0"),
        ({"draws": again}, "batches", ProblemKind.DUPLICATE, "group_id is drawn more than once: 0/000000"),
        ({"trajectories": again}, "trajectories", ProblemKind.DUPLICATE, "trajectory_id stands more than once"),
        (
            {"trajectories": lambda rows: again(rows, trajectory_id="other")},
            "trajectories", ProblemKind.DUPLICATE, "an attempt at a slot has more than one row: 0/000000[0] attempt 0",
        ),
        (
            {"trajectories": lambda rows: again(rows, trajectory_id="other", attempt=1)},
            "trajectories", ProblemKind.DUPLICATE, "a slot has more than one final row: 0/000000[0]",
        ),
        ({"scores": again}, "scores", ProblemKind.DUPLICATE, "a trajectory is scored more than once"),
        ({"tasks": lambda rows: rows[1:]}, "batches", ProblemKind.UNKNOWN, "tasks do not have a task_id that draws"),
        ({"draws": lambda rows: rows[1:]}, "trajectories", ProblemKind.UNKNOWN, "2 rows, such as 0/000000"),
        ({"trajectories": lambda rows: rows[1:]}, "scores", ProblemKind.UNKNOWN, "a trajectory_id that scores name"),
        ({"trajectories": lambda rows: []}, "scores", ProblemKind.UNKNOWN, "6 rows"),
        ({"draws": first(task_digest="x")}, "batches", ProblemKind.CONTRADICTION, "changed since it was drawn: sum/0"),
        ({"trajectories": first(index=2)}, "trajectories", ProblemKind.CONTRADICTION, "index than its draw allows"),
        ({"trajectories": first(task_digest="x")}, "trajectories", ProblemKind.CONTRADICTION, "than its draw allows"),
        ({"scores": first(index=1)}, "scores", ProblemKind.CONTRADICTION, "a score has another group, index"),
        ({"scores": first(group_id="0/000009")}, "scores", ProblemKind.CONTRADICTION, "a score has another group"),
        ({"scores": first(reward=None)}, "scores", ProblemKind.REWARD, "without a reward has status `scored`"),
        ({"scores": first(status="unscored")}, "scores", ProblemKind.REWARD, "another status than `scored`"),
        ({"tasks": first(target_json='"43"')}, "run", ProblemKind.DIGEST, "not the one of its digest: 'sum/0'"),
    ],
)  # fmt: skip
def test_rows_that_do_not_fit_together(
    tmp_path: Path, change: dict[str, Change], place: str, kind: ProblemKind, told: str
) -> None:
    run = write_run(tmp_path / "run", **change)
    assert check(run, deep=False).problems == ()
    problems = found(run)
    assert [one[:2] for one in problems if told in one[2]] == [(place, kind)], problems


def test_another_attempt_after_a_failure_and_another_verifier_are_no_duplicates(tmp_path: Path) -> None:
    def retried(rows: list[Any]) -> list[Any]:
        failed = replace(rows[0], trajectory_id="failed", stop_reason=StopReason.ENV_ERROR)
        return [failed, replace(rows[0], attempt=1), *rows[1:]]

    def rescored(rows: list[Any]) -> list[Any]:
        rows = [replace(rows[0], attempt=1), *rows[1:]]
        return [*rows, replace(rows[1], verifier_version="2")]

    assert found(write_run(tmp_path / "run", trajectories=retried, scores=rescored)) == []


def test_keys_are_unique_over_a_run_and_within_a_dataset_elsewhere(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for kind in ("trajectories", "scores"):
        shutil.copytree(run / kind / "0", run / kind / "again")
    assert {one[:2] for one in found(run)} == {
        ("trajectories", ProblemKind.DUPLICATE),
        ("scores", ProblemKind.DUPLICATE),
    }
    (run / "recipe.toml").unlink()  # by hand one batch may be rolled out with two policies
    assert found(run) == []


def test_a_duplicate_in_another_shard_names_both(tmp_path: Path) -> None:
    draws = [make_draw(make_simple_task("sum/0"), batch="0")]
    pool = write_dataset(tmp_path / "tasks", "tasks", [[make_simple_task("sum/0")]])
    one, two = write_dataset(tmp_path / "batches" / "0", "draws", [draws, draws], pool)
    (problem,) = check(tmp_path / "batches").problems
    assert (problem.path, problem.problem) == (two, ProblemKind.DUPLICATE)
    assert problem.detail.endswith(f"first in {one}")


# ── tokens ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def with_turn(position: int, **columns: Any) -> Change:
    def change(rows: list[Trajectory]) -> list[Trajectory]:
        turns = list(rows[0].turns)
        turns[position] = replace(turns[position], **columns)
        return [replace(rows[0], turns=tuple(turns)), *rows[1:]]

    return change


@pytest.mark.parametrize(
    ("change", "kind", "told"),
    [
        (first(loss_mask=(True,) * 4), ProblemKind.STREAMS, "loss_mask and token_ids differ in length"),
        (first(rollout_logprobs=(-1.0,)), ProblemKind.STREAMS, "rollout_logprobs and token_ids differ in length"),
        (first(ref_logprobs=(-1.0,)), ProblemKind.STREAMS, "ref_logprobs and token_ids differ in length"),
        (first(teacher_logprobs=(-1.0,) * 6), ProblemKind.STREAMS, "teacher_logprobs and token_ids differ"),
        (first(sampling_mask_ids=(1, 2)), ProblemKind.STREAMS, "sampling_mask_offsets do not fit"),
        (
            first(sampling_mask_ids=(1, 2), sampling_mask_offsets=(0, 1, 2, 2, 2)),
            ProblemKind.STREAMS, "sampling_mask_offsets do not fit",
        ),
        (
            first(sampling_mask_ids=(1, 2), sampling_mask_offsets=(0, 1, 0, 2, 2, 2)),
            ProblemKind.STREAMS, "sampling_mask_offsets do not fit",
        ),
        (
            first(routed_experts=(1,) * 9, routed_experts_shape=(1, 2)),
            ProblemKind.STREAMS, "routed_experts do not fit their shape",
        ),
        (with_turn(1, token_end=6), ProblemKind.SPANS, "turns outside of the tokens"),
        (with_turn(0, token_start=-1), ProblemKind.SPANS, "turns outside of the tokens"),
        (with_turn(1, token_start=2), ProblemKind.SPANS, "turns out of order"),
        (with_turn(1, segment=1), ProblemKind.SPANS, "turns of no segment"),
        (
            first(segments=(Segment(token_start=0, token_end=9, opened_by="start"),)),
            ProblemKind.SPANS, "segments outside of the tokens",
        ),
        (
            first(version_spans=(VersionSpan(policy_version=0, token_start=3, token_end=4),)),
            ProblemKind.SPANS, "version spans do not cover exactly the sampled tokens",
        ),
        (
            first(version_spans=(VersionSpan(policy_version=0, token_start=2, token_end=5),)),
            ProblemKind.SPANS, "version spans do not cover exactly the sampled tokens",
        ),
        (
            first(
                version_spans=(
                    VersionSpan(policy_version=0, token_start=3, token_end=5),
                    VersionSpan(policy_version=0, token_start=4, token_end=5),
                )
            ),
            ProblemKind.SPANS, "version spans out of order",
        ),
        (first(version_spans=()), ProblemKind.SPANS, "do not cover exactly the sampled tokens"),
        (first(policy_version_max=3), ProblemKind.SPANS, "policy_version_min or _max is not that of the version spans"),
        (first(policy_version_min=None), ProblemKind.SPANS, "policy_version_min or _max"),
    ],
)  # fmt: skip
def test_streams_and_spans(tmp_path: Path, change: Change, kind: ProblemKind, told: str) -> None:
    problems = found(write_run(tmp_path / "run", trajectories=change))
    assert ("trajectories", kind) in [one[:2] for one in problems]
    assert any(told in detail for _, _, detail in problems), problems


def test_streams_that_were_not_recorded_and_engines_without_versions_are_sound(tmp_path: Path) -> None:
    def bare(rows: list[Trajectory]) -> list[Trajectory]:
        unknown = {"policy_version_min": None, "policy_version_max": None, "version_spans": ()}
        nothing = {"token_ids": (), "loss_mask": (), "turns": (), "segments": (), "rollout_logprobs": ()}
        return [
            replace(rows[0], rollout_logprobs=(), **unknown),
            replace(rows[1], **unknown, **nothing),
            replace(
                rows[2],
                sampling_mask_ids=(1, 2),
                sampling_mask_offsets=(0, 0, 0, 0, 1, 2),
                routed_experts=(1,) * 10,
                routed_experts_shape=(1, 2),
                version_spans=(
                    VersionSpan(policy_version=3, token_start=3, token_end=4),
                    VersionSpan(policy_version=4, token_start=4, token_end=5),
                ),
                policy_version_min=3,
                policy_version_max=4,
            ),
            *rows[3:],
        ]

    assert found(write_run(tmp_path / "run", trajectories=bare)) == []
