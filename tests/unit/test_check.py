"""`ptctl check`: a clean run passes, and every planted fault is found and named."""

from __future__ import annotations

import json
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fake_run import start_run, write_fake_recipe
from ptctl.checking.places import find_places
from ptctl.checking.problems import Problem, ProblemKind, problem_table
from ptctl.errors import InputNotFound
from ptctl.shards import files
from ptctl.shards.dataset import MANIFEST, shards_in
from ptctl.shards.files import write_json
from ptctl.shards.policies import policy_to_json
from ptctl.shards.writer import Lineage, write_rows
from ptctl.testing.factories import make_draw, make_simple_task
from run_files import again, check, flip, found, make_policy, write_policy, write_run

GONE_PID = 999_999_999


def ptctl(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ptctl", *map(str, arguments)]
    environment = {**os.environ, **options.pop("env", {})}
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, env=environment, **options)


# ── clean ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_run_passes(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_policy(run, 0, [])
    write_policy(run, 1, ["0/000000", "0/000001"])
    write_json(
        run / "policies" / "skipped-0.json",
        policy_to_json(make_policy(1, consumed_group_ids=("0/000002",), skipped_steps=1)),
    )
    for deep in (False, True):
        examination = check(run, deep=deep)
        assert examination.problems == ()
        assert (examination.num_datasets, examination.num_shards, examination.num_rows) == (4, 4, 18)
        assert (examination.num_unfinished, examination.num_policies) == (0, 2)
    moved = run.rename(tmp_path / "moved")
    assert check(moved).problems == ()
    assert check(moved / "scores" / "0").problems == ()
    assert check(shards_in(moved / "scores" / "0")[0]).num_rows == 6
    assert check(moved / "policies").num_policies == 2


def test_a_run_of_the_real_stages_passes(tmp_path: Path) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    process = start_run(recipe, tmp_path / "run", "--steps", "2")
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors.decode()
    shutil.rmtree(recipe)  # the sources of the pool are needed no more
    done = ptctl("check", "--deep", cwd=tmp_path / "run")
    assert (done.returncode, done.stdout) == (0, "")
    assert done.stderr.startswith("deep check of ")
    assert done.stderr.endswith(" no problem\n")
    weights = tmp_path / "run" / "policies" / "1" / "fake_weights.json"
    weights.write_text(weights.read_text().replace("0", "1"))
    done = ptctl("check", "--deep", tmp_path / "run", "--format", "jsonl")
    assert done.returncode == 65
    assert [json.loads(line)["problem"] for line in done.stdout.splitlines()] == ["digest"]


def test_an_unfinished_dataset_is_counted_and_is_no_problem(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    (run / "scores" / "0" / MANIFEST).unlink()
    examination = check(run)
    assert (examination.problems, examination.num_unfinished, examination.num_datasets) == ((), 1, 4)


# ── quick ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_quick_checks_find_what_footers_and_sizes_tell(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    draws, trajectories = shards_in(run / "batches" / "0")[0], shards_in(run / "trajectories" / "0")[0]
    content = trajectories.read_bytes()
    trajectories.write_bytes(content[:-20])
    assert [one[:2] for one in found(run, deep=False)] == [
        ("trajectories", ProblemKind.SIZE),
        ("trajectories", ProblemKind.UNREADABLE),
    ]
    trajectories.unlink()
    problems = check(run, deep=False).problems
    assert [(one.path.name, one.problem) for one in problems if one.path == trajectories] == [
        (trajectories.name, ProblemKind.MISSING)
    ]
    assert [one.problem for one in problems if one.path.parent.parent.name == "scores"] == [ProblemKind.LINEAGE]
    trajectories.write_bytes(content)
    extra = write_rows([make_draw(make_simple_task("sum/0"), batch="9")], "draws", draws.parent, Lineage())
    (draws.parent / "notes.txt").write_text("mine")
    assert [(one.path, one.problem) for one in check(run, deep=False).problems] == sorted(
        [(draws.parent / "notes.txt", ProblemKind.UNLISTED), (extra, ProblemKind.UNLISTED)]
    )


def test_rows_and_manifests_that_do_not_fit(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    manifest = run / "scores" / "0" / MANIFEST
    stored = json.loads(manifest.read_text())
    stored["shards"][0]["num_rows"] = 7
    manifest.write_text(json.dumps(stored))
    assert found(run, deep=False) == [("scores", ProblemKind.ROWS, f"6 rows, {MANIFEST} says 7")]
    for text in ("{not json", '{"shards": 3}', '{"shards": ["x"]}', "[]", '{"shards": [{"name": "x"}]}'):
        manifest.write_text(text)
        assert [one[:2] for one in found(run, deep=False)] == [(MANIFEST, ProblemKind.UNREADABLE)], text


def test_foreign_shards_are_named(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    scores = run / "scores" / "0"
    (scores / MANIFEST).unlink()
    pq.write_table(pa.table({"reward": [1, 0]}), scores / "aaa.parquet")
    table = pq.read_table(shards_in(scores)[1])
    changed = table.set_column(table.schema.get_field_index("attempt"), "attempt", table["attempt"].cast(pa.int64()))
    pq.write_table(changed, scores / "bbb.parquet")
    problems = check(run, deep=False).problems
    assert [(one.path.name, one.problem) for one in problems] == [
        ("aaa.parquet", ProblemKind.SCHEMA),
        ("bbb.parquet", ProblemKind.SCHEMA),
    ]
    assert "was not written by ptctl" in problems[0].detail
    assert "'attempt' is int64, scores have int32" in problems[1].detail


def test_leftovers_of_dead_writers_are_listed_and_swept(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    host = socket.gethostname()
    place = run / "scores" / "0"
    dead = place / f".part-9.parquet.tmp-{host}-{GONE_PID}-0a0b0c0d"
    alive = place / f".part-9.parquet.tmp-{host}-{os.getpid()}-0a0b0c0d"
    elsewhere = place / f".part-9.parquet.tmp-another-{GONE_PID}-0a0b0c0d"
    policy = run / "policies" / f".3.tmp-{host}-{GONE_PID}-0a0b0c0d"
    for path in (dead, alive, elsewhere):
        path.write_text("x")
    policy.mkdir(parents=True)
    write_policy(run, 0, [])
    problems = check(run, deep=False).problems
    assert {(one.path, one.problem) for one in problems} == {
        (path, ProblemKind.LEFTOVER) for path in (dead, elsewhere, policy)
    }
    (place / MANIFEST).unlink()  # now a writer of another host may still be at work
    assert {one.path for one in check(run, deep=False).problems} == {dead, policy}
    done = ptctl("check", "--sweep", run)
    assert (done.returncode, done.stdout) == (0, "")
    assert sorted(done.stderr.splitlines()[:-1]) == sorted(f"removed {path}" for path in (dead, policy))
    assert not dead.exists()
    assert not policy.exists()
    assert alive.exists()


# ── deep: bytes ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_changed_byte_is_found_with_and_without_a_manifest(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    shard = shards_in(run / "tasks")[0]
    flip(shard, 60)
    assert check(run, deep=False).problems == ()
    assert (shard, ProblemKind.DIGEST) in [(one.path, one.problem) for one in check(run).problems]
    (run / "tasks" / MANIFEST).unlink()
    assert (shard, ProblemKind.DIGEST) in [(one.path, one.problem) for one in check(run).problems]


def test_rows_that_were_made_from_a_damaged_shard_are_not_called_unknown(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    trajectories = shards_in(run / "trajectories" / "0")[0]
    for position in range(100, 3000, 50):
        flip(trajectories, position)
    problems = check(run).problems
    assert (trajectories, ProblemKind.UNREADABLE) in [(one.path, one.problem) for one in problems]
    assert ProblemKind.UNKNOWN not in [one.problem for one in problems]


# ── policies ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_policies_without_record_or_with_torn_weights(tmp_path: Path) -> None:
    whole, torn, none, other = (write_policy(tmp_path, version, []) for version in range(4))
    weights = torn / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-3])
    (none / "policy.json").unlink()
    (other / "model.safetensors").unlink()
    assert [(one.path, one.problem) for one in check(tmp_path, deep=False).problems] == [
        (weights, ProblemKind.SIZE),
        (none / "policy.json", ProblemKind.MISSING),
        (other, ProblemKind.MISSING),
    ]
    for content in (
        b"",
        b"short",
        struct.pack("<Q", 10**12),
        struct.pack("<Q", 2) + b"[]",
        struct.pack("<Q", 2) + b"xx",
    ):
        (whole / "model.safetensors").write_bytes(content)
        assert (whole / "model.safetensors", ProblemKind.UNREADABLE) in [
            (one.path, one.problem) for one in check(tmp_path, deep=False).problems
        ]


def test_a_policy_record_that_says_something_else(tmp_path: Path) -> None:
    moved = write_policy(tmp_path, 1, [])
    moved.rename(tmp_path / "policies" / "2")
    assert [one[:2] for one in found(tmp_path, deep=False)] == [("policy.json", ProblemKind.CONTRADICTION)]
    for text in ("3", "{}", "not json"):
        (tmp_path / "policies" / "2" / "policy.json").write_text(text)
        assert [one[:2] for one in found(tmp_path, deep=False)] == [("policy.json", ProblemKind.UNREADABLE)]


def test_weight_files_that_an_index_names(tmp_path: Path) -> None:
    place = write_policy(tmp_path, 0, [])
    index = place / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "model.safetensors", "b": "model-2.safetensors"}}))
    assert [(one.path, one.problem) for one in check(tmp_path, deep=False).problems] == [
        (place / "model-2.safetensors", ProblemKind.MISSING)
    ]
    index.write_text("[]")
    assert [(one.path, one.problem) for one in check(tmp_path, deep=False).problems] == [
        (index, ProblemKind.UNREADABLE)
    ]


def test_weights_of_another_sha256(tmp_path: Path) -> None:
    place = write_policy(tmp_path, 0, [])
    flip(place / "model.safetensors", -1)
    assert check(tmp_path, deep=False).problems == ()
    assert [(one.path, one.problem) for one in check(tmp_path).problems] == [(place, ProblemKind.DIGEST)]


def test_groups_are_consumed_once_and_were_drawn(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    write_policy(run, 0, ["0/000000"])
    write_policy(run, 1, ["0/000001", "0/000000"])
    write_policy(run, 2, ["5/000000"])
    assert check(run, deep=False).problems == ()
    assert [(one.path.parent.name, one.problem) for one in check(run).problems] == [
        ("1", ProblemKind.DUPLICATE),
        ("2", ProblemKind.UNKNOWN),
    ]
    assert "first by" in check(run).problems[0].detail


# ── the command ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_problems_are_told_on_standard_output(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", scores=again)
    shard = str(shards_in(run / "scores" / "0")[0])
    out = {name: ptctl("check", "--deep", run, "--format", name) for name in ("table", "json")}
    assert {done.returncode for done in out.values()} == {65}
    assert {done.stderr for done in out.values()} == {
        "deep check of 4 datasets, 4 shards, 19 rows, 0 policies: 1 problems\n"
    }
    (row,) = json.loads(out["json"].stdout)
    assert (row["path"], row["problem"]) == (shard, "duplicate")
    assert shard in out["table"].stdout


def test_clean_output_is_empty_or_parses(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for name, expected in (("table", ""), ("csv", "path,problem,detail\n")):
        done = ptctl("check", "--format", name, cwd=run, env={"LC_ALL": "C", "PYTHONUTF8": "0"})
        assert (done.returncode, done.stdout) == (0, expected)
        assert done.stderr == "quick check of 4 datasets, 4 shards, 18 rows, 0 policies: no problem\n"


def test_what_is_not_there_or_not_named(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match="no such file or directory"):
        find_places(["nowhere"])
    with pytest.raises(InputNotFound, match="neither datasets nor policies"):
        find_places([str(tmp_path)])
    assert ptctl("check", cwd=tmp_path).returncode == 2
    assert ptctl("check", "nowhere", cwd=tmp_path).returncode == 66
    assert ptctl("check", tmp_path, "--format", "xml").returncode == 2


def test_paths_on_standard_input(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    shards = [*shards_in(run / "scores" / "0"), *shards_in(run / "tasks")]
    done = ptctl("check", "-0", "-", input="\0".join(map(str, shards)))
    assert (done.returncode, done.stderr) == (
        0,
        "quick check of 2 datasets, 2 shards, 9 rows, 0 policies: no problem\n",
    )


def test_a_reader_that_leaves_ends_it_with_141_and_no_complaint(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    for n in range(3000):
        (run / "scores" / "0" / f"stray-{n}").write_text("")
    command = f"{sys.executable} -m ptctl check {run} --format jsonl | head -1; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines()[-1], done.stderr) == ("141", "")


def test_checking_changes_nothing(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", scores=again)
    write_policy(run, 0, [])
    before = {path: path.stat().st_mtime_ns for path in run.rglob("*")}
    check(run)
    assert {path: path.stat().st_mtime_ns for path in run.rglob("*")} == before
    assert files.sweep(run) == []


def test_problems_are_rows() -> None:
    problem = Problem(path=Path("a"), problem=ProblemKind.SIZE, detail="two")
    assert problem_table([problem]).to_pylist() == [{"path": "a", "problem": "size", "detail": "two"}]
    assert problem_table([]).schema == problem_table([problem]).schema
