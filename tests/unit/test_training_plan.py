"""A batch → optimizer steps: who takes part, how rows are split, and weights that add up however they are split."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ptctl.errors import UsageError
from ptctl.training_plan import PlanSettings, RewardColumns, plan_training


def settings(**changes: object) -> PlanSettings:
    values: dict[str, object] = {
        "algorithm": "grpo",
        "estimator": "dr_grpo",
        "normalisation": "token_mean",
        "constant_length": None,
        "epochs": 1,
        "rows_per_step": 0,
        "steps_per_epoch": 1,
        "micro_batch_tokens": 64,
        "train_truncated": True,
        "seed": 1,
    }
    return PlanSettings(**(values | changes))  # type: ignore[arg-type]


def columns(
    rewards: list[float | None], groups: list[int], lengths: list[int] | None = None, **changes: object
) -> RewardColumns:
    n = len(rewards)
    sizes = np.asarray(lengths or [10] * n)
    values: dict[str, object] = {
        "rewards": np.asarray([0.0 if r is None else r for r in rewards]),
        "known": np.asarray([r is not None for r in rewards]),
        "group_index": np.asarray(groups),
        "truncated": np.zeros(n, bool),
        "failed": np.zeros(n, bool),
        "lengths": sizes,
        "num_loss_tokens": sizes // 2,
    }
    return RewardColumns(**(values | changes))  # type: ignore[arg-type]


def test_only_rows_with_signal_take_part() -> None:
    plan = plan_training(columns([1, 0, 1, 1, None, 1, 0], [0, 0, 1, 1, 2, 2, 2]), settings())
    assert plan.trained.tolist() == [True, True, False, False, False, True, True]
    assert plan.advantages.tolist() == [0.5, -0.5, 0, 0, 0, 0.5, -0.5]
    assert (plan.num_zero_variance_groups, plan.num_unknown) == (1, 1)
    (step,) = plan.steps
    assert step.token_weights.tolist() == [1 / 20, 1 / 20, 0, 0, 0, 1 / 20, 1 / 20]


def test_all_groups_without_variance_plan_no_step() -> None:
    assert plan_training(columns([1, 1, 0, 0], [0, 0, 1, 1]), settings()).steps == ()
    assert plan_training(columns([None, None], [0, 0]), settings()).steps == ()


def test_group_baseline_over_single_rows_is_a_usage_error() -> None:
    with pytest.raises(UsageError):
        plan_training(columns([1, 0], [0, 1]), settings())


def test_failed_and_on_demand_truncated_rows_are_left_out() -> None:
    failed = plan_training(columns([1, 0, 0], [0, 0, 0], failed=np.asarray([False, False, True])), settings())
    assert failed.trained.tolist() == [True, True, False]
    cut = columns([1, 0, 0], [0, 0, 0], truncated=np.asarray([False, False, True]))
    assert plan_training(cut, settings()).trained.tolist() == [True, True, True]
    assert plan_training(cut, settings(train_truncated=False)).trained.tolist() == [True, True, False]


def test_all_truncated_and_left_out_is_a_skipped_step_and_not_nan() -> None:
    cut = columns([1, 0], [0, 0], truncated=np.asarray([True, True]))
    assert plan_training(cut, settings(train_truncated=False)).steps == ()


def test_sft_needs_no_rewards() -> None:
    plan = plan_training(columns([None, None, 1], [0, 1, 2]), settings(algorithm="sft", rows_per_step=2))
    assert plan.trained.all()
    assert sorted(len(np.concatenate(step.micro_batches)) for step in plan.steps) == [1, 2]


@given(
    st.lists(st.integers(2, 40), min_size=4, max_size=40),
    st.integers(1, 3),
    st.integers(1, 5),
    st.integers(40, 200),
    st.sampled_from(["token_mean", "seq_mean_token_mean"]),
)
def test_each_epoch_has_every_row_once_and_each_step_weighs_one(
    lengths: list[int], epochs: int, steps_per_epoch: int, micro_batch_tokens: int, normalisation: str
) -> None:
    n = len(lengths)
    rows = columns([float(i % 2) for i in range(n)], [0] * n, lengths)
    chosen = settings(
        epochs=epochs,
        steps_per_epoch=steps_per_epoch,
        micro_batch_tokens=micro_batch_tokens,
        normalisation=normalisation,
    )
    plan = plan_training(rows, chosen)
    seen = [int(row) for step in plan.steps for batch in step.micro_batches for row in batch]
    assert sorted(seen) == sorted(list(np.flatnonzero(plan.trained)) * epochs)
    for step in plan.steps:
        total = float(step.token_weights @ rows.num_loss_tokens)
        assert total == pytest.approx(1, abs=1e-12)
        for batch in step.micro_batches:
            assert len(batch) * rows.lengths[batch].max() <= micro_batch_tokens


def test_the_seed_alone_decides_the_order() -> None:
    rows = columns([float(i % 2) for i in range(32)], [0] * 32)

    def order(seed: int) -> list[int]:
        plan = plan_training(rows, settings(seed=seed, steps_per_epoch=4))
        return [int(row) for step in plan.steps for batch in step.micro_batches for row in batch]

    assert order(1) == order(1)
    assert order(1) != order(2)
