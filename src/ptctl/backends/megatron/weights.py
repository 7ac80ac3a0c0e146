"""Hugging Face tensors ↔ Megatron-Core parameters: one rule a parameter, both ways bit-exact.

    Megatron                                   Hugging Face                                   layout
    decoder.layers.3.self_attention.linear_qkv model.layers.3.self_attn.{q,k,v}_proj          qkv
    decoder.layers.3.mlp.linear_fc1            model.layers.3.mlp.{gate,up}_proj              stacked
    embedding.word_embeddings                  model.embed_tokens                             vocabulary

Layouts
- `whole`: the same tensor.
- `vocabulary`: the same rows, with zero rows appended up to Megatron's padded vocabulary.
- `stacked`: the tensors one below the other.
- `qkv`: for each key/value group its query heads, its key and its value.

The names of Transformer Engine's fused norm layers have rules of their own: both layer specs load the same files.
"""

# torch and Megatron-Core are typed in parts only.
# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from ptctl.backends.megatron.geometry import Geometry
from ptctl.errors import DataError
from ptctl.seeds import derive_seed


@dataclass(frozen=True, slots=True)
class Rule:
    """How one Megatron parameter is made of Hugging Face tensors."""

    layout: str
    names: tuple[str, ...]


_ATTENTION = ("q_proj", "k_proj", "v_proj")

_MODEL_RULES = {
    "embedding.word_embeddings.weight": Rule("vocabulary", ("model.embed_tokens.weight",)),
    "output_layer.weight": Rule("vocabulary", ("lm_head.weight",)),
    "decoder.final_layernorm.weight": Rule("whole", ("model.norm.weight",)),
}

_LAYER_RULES = {
    "input_layernorm.weight": Rule("whole", ("input_layernorm.weight",)),
    "self_attention.linear_qkv.layer_norm_weight": Rule("whole", ("input_layernorm.weight",)),
    "self_attention.linear_qkv.weight": Rule("qkv", tuple(f"self_attn.{part}.weight" for part in _ATTENTION)),
    "self_attention.linear_qkv.bias": Rule("qkv", tuple(f"self_attn.{part}.bias" for part in _ATTENTION)),
    "self_attention.q_layernorm.weight": Rule("whole", ("self_attn.q_norm.weight",)),
    "self_attention.k_layernorm.weight": Rule("whole", ("self_attn.k_norm.weight",)),
    "self_attention.linear_proj.weight": Rule("whole", ("self_attn.o_proj.weight",)),
    "pre_mlp_layernorm.weight": Rule("whole", ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.layer_norm_weight": Rule("whole", ("post_attention_layernorm.weight",)),
    "mlp.linear_fc1.weight": Rule("stacked", ("mlp.gate_proj.weight", "mlp.up_proj.weight")),
    "mlp.linear_fc2.weight": Rule("whole", ("mlp.down_proj.weight",)),
    "mlp.router.weight": Rule("whole", ("mlp.gate.weight",)),
}

_LAYER = re.compile(r"decoder\.layers\.(\d+)\.(.+)")
_EXPERT = re.compile(r"mlp\.experts\.local_experts\.(\d+)\.(linear_fc[12]\.weight)")


def rule_of(name: str) -> Rule:
    """The rule of the Megatron parameter `name`. Raises KeyError for a name that no supported model has."""
    if name in _MODEL_RULES:
        return _MODEL_RULES[name]
    layer = _LAYER.fullmatch(name)
    if layer is None:
        raise KeyError(name)
    number, part = layer.groups()
    prefix = f"model.layers.{number}."
    if expert := _EXPERT.fullmatch(part):
        rule = _LAYER_RULES[f"mlp.{expert[2]}"]
        experts = tuple(hf_name.replace("mlp.", f"mlp.experts.{expert[1]}.") for hf_name in rule.names)
        return Rule(rule.layout, tuple(prefix + hf_name for hf_name in experts))
    rule = _LAYER_RULES[part]
    return Rule(rule.layout, tuple(prefix + hf_name for hf_name in rule.names))


def load_weights(
    parameters: Iterable[tuple[str, torch.nn.Parameter]], geometry: Geometry, read: Callable[[str], Tensor]
) -> None:
    """Fill Megatron's parameters; `read` returns a Hugging Face tensor by name, in any floating-point type."""
    with torch.no_grad():
        for name, parameter in parameters:
            rule = rule_of(name)
            joined = _join(rule.layout, [read(hf_name) for hf_name in rule.names], geometry)
            target = parameter[: len(joined)] if rule.layout == "vocabulary" else parameter
            if joined.shape != target.shape:
                raise DataError(f"{name} has the shape {list(target.shape)}, the weights have {list(joined.shape)}")
            target.copy_(joined)
            if rule.layout == "vocabulary":
                parameter[len(joined) :].zero_()


def export_weights(tensors: Iterable[tuple[str, Tensor]], geometry: Geometry) -> Iterator[tuple[str, Tensor]]:
    """Hugging Face names and tensors of `tensors`: parameters, or gradients, with Megatron's names."""
    for name, tensor in tensors:
        rule = rule_of(name)
        yield from zip(rule.names, _split(rule.layout, tensor.detach(), geometry), strict=True)


def weight_shapes(geometry: Geometry) -> dict[str, tuple[int, ...]]:
    """Every Hugging Face tensor of the model with its shape, in the order of the layers."""
    g = geometry
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (g.vocab_size, g.hidden_size)}
    for number in range(g.num_layers):
        shapes |= {f"model.layers.{number}.{name}": shape for name, shape in _layer_shapes(g).items()}
    shapes["model.norm.weight"] = (g.hidden_size,)
    if not g.tied:
        shapes["lm_head.weight"] = (g.vocab_size, g.hidden_size)
    return shapes


def _layer_shapes(g: Geometry) -> dict[str, tuple[int, ...]]:
    heads = dict(zip(_ATTENTION, (g.num_heads, g.num_kv_heads, g.num_kv_heads), strict=True))
    shapes: dict[str, tuple[int, ...]] = {"input_layernorm.weight": (g.hidden_size,)}
    shapes |= {f"self_attn.{part}.weight": (num * g.head_dim, g.hidden_size) for part, num in heads.items()}
    if g.qkv_bias:
        shapes |= {f"self_attn.{part}.bias": (num * g.head_dim,) for part, num in heads.items()}
    if g.qk_norm:
        shapes |= {f"self_attn.{part}_norm.weight": (g.head_dim,) for part in "qk"}
    shapes["self_attn.o_proj.weight"] = (g.hidden_size, g.num_heads * g.head_dim)
    shapes["post_attention_layernorm.weight"] = (g.hidden_size,)
    if not g.num_experts:
        return shapes | _ffn_shapes("mlp.", g.hidden_size, g.ffn_size)
    shapes["mlp.gate.weight"] = (g.num_experts, g.hidden_size)
    for expert in range(g.num_experts):
        shapes |= _ffn_shapes(f"mlp.experts.{expert}.", g.hidden_size, g.expert_ffn_size)
    return shapes


def _ffn_shapes(prefix: str, hidden_size: int, ffn_size: int) -> dict[str, tuple[int, ...]]:
    return {
        f"{prefix}gate_proj.weight": (ffn_size, hidden_size),
        f"{prefix}up_proj.weight": (ffn_size, hidden_size),
        f"{prefix}down_proj.weight": (hidden_size, ffn_size),
    }


def random_weights(geometry: Geometry, seed: int) -> Callable[[str], Tensor]:
    """A reader of random weights for `load_weights`: normal(0, initializer_range), norms 1, biases 0, as transformers.

    Each tensor has a generator seeded by its name, so that the weights do not depend on which rank builds which.
    """
    shapes = weight_shapes(geometry)

    def read(name: str) -> Tensor:
        if name.endswith("norm.weight"):
            return torch.ones(shapes[name])
        if name.endswith(".bias"):
            return torch.zeros(shapes[name])
        generator = torch.Generator().manual_seed(derive_seed("initialize", seed, name))
        return torch.normal(0.0, geometry.initializer_range, shapes[name], generator=generator)

    return read


def _join(layout: str, tensors: list[Tensor], geometry: Geometry) -> Tensor:
    if layout == "stacked":
        return torch.cat(tensors)
    if layout == "qkv":
        groups = [tensor.unflatten(0, (geometry.num_kv_heads, -1)) for tensor in tensors]  # [groups, rows, ...]
        return torch.cat(groups, dim=1).flatten(0, 1)
    return tensors[0]


def _split(layout: str, tensor: Tensor, geometry: Geometry) -> tuple[Tensor, ...]:
    if layout == "stacked":
        return tensor.chunk(2)
    if layout == "qkv":
        rows = geometry.head_dim * geometry.num_heads // geometry.num_kv_heads
        groups = tensor.unflatten(0, (geometry.num_kv_heads, -1))  # [groups, rows + 2 × head_dim, ...]
        return tuple(part.flatten(0, 1) for part in groups.split([rows, geometry.head_dim, geometry.head_dim], dim=1))
    if layout == "vocabulary":
        return (tensor[: geometry.vocab_size],)
    return (tensor,)
