"""`score`: trajectories (+ tasks) → scores, a narrow sidecar. A failure of the infrastructure is never a reward."""

from __future__ import annotations

import json
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from ptctl.errors import ConfigConflict, Interrupted, PtctlError, RowFailure, TooManyFailures
from ptctl.protocols import Sandbox, Verdict, Verifier
from ptctl.records import RowError, Score, ScoreStatus, StopReason, Task, Trajectory, UnscoredReason, canonical_json
from ptctl.shards.dataset import (
    check_inputs,
    done_values,
    is_complete,
    shards_in,
    tasks_by_id,
    upstream,
    write_manifest,
)
from ptctl.shards.files import sweep
from ptctl.shards.reader import read_rows, read_table
from ptctl.shards.schema import narrow_columns
from ptctl.shards.writer import Lineage, write_rows

MAX_DETAIL_CHARS = 4000
REASON_OF_KIND = {
    "engine": UnscoredReason.ENGINE_ERROR,
    "environment": UnscoredReason.ENV_ERROR,
    "sandbox": UnscoredReason.SANDBOX_ERROR,
    "timeout": UnscoredReason.TIMEOUT,
    "cancelled": UnscoredReason.CANCELLED,
    "judge": UnscoredReason.JUDGE_ERROR,
}
REASON_OF_STOP = {
    StopReason.ENGINE_ERROR: UnscoredReason.ENGINE_ERROR,
    StopReason.ENV_ERROR: UnscoredReason.ENV_ERROR,
    StopReason.CANCELLED: UnscoredReason.CANCELLED,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreOptions:
    """What one call of `run` needs."""

    trajectories: Iterable[Path]
    """Trajectory shards; may arrive one by one."""
    out: Path
    """Dataset directory of the scores."""
    make_verifier: Callable[[str, Mapping[str, Any]], Verifier]
    """(name, settings) → verifier."""
    make_sandbox: Callable[[], Sandbox]
    """Called once, when the first verifier asks for a sandbox."""
    num_threads: int = 2
    """Verifications that run in sandboxes side by side."""
    max_errors: int | None = None
    """Unscored rows allowed; None: anything short of all."""
    recipe_digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Facts of the batch, handed on to the scores."""
    on_commit: Callable[[Path], None] = lambda path: None
    """Called with each shard the moment it is committed."""
    stopped: Callable[[], bool] = lambda: False
    """Asked between shards; True after a signal."""


def run(options: ScoreOptions) -> None:
    """Score every trajectory that has no score yet, a shard for each shard read, and declare the dataset complete.

    Raises Interrupted (what is finished is committed), ConfigConflict where another version of a verifier began the
    dataset, TooManyFailures after everything was committed.
    """
    if is_complete(options.out):
        check_inputs(options.out, list(options.trajectories))
    for shard in shards_in(options.out):
        options.on_commit(shard)
    if is_complete(options.out):
        return
    sweep(options.out)
    scorer = _Scorer(options)
    try:
        scorer.run()
    finally:
        scorer.close()


class _Scorer:
    """One run of the stage, with what is made once and used for many rows."""

    def __init__(self, options: ScoreOptions) -> None:
        self.options = options
        self.sandbox: Sandbox | None = None
        self.done = done_values(options.out, "scores", "trajectory_id")
        self.versions = dict(_verifier_versions(options.out))
        self.ordinal = len(shards_in(options.out))
        self.inputs: list[Path] = []
        self.num_rows = 0
        self.num_unscored = 0
        self.verifier = lru_cache(maxsize=256)(self._make_verifier)
        self.threads = ThreadPoolExecutor(options.num_threads)

    def close(self) -> None:
        self.threads.shutdown()
        if self.sandbox is not None:
            self.sandbox.close()

    def run(self) -> None:
        for path in self.options.trajectories:
            self.inputs.append(path)
            self._score_shard(path)
            if self.options.stopped():
                raise Interrupted(f"stopped after {self.num_rows} scores", hint="the same command again goes on")
        check_inputs(self.options.out, self.inputs)
        write_manifest(self.options.out, "scores", self._lineage(self.inputs))
        limit = self.options.max_errors
        if self.num_unscored and (self.num_unscored == self.num_rows if limit is None else self.num_unscored > limit):
            raise TooManyFailures(f"{self.num_unscored} of {self.num_rows} trajectories have no score")

    def _score_shard(self, path: Path) -> None:
        rows = read_rows(path, "trajectories", narrow_columns("trajectories"))
        rows = [row for row in rows if row.trajectory_id not in self.done]
        if not rows:
            return
        tasks = tasks_by_id(upstream(upstream([path])), {row.task_id: row.task_digest for row in rows})
        scores = self._score_rows([(tasks[row.task_id], row) for row in rows])
        self.done.update(score.trajectory_id for score in scores)
        self.num_rows += len(scores)
        self.num_unscored += sum(score.status == ScoreStatus.UNSCORED for score in scores)
        shard = write_rows(scores, "scores", self.options.out, self._lineage([path]), ordinal=self.ordinal)
        self.ordinal += 1
        self.options.on_commit(shard)

    def _score_rows(self, rows: Sequence[tuple[Task, Trajectory]]) -> list[Score]:
        """Scores in the order of the rows; those that need a sandbox side by side."""
        verifiers = [self.verifier(task.verifier, task.verifier_json) for task, _ in rows]
        if not any(verifier.needs_sandbox for verifier in verifiers):
            return [score_one(task, row, verifier, None) for (task, row), verifier in zip(rows, verifiers, strict=True)]
        if self.sandbox is None:
            self.sandbox = self.options.make_sandbox()
        tasks, trajectories = zip(*rows, strict=True)
        return list(self.threads.map(score_one, tasks, trajectories, verifiers, [self.sandbox] * len(rows)))

    def _make_verifier(self, name: str, settings_json: str) -> Verifier:
        verifier = self.options.make_verifier(name, json.loads(settings_json))
        stored = self.versions.get(name, verifier.version)
        if stored != verifier.version:
            raise ConfigConflict(
                f"{self.options.out} was scored by {name} {stored}, this is {name} {verifier.version}",
                hint="give another -o: scores of two versions are two datasets",
            )
        return verifier

    def _lineage(self, inputs: Sequence[Path]) -> Lineage:
        return Lineage(inputs=tuple(inputs), recipe_digest=self.options.recipe_digest, facts=self.options.facts)


def _verifier_versions(out: Path) -> set[tuple[str, str]]:
    """(name, version) of every verifier that has scored a row of the dataset."""
    columns = [read_table(shard, "scores", ["verifier", "verifier_version"]) for shard in shards_in(out)]
    return {
        (name, version)
        for table in columns
        for name, version in zip(*(table.column(index).to_pylist() for index in (0, 1)), strict=True)
    }


def score_one(task: Task, trajectory: Trajectory, verifier: Verifier, sandbox: Sandbox | None) -> Score:
    """Verify one trajectory. Whatever goes wrong gives a typed row without a value; only a verdict gives a reward."""
    begin = time.perf_counter()
    failed = REASON_OF_STOP.get(StopReason(trajectory.stop_reason))
    if failed is not None:
        return _row(trajectory, verifier, begin, reason=failed, error=trajectory.error)
    try:
        verdict = verifier.verify(task, trajectory, sandbox if verifier.needs_sandbox else None)
    except RowFailure as failure:
        reason = REASON_OF_KIND.get(failure.kind, UnscoredReason.VERIFIER_ERROR)
        error = RowError(kind=failure.kind, message=str(failure), detail=failure.detail)
        return _row(trajectory, verifier, begin, reason=reason, error=error)
    except PtctlError:
        raise
    except Exception as failure:  # noqa: BLE001 - plug-in boundary: the error is kept, the reward stays NULL
        detail = traceback.format_exc()[-MAX_DETAIL_CHARS:]
        error = RowError(kind="verifier", message=f"{type(failure).__name__}: {failure}", detail=detail)
        return _row(trajectory, verifier, begin, reason=UnscoredReason.VERIFIER_ERROR, error=error)
    return _row(trajectory, verifier, begin, verdict=verdict)


def _row(
    trajectory: Trajectory,
    verifier: Verifier,
    begin: float,
    *,
    verdict: Verdict | None = None,
    reason: UnscoredReason | None = None,
    error: RowError | None = None,
) -> Score:
    return Score(
        trajectory_id=trajectory.trajectory_id,
        group_id=trajectory.group_id,
        index=trajectory.index,
        attempt=trajectory.attempt,
        task_id=trajectory.task_id,
        task_digest=trajectory.task_digest,
        verifier=verifier.name,
        verifier_version=verifier.version,
        status=ScoreStatus.SCORED if verdict is not None else ScoreStatus.UNSCORED,
        reason=reason,
        reward=verdict.reward if verdict is not None else None,
        passed=verdict.passed if verdict is not None else None,
        components=verdict.components if verdict is not None else (),
        answer=verdict.answer if verdict is not None else None,
        answer_status=verdict.answer_status if verdict is not None else None,
        evidence_json=canonical_json(dict(verdict.evidence)) if verdict is not None else "{}",
        error=error,
        verify_s=time.perf_counter() - begin,
        scored_at=time.time(),
    )
