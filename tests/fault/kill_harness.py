"""Kills the five stages at random moments, over and over: a program, because it forks and must have no threads before.

    python kill_harness.py WORK_DIRECTORY NUM_KILLS SEED

Each round plays one small run with the real commands (fake engine, verifier and backend) in a child that was forked
with everything imported, kills it with SIGKILL or SIGTERM at a random moment, starts it again, and compares the end
with a run that was left alone. Prints one JSON line.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_run import write_fake_recipe
from ptctl.cli.main import main
from ptctl.shards.dataset import is_complete, shards_in
from ptctl.shards.policies import published
from ptctl.shards.reader import read_rows

NUM_BATCHES = 4
RESUMABLE = 75


def command(*arguments: object) -> None:
    """Run one subcommand in this process; leave the process with its code unless it succeeded."""
    sys.argv = ["ptctl", *map(str, arguments)]
    try:
        main()
    except SystemExit as leave:
        if leave.code:
            os._exit(int(leave.code))


def play(run: Path) -> None:
    """The whole run by its commands. What is done already is found done, as in a shell script that is started again."""
    os.chdir(run)
    recipe = ("--recipe", "../recipe", "--phase", "second")
    command("tasks", "import", "../recipe/pool.jsonl", "-o", "tasks") if not is_complete(Path("tasks")) else None
    for batch in range(NUM_BATCHES):
        policy = f"policies/{batch}" if batch else "../recipe/model"
        history = [part for earlier in range(batch) for part in ("--history", f"scores/{earlier}")]
        command("sample", "tasks", *history, *recipe, "-o", f"batches/{batch}")
        command("rollout", f"batches/{batch}", *recipe, "--policy", policy, "-o", f"trajectories/{batch}", "--grace", 1)
        command("score", f"trajectories/{batch}", *recipe, "-o", f"scores/{batch}")
        command("train", f"scores/{batch}", *recipe, "--policy", policy, "-o", "policies")
    if not Path("report/eval.json").exists():
        command("eval", "scores", "-o", "report", "--format", "json")


def start(run: Path) -> int:
    """Fork a child that plays the run; its output goes to a log."""
    run.mkdir(exist_ok=True)
    child = os.fork()
    if child == 0:
        log = os.open(run.parent / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(log, 1)
        os.dup2(log, 2)
        play(run)
        os._exit(0)
    return child


def result(run: Path) -> dict[str, Any]:
    """What must not depend on kills: every committed row by its identity and content, and the policies in order."""
    slots = sorted(
        (row.group_id, row.index, row.attempt, row.trajectory_id, list(map(int, row.token_ids)))
        for batch in range(NUM_BATCHES)
        for shard in shards_in(run / "trajectories" / str(batch))
        for row in read_rows(shard, "trajectories")
    )
    scored = sorted(
        (row.trajectory_id, row.reward)
        for batch in range(NUM_BATCHES)
        for shard in shards_in(run / "scores" / str(batch))
        for row in read_rows(shard, "scores")
    )
    policies = [
        (p.policy_version, p.batch, p.consumed_group_ids, p.weights_sha256) for p in published(run / "policies")
    ]
    report = json.loads((run / "report" / "eval.json").read_text())
    return {"slots": slots, "scores": scored, "policies": policies, "overall": report["overall"]}


def check_visible(run: Path) -> None:
    """Every shard that can be seen can be read, at any moment."""
    for kind, directory in (
        ("tasks", "tasks"),
        ("draws", "batches"),
        ("trajectories", "trajectories"),
        ("scores", "scores"),
    ):
        for path in (run / directory).rglob("*.parquet"):
            if not path.name.startswith("."):
                read_rows(path, kind)


def kill_at_random(run: Path, rng: random.Random, longest_s: float, counts: Counter[str]) -> bool:
    """One try of the run. Returns whether it came to its end."""
    child = start(run)
    deadline = time.monotonic() + rng.uniform(0, longest_s)
    while time.monotonic() < deadline:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return ended_well(status, run)
        time.sleep(0.001)
    number = rng.choice((signal.SIGKILL, signal.SIGTERM))
    os.kill(child, number)
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status) and os.WEXITSTATUS(status) == 0:
        return True
    counts[number.name] += 1
    counts["resumable"] += os.WIFEXITED(status) and os.WEXITSTATUS(status) == RESUMABLE
    return False


def ended_well(status: int, run: Path) -> bool:
    code = os.waitstatus_to_exitcode(status)
    if code != 0:
        raise SystemExit(f"the run ended with {code}; see {run.parent / 'log'}")
    return True


def check(place: Path, num_kills: int, seed: int) -> Counter[str]:
    """Kill until `num_kills` is reached, a fresh run each time the last one has ended."""
    rng = random.Random(seed)
    write_fake_recipe(place / "recipe")
    begin = time.monotonic()
    ended_well(os.waitpid(start(place / "calm"), 0)[1], place / "calm")
    longest_s = 0.7 * (time.monotonic() - begin)  # most tries are killed, and what they committed adds up
    counts: Counter[str] = Counter()
    # The rows are read in a child of their own: reading starts threads, and this process must go on forking.
    while counts["SIGKILL"] + counts["SIGTERM"] < num_kills:
        run = place / "killed"
        while not kill_at_random(run, rng, longest_s, counts):
            in_child(check_visible, run)
        counts["runs"] += 1
        in_child(compare, place / "calm", run)
        shutil.rmtree(run)
    return counts


def compare(calm: Path, killed: Path) -> None:
    found = result(killed)
    for name, value in result(calm).items():
        if found[name] != value:
            raise SystemExit(f"{name} differ from an uninterrupted run")


def in_child(work: Callable[..., None], *arguments: Path) -> None:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work(*arguments)
            code = 0
        finally:  # the child must not run on as a second parent
            if code:
                traceback.print_exc()
            sys.stderr.flush()
            os._exit(code)
    if os.waitpid(child, 0)[1]:
        raise SystemExit("a check failed")


if __name__ == "__main__":
    print(json.dumps(check(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))))
