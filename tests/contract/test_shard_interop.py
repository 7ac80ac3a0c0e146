"""Other tools read shards without ptctl, and see the same tokens, rewards and NULLs.

Each tool runs in a process of its own that cannot import ptctl, as on a machine where it is not installed.
"""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from ptctl.records import Score, Task, TaskFile, Trajectory, Turn, make_task
from ptctl.shards.dataset import shards_in
from ptctl.shards.writer import Lineage, write_rows
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_tool_call, make_trajectory

ODD = "\u2028 nul \0 👩‍🚀"
TASKS: list[Task] = [
    make_task(
        task_id="a/0", domain="d", family="a", split="train", prompt=(), strata={"size": "small", "empty": ""},
        files=(TaskFile(path="x.bin", content=b"\0\xff"),),
    ),
    make_simple_task("a/1", difficulty=0.25),
]  # fmt: skip
TRAJECTORIES: list[Trajectory] = [
    make_trajectory(make_draw(make_simple_task()), token_ids=(), loss_mask=(), rollout_logprobs=(), turns=()),
    make_trajectory(
        make_draw(make_simple_task()), index=1, token_ids=(7, 0, 2**31 - 1), loss_mask=(False, True, True),
        rollout_logprobs=(0.0, -0.5, -1.25), final_answer=None,
        turns=(
            Turn(role="user", content=ODD, segment=0, token_start=0, token_end=1),
            Turn(role="assistant", content="", segment=0, token_start=1, token_end=3, tool_calls=(make_tool_call(),)),
        ),
    ),
    make_trajectory(make_draw(make_simple_task()), index=2, final_answer=ODD, policy_version_min=None),
]  # fmt: skip
SCORES: list[Score] = [
    make_score(row, reward=reward) for row, reward in zip(TRAJECTORIES, (None, 0.5, 1.0), strict=True)
]
EXPECTED: dict[str, Any] = {
    "token_ids": [list(row.token_ids) for row in TRAJECTORIES],
    "loss_mask": [list(row.loss_mask) for row in TRAJECTORIES],
    "logprobs": [list(row.rollout_logprobs) for row in TRAJECTORIES],
    "contents": [[turn.content for turn in row.turns] for row in TRAJECTORIES],
    "calls": [[len(turn.tool_calls) for turn in row.turns] for row in TRAJECTORIES],
    "answers": ["42", None, ODD],
    "versions": [0, 0, None],
    "rewards": [None, 0.5, 1.0],
    "files": [["00ff"], []],
    "strata": [{"empty": "", "size": "small"}, {}],
}

PANDAS = """
import pandas
def frame(path):
    return pandas.read_parquet(path, dtype_backend="pyarrow")
t, s, k = frame(sys.argv[1]), frame(sys.argv[2]), frame(sys.argv[3])
null = lambda values: [None if pandas.isna(value) else value for value in values]
lists = lambda column: [[*map(plain, value)] for value in column]
found = {
    "token_ids": lists(t.token_ids), "loss_mask": lists(t.loss_mask), "logprobs": lists(t.rollout_logprobs),
    "contents": [[turn["content"] for turn in turns] for turns in t.turns],
    "calls": [[len(turn["tool_calls"]) for turn in turns] for turns in t.turns],
    "answers": null(t.final_answer), "versions": null(t.policy_version_min), "rewards": null(s.reward),
    "files": [[file["content"].hex() for file in files] for files in k.files],
    "strata": [dict(value) for value in k.strata],
}
"""
POLARS = """
import polars
t, s, k = (polars.read_parquet(path) for path in sys.argv[1:4])
found = {
    "token_ids": t["token_ids"].to_list(), "loss_mask": t["loss_mask"].to_list(),
    "logprobs": t["rollout_logprobs"].to_list(),
    "contents": [[turn["content"] for turn in turns] for turns in t["turns"].to_list()],
    "calls": [[len(turn["tool_calls"]) for turn in turns] for turns in t["turns"].to_list()],
    "answers": t["final_answer"].to_list(), "versions": t["policy_version_min"].to_list(),
    "rewards": s["reward"].to_list(),
    "files": [[file["content"].hex() for file in files] for files in k["files"].to_list()],
    "strata": k["strata"].to_list(),
}
"""
DATASETS = """
import datasets, tempfile
import pyarrow.parquet
def rows(path):
    with tempfile.TemporaryDirectory() as cache:
        return list(datasets.load_dataset("parquet", data_files=path, split="train", cache_dir=cache))
t, s = map(rows, sys.argv[1:3])
# It knows no map type and refuses a shard of tasks as a whole, because of 'strata'; from pyarrow it takes the rest.
k = list(datasets.Dataset(pyarrow.parquet.read_table(sys.argv[3], columns=["task_id", "files"])))
found = {
    "token_ids": [row["token_ids"] for row in t], "loss_mask": [row["loss_mask"] for row in t],
    "logprobs": [row["rollout_logprobs"] for row in t],
    "contents": [[turn["content"] for turn in row["turns"]] for row in t],
    "calls": [[len(turn["tool_calls"]) for turn in row["turns"]] for row in t],
    "answers": [row["final_answer"] for row in t], "versions": [row["policy_version_min"] for row in t],
    "rewards": [row["reward"] for row in s],
    "files": [[file["content"].hex() for file in row["files"]] for row in k],
}
"""
DUCKDB = """
import duckdb
def rows(query, path):
    return duckdb.sql(query.replace("SHARD", f"read_parquet('{path}')")).fetchall()
t = rows(
    "select token_ids, loss_mask, rollout_logprobs, [turn.content for turn in turns], "
    "[len(turn.tool_calls) for turn in turns], final_answer, policy_version_min from SHARD", sys.argv[1]
)
k = rows("select [hex(file.content) for file in files], map_keys(strata), map_values(strata) from SHARD", sys.argv[3])
names = ["token_ids", "loss_mask", "logprobs", "contents", "calls", "answers", "versions"]
found = {name: [row[n] for row in t] for n, name in enumerate(names)}
found["rewards"] = [row[0] for row in rows("select reward from SHARD", sys.argv[2])]
found["files"] = [[text.lower() for text in row[0]] for row in k]
found["strata"] = [dict(zip(row[1], row[2])) for row in k]
"""
CANNOT_READ = {("datasets", "strata")}
SCRIPTS = {"pandas": PANDAS, "polars": POLARS, "datasets": DATASETS, "duckdb": DUCKDB}


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    directory = tmp_path_factory.mktemp("shards")
    kinds: dict[str, list[Any]] = {"trajectories": TRAJECTORIES, "scores": SCORES, "tasks": TASKS}
    return [str(write_rows(rows, kind, directory / kind, Lineage())) for kind, rows in kinds.items()]


def run_without_ptctl(script: str, arguments: list[str], directory: Path) -> str:
    """Run a script where importing ptctl fails."""
    (directory / "ptctl.py").write_text("raise ImportError('not installed here')\n")
    lines = ["import json, sys", "plain = lambda value: value.item() if hasattr(value, 'item') else value", script]
    command = [sys.executable, "-c", "\n".join([*lines, "print(json.dumps(found))"]), *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=directory, timeout=120,
        env={"PYTHONPATH": str(directory), "HF_HUB_OFFLINE": "1", "HF_HOME": str(directory), "PYTHONUTF8": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1]


@pytest.mark.parametrize("tool", sorted(SCRIPTS))
def test_another_tool_sees_the_same(tool: str, shards: list[str], tmp_path: Path) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    found = json.loads(run_without_ptctl(SCRIPTS[tool], shards, tmp_path))
    for name, expected in EXPECTED.items():
        if (tool, name) not in CANNOT_READ:
            assert found[name] == expected, name


@pytest.mark.parametrize("tool", ["pandas", "polars"])
def test_dtypes_are_the_declared_ones(tool: str, shards: list[str], tmp_path: Path) -> None:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    kinds = {
        "pandas": "import pandas\nframe = pandas.read_parquet(sys.argv[1], dtype_backend='pyarrow')\n"
        "found = str(frame.dtypes.token_ids)",
        "polars": "import polars\nfound = str(polars.read_parquet(sys.argv[1]).schema['token_ids'])",
    }
    expected = {"pandas": "large_list<element: int32 not null>[pyarrow]", "polars": "List(Int32)"}
    assert json.loads(run_without_ptctl(kinds[tool], shards, tmp_path)) == expected[tool]


def test_the_sha256_is_checked_with_two_lines_of_shell(shards: list[str], tmp_path: Path) -> None:
    query = "select value from parquet_kv_metadata(?) where key = 'ptctl_content'::blob"
    script = f"import duckdb\nfound = duckdb.execute({query!r}, [sys.argv[1]]).fetchone()[0].decode()"
    content = json.loads(json.loads(run_without_ptctl(script, shards, tmp_path)))
    shell = 'head -c "$1" "$2" | sha256sum'
    done = subprocess.run(
        ["sh", "-c", shell, "sh", str(content["data_bytes"]), shards[0]], capture_output=True, text=True, check=True
    )
    assert done.stdout.split()[0] == content["data_sha256"]
    assert content["num_rows"] == len(TRAJECTORIES)
    assert shards_in(Path(shards[0]).parent) == [Path(shards[0])]
