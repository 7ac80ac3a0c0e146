"""What the backend `megatron` reads from config.json, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from ptctl.backends.megatron.geometry import geometry_of, read_geometry
from ptctl.errors import DataError, InputNotFound, UsageError

LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 106,
    "hidden_size": 64,
    "intermediate_size": 192,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 256,
    "hidden_act": "silu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000.0},
}

QWEN3_MOE = LLAMA | {
    "architectures": ["Qwen3MoeForCausalLM"],
    "head_dim": 16,
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 24,
    "norm_topk_prob": True,
    "decoder_sparse_step": 1,
    "mlp_only_layers": [],
}


def test_llama() -> None:
    found = geometry_of(LLAMA, "config.json")
    assert (found.head_dim, found.rope_theta, found.tied, found.window) == (16, 1000.0, False, None)
    assert (found.qkv_bias, found.qk_norm, found.num_experts) == (False, False, 0)
    assert (found.initializer_range, found.dtype) == (0.02, "float32")


def test_spellings_of_transformers_4() -> None:
    """rope_theta, rope_scaling and torch_dtype; a null key is an absent one."""
    old = {key: value for key, value in LLAMA.items() if key != "rope_parameters"}
    old |= {
        "rope_theta": 5e5,
        "torch_dtype": "bfloat16",
        "rope_scaling": {"type": "linear", "factor": 2.0},
        "head_dim": None,
    }
    found = geometry_of(old, "config.json")
    assert (found.rope_theta, found.rope_linear_factor, found.rope_llama3_factor) == (5e5, 2.0, None)
    assert (found.dtype, found.head_dim) == ("bfloat16", 16)


def test_families() -> None:
    qwen2 = geometry_of(
        LLAMA | {"architectures": ["Qwen2ForCausalLM"], "sliding_window": 64, "use_sliding_window": False}, "c"
    )
    assert (qwen2.qkv_bias, qwen2.window) == (True, None)
    assert geometry_of(LLAMA | {"architectures": ["MistralForCausalLM"], "sliding_window": 64}, "c").window == 64
    for key in ("num_experts", "num_local_experts"):  # transformers 4 and 5
        config = {name: value for name, value in QWEN3_MOE.items() if name != "num_experts"} | {key: 8}
        moe = geometry_of(config, "c")
        assert (moe.num_experts, moe.num_experts_per_token, moe.expert_ffn_size, moe.qk_norm) == (8, 2, 24, True)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"architectures": ["GemmaForCausalLM"]}, UsageError, "c: the architecture GemmaForCausalLM has no mapping"),
        ({"architectures": None}, UsageError, "the architecture none"),
        ({"hidden_act": "gelu"}, UsageError, 'hidden_act = "gelu" is not supported, only "silu"'),
        ({"attention_bias": True}, UsageError, "attention_bias = true"),
        ({"quantization_config": {"bits": 4}}, UsageError, "quantization_config"),
        ({"rope_parameters": {"rope_type": "yarn", "factor": 4.0}}, UsageError, "rotary scaling 'yarn'"),
        (
            {"rope_parameters": {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 2}},
            UsageError,
            "low_freq_factor = 2",
        ),
        ({"vocab_size": None}, DataError, "vocab_size must be a number, it is null"),
        ({"num_hidden_layers": 1.5}, DataError, "num_hidden_layers must be a positive integer, it is 1.5"),
        ({"architectures": ["Qwen3ForCausalLM"]}, DataError, "head_dim must be a number"),
    ],
)
def test_refused(change: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        geometry_of(LLAMA | change, "c")


def test_mixed_layers_of_experts_are_refused() -> None:
    with pytest.raises(UsageError, match=r"mlp_only_layers = \[0\]"):
        geometry_of(QWEN3_MOE | {"mlp_only_layers": [0]}, "c")


def test_files(tmp_path: Path) -> None:
    with pytest.raises(InputNotFound, match=r"config\.json: not found"):
        read_geometry(tmp_path)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        read_geometry(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(DataError, match="not a JSON object"):
        read_geometry(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    assert read_geometry(tmp_path).vocab_size == 106
