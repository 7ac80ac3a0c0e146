"""`train`: consumption exactly once, canonical order, and what cannot be trained on is refused by name."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest

from ptctl.errors import CannotCreate, DataError, DuplicateRow
from ptctl.protocols import BackendSettings, LossSettings, OptimizerSettings
from ptctl.records import Sampling, Trajectory
from ptctl.shards.policies import published, read_policy_file, versions
from ptctl.stages import train
from ptctl.testing.factories import make_draw, make_score, make_simple_task, make_trajectory, write_dataset
from ptctl.testing.fake_backend import FakeBackend
from ptctl.training_plan import PlanSettings

OPTIMIZER = OptimizerSettings(
    learning_rate=1.0,
    min_learning_rate=0.0,
    num_warmup_steps=0,
    num_decay_steps=0,
    decay="constant",
    beta1=0.9,
    beta2=0.9,
    epsilon=1e-8,
    weight_decay=0.0,
    max_grad_norm=1.0,
)


def make_scored(
    tmp_path: Path, name: str, rewards: list[list[float | None]], order: random.Random | None = None, **columns: Any
) -> list[Path]:
    """A scored batch with one group for each list; `order` shuffles rows and splits shards."""
    tasks = [make_simple_task(f"{name}/{i}", split="train") for i in range(len(rewards))]
    pool = write_dataset(tmp_path / f"tasks-{name}", "tasks", [tasks])
    draws = [make_draw(task, batch=name, position=i, group_size=len(rewards[i])) for i, task in enumerate(tasks)]
    drawn = write_dataset(tmp_path / "batches" / name, "draws", [draws], inputs=pool)
    rows: list[tuple[Trajectory, float | None]] = []
    for draw, values in zip(draws, rewards, strict=True):
        rows += [
            (make_trajectory(draw, index=i, token_ids=[1, 2, 3, 4, draw.position * 10 + i], **columns), value)
            for i, value in enumerate(values)
        ]
    if order is not None:
        order.shuffle(rows)
    cut = order.randint(1, len(rows) - 1) if order is not None else len(rows)
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    played = write_dataset(
        tmp_path / "trajectories" / name, "trajectories", [[row for row, _ in part] for part in parts], inputs=drawn
    )
    scores = [[make_score(row, reward=value) for row, value in part] for part in parts]
    return list(write_dataset(tmp_path / "scores" / name, "scores", scores, inputs=played))


def start(tmp_path: Path, **changes: Any) -> FakeBackend:
    model = tmp_path / "model"
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text("{}")
    settings = BackendSettings(
        policy=model,
        initialize="random",
        seed=1,
        phase="rl",
        optimizer=OPTIMIZER,
        loss=LossSettings(algorithm="grpo", clip_low=0.2, clip_high=0.2),
    )
    backend = FakeBackend(settings)
    backend.start()
    return backend


def options(tmp_path: Path, scores: list[Path], parent: int = 0, **plan: Any) -> train.TrainOptions:
    values: dict[str, Any] = {
        "algorithm": "grpo",
        "estimator": "dr_grpo",
        "normalisation": "token_mean",
        "constant_length": None,
        "epochs": 1,
        "rows_per_step": 0,
        "steps_per_epoch": 2,
        "micro_batch_tokens": 64,
        "train_truncated": True,
        "seed": 1,
    }
    return train.TrainOptions(
        scores=scores,
        out=tmp_path / "policies",
        parent_version=parent,
        plan=PlanSettings(**(values | plan)),
        phase="rl",
        keep_checkpoints=0,
    )


def test_a_batch_is_consumed_once_and_recorded_with_the_policy(tmp_path: Path) -> None:
    backend = start(tmp_path)
    train.publish_initial(tmp_path / "policies", backend, phase="rl", recipe_digest="r", seed=1)
    scores = make_scored(tmp_path, "1", [[1, 0], [0, 1], [1, 1]])
    directory = train.run(options(tmp_path, scores), backend)
    assert directory == tmp_path / "policies" / "1"
    policy = read_policy_file(directory / "policy.json")
    assert policy.consumed_group_ids == ("1/000000", "1/000001", "1/000002")
    assert (policy.policy_version, policy.parent_version, policy.batch) == (1, 0, "1")
    assert (policy.num_steps, policy.skipped_steps, policy.num_trajectories) == (2, 0, 4)
    metrics = json.loads(policy.metrics_json)
    assert (metrics["num_zero_variance_groups"], metrics["success_rate"]) == (1, pytest.approx(4 / 6))
    assert train.run(options(tmp_path, scores, 1), backend) is None
    both = make_scored(tmp_path, "2", [[1, 0]])
    assert train.run(options(tmp_path, [*scores, *both], 1), backend) == tmp_path / "policies" / "2"
    assert read_policy_file(tmp_path / "policies" / "2" / "policy.json").consumed_group_ids == ("2/000000",)
    assert versions(tmp_path / "policies") == [0, 1, 2]


def test_order_of_rows_and_shards_does_not_change_a_bit(tmp_path: Path) -> None:
    hashes = set()
    for seed in range(5):
        place = tmp_path / str(seed)
        place.mkdir()
        scores = make_scored(place, "1", [[1, 0, 0], [0, 1, 1]], random.Random(seed))
        random.Random(seed).shuffle(scores)
        directory = train.run(options(place, scores), start(place))
        assert directory is not None
        hashes.add(read_policy_file(directory / "policy.json").weights_sha256)
    assert len(hashes) == 1


def test_a_batch_without_signal_takes_no_step_and_keeps_the_version(tmp_path: Path) -> None:
    backend = start(tmp_path)
    train.publish_initial(tmp_path / "policies", backend, phase="rl", recipe_digest="r", seed=1)
    scores = make_scored(tmp_path, "1", [[1, 1], [0, 0], [None, 1]])
    assert train.run(options(tmp_path, scores), backend) is None
    assert versions(tmp_path / "policies") == [0]
    _, skipped = published(tmp_path / "policies")
    assert (skipped.policy_version, skipped.skipped_steps, skipped.num_steps, skipped.batch) == (0, 1, 0, "1")
    assert len(skipped.consumed_group_ids) == 3
    assert train.consumed_groups(tmp_path / "policies") == set(skipped.consumed_group_ids)


def test_dead_rows_have_no_weight_and_no_part_in_the_baseline(tmp_path: Path) -> None:
    batch = train.read_batch(make_scored(tmp_path, "1", [[1, None, 0]]), set(), "grpo")
    assert batch is not None
    plan = train.plan_training(batch.columns, options(tmp_path, []).plan)
    assert plan.advantages.tolist() == [0.5, 0.0, -0.5]
    assert plan.trained.tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("columns", "what"),
    [
        ({"rollout_logprobs": []}, "no rollout log-probabilities"),
        ({"sampling": Sampling(temperature=0.0)}, "sampled greedily"),
    ],
)
def test_what_policy_gradients_cannot_use_is_refused_but_sft_takes_it(
    tmp_path: Path, columns: dict[str, Any], what: str
) -> None:
    scores = make_scored(tmp_path, "1", [[1, 0]], **columns)
    with pytest.raises(DataError, match=what):
        train.run(options(tmp_path, scores), start(tmp_path))
    assert not (tmp_path / "policies").exists()
    assert train.run(options(tmp_path, scores, algorithm="sft"), start(tmp_path)) is not None


def test_a_slot_that_is_scored_twice_is_refused(tmp_path: Path) -> None:
    scores = make_scored(tmp_path, "1", [[1, 0]])
    with pytest.raises(DuplicateRow, match=r"1/000000\[0\]"):
        train.read_batch([*scores, *scores], set(), "grpo")


def test_a_policy_is_never_overwritten(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backend = start(tmp_path)
    train.publish_initial(tmp_path / "policies", backend, phase="rl", recipe_digest="r", seed=1)
    with pytest.raises(CannotCreate):
        train.publish_initial(tmp_path / "policies", backend, phase="rl", recipe_digest="r", seed=1)
    assert sorted(path.name for path in (tmp_path / "policies").iterdir()) == ["0"]


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
def test_rows_without_token_ids_are_refused_by_name(tmp_path: Path, algorithm: str) -> None:
    tasks = [make_simple_task("f/0", split="train")]
    pool = write_dataset(tmp_path / "tasks", "tasks", [tasks])
    draw = make_draw(tasks[0], batch="1", group_size=2)
    drawn = write_dataset(tmp_path / "batches" / "1", "draws", [[draw]], inputs=pool)
    rows = [make_trajectory(draw, index=i, token_ids=[], loss_mask=[], rollout_logprobs=[]) for i in range(2)]
    played = write_dataset(tmp_path / "trajectories" / "1", "trajectories", [rows], inputs=drawn)
    scores = [make_score(row, reward=float(i)) for i, row in enumerate(rows)]
    scored = list(write_dataset(tmp_path / "scores" / "1", "scores", [scores], inputs=played))
    with pytest.raises(DataError, match="has no token ids"):
        train.run(options(tmp_path, scored, algorithm=algorithm), start(tmp_path))
