"""Small models, rows and a plain PyTorch reference for the tests of the backend `megatron`."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
    Qwen3MoeConfig,
)

from ptctl.backends.megatron import MegatronBackend
from ptctl.backends.megatron.weights import export_weights
from ptctl.protocols import BackendSettings, LossSettings, OptimizerSettings, PlannedStep, TrainRows

VOCAB = 50  # no multiple of 8, so that Megatron's vocabulary is padded

SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": None,
    "pad_token_id": None,
}

MODELS: dict[str, tuple[type, dict[str, Any]]] = {
    "llama": (LlamaConfig, {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "llama-untied-gqa": (LlamaConfig, {"tie_word_embeddings": False, "head_dim": 16}),
    "llama3-rope": (
        LlamaConfig,
        {
            "rope_parameters": {
                "rope_type": "llama3", "rope_theta": 5e5, "factor": 8.0, "low_freq_factor": 1.0,
                "high_freq_factor": 4.0, "original_max_position_embeddings": 8192,
            }
        },
    ),
    "mistral": (MistralConfig, {"sliding_window": None}),
    "qwen2": (Qwen2Config, {"tie_word_embeddings": True}),
    "qwen3": (Qwen3Config, {"head_dim": 16, "tie_word_embeddings": False}),
    "qwen3-moe": (
        Qwen3MoeConfig,
        {
            "head_dim": 16, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 24,
            "norm_topk_prob": True,
        },
    ),
}  # fmt: skip


def make_model(directory: Path, kind: str, *, weights: bool = True) -> Path:
    config_class, extra = MODELS[kind]
    config = config_class(**(SIZES | extra))
    config.architectures = [f"{config_class.__name__.removesuffix('Config')}ForCausalLM"]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = AutoModelForCausalLM.from_config(config)
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                if parameter.dim() == 1:  # norms and biases that are not the same everywhere
                    parameter.add_(torch.randn_like(parameter), alpha=0.1)
                assert parameter.dtype == torch.float32, name
    if weights:
        model.save_pretrained(directory)
    else:
        config.save_pretrained(directory)
    (directory / "tokenizer.json").write_bytes(b'{"not": "really a tokenizer"}\n')
    return directory


def load_reference(directory: Path, dtype: torch.dtype = torch.float64) -> Any:
    # transformers' grouped product of experts has no float64
    return AutoModelForCausalLM.from_pretrained(directory, dtype=dtype, experts_implementation="eager")


OPTIMIZER = OptimizerSettings(
    learning_rate=1e-2, min_learning_rate=0.0, num_warmup_steps=0, num_decay_steps=0, decay="constant",
    beta1=0.9, beta2=0.95, epsilon=1e-8, weight_decay=0.1, max_grad_norm=0.0,
)  # fmt: skip

FROZEN = replace(OPTIMIZER, learning_rate=0.0)  # the gradient is computed, the weights stay


def settings(
    policy: Path, algorithm: str = "sft", *, phase: str = "one", initialize: str = "load", **optimizer: Any
) -> BackendSettings:
    return BackendSettings(
        policy=policy,
        initialize=initialize,
        seed=11,
        phase=phase,
        optimizer=replace(OPTIMIZER, **optimizer),
        loss=LossSettings(algorithm=algorithm, clip_low=0.2, clip_high=0.3),
    )


@contextlib.contextmanager
def opened(given: BackendSettings) -> Iterator[MegatronBackend]:
    backend = MegatronBackend(given)
    backend.start()
    try:
        yield backend
    finally:
        backend.close()


def make_rows(lengths: Sequence[int] = (9, 2, 14, 5, 7, 11), temperature: float = 1.0, seed: int = 0) -> TrainRows:
    """Rows of unequal lengths; the mask has a gap, as tool output makes one. Row 1 has a single loss token."""
    rng = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    loss_mask = rng.random(offsets[-1]) < 0.6
    loss_mask[offsets[:-1]] = False
    loss_mask[offsets[1:] - 1] = True
    return TrainRows(
        token_ids=rng.integers(0, VOCAB, offsets[-1]).astype(np.int32),
        offsets=offsets,
        loss_mask=loss_mask,
        rollout_logprobs=np.where(loss_mask, -3.9 + rng.normal(0, 0.4, offsets[-1]), 0.0).astype(np.float32),
        advantages=rng.normal(0, 1, len(lengths)),
        temperatures=np.full(len(lengths), temperature),
    )


def make_plan(rows: TrainRows, *micro_batches: Sequence[int]) -> PlannedStep:
    """Token-mean weights over the rows that take part."""
    batches = micro_batches or (range(rows.num_rows),)
    taking_part = [index for batch in batches for index in batch]
    num_tokens = sum(int(rows.loss_mask[rows.offsets[i] : rows.offsets[i + 1]].sum()) for i in taking_part)
    token_weights = np.zeros(rows.num_rows)
    token_weights[taking_part] = 1.0 / num_tokens
    return PlannedStep(
        micro_batches=tuple(np.array(list(batch), dtype=np.int64) for batch in batches), token_weights=token_weights
    )


def reference_logprobs(model: Any, rows: TrainRows, row: int) -> torch.Tensor:
    """# [length − 1] log-probabilities of the row's tokens but the first, one row alone and without padding."""
    ids = torch.from_numpy(rows.token_ids[rows.offsets[row] : rows.offsets[row + 1]].astype(np.int64))
    logits = model(input_ids=ids[None]).logits[0, :-1] / float(rows.temperatures[row])
    return torch.log_softmax(logits, dim=-1).gather(1, ids[1:, None]).squeeze(1)


def reference_loss(model: Any, rows: TrainRows, planned: PlannedStep, loss: LossSettings) -> torch.Tensor:
    total = torch.zeros((), dtype=torch.float64)
    for row in np.concatenate(planned.micro_batches):
        span = slice(rows.offsets[row] + 1, rows.offsets[row + 1])
        logprobs = reference_logprobs(model, rows, row)
        if loss.algorithm == "sft":
            losses = -logprobs
        else:
            ratio = (logprobs - torch.from_numpy(rows.rollout_logprobs[span].astype(np.float64))).exp()
            limited = ratio.clamp(1 - loss.clip_low, 1 + loss.clip_high)
            losses = -torch.minimum(ratio * rows.advantages[row], limited * rows.advantages[row])
        total = total + planned.token_weights[row] * losses[torch.from_numpy(rows.loss_mask[span])].sum()
    return total


def hugging_face_gradients(backend: MegatronBackend) -> dict[str, torch.Tensor]:
    geometry, model, _ = backend._started()
    gradients = ((name, parameter.main_grad) for name, parameter in model.named_parameters())
    return {name: gradient.clone() for name, gradient in export_weights(gradients, geometry)}


def hugging_face_weights(backend: MegatronBackend) -> dict[str, torch.Tensor]:
    geometry, model, _ = backend._started()
    return {name: tensor.clone() for name, tensor in export_weights(model.named_parameters(), geometry)}


def reference_tensors(model: Any, *, gradients: bool = False) -> dict[str, torch.Tensor]:
    """Parameters, or gradients, with the names of the files: transformers fuses the experts of a layer in memory."""
    found: dict[str, torch.Tensor] = {}
    for name, parameter in model.named_parameters():
        tensor = (parameter.grad if gradients else parameter).detach()
        if name.endswith("experts.gate_up_proj"):
            for expert, fused in enumerate(tensor):
                prefix = name.replace("gate_up_proj", str(expert))
                found[f"{prefix}.gate_proj.weight"], found[f"{prefix}.up_proj.weight"] = fused.chunk(2)
        elif name.endswith("experts.down_proj"):
            for expert, down in enumerate(tensor):
                found[f"{name.replace('down_proj', str(expert))}.down_proj.weight"] = down
        else:
            found[name] = tensor
    return found
