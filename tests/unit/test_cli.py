"""The command line as a user meets it: one line for what is wrong, a hint, the right exit code, and nothing written."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from fake_run import start_run, write_fake_recipe
from ptctl.cli.main import COMMANDS
from ptctl.errors import EXIT_CODE_MEANING, ExitCode
from ptctl.shards.dataset import shards_in

ROOT = Path(__file__).parents[2]


def ptctl(
    *arguments: object, cwd: Path | None = None, stdin: str = "", **environment: str
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "ptctl", *map(str, arguments)],
        cwd=cwd, input=stdin, capture_output=True, text=True, timeout=120, check=False, env={**os.environ,
        **environment},
    )  # fmt: skip


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run over the fake engine, made through a shell pipeline."""
    place = tmp_path_factory.mktemp("played")
    write_fake_recipe(place / "recipe")
    script = (
        f"set -e; P='{sys.executable} -m ptctl'; R='--recipe recipe'\n"
        "$P tasks import recipe/pool.jsonl -o tasks\n"
        "$P sample tasks $R -n 4 -o batches/1 | $P rollout - $R --policy recipe/model -o trajectories/1"
        " | $P score - $R -o scores/1 | $P train - $R --policy recipe/model -o policies\n"
    )
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], cwd=place, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "policies/1"
    return place


def test_a_pipeline_of_filters_makes_one_step(played: Path) -> None:
    assert (played / "policies" / "1" / "policy.json").exists()
    assert len(shards_in(played / "trajectories" / "1")) >= 1
    done = ptctl("eval", "scores/1", "--json", cwd=played)
    assert done.returncode == 0
    assert '"verdict": "REPORTED"' in done.stdout


def copy(played: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(played, tmp_path / "copy"))


def listing(place: Path) -> set[Path]:
    return {path.relative_to(place) for path in place.rglob("*")}


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("run recipe -o new --set train.epoch=1", 2, "unknown key 'train.epoch', did you mean 'epochs'?"),
        ("sample nowhere -o batches/2", 66, "no such file or directory: nowhere"),
        ("sample recipe -o batches/2", 66, "no shards in recipe"),
        ("rollout batches/1 --policy recipe -o new", 66, "recipe is neither a policy nor a model directory"),
        ("rollout batches/1 --policy recipe/model --engine sglan -o new", 2, "unknown engine 'sglan'"),
        ("rollout torn.parquet --policy recipe/model --engine fake -o new", 65, "cannot read torn.parquet"),
        ("rollout scores/1 --policy recipe/model --engine fake -o new", 65, "holds scores, not draws"),
        ("score torn.parquet -o new", 65, "cannot read torn.parquet"),
        ("score batches/1 -o new", 65, "holds draws, not trajectories"),
        ("train scores/1 --policy nowhere -o new", 66, "nowhere is neither a policy nor a model directory"),
        ("train torn.parquet --policy recipe/model --recipe recipe -o new", 65, "cannot read torn.parquet"),
        ("eval scores/9", 66, "no such file or directory"),
        ("eval torn.parquet", 65, "torn.parquet"),
        ("show nosuchid trajectories", 66, "no trajectory 'nosuchid'"),
        ("init recipe", 73, "recipe exists already"),
        ("tasks import recipe/pool.csv -o new", 66, "no pool source at recipe/pool.csv"),
        ("run nowhere -o new", 66, "no recipe at nowhere"),
        ('run recipe -o new --set pool.sources=["gone.jsonl"]', 66, "gone.jsonl, which is not there"),
        ("run recipe -o new --set policy.path=tasks", 66, "which is no model directory"),
        ("run recipe -o new --set rollout.engine=nosuch", 2, "unknown engine 'nosuch'"),
        ("sampel x", 2, "No such command 'sampel'"),
        ("sample tasks", 2, "Missing option"),
        ("sample tasks -o new --group 3", 2, "No such option"),
        ("sample tasks -o batches/1 -n 5", 78, "batches/1 holds another batch"),
        ("score trajectories/1 -o scores/1 --phase nosuch --recipe recipe", 2, "no phase 'nosuch'"),
    ],
)
def test_bad_input(played: Path, tmp_path: Path, arguments: str, code: int, told: str) -> None:
    place = copy(played, tmp_path)
    shard = shards_in(place / "trajectories" / "1")[0]
    (place / "torn.parquet").write_bytes(shard.read_bytes()[:200])
    before = listing(place)
    done = ptctl(*arguments.split(), cwd=place)
    lines = done.stderr.splitlines()
    assert done.returncode == code, done.stderr
    assert lines[0].startswith("ptctl: error: ")
    assert told in lines[0]
    assert len(lines) <= 2
    assert len(lines) == 1 or lines[1].startswith("hint: ")
    assert done.stdout == ""
    assert listing(place) == before


@pytest.mark.parametrize("stage", ["rollout", "score", "train"])
def test_an_empty_pipe_is_not_a_success(played: Path, tmp_path: Path, stage: str) -> None:
    done = ptctl(
        stage, "-", *(["--policy", played / "recipe" / "model"] if stage != "score" else []), "-o", tmp_path / "new"
    )
    assert (done.returncode, (tmp_path / "new").exists()) == (66, False)
    assert "no shards on standard input" in done.stderr


def test_paths_separated_by_nul(played: Path, tmp_path: Path) -> None:
    shards = "\0".join(map(str, shards_in(played / "trajectories" / "1")))
    done = ptctl("score", "-0", "-", "-o", tmp_path / "scores", stdin=shards, cwd=played)
    assert done.returncode == 0
    assert len(done.stdout.splitlines()) == shards.count("\0") + 1


def test_a_reader_that_leaves_ends_the_producer_with_141_and_silence(played: Path) -> None:
    script = (
        f"{sys.executable} -m ptctl sample tasks --recipe recipe --print-config -o x | true; echo ${{PIPESTATUS[0]}}"
    )
    script = script.replace("| true", "| (exec <&-; sleep 0.1)")
    done = subprocess.run(["bash", "-c", script], cwd=played, capture_output=True, text=True, check=True)
    assert (done.stdout.strip(), done.stderr) == ("141", "")


def test_a_plain_locale_is_enough(played: Path) -> None:
    for command in (["--help"], ["sample", "--help"], ["eval", "scores/1"], ["doctor"]):
        done = ptctl(*command, cwd=played, LC_ALL="C", PYTHONUTF8="0", PYTHONCOERCECLOCALE="0")
        assert done.returncode == 0, done.stderr
        assert "\x1b" not in done.stdout


def test_help_lists_every_command_and_exit_code() -> None:
    text = ptctl("--help").stdout
    for name in COMMANDS:
        assert f"  {name} " in text
    for code, meaning in EXIT_CODE_MEANING.items():
        assert f"{code.value:>4}  {meaning}" in text
    assert set(EXIT_CODE_MEANING) == set(ExitCode)


def test_no_arguments_show_the_help() -> None:
    done = ptctl()
    assert (done.returncode, done.stdout) == (2, "")
    assert "Commands:" in done.stderr


def test_show_tells_turns_verdict_and_cost(played: Path) -> None:
    import pyarrow.parquet as pq

    name = pq.read_table(shards_in(played / "trajectories" / "1")[0])["trajectory_id"][0].as_py()
    done = ptctl("show", name[:10], played)
    assert done.returncode == 0
    for part in (f"trajectory {name}", "[0] user", "[1] assistant", "score by fake 1: reward", "cost: 1 turns"):
        assert part in done.stdout
    assert "\x1b" not in done.stdout
    assert ptctl("show", "", played).returncode == 2


def test_init_gives_a_recipe_that_loads(tmp_path: Path) -> None:
    assert ptctl("init", tmp_path / "mine").returncode == 0
    done = ptctl("run", tmp_path / "mine", "-o", tmp_path / "run", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("train\t0\tsft")
    assert not (tmp_path / "run").exists()


def test_run_resumes_extends_and_refuses_another_recipe(tmp_path: Path) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    run = tmp_path / "run"
    first = ptctl("run", recipe, "-o", run, "--steps", 1)
    assert first.returncode == 0, first.stderr
    assert "\r" not in first.stderr
    assert "\x1b" not in first.stderr
    assert first.stdout.splitlines()[-1] == str(run / "reports" / "final" / "eval.json")
    again = ptctl("run", recipe, "-o", run, "--steps", 1)
    assert (again.returncode, again.stdout) == (0, "")
    more = ptctl("run", recipe, "-o", run, "--steps", 2)
    assert more.returncode == 0, more.stderr
    assert sorted(path.name for path in (run / "policies").iterdir() if path.name.isdigit()) == [
        "0",
        "1",
        "2",
        "3",
        "4",
    ]
    assert (run / "reports" / "policy-3" / "eval.json").exists()
    other = ptctl("run", recipe, "-o", run, "--set", "train.learning_rate=1.0")
    assert other.returncode == 78
    assert "train.learning_rate: 1e-06 there, 1.0 now" in other.stderr


def test_a_run_has_one_supervisor_and_stops_in_order(tmp_path: Path) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    run = tmp_path / "run"
    process = start_run(recipe, run)
    deadline = time.monotonic() + 60
    while not (run / "policies" / "1").exists():
        assert time.monotonic() < deadline
        time.sleep(0.02)
    second = ptctl("run", recipe, "-o", run)
    assert second.returncode == 73
    assert "another `ptctl run` works on" in second.stderr
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 75, errors.decode()
    assert "the same command again goes on" in errors.decode()
    assert ptctl("run", recipe, "-o", run).returncode == 0


def test_a_stage_that_dies_is_named_with_its_message(tmp_path: Path) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    done = ptctl("run", recipe, "-o", tmp_path / "run", "--set", "rollout.top_p=0.5")
    assert done.returncode == 2
    assert "ptctl: error: rollout: the fake engine has neither top_k nor top_p" in done.stderr
    assert "logs/rollout.log" in done.stderr


def test_a_pool_that_cannot_be_verified_is_refused_before_it_is_written(tmp_path: Path) -> None:
    recipe = write_fake_recipe(tmp_path / "recipe")
    rows = (recipe / "pool.jsonl").read_text()
    (recipe / "pool.jsonl").write_text(rows.replace('"fake"', '"nosuch"'))
    done = ptctl("run", recipe, "-o", tmp_path / "run")
    assert (done.returncode, "unknown verifier 'nosuch'" in done.stderr) == (2, True)
    (recipe / "pool.jsonl").write_text(rows.replace('"eval"', '"train"'))
    done = ptctl("run", recipe, "-o", tmp_path / "run")
    assert (done.returncode, "no task of split 'eval'" in done.stderr) == (65, True)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("arguments", "code", "told"),
    [
        ("rollout other/1 --recipe recipe --policy recipe/model -o trajectories/1", 78, "made from other inputs"),
        ("score other-trajectories/1 --recipe recipe -o scores/1", 78, "made from other inputs"),
        ("tasks import recipe/pool.jsonl --seed 3 -o tasks", 78, "imported from other seed"),
        ("sample tasks --split eval -n 500 -o batches/9", 2, "500 held-out tasks asked for, the pool has 10"),
        ("tasks import bad/split.jsonl -o new", 65, "has the split 'test'"),
        ("tasks import bad/hard.jsonl -o new", 65, "hard.jsonl:1: difficulty is 'hard', not a number"),
        ("tasks import bad/latin.jsonl -o new", 65, "is not UTF-8"),
        ("tasks import bad/raises.py -o new", 65, "raises.py:2: ZeroDivisionError"),
        ("tasks import bad/syntax.py -o new", 65, "syntax.py:1: SyntaxError"),
        ("tasks import bad/number.py -o new", 65, "TypeError: 'int' object is not iterable"),
        ("sample tasks --recipe bad/latin.jsonl -o new", 2, "is not UTF-8"),
        ("sample tasks --set trian.epochs=3 -o new", 2, "--set: unknown key 'trian', did you mean 'train'?"),
        ("run recipe -o new --set rollout.tool_call_format=hermess", 2, "unknown tool-call format 'hermess'"),
        ('run recipe -o new --set eval.strata=["familly"]', 2, "unknown stratum key 'familly'"),
        ("run recipe -o new --set eval.num_tasks=99", 2, "eval.num_tasks is 99, the pool has 10 held-out tasks"),
    ],
)
def test_what_is_wrong_is_told_before_anything_is_written(
    played: Path, tmp_path: Path, arguments: str, code: int, told: str
) -> None:
    place = copy(played, tmp_path)
    bad = place / "bad"
    bad.mkdir()
    (bad / "split.jsonl").write_text('{"prompt": "a", "answer": 1, "split": "test"}\n')
    (bad / "hard.jsonl").write_text('{"prompt": "a", "answer": 1, "difficulty": "hard"}\n')
    (bad / "latin.jsonl").write_bytes(b'{"prompt": "\xe9", "answer": 1}\n')
    (bad / "raises.py").write_text("def generate(seed):\n    yield 1 / 0\n")
    (bad / "syntax.py").write_text("def generate(\n")
    (bad / "number.py").write_text("def generate(seed):\n    return 3\n")
    if "other" in arguments:
        assert ptctl("sample", "tasks", "--recipe", "recipe", "-n", 2, "-o", "other/1", cwd=place).returncode == 0
        command = ["rollout", "other/1", "--recipe", "recipe", "--policy", "recipe/model", "-o", "other-trajectories/1"]
        assert ptctl(*command, cwd=place).returncode == 0
    before = listing(place)
    done = ptctl(*arguments.split(), cwd=place)
    assert done.returncode == code, done.stderr
    assert told in done.stderr.splitlines()[0]
    assert "Traceback" not in done.stderr
    assert listing(place) == before


def test_an_import_that_was_killed_before_its_manifest_goes_on(played: Path, tmp_path: Path) -> None:
    place = copy(played, tmp_path)
    (place / "tasks" / "manifest.json").unlink()
    done = ptctl("tasks", "import", "recipe/pool.jsonl", "-o", "tasks", cwd=place)
    assert done.returncode == 0, done.stderr
    assert (place / "tasks" / "manifest.json").exists()


def test_training_on_what_was_consumed_says_so(played: Path, tmp_path: Path) -> None:
    place = copy(played, tmp_path)
    done = ptctl("train", "scores/1", "--recipe", "recipe", "--policy", "policies/1", "-o", "policies", cwd=place)
    assert (done.returncode, done.stdout) == (0, "")
    assert "nothing to train on" in done.stderr
