"""The wheel in an empty environment: core dependencies only, and what needs more says which extra."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from ptctl.testing.factories import make_simple_task, write_batch

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.slim
PROBE = """
import sys
from ptctl.cli.main import main
sys.argv = ["ptctl", "eval", sys.argv[1], "--json"]
try:
    main()
except SystemExit as leave:
    assert leave.code == 0, leave.code
heavy = {"torch", "megatron", "transformers", "safetensors", "sglang"} & set(sys.modules)
assert not heavy, heavy
"""


@pytest.fixture(scope="module")
def slim(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("slim")
    pip = [sys.executable, "-m", "pip", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "-w", str(place), str(ROOT)], check=True)
    subprocess.run([sys.executable, "-m", "venv", str(place / "venv")], check=True)
    (wheel,) = place.glob("ptctl-*.whl")
    python = place / "venv" / "bin" / "python"
    subprocess.run([python, "-m", "pip", "-q", "install", "-c", str(ROOT / "constraints.txt"), str(wheel)], check=True)
    return place / "venv" / "bin"


def run(slim: Path, *arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return subprocess.run(
        [str(slim / "ptctl"), *map(str, arguments)],
        cwd=cwd,
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )


def test_nothing_heavy_is_installed(slim: Path) -> None:
    names = subprocess.run(
        [slim / "python", "-m", "pip", "list"], capture_output=True, text=True, check=True
    ).stdout.lower()
    for name in ("torch", "transformers", "megatron", "safetensors", "bubblewrap", "scipy"):
        assert name not in names


def test_eval_works_without_torch(slim: Path, tmp_path: Path) -> None:
    tasks = [make_simple_task(f"sum/{i}") for i in range(12)]
    batch = write_batch(tmp_path / "run", tasks, {task.task_id: [1.0] for task in tasks})
    done = subprocess.run([slim / "python", "-c", PROBE, batch.scores[0]], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert '"n_scored": 12' in done.stdout


def test_what_is_not_installed_is_told_with_the_pip_line(slim: Path, tmp_path: Path) -> None:
    assert run(slim, "init", "mine", cwd=tmp_path).returncode == 0
    assert run(slim, "run", "mine", "-o", "run", "--dry-run", cwd=tmp_path).returncode == 69
    assert run(slim, "tasks", "import", "mine/generate.py", "-o", "tasks", cwd=tmp_path).returncode == 0
    assert run(slim, "sample", "tasks", "-n", 2, "-o", "batches/1", cwd=tmp_path).returncode == 0
    for command in (
        ["rollout", "batches/1", "--engine", "local", "--policy", "mine/model", "-o", "new"],
        ["rollout", "batches/1", "--engine", "oracle", "--policy", "mine/model", "-o", "new"],
        ["train", "batches/1", "--policy", "mine/model", "-o", "new"],
        ["run", "mine", "-o", "new"],
    ):
        done = run(slim, *command, cwd=tmp_path)
        assert done.returncode == 69, (command, done.stderr)
        first, second = done.stderr.splitlines()
        assert first.startswith("ptctl: error: ")
        assert "pip install 'ptctl[" in second
        assert not (tmp_path / "new").exists()


def test_doctor_says_what_is_missing(slim: Path) -> None:
    done = run(slim, "doctor")
    assert done.returncode == 0, done.stderr
    assert "torch not installed" in done.stdout
