"""`ptctl eval`: arguments, exit codes, files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from ptctl.cli.evaluate import app
from ptctl.errors import CannotCreate, InputNotFound, UsageError
from ptctl.testing.factories import make_simple_task, write_batch

TASKS = [make_simple_task(f"sum/{n}", domain="math" if n < 8 else "web", difficulty=1.0) for n in range(16)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Directories good/scores, bad/scores and none/scores (nothing scored) over one pool."""
    directory = tmp_path_factory.mktemp("data")
    pool = None
    for name, reward in (("good", 1.0), ("bad", 0.0), ("none", None)):
        batch = write_batch(directory / name, TASKS, {task.task_id: [reward] for task in TASKS}, pool=pool)
        pool = batch.tasks
    (directory / "gate.toml").write_text("margin = 0.05\n")
    (directory / "empty").mkdir()
    return directory


def invoke(*arguments: Any, stdin: str | bytes | None = None) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments], input=stdin)


def values(result: Any) -> dict[str, Any]:
    return json.loads(result.stdout)


def test_exit_codes_are_the_verdicts(data: Path) -> None:
    good, bad, none, gate = (data / name for name in ("good/scores", "bad/scores", "none/scores", "gate.toml"))
    for scores, options, verdict, code in (
        (good, [], "REPORTED", 0),
        (good, ["--baseline", bad, "--gate", gate], "PASS", 0),
        (bad, ["--baseline", good, "--gate", gate], "REGRESSED", 10),
        (good, ["--baseline", none, "--gate", gate], "INCONCLUSIVE", 11),
        (none, ["--baseline", good, "--gate", gate], "NOTHING_EVALUATED", 12),
    ):
        result = invoke(scores, *options, "--json")
        assert (result.exit_code, values(result)["verdict"], values(result)["exit_code"]) == (code, verdict, code)


def test_out_is_written_once_and_eval_json_last(data: Path, tmp_path: Path) -> None:
    out = tmp_path / "reports" / "final"
    out.mkdir(parents=True)
    (out / "report.md").write_text("left by a kill")
    result = invoke(data / "good/scores", "-o", out, "--format", "json")
    assert (out / "eval.json").read_text() == json.dumps(values(result), indent=2, ensure_ascii=False) + "\n"
    assert (out / "report.md").read_text().startswith("## REPORTED (exit 0)")
    again = invoke(data / "good/scores", "-o", out)
    assert isinstance(again.exception, CannotCreate)
    assert again.stdout == ""


def test_strata_come_from_option_recipe_or_defaults(data: Path, tmp_path: Path) -> None:
    def keys(*options: Any) -> set[str]:
        return {stratum["key"] for stratum in values(invoke(data / "good/scores", "--json", *options))["strata"]}

    recipe = tmp_path / "recipe.toml"
    recipe.write_text('[eval]\nstrata = ["split"]\n')
    assert keys() == {"domain", "family"}
    assert keys("--recipe", recipe) == {"split"}
    assert keys("--recipe", recipe, "--set", 'eval.strata=["risk"]') == {"risk"}
    assert keys("--recipe", recipe, "--strata", "difficulty", "--strata", "domain") == {"difficulty", "domain"}


def test_paths_on_standard_input(data: Path) -> None:
    shards = sorted((data / "good/scores").rglob("*.parquet"))
    lines = "".join(f"{shard}\n" for shard in shards)
    assert values(invoke("-", "--json", stdin=lines))["overall"]["rate"] == 1.0
    assert values(invoke("--json", stdin=lines))["overall"]["rate"] == 1.0
    assert values(invoke("--json", "-0", stdin=lines.replace("\n", "\0")))["overall"]["rate"] == 1.0
    assert isinstance(invoke("-", stdin="").exception, InputNotFound)


def test_nothing_there(data: Path) -> None:
    for arguments in ([data / "empty"], [data / "x*"], [data / "nobody"], [data / "nobody", "--allow-empty"]):
        assert isinstance(invoke(*arguments).exception, InputNotFound), arguments
    for arguments in ([data / "empty"], [data / "x*"], ["-"]):
        result = invoke(*arguments, "--allow-empty", "--json", stdin="")
        assert (result.exit_code, values(result)["verdict"]) == (12, "NOTHING_EVALUATED")


def test_formats(data: Path, tmp_path: Path) -> None:
    scores = data / "good/scores"
    assert invoke(scores).stdout == invoke(scores, "--format", "table").stdout
    assert invoke(scores, "--format", "md").stdout.startswith("## REPORTED")
    assert invoke(scores, "--format", "csv").stdout.startswith("key,value,")
    assert len(invoke(scores, "--format", "jsonl").stdout.splitlines()) == 1 + 2 + 1
    file = tmp_path / "rows.parquet"
    file.write_bytes(invoke(scores, "--format", "parquet").stdout_bytes)
    assert pq.read_table(file).num_rows == 4
    for options in (["--format", "html"], ["--format", "md", "--json"], ["--baseline", "-"]):
        assert isinstance(invoke(scores, *options).exception, UsageError)


def test_gate_without_anything_to_compare_with(data: Path) -> None:
    assert isinstance(invoke(data / "good/scores", "--gate", data / "gate.toml").exception, UsageError)
