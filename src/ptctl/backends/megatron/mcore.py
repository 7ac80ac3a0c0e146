"""Everything that is used of Megatron-Core, imported in one place (written for megatron-core >= 0.16.1, < 0.20).

The import is special: without a GPU `torch.compile` is kept out of it (see `cpu_shim.compile_disabled`), and its
warnings that Transformer Engine and Apex are missing are dropped, because both are optional here. Every other file of
this package takes its Megatron names from this one, so that the order of imports cannot matter.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import contextlib
import warnings

import torch
import torch._dynamo  # pyright: ignore[reportUnusedImport] torch.optim imports it, and under the CPU shim it could not

from ptctl.backends.megatron.cpu_shim import compile_disabled

HAS_GPU = torch.cuda.is_available()
"""Whether this process trains on a GPU."""

with warnings.catch_warnings(), contextlib.nullcontext() if HAS_GPU else compile_disabled():
    warnings.simplefilter("ignore")
    from megatron.core import dist_checkpointing, parallel_state
    from megatron.core.dist_checkpointing.strategies.torch import (
        MCoreSavePlanner,
        TorchDistSaveShardedStrategy,
        _replace_state_dict_keys_with_sharded_keys,  # pyright: ignore[reportPrivateUsage]
        mcore_to_pyt_state_dict,
    )
    from megatron.core.distributed import (
        DistributedDataParallel,
        DistributedDataParallelConfig,
        finalize_model_grads,
    )
    from megatron.core.models.gpt import GPTModel
    from megatron.core.models.gpt.gpt_layer_specs import (
        HAVE_TE,
        get_gpt_layer_local_spec,
        get_gpt_layer_with_transformer_engine_spec,
    )
    from megatron.core.optimizer import ChainedOptimizer, OptimizerConfig, get_megatron_optimizer
    from megatron.core.optimizer.clip_grads import clip_grad_by_total_norm_fp32
    from megatron.core.optimizer_param_scheduler import OptimizerParamScheduler
    from megatron.core.pipeline_parallel import get_forward_backward_func
    from megatron.core.tensor_parallel import model_parallel_cuda_manual_seed, vocab_parallel_cross_entropy
    from megatron.core.transformer.module import Float16Module
    from megatron.core.transformer.moe import moe_utils
    from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build
    from megatron.core.transformer.transformer_config import TransformerConfig

if not hasattr(moe_utils, "te_general_gemm"):  # 0.16.1 uses this name, but binds it only with Transformer Engine
    moe_utils.te_general_gemm = None  # pyright: ignore[reportAttributeAccessIssue]

replace_keys_with_sharded_keys = _replace_state_dict_keys_with_sharded_keys

__all__ = [
    "HAS_GPU",
    "HAVE_TE",
    "ChainedOptimizer",
    "DistributedDataParallel",
    "DistributedDataParallelConfig",
    "Float16Module",
    "GPTModel",
    "MCoreSavePlanner",
    "OptimizerConfig",
    "OptimizerParamScheduler",
    "TorchDistSaveShardedStrategy",
    "TransformerBlockSubmodules",
    "TransformerConfig",
    "clip_grad_by_total_norm_fp32",
    "dist_checkpointing",
    "finalize_model_grads",
    "get_forward_backward_func",
    "get_gpt_layer_local_spec",
    "get_gpt_layer_with_transformer_engine_spec",
    "get_megatron_optimizer",
    "get_num_layers_to_build",
    "mcore_to_pyt_state_dict",
    "model_parallel_cuda_manual_seed",
    "parallel_state",
    "replace_keys_with_sharded_keys",
    "vocab_parallel_cross_entropy",
]
