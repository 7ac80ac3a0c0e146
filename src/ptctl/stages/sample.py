"""`sample`: pool + scored history + seed → draws. A pure function: the same inputs give the same draws."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ptctl.curriculum import CurriculumSettings, History, TaskWeights, draw_tasks, task_weights
from ptctl.errors import ConfigConflict, DataError, DuplicateRow, UsageError
from ptctl.records import Draw, Purpose, ScoreStatus
from ptctl.seeds import derive_seed
from ptctl.shards.columns import rows_to_table
from ptctl.shards.dataset import is_complete, shards_in, write_manifest
from ptctl.shards.files import sweep
from ptctl.shards.reader import read_table
from ptctl.shards.writer import Lineage, write_rows

POOL_COLUMNS = ("task_id", "task_digest", "domain", "family", "split")
HISTORY_COLUMNS = ("task_id", "group_id", "status", "passed")


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleOptions:
    """What one call of `run` needs."""

    pool: Sequence[Path]
    """Task shards."""
    history: Sequence[Path] = ()
    """Score shards of earlier batches."""
    out: Path
    """Dataset directory to write; its name is the batch's name where `batch` gives no other."""
    batch: str | None = None
    """Name that seeds are derived from. Two evaluations under one name get the same seeds."""
    num_groups: int
    """Tasks to draw; 0 takes every task of the split once."""
    group_size: int
    """Trajectories a group."""
    seed: int
    purpose: Purpose = Purpose.TRAIN
    """`eval` draws from the eval split, each task once, in canonical order."""
    settings: CurriculumSettings
    recipe_digest: str = ""
    facts: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Kept in the manifest, such as the phase and the policy version."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pool:
    """Columns of the tasks of one split, sorted by task_id."""

    task_id: list[str]
    task_digest: list[str]
    domain: np.ndarray[Any, np.dtype[np.int64]]
    family: np.ndarray[Any, np.dtype[np.int64]]


def run(options: SampleOptions) -> list[Path]:
    """Draw a batch and commit it; returns its shards. The same call again finds the batch and changes nothing.

    Raises DataError for an empty pool, DuplicateRow for a task that stands twice, ConfigConflict where `out` holds
    other draws.
    """
    pool = _read_pool(options.pool, "eval" if options.purpose == Purpose.EVAL else "train")
    draws = _draws(pool, options)
    if is_complete(options.out):
        _check_same(draws, options.out)
        return shards_in(options.out)
    sweep(options.out)
    lineage = Lineage(inputs=tuple(options.pool), recipe_digest=options.recipe_digest, facts=options.facts)
    if not shards_in(options.out):  # a kill between shard and manifest leaves the one without the other
        write_rows(draws, "draws", options.out, lineage)
    _check_same(draws, options.out)
    write_manifest(options.out, "draws", lineage)
    return shards_in(options.out)


def count_slots(options: SampleOptions) -> int:
    """Trajectories that the batch asks for."""
    split = "eval" if options.purpose == Purpose.EVAL else "train"
    num_groups = options.num_groups or len(_read_pool(options.pool, split).task_id)
    return num_groups * options.group_size


def with_facts(options: SampleOptions, facts: Mapping[str, Any]) -> SampleOptions:
    """The same options with facts for the manifest."""
    return replace(options, facts=facts)


def _read_pool(paths: Sequence[Path], split: str) -> _Pool:
    columns: dict[str, list[str]] = {name: [] for name in POOL_COLUMNS}
    for path in paths:
        table = read_table(path, "tasks", POOL_COLUMNS)
        for name in POOL_COLUMNS:
            columns[name].extend(table.column(name).to_pylist())
    keep = [index for index, value in enumerate(columns["split"]) if value == split]
    if not keep:
        where = ", ".join(str(path) for path in paths[:3])
        raise DataError(f"no task of split {split!r} in {where}", hint="a task's split is `train` or `eval`")
    keep.sort(key=lambda index: columns["task_id"][index])
    task_id = [columns["task_id"][index] for index in keep]
    for before, after in itertools.pairwise(task_id):
        if before == after:
            raise DuplicateRow(f"task {before!r} stands twice in the pool")
    return _Pool(
        task_id=task_id,
        task_digest=[columns["task_digest"][index] for index in keep],
        domain=np.unique([columns["domain"][index] for index in keep], return_inverse=True)[1].astype(np.int64),
        family=np.unique([columns["family"][index] for index in keep], return_inverse=True)[1].astype(np.int64),
    )


def read_history(paths: Sequence[Path], task_ids: Sequence[str]) -> History:
    """Count scored trajectories, successes and groups of each task. Unscored rows are no failures and do not count."""
    position = {task_id: index for index, task_id in enumerate(task_ids)}
    successes = np.zeros(len(task_ids), dtype=np.int64)
    trials = np.zeros(len(task_ids), dtype=np.int64)
    groups: list[set[str]] = [set() for _ in task_ids]
    for path in paths:
        table = read_table(path, "scores", HISTORY_COLUMNS)
        for task_id, group_id, status, passed in zip(
            *(table.column(name).to_pylist() for name in HISTORY_COLUMNS), strict=True
        ):
            index = position.get(task_id)
            if index is None:
                continue
            groups[index].add(group_id)
            if status == ScoreStatus.SCORED and passed is not None:
                trials[index] += 1
                successes[index] += bool(passed)
    num_draws = np.asarray([len(members) for members in groups], dtype=np.int64)
    return History(successes=successes, trials=trials, num_draws=num_draws)


def _draws(pool: _Pool, options: SampleOptions) -> list[Draw]:
    weights = task_weights(read_history(options.history, pool.task_id), pool.family, options.settings)
    num_groups = options.num_groups or len(pool.task_id)
    if options.purpose == Purpose.EVAL and num_groups > len(pool.task_id):
        raise UsageError(
            f"{num_groups} held-out tasks asked for, the pool has {len(pool.task_id)}", hint="0 takes each of them once"
        )
    seed = derive_seed(options.seed, "sample", options.batch or options.out.name)
    part = pool.family if options.settings.quota_by == "family" else pool.domain
    drawn, share = draw_tasks(weights, part, num_groups, options.settings, seed)
    if options.purpose == Purpose.EVAL:
        order = np.argsort(drawn, kind="stable")
        drawn, share = drawn[order], share[order]
    adaptive = options.settings.strategy != "uniform"
    return [
        _draw(pool, options, weights, position, int(index), float(share[position]), adaptive)
        for position, index in enumerate(drawn)
    ]


def _draw(
    pool: _Pool, options: SampleOptions, weights: TaskWeights, position: int, index: int, share: float, adaptive: bool
) -> Draw:
    batch = options.out.name
    success, failure_rate = float(weights.success[index]), float(weights.failure_rate[index])
    return Draw(
        group_id=f"{batch}/{position:06d}",
        batch=batch,
        position=position,
        task_id=pool.task_id[index],
        task_digest=pool.task_digest[index],
        purpose=options.purpose,
        group_size=options.group_size,
        seed=derive_seed(options.seed, "draw", options.batch or batch, position, pool.task_id[index]),
        strategy=options.settings.strategy,
        weight=float(weights.weight[index]),
        difficulty=1.0 - success if adaptive else None,
        failure_rate=failure_rate if adaptive and not np.isnan(failure_rate) else None,
        learnability=success * (1.0 - success) if adaptive else None,
        novelty=float(weights.novelty[index]) if adaptive else None,
        quota=share,
    )


def _check_same(draws: list[Draw], out: Path) -> None:
    """The draws are a pure function of the inputs, so what stands there must be what would be written now."""
    stored = [row for path in shards_in(out) for row in read_table(path, "draws").to_pylist()]
    fresh = rows_to_table("draws", draws).to_pylist()
    if stored == fresh:
        return
    if len(stored) != len(fresh):
        difference = f"{len(stored)} draws stand there, {len(fresh)} are asked for"
    else:
        pairs = (
            (old["group_id"], name, old[name], new[name])
            for old, new in zip(stored, fresh, strict=True)
            for name in old
            if old[name] != new[name]
        )
        group_id, name, before, after = next(pairs)
        difference = f"{name} of {group_id} is {before!r} there and {after!r} now"
    raise ConfigConflict(
        f"{out} holds another batch: {difference}", hint="choose another -o, or the settings that made it"
    )
