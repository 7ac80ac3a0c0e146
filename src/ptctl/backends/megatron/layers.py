"""Core attention and norm for machines without Transformer Engine, as Megatron-Core's layer specs ask for them."""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ptctl.backends.megatron.mcore import TransformerConfig


class SdpaCoreAttention(torch.nn.Module):
    """Causal attention through PyTorch's `scaled_dot_product_attention`, with grouped queries.

    Megatron-Core's own DotProductAttention needs a mask of s × s in memory and is several times slower on a CPU.
    Padding stands at the end of each row, so causality alone keeps every real token from seeing it.
    """

    def __init__(self, config: TransformerConfig, *_: Any, softmax_scale: float | None = None, **__: Any) -> None:
        # The other arguments are layer number, mask type and process groups; causal attention needs none of them.
        super().__init__()
        if config.attention_dropout != 0.0 or config.context_parallel_size != 1:
            raise ValueError("SdpaCoreAttention has neither dropout nor context parallelism")
        self.scale = softmax_scale

    def forward(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **arguments: Any
    ) -> Tensor:
        """# query [s, b, heads, d], key and value [s, b, groups, d] → [s, b, heads × d]. Other masks are refused."""
        extra = [name for name in ("attention_bias", "packed_seq_params") if arguments.get(name) is not None]
        if attention_mask is not None or extra:
            raise ValueError(f"SdpaCoreAttention is causal only; it was given {extra or ['attention_mask']}")
        q, k, v = (part.permute(1, 2, 0, 3) for part in (query, key, value))  # [b, heads, s, d]
        grouped = query.shape[2] != key.shape[2]
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True, scale=self.scale, enable_gqa=grouped)
        return mixed.permute(2, 0, 1, 3).flatten(2)


class RmsNorm(torch.nn.RMSNorm):
    """RMS norm over the last dimension (Zhang and Sennrich 2019).

    Megatron-Core's WrappedTorchNorm refuses sequence parallelism; all that is needed is to mark the weight, so that its
    gradient is summed over the tensor parallel ranks.
    """

    def __init__(self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # pyright: ignore[reportAttributeAccessIssue]
