"""The quickstart on real parts, from nothing to the report, with three seeds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from fake_run import kill, start_run
from ptctl.records import Draw, Policy
from ptctl.shards.dataset import shards_in
from ptctl.shards.policies import published
from ptctl.shards.reader import read_rows

ROOT = Path(__file__).parents[2]
RECIPE = ROOT / "recipes" / "quickstart"
LEVELS = {"math": 3, "text": 3, "facts": 2, "compare": 2}
FAMILIES = {f"{domain}-{level}" for domain, count in LEVELS.items() for level in range(1, count + 1)}
pytestmark = pytest.mark.slow


def ptctl(*arguments: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "ptctl", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=900, check=False)


def check_exactly_once(run: Path) -> list[Policy]:
    policies = list(published(run / "policies"))
    trained = [group_id for policy in policies for group_id in policy.consumed_group_ids]
    batches = [path for path in (run / "batches").iterdir() if path.name.isdigit()]
    drawn: list[Draw] = [row for batch in batches for shard in shards_in(batch) for row in read_rows(shard, "draws")]
    assert sorted(trained) == sorted(draw.group_id for draw in drawn)
    assert len(set(trained)) == len(trained)
    return policies


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_success_on_held_out_tasks_rises_and_what_got_worse_is_visible(tmp_path: Path, seed: int) -> None:
    run = tmp_path / "quickstart"
    done = ptctl("run", RECIPE, "-o", run, "--seed", seed)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((run / "reports" / "final" / "eval.json").read_text())
    overall = report["paired"]["overall"]
    print(f"seed {seed}: {overall['baseline_rate']:.3f} → {overall['candidate_rate']:.3f}, p {overall['p_value']:.1e}")
    assert overall["difference"] > 0
    assert overall["p_value"] < 0.001
    assert report["overall"]["coverage"] == 1.0
    assert (report["overall"]["n_tasks"], report["overall"]["n_slots"]) == (400, 400)
    strata = {row["value"]: row for row in report["paired"]["strata"] if row["key"] == "family"}
    assert set(strata) == FAMILIES
    # The average hides that some strata gained nothing or lost: the report lists every one, the worst first.
    order = [row["difference"] for row in report["paired"]["strata"]]
    assert min(order) <= 0
    assert "text-" in done.stderr
    policies = check_exactly_once(run)
    for policy in policies:
        difference = json.loads(policy.metrics_json).get("train_rollout_logprob_difference")
        if policy.algorithm == "grpo" and difference is not None:
            assert difference <= 1e-4
    assert len([policy for policy in policies if policy.phase == "grpo" and policy.parent_version]) == 30


def test_killed_on_real_parts_every_group_is_trained_once(tmp_path: Path) -> None:
    run = tmp_path / "run"
    small = ["phases.0.sample.num_groups=256", "phases.0.train.epochs=2", "sample.num_groups=8", "eval.num_tasks=20"]
    extra = [part for setting in small for part in ("--set", setting)]
    extra[extra.index("sample.num_groups=8")] = "phases.1.sample.num_groups=8"
    rng = random.Random(5)
    num_kills = 0
    while num_kills < 6:
        process = start_run(RECIPE, run, "--steps", "6", *extra)
        deadline = time.monotonic() + rng.uniform(4, 18)
        while time.monotonic() < deadline and process.poll() is None:
            time.sleep(0.05)
        if process.poll() is not None:
            break
        kill(process)
        num_kills += 1
    done = ptctl("run", RECIPE, "-o", run, "--steps", 6, *extra)
    assert done.returncode == 0, done.stderr
    assert num_kills >= 2
    policies = check_exactly_once(run)
    assert {policy.batch for policy in policies} == {None, *map(str, range(7))}
