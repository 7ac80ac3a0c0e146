"""`ptctl query` as a process: formats, paths on standard input, closed pipes, locales, signals."""

from __future__ import annotations

import csv
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from ptctl.testing.factories import Batch
from run_files import write_scored_run


@pytest.fixture(scope="module")
def batch(tmp_path_factory: pytest.TempPathFactory) -> Batch:
    return write_scored_run(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def run(batch: Batch) -> Path:
    return batch.tasks[0].parents[1]


def ptctl(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ptctl", *map(str, arguments)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", **options.pop("env", {})}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=60, check=False, env=environment, **options
    )  # fmt: skip


def test_formats_of_the_command(run: Path) -> None:
    sql = "SELECT task_id, count(*) AS n, avg(reward) AS mean FROM scores GROUP BY task_id ORDER BY task_id"
    expected = [["sum/0", 2, 0.5], ["sum/1", 2, 0.6], ["sum/2", 2, 0.5], ["sum/3", 2, None]]
    out = {name: ptctl("query", sql, run, "--format", name) for name in ("table", "json", "csv")}
    assert {done.returncode for done in out.values()} == {0}
    assert {done.stderr for done in out.values()} == {""}
    assert [list(row.values()) for row in json.loads(out["json"].stdout)] == expected
    rows = list(csv.reader(io.StringIO(out["csv"].stdout)))
    assert rows == [["task_id", "n", "mean"], *[["" if v is None else str(v) for v in row] for row in expected]]
    assert out["table"].stdout.splitlines()[2].split() == ["sum/0", "2", "0.5"]
    command = [sys.executable, "-m", "ptctl", "query", sql, str(run), "--format", "parquet"]
    done = subprocess.run(command, capture_output=True, check=True)
    assert pq.read_table(io.BytesIO(done.stdout)).to_pylist()[0] == {"task_id": "sum/0", "n": 2, "mean": 0.5}


def test_the_current_directory_is_the_run(run: Path, tmp_path: Path) -> None:
    assert ptctl("query", "SELECT count(*) FROM scores", "--format", "csv", cwd=run).stdout == "count_star()\n8\n"
    done = ptctl("query", "SELECT count(*) FROM scores", cwd=tmp_path)
    assert done.returncode == 2
    assert done.stderr.splitlines()[0] == ("ptctl: error: no dataset is named, and the current directory is no run")
    assert ptctl("query", "FROM scores", ".", "--allow-empty", "--format", "jsonl", cwd=tmp_path).returncode == 0


def test_paths_on_standard_input(batch: Batch) -> None:
    sql = "SELECT count(*) AS n FROM scores"
    done = ptctl("query", sql, "-", "--format", "jsonl", input="".join(f"{path}\n" for path in batch.scores))
    assert (done.stdout, done.returncode) == ('{"n":8}\n', 0)
    done = ptctl("query", sql, "-0", "-", "--format", "jsonl", input="\0".join(map(str, batch.scores)))
    assert (done.stdout, done.returncode) == ('{"n":8}\n', 0)
    done = ptctl("query", sql, "-", input="")
    assert (done.stdout, done.returncode) == ("", 66)


@pytest.mark.parametrize("format_name", ["table", "jsonl", "parquet"])
def test_a_reader_that_leaves_ends_it_with_141_and_silence(run: Path, format_name: str) -> None:
    query = f"{sys.executable} -m ptctl query 'SELECT range, md5(range::VARCHAR) FROM range(100000000)'"
    script = f"{query} {run} --format {format_name} | head -c 100 >/dev/null; echo ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")


def test_a_plain_locale_is_enough(run: Path) -> None:
    environment = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for format_name in ("table", "jsonl", "csv"):
        sql = "SELECT 'é…\x1b' AS text, task_id FROM tasks"
        done = ptctl("query", sql, run, "--format", format_name, env=environment)
        assert (done.returncode, done.stderr) == (0, "")
        assert "\x1b" not in done.stdout or format_name == "csv"
    done = ptctl("query", "SELECT é FROM tasks", run, env=environment)
    assert done.returncode == 2


def test_errors_of_the_command_are_one_line_and_a_hint(run: Path) -> None:
    for sql, options in (("SELECT 1;;SELECT 2", []), ("SELECT 1", ["--format", "xml"]), ("SELECT x FROM scores", [])):
        done = ptctl("query", sql, run, *options)
        lines = done.stderr.splitlines()
        assert (done.returncode, done.stdout, len(lines)) == (2, "", 2)
        assert lines[0].startswith("ptctl: error: ")
        assert lines[1].startswith("hint: ")
    done = ptctl("query", "SELECT 1", run, "--memory-limit", "tiny")
    assert done.returncode == 2


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_a_long_query_and_removes_what_it_spilled(
    run: Path, tmp_path: Path, number: signal.Signals, code: int
) -> None:
    sql = "SELECT sum(a.range * b.range % 7) FROM range(3000000) a, range(3000000) b WHERE (a.range + b.range) % 3 = 1"
    command = [sys.executable, "-m", "ptctl", "query", sql, str(run), "--temp-directory", str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 30
    while not list(tmp_path.iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    time.sleep(0.5)
    process.send_signal(number)
    out, errors = process.communicate(timeout=30)
    assert (process.returncode, out, errors) == (code, "", "")
    assert list(tmp_path.iterdir()) == []
