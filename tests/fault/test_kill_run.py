"""`ptctl run` killed at random moments and started again ends as if nothing had happened."""

from __future__ import annotations

import json
import random
import time
from pathlib import Path

import pytest

from fake_run import kill, start_run, write_fake_recipe
from ptctl.records import Policy
from ptctl.shards.dataset import shards_in
from ptctl.shards.policies import POLICY_FILE, published, versions
from ptctl.shards.reader import read_rows

pytestmark = pytest.mark.kill
NUM_BATCHES = 16
MAX_STARTS = 60


def run_to_end(recipe: Path, run: Path, rng: random.Random | None) -> int:
    """Run, killing at random moments where `rng` is given; returns the number of kills."""
    num_kills = 0
    for _ in range(MAX_STARTS):
        process = start_run(recipe, run)
        # Start-up takes about two seconds and a batch a quarter: kills fall into every part of both.
        if rng is not None and num_kills < 25:
            deadline = time.monotonic() + rng.uniform(0.2, 3.5)
            while time.monotonic() < deadline and process.poll() is None:
                time.sleep(0.01)
            if process.poll() is None:
                kill(process)
                num_kills += 1
                continue
        _, errors = process.communicate(timeout=120)
        assert process.returncode == 0, errors.decode()
        return num_kills
    raise AssertionError("the run never ended")


def trained_groups(run: Path) -> list[str]:
    return [group_id for policy in published(run / "policies") for group_id in policy.consumed_group_ids]


def drawn_groups(run: Path) -> list[str]:
    return [
        row.group_id
        for n in range(NUM_BATCHES)
        for path in shards_in(run / "batches" / str(n))
        for row in read_rows(path, "draws")
    ]


def comparable(policy: Policy) -> tuple[object, ...]:
    return (policy.policy_version, policy.batch, policy.consumed_group_ids, policy.weights_sha256, policy.num_steps)


@pytest.mark.parametrize("seed", [0, 1])
def test_killed_at_any_moment_trains_every_drawn_group_exactly_once(tmp_path: Path, seed: int) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    run_to_end(recipe, tmp_path / "calm", None)
    num_kills = run_to_end(recipe, tmp_path / "killed", random.Random(seed))
    assert num_kills >= 5

    killed = tmp_path / "killed"
    assert sorted(trained_groups(killed)) == sorted(drawn_groups(killed))
    assert len(set(trained_groups(killed))) == len(trained_groups(killed)) == NUM_BATCHES * 6
    # Not only once each, but in the same order with the same tokens: the weights are a hash of them.
    calm = [comparable(policy) for policy in published(tmp_path / "calm" / "policies")]
    assert [comparable(policy) for policy in published(killed / "policies")] == calm
    final = [
        json.loads((tmp_path / name / "reports" / "final" / "eval.json").read_text()) for name in ("calm", "killed")
    ]
    assert final[0]["overall"] == final[1]["overall"]


def test_every_visible_shard_reads_and_no_slot_stands_twice(tmp_path: Path) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    run = tmp_path / "run"
    rng = random.Random(7)
    for _ in range(8):
        process = start_run(recipe, run)
        time.sleep(rng.uniform(0.5, 4.0))
        kill(process)
        for path in run.rglob("*.parquet"):
            if path.name.startswith("."):
                continue
            read_rows(path, path.relative_to(run).parts[0].replace("batches", "draws"))
        for version in versions(run / "policies"):
            assert (run / "policies" / str(version) / POLICY_FILE).exists()
    run_to_end(recipe, run, None)
    slots = [
        (row.group_id, row.index, row.batch)
        for path in (run / "trajectories").rglob("*.parquet")
        for row in read_rows(path, "trajectories")
    ]
    assert len(slots) == len(set(slots))
