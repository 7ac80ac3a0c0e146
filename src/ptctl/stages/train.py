"""`train`: trajectories ⨝ scores + policy → policy.

Each group is consumed exactly once; a kill leaves the old policy.
"""

from __future__ import annotations

import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ptctl import __version__
from ptctl.errors import DataError, DuplicateRow
from ptctl.protocols import Backend, StepMetrics, TrainRows
from ptctl.records import Policy, ScoreStatus, StopReason, canonical_json
from ptctl.shards.columns import compute, stream_views
from ptctl.shards.dataset import upstream
from ptctl.shards.files import committed_directory, sweep, write_json
from ptctl.shards.policies import (
    CHECKPOINT,
    POLICY_FILE,
    SKIPPED_PREFIX,
    drop_old_checkpoints,
    policy_to_json,
    published,
    versions,
)
from ptctl.shards.reader import read_table
from ptctl.training_plan import PlanSettings, RewardColumns, TrainingPlan, plan_training

SCORE_COLUMNS = ("trajectory_id", "group_id", "task_id", "index", "attempt", "status", "reward", "passed")
TRAJECTORY_COLUMNS = (
    "trajectory_id", "group_id", "group_size", "batch", "stop_reason", "sampling",
    "token_ids", "loss_mask", "rollout_logprobs",
)  # fmt: skip
TRUNCATED = [reason.value for reason in StopReason if reason.is_truncated]
FAILED = [reason.value for reason in StopReason if reason.is_error]


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainOptions:
    """What one call of `run` needs."""

    scores: Sequence[Path]
    """Score shards; their trajectories are found by lineage."""
    out: Path
    """Directory of numbered policies."""
    parent_version: int
    """Version that the backend holds."""
    plan: PlanSettings
    phase: str
    keep_checkpoints: int
    recipe_digest: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Joined scores and trajectories in canonical order."""

    rows: TrainRows
    columns: RewardColumns
    group_ids: tuple[str, ...]
    """Groups, in canonical order."""
    name: str
    """Batch names, joined by `,`."""
    mean_reward: float | None
    success_rate: float | None


def consumed_groups(policies: Path) -> set[str]:
    """Groups that some policy below `policies` has consumed."""
    return {group_id for policy in published(policies) for group_id in policy.consumed_group_ids}


def run(options: TrainOptions, backend: Backend) -> Path | None:
    """Train on the groups that no policy has consumed yet, and publish the next version.

    Returns the new policy's directory, or None where nothing was left to consume or nothing could be learned from it;
    the latter is recorded as `skipped-BATCH.json`, so that those groups count as consumed.
    Raises DataError for rows that cannot be trained on, DuplicateRow, CannotCreate where another process was first.
    """
    batch = read_batch(options.scores, consumed_groups(options.out), options.plan.algorithm)
    if batch is None:
        return None
    plan = plan_training(batch.columns, options.plan)
    begin = time.perf_counter()
    rows = _with_advantages(batch.rows, plan)
    metrics = [backend.step(rows, step) for step in plan.steps]
    report = _metrics(batch, plan, metrics, time.perf_counter() - begin)
    if not plan.steps:
        if backend.is_main():
            record = _policy(
                options, batch, plan, report, options.parent_version, "", has_checkpoint=False, name=backend.name
            )
            write_json(options.out / f"{SKIPPED_PREFIX}{batch.name.replace('/', '_')}.json", policy_to_json(record))
        return None
    return _publish(options, batch, plan, report, backend)


def publish_initial(out: Path, backend: Backend, *, phase: str, recipe_digest: str, seed: int) -> Path:
    """Publish what the backend started from as version 0."""
    target = out / "0"
    with _shared_directory(target, backend) as temporary:
        weights = backend.publish(temporary, with_checkpoint=True)
        policy = Policy(
            policy_version=0, parent_version=None, batch=None, phase=phase, algorithm=None, consumed_group_ids=(),
            num_steps=0, skipped_steps=0, num_trajectories=0, num_loss_tokens=0, recipe_digest=recipe_digest,
            backend=backend.name, weights_sha256=weights, has_checkpoint=(temporary / CHECKPOINT).exists(),
            metrics_json=canonical_json({"seed": seed}), code_version=__version__, created_at=time.time(),
        )  # fmt: skip
        if backend.is_main():
            write_json(temporary / POLICY_FILE, policy_to_json(policy))
    return target


@contextmanager
def _shared_directory(target: Path, backend: Backend) -> Generator[Path]:
    """One temporary directory for all processes; the main one gives it its name when all have written."""
    if not backend.is_main():
        yield Path(backend.from_main(""))
        return
    sweep(target.parent)
    with committed_directory(target) as temporary:
        yield Path(backend.from_main(str(temporary)))


def _publish(
    options: TrainOptions, batch: Batch, plan: TrainingPlan, report: Mapping[str, Any], backend: Backend
) -> Path:
    version = max([options.parent_version, *versions(options.out)]) + 1
    target = options.out / str(version)
    with _shared_directory(target, backend) as temporary:
        weights = backend.publish(temporary, with_checkpoint=True)
        if backend.is_main():
            record = _policy(options, batch, plan, report, version, weights, has_checkpoint=True, name=backend.name)
            write_json(temporary / POLICY_FILE, policy_to_json(record))
    if backend.is_main():
        drop_old_checkpoints(options.out, options.keep_checkpoints)
    return target


def _policy(
    options: TrainOptions, batch: Batch, plan: TrainingPlan, report: Mapping[str, Any],
    version: int, weights: str, *, has_checkpoint: bool, name: str,
) -> Policy:  # fmt: skip
    return Policy(
        policy_version=version,
        parent_version=options.parent_version,
        batch=batch.name,
        phase=options.phase,
        algorithm=options.plan.algorithm,
        consumed_group_ids=batch.group_ids,
        num_steps=len(plan.steps),
        skipped_steps=0 if plan.steps else 1,
        num_trajectories=int(plan.trained.sum()),
        num_loss_tokens=int(batch.columns.num_loss_tokens[plan.trained].sum()),
        recipe_digest=options.recipe_digest,
        backend=name,
        weights_sha256=weights,
        has_checkpoint=has_checkpoint,
        metrics_json=canonical_json(report),
        code_version=__version__,
        created_at=time.time(),
    )


def _metrics(batch: Batch, plan: TrainingPlan, steps: Sequence[StepMetrics], train_s: float) -> dict[str, Any]:
    """What the policy file tells: the batch, and each quantity averaged over the batch's steps."""
    report: dict[str, Any] = {
        "mean_reward": batch.mean_reward,
        "success_rate": batch.success_rate,
        "num_rows": batch.rows.num_rows,
        "num_zero_variance_groups": plan.num_zero_variance_groups,
        "num_unscored": plan.num_unknown,
        "train_s": train_s,
    }
    for name in ("loss", "grad_norm", "entropy", "kl", "clip_fraction"):
        report[name] = float(np.mean([getattr(step, name) for step in steps])) if steps else None
    if steps:
        report["learning_rate"] = steps[-1].learning_rate
        report["first_loss"], report["last_loss"] = steps[0].loss, steps[-1].loss
        # Before the first update trainer and engine hold the same weights, so that this is their disagreement.
        report["train_rollout_logprob_difference"] = steps[0].max_logprob_difference
    return report


def read_batch(scores: Sequence[Path], consumed: set[str], algorithm: str) -> Batch | None:
    """Join score shards with their trajectories, leave out consumed groups, and order canonically.

    Returns None where nothing is left. Raises DuplicateRow where a slot stands twice, DataError where a score has no
    trajectory.
    """
    narrow = pa.concat_tables([read_table(path, "scores", SCORE_COLUMNS) for path in scores])
    if consumed:
        taken = compute.is_in(narrow.column("group_id"), value_set=pa.array(sorted(consumed), type=pa.string()))
        narrow = narrow.filter(compute.invert(taken))
    if narrow.num_rows == 0:
        return None
    narrow = narrow.sort_by([(name, "ascending") for name in ("task_id", "group_id", "index", "attempt")])
    _refuse_duplicates(narrow)
    wide = pa.concat_tables([read_table(path, "trajectories", TRAJECTORY_COLUMNS) for path in upstream(scores)])
    order = compute.index_in(narrow.column("trajectory_id"), value_set=wide.column("trajectory_id").combine_chunks())
    if order.null_count:
        lost = narrow.column("trajectory_id")[int(np.flatnonzero(order.is_null().to_numpy())[0])].as_py()
        raise DataError(f"trajectory {lost!r} was scored but is not there", hint="restore its trajectory shards")
    return _assemble(narrow, wide.take(order), algorithm)


def _refuse_duplicates(narrow: pa.Table) -> None:
    seen: set[tuple[str, int]] = set()
    columns = (narrow.column(name).to_pylist() for name in ("group_id", "index"))
    for key in zip(*columns, strict=True):
        if key in seen:
            raise DuplicateRow(f"slot {key[0]}[{key[1]}] is scored twice", hint="give one score dataset for each batch")
        seen.add(key)


def _assemble(narrow: pa.Table, wide: pa.Table, algorithm: str) -> Batch:
    tokens = stream_views(wide.column("token_ids"))
    masks = stream_views(wide.column("loss_mask"))
    logprobs = stream_views(wide.column("rollout_logprobs"))
    temperatures = np.asarray([sampling["temperature"] for sampling in wide.column("sampling").to_pylist()])
    stop = wide.column("stop_reason")
    failed = compute.is_in(stop, value_set=pa.array(FAILED)).to_numpy()
    _refuse_without_tokens(wide, tokens, failed)
    if algorithm == "sft":
        temperatures = np.ones(len(tokens))
        logprobs = [np.zeros(len(part), dtype=np.float32) for part in tokens]
    else:
        _refuse_untrainable(wide, tokens, logprobs, temperatures, failed)
        logprobs = [
            part if len(part) else np.zeros(len(ids), np.float32) for part, ids in zip(logprobs, tokens, strict=True)
        ]
    offsets = np.concatenate([[0], np.cumsum([len(part) for part in tokens])]).astype(np.int64)
    known = compute.equal(narrow.column("status"), ScoreStatus.SCORED.value).to_numpy()
    groups, group_index = np.unique(narrow.column("group_id").to_pylist(), return_inverse=True)
    rows = TrainRows(
        token_ids=np.concatenate(tokens),
        offsets=offsets,
        loss_mask=np.concatenate(masks),
        rollout_logprobs=np.concatenate(logprobs),
        advantages=np.zeros(len(tokens)),
        temperatures=temperatures,
    )
    columns = RewardColumns(
        rewards=compute.fill_null(narrow.column("reward"), 0.0).to_numpy(),
        known=known,
        group_index=group_index.astype(np.int64),
        truncated=compute.is_in(stop, value_set=pa.array(TRUNCATED)).to_numpy(),
        failed=failed,
        lengths=np.diff(offsets),
        num_loss_tokens=np.asarray([int(mask.sum()) for mask in masks], dtype=np.int64),
    )
    return Batch(
        rows=rows,
        columns=columns,
        group_ids=tuple(str(group) for group in groups),
        name=",".join(sorted(set(wide.column("batch").to_pylist()))),
        mean_reward=compute.mean(narrow.column("reward")).as_py(),
        success_rate=compute.mean(narrow.column("passed").cast(pa.float64())).as_py(),
    )


def _refuse_without_tokens(wide: pa.Table, tokens: Sequence[Any], failed: Any) -> None:
    """Rows of other tools may hold text alone, and text is not re-tokenised."""
    for index, ids in enumerate(tokens):
        if not failed[index] and len(ids) == 0:
            name = wide.column("trajectory_id")[index].as_py()
            raise DataError(
                f"trajectory {name!r} has no token ids", hint="roll its task out again; text is no training row"
            )


def _refuse_untrainable(
    wide: pa.Table, tokens: Sequence[Any], logprobs: Sequence[Any], temperatures: Any, failed: Any
) -> None:
    """Policy gradients need the engine's own log-probabilities at a positive temperature."""
    for index, (ids, recorded) in enumerate(zip(tokens, logprobs, strict=True)):
        if failed[index]:
            continue
        name = wide.column("trajectory_id")[index].as_py()
        if len(recorded) != len(ids):
            raise DataError(
                f"trajectory {name!r} has no rollout log-probabilities", hint="train it with algorithm = sft"
            )
        if temperatures[index] <= 0:
            raise DataError(f"trajectory {name!r} was sampled greedily", hint="roll out with temperature > 0 to train")


def _with_advantages(rows: TrainRows, plan: TrainingPlan) -> TrainRows:
    return TrainRows(
        token_ids=rows.token_ids,
        offsets=rows.offsets,
        loss_mask=rows.loss_mask,
        rollout_logprobs=rows.rollout_logprobs,
        advantages=plan.advantages,
        temperatures=rows.temperatures,
    )
