"""A recipe over the fake engine, verifier and backend: the real processes and files of a run, without a model."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

RECIPE = """
[run]
name = "fake"
seed = 3
[pool]
sources = ["pool.jsonl"]
[policy]
path = "model"
initialize = "random"
[sample]
num_groups = 6
group_size = 4
[rollout]
engine = "fake"
max_new_tokens = 12
shard_rows = 5
shard_interval_s = 0.05
[train]
backend = "fake"
steps_per_epoch = 2
[eval]
num_tasks = 4
[[phases]]
name = "first"
steps = 2
[[phases]]
name = "second"
steps = 14
evaluate_before = true
[phases.train]
epochs = 2
"""


def write_fake_recipe(directory: Path) -> Path:
    directory.mkdir()
    (directory / "recipe.toml").write_text(RECIPE)
    (directory / "model").mkdir()
    (directory / "model" / "config.json").write_text("{}")
    rows = [
        {
            "prompt": f"task {i}",
            "answer": "x",
            "verifier": "fake",
            "family": f"f{i % 3}",
            "split": "eval" if i % 4 == 0 else "train",
        }
        for i in range(40)
    ]
    (directory / "pool.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return directory


def start_run(recipe: Path, run: Path, *extra: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "ptctl", "run", str(recipe), "-o", str(run), *extra]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )


def kill(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGKILL)
    process.communicate()
