"""Losses of the backend `megatron`: values by hand, what stands behind the mask, and what is refused."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from megatron_cases import (
    FROZEN,
    VOCAB,
    hugging_face_gradients,
    hugging_face_weights,
    load_reference,
    make_model,
    make_plan,
    make_rows,
    opened,
    reference_logprobs,
    settings,
)
from safetensors.torch import load_file

from ptctl.backends.megatron import MegatronBackend
from ptctl.backends.megatron.batches import build_micro_batch
from ptctl.backends.megatron.losses import (
    clipped_policy_loss,
    k3_divergence,
    picked_logits,
    token_entropies,
    token_logprobs,
)
from ptctl.errors import DataError, UsageError

pytestmark = pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning")  # Megatron's own


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return make_model(tmp_path / "model", "llama")


def test_clipped_objective_by_hand() -> None:
    """Clip range [0.8, 1.3]: the gradient is −A·r, or 0 where the clip is active."""
    ratios = [1.0, 1.2, 1.4, 1.4, 0.7, 0.7, 1.0]
    advantages = [2.0, 2.0, 2.0, -2.0, 2.0, -2.0, 0.0]
    logprobs = torch.log(torch.tensor(ratios, dtype=torch.float64)).requires_grad_()
    losses, clipped = clipped_policy_loss(logprobs, torch.zeros(7), torch.tensor(advantages), 0.2, 0.3)
    losses.sum().backward()
    assert losses.tolist() == pytest.approx([-2.0, -2.4, -2.6, 2.8, -1.4, 1.6, 0.0])
    assert clipped.tolist() == [False, False, True, False, False, True, False]
    assert logprobs.grad is not None
    assert logprobs.grad.tolist() == pytest.approx([-2.0, -2.4, 0.0, 2.8, -1.4, 0.0, 0.0])


def test_k3_by_hand() -> None:
    """exp(x) − 1 − x: rollout −1.0 and train −1.5 give 0.10653; equal policies give exactly 0."""
    assert k3_divergence(torch.tensor([-0.5, 0.0, 0.5])).tolist() == pytest.approx([0.10653, 0.0, 0.14872], abs=1e-5)


def test_entropy_and_logprobs_of_given_logits(llama: Path) -> None:
    """Four equal logits: ln 4, whatever their size. Logits [2, 0], token 0, at temperatures .5, 1 and 2."""
    with opened(settings(llama)):
        equal = token_entropies(torch.tensor([[0.0] * 4, [900.0] * 4]))
        certain = token_entropies(torch.tensor([[50.0, -1e9, -1e9]]))
        logits = torch.tensor([[2.0, 0.0]]).repeat(3, 1) / torch.tensor([[0.5], [1.0], [2.0]])
        logprobs = token_logprobs(logits, torch.zeros(3, dtype=torch.int64))
    assert equal.tolist() == pytest.approx([math.log(4)] * 2, abs=1e-6)
    assert certain.tolist() == [0.0]
    assert logprobs.tolist() == pytest.approx([-0.01815, -0.12693, -0.31326], abs=1e-5)


def test_padded_vocabulary_has_no_probability(llama: Path) -> None:
    """Huge logits in the padding columns change neither log-probabilities nor entropy, and get no gradient."""
    rows = make_rows((4,))
    with opened(settings(llama)):
        batch = build_micro_batch(rows, np.array([0]), None, torch.device("cpu"))
        logits = torch.randn(1, 3, 56, requires_grad=True)
        spoiled = logits.detach().clone()
        spoiled[..., VOCAB:] = 1e4
        spoiled.requires_grad_()
        found = token_logprobs(picked_logits(spoiled, batch, VOCAB), batch.targets)
        entropies = token_entropies(picked_logits(spoiled.detach(), batch, VOCAB))
    found.sum().backward()
    expected = torch.log_softmax(logits.detach()[0, :, :VOCAB], -1)
    torch.testing.assert_close(found.detach(), expected.gather(1, batch.targets[:, None])[:, 0])
    torch.testing.assert_close(entropies, -(expected.exp() * expected).sum(-1))
    assert spoiled.grad is not None
    assert torch.all(spoiled.grad[..., VOCAB:] == 0)


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_what_stands_behind_the_mask_has_no_gradient(bad: float, llama: Path) -> None:
    """Loss and gradients are bit for bit those without the non-finite values, and so is a row of weight 0."""
    rows = make_rows()
    spoiled_logprobs = rows.rollout_logprobs.copy()
    spoiled_logprobs[~rows.loss_mask] = bad
    spoiled_advantages = rows.advantages.copy()
    spoiled_advantages[3] = bad
    spoiled = replace(rows, rollout_logprobs=spoiled_logprobs, advantages=spoiled_advantages)
    plan = make_plan(rows, [0, 1, 2, 3], [4, 5])
    plan = replace(plan, token_weights=np.where(np.arange(6) == 3, 0.0, plan.token_weights))
    with opened(replace(settings(llama, "grpo"), optimizer=FROZEN)) as backend:
        clean_metrics = backend.step(rows, plan)
        clean = hugging_face_gradients(backend)
        metrics = backend.step(spoiled, plan)
        found = hugging_face_gradients(backend)
    assert replace(metrics, engine_s=0) == replace(clean_metrics, engine_s=0)
    assert all(torch.equal(found[name], clean[name]) for name in clean)


def test_logprobs_skip_rows_that_were_not_asked_for(llama: Path) -> None:
    rows = make_rows()
    with opened(settings(llama)) as backend:
        found = backend.logprobs(rows, [np.array([2]), np.array([4])])
        nothing = backend.logprobs(rows, [])
    reference = load_reference(llama)
    for row in range(rows.num_rows):
        values = found[rows.offsets[row] : rows.offsets[row + 1]]
        if row in (2, 4):
            np.testing.assert_allclose(values[1:], reference_logprobs(reference, rows, row).detach().numpy(), atol=2e-5)
        else:
            assert not values.any()
    assert found.dtype == np.float32
    assert not nothing.any()


def test_non_finite_loss_updates_nothing(llama: Path) -> None:
    """The step is refused, and the next one is what it would have been without it."""
    rows = make_rows()
    logprobs = rows.rollout_logprobs.copy()
    logprobs[np.flatnonzero(rows.loss_mask)[3]] = np.nan
    with opened(settings(llama, "grpo", num_decay_steps=10, decay="linear")) as backend:
        expected = replace(backend.step(rows, make_plan(rows)), engine_s=0)
        second = replace(backend.step(rows, make_plan(rows)), engine_s=0)
    with opened(settings(llama, "grpo", num_decay_steps=10, decay="linear")) as backend:
        before = hugging_face_weights(backend)
        with pytest.raises(DataError, match="step 1: the loss is nan"):
            backend.step(replace(rows, rollout_logprobs=logprobs), make_plan(rows))
        after = hugging_face_weights(backend)
        assert all(torch.equal(after[name], before[name]) for name in before)
        assert replace(backend.step(rows, make_plan(rows)), engine_s=0) == expected
        assert replace(backend.step(rows, make_plan(rows)), engine_s=0) == second


def test_non_finite_gradient_updates_nothing(llama: Path) -> None:
    """A gradient can be infinite where the loss is finite."""
    rows = make_rows()
    with opened(settings(llama)) as backend:
        backend.step(rows, make_plan(rows))
        before = hugging_face_weights(backend)
        _, model, updates = backend._started()
        next(model.named_parameters())[1].main_grad[0, 0] = math.inf
        with pytest.raises(DataError, match=r"step 2: the loss is 1\.0, the gradient norm inf"):
            updates.apply(1.0)
        after = hugging_face_weights(backend)
    assert all(torch.equal(after[name], before[name]) for name in before)
    assert updates.num_steps == 1


def test_bfloat16_is_near(llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a GPU does: weights in bfloat16, their masters and gradients in float32; masters survive a checkpoint."""
    rows = make_rows()
    with opened(settings(llama, learning_rate=1e-3)) as backend:
        expected = [backend.step(rows, make_plan(rows)) for _ in range(3)]
    monkeypatch.setattr("ptctl.backends.megatron.backend.training_dtype", lambda _: torch.bfloat16)
    with opened(settings(llama, learning_rate=1e-3)) as backend:
        found = [backend.step(rows, make_plan(rows, [0, 1, 2], [3, 4, 5])) for _ in range(2)]
        backend.publish(tmp_path / "out", with_checkpoint=True)
        third = backend.step(rows, make_plan(rows))
    with opened(settings(tmp_path / "out", learning_rate=1e-3)) as backend:
        resumed = backend.step(rows, make_plan(rows))
    assert replace(resumed, engine_s=0) == replace(third, engine_s=0)
    for metrics, reference in zip([*found, third], expected, strict=True):
        assert metrics.loss == pytest.approx(reference.loss, rel=2e-2)
        assert metrics.grad_norm == pytest.approx(reference.grad_norm, rel=5e-2)
    assert load_file(tmp_path / "out" / "model.safetensors")["model.norm.weight"].dtype == torch.bfloat16


def test_rows_beyond_the_sliding_window_are_refused(tmp_path: Path) -> None:
    policy, rows = make_model(tmp_path / "model", "mistral"), make_rows()
    config = json.loads((policy / "config.json").read_text())
    (policy / "config.json").write_text(json.dumps(config | {"sliding_window": 13}))
    with opened(settings(policy)) as backend:
        with pytest.raises(DataError, match="longer than the sliding window of 13 tokens"):
            backend.logprobs(rows, [np.array([0, 2])])
        assert backend.logprobs(rows, [np.array([0, 1])]).any()


def first_token_in_loss() -> Any:
    rows = make_rows()
    mask = rows.loss_mask.copy()
    mask[rows.offsets[2]] = True
    return replace(rows, loss_mask=mask)


def outside_vocabulary() -> Any:
    rows = make_rows()
    ids = rows.token_ids.copy()
    ids[5] = VOCAB
    return replace(rows, token_ids=ids)


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (make_rows(temperature=0.0), UsageError, "a temperature above 0, a row has 0.0"),
        (make_rows(temperature=math.nan), UsageError, "a temperature above 0"),
        (first_token_in_loss(), DataError, "first token of a row is in the loss mask"),
        (outside_vocabulary(), DataError, r"token ids must be in \[0, 50\)"),
    ],
)
def test_rows_that_cannot_be_trained(rows: Any, error: type[Exception], message: str, llama: Path) -> None:
    with opened(settings(llama)) as backend:
        with pytest.raises(error, match=message):
            backend.step(rows, make_plan(rows))
        with pytest.raises(error, match=message):
            backend.logprobs(rows, make_plan(rows).micro_batches)


def test_plans_that_cannot_be_trained(llama: Path) -> None:
    rows = make_rows()
    with opened(settings(llama)) as backend:
        with pytest.raises(DataError, match="at most once"):
            backend.step(rows, make_plan(rows, [0, 1], [1]))
        with pytest.raises(DataError, match="at most once"):
            backend.step(rows, replace(make_plan(rows), micro_batches=(np.array([6]),)))
        with pytest.raises(DataError, match="no loss tokens"):
            backend.step(rows, replace(make_plan(rows), token_weights=np.zeros(6)))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"algorithm": "ppo"}, "unknown algorithm 'ppo'"),
        ({"decay": "sqrt"}, "unknown decay 'sqrt'"),
        ({"min_learning_rate": 1.0}, "min_learning_rate"),
        ({"num_warmup_steps": 5, "num_decay_steps": 5, "decay": "cosine"}, "num_warmup_steps = 5"),
        ({"initialize": "zeros"}, "unknown initialize 'zeros'"),
    ],
)
def test_settings_that_contradict_each_other(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        MegatronBackend(settings(tmp_path, **changes))
