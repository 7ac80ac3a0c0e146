"""What a Hugging Face `config.json` says about the model, and the refusal of what cannot be trained here.

Supported architectures: Llama, Mistral, Qwen2, Qwen3 and Qwen3-MoE for causal language modelling, with tied or separate
output weights and grouped-query attention. Whatever changes the function of the model and is not implemented is refused
by name, because a setting that is silently ignored trains another model than the engines serve. Nothing is imported but
the standard library.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ptctl.errors import DataError, InputNotFound, UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Geometry:
    """Sizes and switches of one model."""

    vocab_size: int
    num_layers: int
    hidden_size: int
    ffn_size: int
    """Width of the dense feed-forward layer."""
    num_heads: int
    num_kv_heads: int
    head_dim: int
    norm_epsilon: float
    rope_theta: float
    rope_llama3_factor: float | None
    """Factor of Llama 3's frequency scaling; None where there is none."""
    rope_linear_factor: float | None
    """Factor of linear position interpolation; None where there is none."""
    tied: bool
    """Whether input embedding and output layer share their weights."""
    qkv_bias: bool
    """Biases on the query, key and value projections (Qwen2)."""
    qk_norm: bool
    """Norms on queries and keys (Qwen3)."""
    num_experts: int
    """Experts of each layer; 0 for a dense model."""
    num_experts_per_token: int
    expert_ffn_size: int
    initializer_range: float
    """Standard deviation of random linear and embedding weights."""
    max_positions: int
    """What the config says; rotary embeddings do not enforce it."""
    window: int | None
    """Longest row for which full causal attention equals the model's sliding window; None without a window."""
    dtype: str
    """Type that the config names, such as `bfloat16`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Architecture:
    """What a family does without saying so in its config."""

    qkv_bias: bool = False
    qk_norm: bool = False
    moe: bool = False
    head_dim_required: bool = False


_ARCHITECTURES = {
    "LlamaForCausalLM": _Architecture(),
    "MistralForCausalLM": _Architecture(),
    "Qwen2ForCausalLM": _Architecture(qkv_bias=True),
    "Qwen3ForCausalLM": _Architecture(qk_norm=True, head_dim_required=True),
    "Qwen3MoeForCausalLM": _Architecture(qk_norm=True, head_dim_required=True, moe=True),
}

_MUST_BE: dict[str, Any] = {
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0,
    "partial_rotary_factor": 1,
    "pretraining_tp": 1,
    "quantization_config": None,
}
"""Keys with the only value that is implemented; an absent or null key has that value in every supported family."""

_MOE_MUST_BE: dict[str, Any] = {"norm_topk_prob": True, "decoder_sparse_step": 1, "mlp_only_layers": []}

_LLAMA3_SCALING = {"low_freq_factor": 1, "high_freq_factor": 4, "original_max_position_embeddings": 8192}
"""The parameters of Llama 3's scaling that are constants in Megatron-Core's RotaryEmbedding."""


def read_geometry(directory: Path) -> Geometry:
    """Read `directory/config.json`.

    Raises InputNotFound where there is none, DataError where it is broken or incomplete, and UsageError, naming the
    key, for a model that cannot be trained.
    """
    path = directory / "config.json"
    try:
        config = json.loads(path.read_bytes())
    except FileNotFoundError as error:
        raise InputNotFound(f"{path}: not found", hint="give a policy or Hugging Face model directory") from error
    except ValueError as error:
        raise DataError(f"{path}: not JSON: {error}") from error
    if not isinstance(config, dict):
        raise DataError(f"{path}: not a JSON object")
    return geometry_of(config, str(path))  # pyright: ignore[reportUnknownArgumentType]


def geometry_of(config: Mapping[str, Any], where: str) -> Geometry:
    """Geometry of a decoded `config.json`; `where` names it in errors. Raises as `read_geometry` does."""
    architecture = _architecture_of(config, where)
    _check_only_values(config, _MUST_BE | (_MOE_MUST_BE if architecture.moe else {}), where)
    hidden_size, num_heads = _int(config, "hidden_size", where), _int(config, "num_attention_heads", where)
    if architecture.head_dim_required or config.get("head_dim") is not None:
        head_dim = _int(config, "head_dim", where)
    else:
        head_dim = hidden_size // num_heads
    theta, llama3_factor, linear_factor = _rope(config, where)
    return Geometry(
        vocab_size=_int(config, "vocab_size", where),
        num_layers=_int(config, "num_hidden_layers", where),
        hidden_size=hidden_size,
        ffn_size=_int(config, "intermediate_size", where),
        num_heads=num_heads,
        num_kv_heads=_int(config, "num_key_value_heads", where),
        head_dim=head_dim,
        norm_epsilon=_float(config, "rms_norm_eps", where),
        rope_theta=theta,
        rope_llama3_factor=llama3_factor,
        rope_linear_factor=linear_factor,
        tied=bool(config.get("tie_word_embeddings", False)),
        qkv_bias=architecture.qkv_bias,
        qk_norm=architecture.qk_norm,
        num_experts=_int(config, _experts_key(config), where) if architecture.moe else 0,
        num_experts_per_token=_int(config, "num_experts_per_tok", where) if architecture.moe else 0,
        expert_ffn_size=_int(config, "moe_intermediate_size", where) if architecture.moe else 0,
        initializer_range=float(config.get("initializer_range", 0.02)),
        max_positions=_int(config, "max_position_embeddings", where),
        window=_window(config),
        dtype=str(config.get("dtype") or config.get("torch_dtype") or "float32"),
    )


def _architecture_of(config: Mapping[str, Any], where: str) -> _Architecture:
    names: list[Any] = list(config.get("architectures") or [])
    for name in names:
        if name in _ARCHITECTURES:
            return _ARCHITECTURES[name]
    found = ", ".join(str(name) for name in names) or "none"
    raise UsageError(
        f"{where}: the architecture {found} has no mapping to Megatron-Core",
        hint=f"supported: {', '.join(_ARCHITECTURES)}",
    )


def _experts_key(config: Mapping[str, Any]) -> str:
    return "num_local_experts" if "num_local_experts" in config else "num_experts"  # transformers 5 and 4


def _check_only_values(config: Mapping[str, Any], only: Mapping[str, Any], where: str) -> None:
    for key, value in only.items():
        found = config.get(key)
        if found is not None and found != value:
            raise UsageError(f"{where}: {key} = {json.dumps(found)} is not supported, only {json.dumps(value)}")


def _number(config: Mapping[str, Any], key: str, where: str) -> float:
    value = config.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise DataError(f"{where}: {key} must be a number, it is {json.dumps(value)}")
    return value


def _int(config: Mapping[str, Any], key: str, where: str) -> int:
    value = _number(config, key, where)
    if value != int(value) or value < 1:
        raise DataError(f"{where}: {key} must be a positive integer, it is {value}")
    return int(value)


def _float(config: Mapping[str, Any], key: str, where: str) -> float:
    return float(_number(config, key, where))


def _rope(config: Mapping[str, Any], where: str) -> tuple[float, float | None, float | None]:
    """(theta, Llama 3 factor, linear factor), as transformers 5 or 4 (`rope_theta`, `rope_scaling`) writes them."""
    parameters: dict[str, Any] = dict(config.get("rope_parameters") or config.get("rope_scaling") or {})
    theta = float(parameters.get("rope_theta") or config.get("rope_theta") or 10_000.0)
    kind = parameters.get("rope_type") or parameters.get("type") or "default"
    if kind == "default":
        return theta, None, None
    if kind == "linear":
        return theta, None, _float(parameters, "factor", where)
    if kind == "llama3":
        _check_only_values(parameters, _LLAMA3_SCALING, where)
        return theta, _float(parameters, "factor", where), None
    raise UsageError(f"{where}: rotary scaling {kind!r} is not supported", hint="supported: default, linear, llama3")


def _window(config: Mapping[str, Any]) -> int | None:
    if config.get("use_sliding_window") is False:
        return None
    window = config.get("sliding_window")
    return None if window is None else int(window)
