"""Builds Megatron-Core's GPTModel for a geometry and wraps it in Megatron's DistributedDataParallel."""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional

from ptctl.backends.megatron.geometry import Geometry
from ptctl.backends.megatron.layers import RmsNorm, SdpaCoreAttention
from ptctl.backends.megatron.mcore import (
    HAS_GPU,
    HAVE_TE,
    DistributedDataParallel,
    DistributedDataParallelConfig,
    Float16Module,
    GPTModel,
    TransformerBlockSubmodules,
    TransformerConfig,
    finalize_model_grads,
    get_gpt_layer_local_spec,
    get_gpt_layer_with_transformer_engine_spec,
    get_num_layers_to_build,
    parallel_state,
)

VOCAB_MULTIPLE = 8
"""The vocabulary is padded to a multiple of this times the tensor parallel size; losses mask the padding."""


@dataclass(frozen=True, slots=True)
class Model:
    """The parts of the model that this rank holds: one chunk, until interleaved pipelines are built."""

    config: TransformerConfig
    bare: list[GPTModel]
    """The modules that own the parameters."""
    wrapped: list[DistributedDataParallel]
    """The same, as the schedules call them."""

    def named_parameters(self) -> Iterator[tuple[str, torch.nn.Parameter]]:
        """Parameters with Megatron's names, for `weights`."""
        for chunk in self.bare:
            yield from chunk.named_parameters()

    def zero_gradients(self) -> None:
        """Clear the gradient buffers, at the start of a step."""
        for chunk in self.wrapped:
            chunk.zero_grad_buffer()


def training_dtype(geometry: Geometry) -> torch.dtype:
    """float32 on a CPU, where bfloat16 is a hundred times slower; on a GPU bfloat16 where the config names it."""
    return torch.bfloat16 if HAS_GPU and geometry.dtype == "bfloat16" else torch.float32


def build_model(geometry: Geometry, dtype: torch.dtype) -> Model:
    """Build the model with Megatron's initial values; `weights` fills in the real ones. Parallel groups must exist."""
    config = transformer_config(geometry, dtype)
    multiple = VOCAB_MULTIPLE * config.tensor_model_parallel_size
    bare = GPTModel(
        config,
        layer_spec(geometry, config),
        vocab_size=-(-geometry.vocab_size // multiple) * multiple,
        max_sequence_length=geometry.max_positions,
        pre_process=parallel_state.is_pipeline_first_stage(),
        post_process=parallel_state.is_pipeline_last_stage(),
        parallel_output=True,
        share_embeddings_and_output_weights=geometry.tied,
        position_embedding_type="rope",
        rotary_base=geometry.rope_theta,  # pyright: ignore[reportArgumentType] annotated int, used as a number
        rope_scaling=geometry.rope_llama3_factor is not None,
        rope_scaling_factor=geometry.rope_llama3_factor or 1.0,
        seq_len_interpolation_factor=geometry.rope_linear_factor,
    )
    if HAS_GPU:
        bare.cuda()
    module = Float16Module(config, bare) if dtype == torch.bfloat16 else bare
    wrapped = DistributedDataParallel(config, DistributedDataParallelConfig(grad_reduce_in_fp32=True), module)
    return Model(config=config, bare=[bare], wrapped=[wrapped])


def transformer_config(geometry: Geometry, dtype: torch.dtype) -> TransformerConfig:
    """Megatron's configuration. GPU fusions are off; gradients are plain sums over micro-batches and ranks."""
    moe: dict[str, Any] = {}
    if geometry.num_experts:
        moe = {
            "num_moe_experts": geometry.num_experts,
            "moe_router_topk": geometry.num_experts_per_token,
            "moe_ffn_hidden_size": geometry.expert_ffn_size,
            "moe_router_load_balancing_type": "none",
            "moe_token_dispatcher_type": "alltoall",
        }
    return TransformerConfig(
        num_layers=geometry.num_layers,
        hidden_size=geometry.hidden_size,
        ffn_hidden_size=geometry.ffn_size,
        num_attention_heads=geometry.num_heads,
        num_query_groups=geometry.num_kv_heads,
        kv_channels=geometry.head_dim,
        normalization="RMSNorm",
        layernorm_epsilon=geometry.norm_epsilon,
        gated_linear_unit=True,
        activation_func=functional.silu,
        add_bias_linear=False,
        add_qkv_bias=geometry.qkv_bias,
        qk_layernorm=geometry.qk_norm,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        init_method_std=geometry.initializer_range,
        tensor_model_parallel_size=parallel_state.get_tensor_model_parallel_world_size(),
        pipeline_model_parallel_size=parallel_state.get_pipeline_model_parallel_world_size(),
        params_dtype=dtype,
        pipeline_dtype=dtype,
        bf16=dtype == torch.bfloat16,
        use_cpu_initialization=not HAS_GPU,
        calculate_per_token_loss=True,
        finalize_model_grads_func=_sum_gradients,
        **moe,
    )


def layer_spec(geometry: Geometry, config: TransformerConfig) -> Any:
    """Transformer Engine's layers on a GPU that has it, Megatron's local ones with `layers` elsewhere.

    A ModuleSpec of one layer, or the TransformerBlockSubmodules of all of them; GPTModel takes both.
    """
    num_experts = geometry.num_experts or None
    if HAS_GPU and HAVE_TE:
        return get_gpt_layer_with_transformer_engine_spec(num_experts=num_experts, qk_layernorm=geometry.qk_norm)
    layer = get_gpt_layer_local_spec(
        num_experts=num_experts, qk_layernorm=geometry.qk_norm, normalization=config.normalization
    )
    parts: Any = layer.submodules
    parts.input_layernorm = parts.pre_mlp_layernorm = RmsNorm
    attention = parts.self_attention.submodules
    attention.core_attention = SdpaCoreAttention
    if geometry.qk_norm:
        attention.q_layernorm = attention.k_layernorm = RmsNorm
    norm: Any = RmsNorm
    return TransformerBlockSubmodules(layer_specs=[layer] * get_num_layers_to_build(config), layer_norm=norm)


def _sum_gradients(model: list[Any], num_tokens: torch.Tensor | None = None, **arguments: Any) -> None:
    """Megatron's end of a backward pass, without its division by the number of tokens.

    Token weights are normalised over the whole step when it is planned, so gradients are summed over micro-batches and
    ranks and never divided. With `num_tokens` None Megatron leaves them as they are.
    """
    finalize_model_grads(model, None, **arguments)
