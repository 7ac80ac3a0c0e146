"""The stage processes of a run: started warm, watched, stopped."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ptctl.errors import ExitCode, PtctlError
from ptctl.loop.parent import PARENT_VARIABLE
from ptctl.shards.files import make_directory
from ptctl.shards.run_directory import RunDirectory

STAGES = ("train", "rollout", "score")
STOP_GRACE_S = 75.0
TAIL_LINES = 15
MAX_TAIL_BYTES = 20_000


class StageDied(PtctlError):
    """A stage process ended by itself; carries its exit code on."""

    def __init__(self, message: str, *, hint: str | None = None, code: int = ExitCode.BUG) -> None:
        super().__init__(message, hint=hint)
        # A crash of a stage is told with its log's tail; the supervisor itself has no bug to show a traceback for.
        self.exit_code = ExitCode(code) if code in list(ExitCode) and code != ExitCode.BUG else ExitCode.UNAVAILABLE


@dataclass(slots=True)
class StageProcess:
    """One running stage and where its standard error goes."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path


def _start(name: str, run: RunDirectory) -> StageProcess:
    log = run.logs / f"{name}.log"
    environment = {
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        **os.environ,
        PARENT_VARIABLE: str(os.getpid()),
    }
    with log.open("ab") as stream:
        process = subprocess.Popen(
            [sys.executable, "-m", "ptctl", name, "--follow", str(run.root)],
            stdin=subprocess.DEVNULL,
            stdout=stream,
            stderr=stream,
            env=environment,
            start_new_session=True,  # ^C reaches the supervisor alone, which then stops the stages in order
        )
    return StageProcess(name, process, log)


@contextmanager
def stage_processes(run: RunDirectory) -> Generator[list[StageProcess]]:
    """Start the followers; stop them on the way out, however that is."""
    make_directory(run.logs)
    stages: list[StageProcess] = []
    try:
        stages.extend(_start(name, run) for name in STAGES)
        yield stages
    finally:
        _stop(stages)


def _stop(stages: list[StageProcess]) -> None:
    for stage in stages:
        if stage.process.poll() is None:
            stage.process.terminate()
    deadline = time.monotonic() + STOP_GRACE_S
    for stage in stages:
        try:
            stage.process.wait(max(0.1, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            stage.process.kill()
            stage.process.wait()


def check_alive(stages: list[StageProcess]) -> None:
    """Raise StageDied for a stage that has ended, with the last lines that it wrote."""
    for stage in stages:
        code = stage.process.poll()
        if code is not None:
            told = _last_lines(stage.log)
            message = next((line for line in reversed(told) if line.startswith("ptctl: error: ")), None)
            summary = message.removeprefix("ptctl: error: ") if message else f"it ended with status {code}"
            raise StageDied(f"{stage.name}: {summary}", hint=f"see {stage.log}", code=code)


def _last_lines(log: Path) -> list[str]:
    with log.open("rb") as stream:
        stream.seek(max(0, log.stat().st_size - MAX_TAIL_BYTES))
        return stream.read().decode("utf-8", "replace").splitlines()[-TAIL_LINES:]
