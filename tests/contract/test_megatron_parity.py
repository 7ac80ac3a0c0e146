"""The backend `megatron` against plain PyTorch on the transformers model: logprobs, losses, gradients, Adam."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from megatron_cases import (
    FROZEN,
    MODELS,
    OPTIMIZER,
    hugging_face_gradients,
    hugging_face_weights,
    load_reference,
    make_model,
    make_plan,
    make_rows,
    opened,
    reference_logprobs,
    reference_loss,
    reference_tensors,
    settings,
)
from safetensors.torch import load_file

pytestmark = pytest.mark.filterwarnings("ignore:Warning. tp_group is None:DeprecationWarning")  # Megatron's own


@pytest.mark.parametrize("kind", MODELS)
def test_every_architecture_round_trips_and_agrees(kind: str, tmp_path: Path) -> None:
    """Weights come back bit-exact, and log-probabilities are those of transformers, also behind padding."""
    policy, rows = make_model(tmp_path / "model", kind), make_rows(temperature=0.7)
    with opened(settings(policy)) as backend:
        logprobs = backend.logprobs(rows, make_plan(rows, [0, 1, 2], [5, 3, 4]).micro_batches)
        backend.publish(tmp_path / "out", with_checkpoint=False)
    before, after = load_file(policy / "model.safetensors"), load_file(tmp_path / "out" / "model.safetensors")
    assert after.keys() == before.keys()
    assert all(torch.equal(after[name], before[name]) for name in before)
    reference = load_reference(policy)
    for row in range(rows.num_rows):
        expected = reference_logprobs(reference, rows, row).detach().numpy()
        found = logprobs[rows.offsets[row] : rows.offsets[row + 1]]
        assert found[0] == 0.0
        np.testing.assert_allclose(found[1:], expected, atol=2e-5, rtol=0)


@pytest.mark.parametrize("algorithm", ["sft", "grpo"])
@pytest.mark.parametrize("kind", ["llama", "llama-untied-gqa", "qwen2", "qwen3", "qwen3-moe"])
def test_loss_and_gradients_equal_plain_pytorch(kind: str, algorithm: str, tmp_path: Path) -> None:
    """Every parameter, for three ways to cut the step into micro-batches and to order its rows."""
    given = replace(settings(make_model(tmp_path / "model", kind), algorithm), optimizer=FROZEN)
    rows = make_rows(temperature=0.9)
    reference = load_reference(given.policy)
    total = reference_loss(reference, rows, make_plan(rows), given.loss)
    total.backward()
    expected_loss = total.item()
    expected = reference_tensors(reference, gradients=True)
    expected_norm = float(torch.sqrt(sum((gradient.square().sum() for gradient in expected.values()), torch.zeros(()))))
    with opened(given) as backend:
        for micro_batches in ([range(6)], [[5, 0], [3], [1, 2, 4]], [[i] for i in (4, 2, 0, 1, 3, 5)]):
            metrics = backend.step(rows, make_plan(rows, *micro_batches))
            found = hugging_face_gradients(backend)
            assert metrics.loss == pytest.approx(expected_loss, abs=1e-5)
            assert metrics.grad_norm == pytest.approx(expected_norm, rel=1e-4)
            assert found.keys() == expected.keys()
            for name, gradient in expected.items():
                torch.testing.assert_close(found[name].double(), gradient, atol=1e-5, rtol=1e-4, msg=name)


def test_weights_of_rows_are_obeyed(tmp_path: Path) -> None:
    """Rows with other weights, and a row of weight 0 that is in a micro-batch: it counts for nothing."""
    given = replace(settings(make_model(tmp_path / "model", "llama")), optimizer=FROZEN)
    rows = make_rows()
    plan = replace(make_plan(rows, [0, 1, 2], [3, 4]), token_weights=np.array([0.5, 0.25, 0.0, 0.1, 2.0, 9.0]))
    reference = load_reference(given.policy)
    expected = reference_loss(reference, rows, plan, given.loss).item()
    counted = [0, 1, 3, 4]
    num_tokens = sum(int(rows.loss_mask[rows.offsets[i] : rows.offsets[i + 1]].sum()) for i in counted)
    with opened(given) as backend:
        metrics = backend.step(rows, plan)
    assert metrics.loss == pytest.approx(expected, abs=1e-5)
    assert metrics.num_loss_tokens == num_tokens


def test_metrics_of_the_first_grpo_step(tmp_path: Path) -> None:
    """Entropy, k3 divergence, clip fraction and difference, computed independently from transformers' logits."""
    given = replace(settings(make_model(tmp_path / "model", "llama"), "grpo"), optimizer=FROZEN)
    rows = make_rows()
    reference = load_reference(given.policy)
    entropies, log_ratios, clipped = [], [], []
    for row in range(rows.num_rows):
        span = slice(rows.offsets[row] + 1, rows.offsets[row + 1])
        mask = torch.from_numpy(rows.loss_mask[span])
        ids = torch.from_numpy(rows.token_ids[rows.offsets[row] : rows.offsets[row + 1]].astype(np.int64))
        probabilities = torch.log_softmax(reference(input_ids=ids[None]).logits[0, :-1], -1).detach()
        entropies += (-(probabilities.exp() * probabilities).sum(-1))[mask].tolist()
        ratio = reference_logprobs(reference, rows, row).detach() - torch.from_numpy(rows.rollout_logprobs[span])
        log_ratios += ratio[mask].tolist()
        advantage = rows.advantages[row]
        limit = ratio.exp() > 1.3 if advantage > 0 else ratio.exp() < 0.8
        clipped += limit[mask].tolist()
    with opened(given) as backend:
        metrics = backend.step(rows, make_plan(rows, [0, 1], [2, 3, 4, 5]))
    assert metrics.entropy == pytest.approx(np.mean(entropies), abs=1e-5)
    assert metrics.kl == pytest.approx(np.mean(np.exp(log_ratios) - 1 - np.array(log_ratios)), rel=1e-4)
    assert metrics.clip_fraction == pytest.approx(np.mean(clipped), abs=1e-9)
    assert 0 < metrics.clip_fraction < 1
    assert metrics.max_logprob_difference == pytest.approx(np.abs(log_ratios).max(), abs=1e-5)


@pytest.mark.parametrize("max_grad_norm", [0.0, 0.05])
def test_adam_equals_torch(max_grad_norm: float, tmp_path: Path) -> None:
    """Three steps of torch.optim.AdamW on the transformers model; no weight decay on norms and biases."""
    optimizer = replace(
        OPTIMIZER, max_grad_norm=max_grad_norm, epsilon=1e-4, num_decay_steps=4, num_warmup_steps=2, decay="linear"
    )
    given = replace(settings(make_model(tmp_path / "model", "qwen2")), optimizer=optimizer)
    rows = make_rows()
    reference = load_reference(given.policy)
    decayed = [parameter for parameter in reference.parameters() if parameter.dim() > 1]
    others = [parameter for parameter in reference.parameters() if parameter.dim() == 1]
    adam = torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], betas=(0.9, 0.95), eps=1e-4
    )
    rates = [0.5e-2, 1e-2, 0.5e-2]  # warm-up over two steps, then linearly to 0 at step 4
    with opened(given) as backend:
        for rate in rates:
            adam.zero_grad()
            reference_loss(reference, rows, make_plan(rows), given.loss).backward()
            if max_grad_norm:
                torch.nn.utils.clip_grad_norm_(reference.parameters(), max_grad_norm)
            for group in adam.param_groups:
                group["lr"] = rate
            adam.step()
            assert backend.step(rows, make_plan(rows, [0, 1, 2], [3, 4, 5])).learning_rate == pytest.approx(rate)
        found = hugging_face_weights(backend)
    for name, tensor in reference_tensors(reference).items():
        torch.testing.assert_close(found[name].double(), tensor, atol=2e-5, rtol=0, msg=name)


@pytest.mark.parametrize(
    ("decay", "num_decay_steps", "expected"),
    [
        ("constant", 4, [0.5, 1.0, 1.0, 1.0, 1.0]),
        ("linear", 4, [0.5, 1.0, 0.6, 0.2, 0.2]),
        ("cosine", 4, [0.5, 1.0, 0.6, 0.2, 0.2]),
        ("cosine", 0, [0.5, 1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_learning_rates(decay: str, num_decay_steps: int, expected: list[float], tmp_path: Path) -> None:
    """Warm-up of 2 to 1.0, then from 1.0 to 0.2 at step 4; 0 decay steps are constant."""
    given = settings(
        make_model(tmp_path / "model", "llama"),
        learning_rate=1.0, min_learning_rate=0.2, num_warmup_steps=2, num_decay_steps=num_decay_steps, decay=decay,
    )  # fmt: skip
    rows = make_rows((4, 4))
    with opened(given) as backend:
        rates = [backend.step(rows, make_plan(rows)).learning_rate for _ in expected]
    assert rates == pytest.approx(expected)
