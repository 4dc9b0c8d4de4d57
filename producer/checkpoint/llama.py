"""A Llama in plain PyTorch, just enough to see what the linear layers of a model are fed.

Plain on purpose: transformers changes its attention and its arithmetic between versions, and a calibration that
moves with them would break the promise that two builds are equal. Everything is float64, so that thread count, BLAS
and instruction set differ by some 1e-13 of a value, far below what ``calibrate`` keeps of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

Observer = Callable[[str, Tensor], None]
"""``observe(name, input)``: called with a linear layer's Hugging Face name and its input ``[tokens, K]``."""


@dataclass(frozen=True)
class LlamaGeometry:
    """The shape of a Llama with tied embeddings and no biases."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_size: int
    vocabulary: int
    context: int
    rope_theta: float
    norm_epsilon: float
    bos_token: int
    eos_token: int
    pad_token: int


@dataclass(frozen=True)
class FusedGroup:
    """Linear layers that vLLM fuses into one: they share their input and both their global scales."""

    inputs_of: str
    members: tuple[str, ...]


GROUPS: Final = (
    FusedGroup("self_attn.qkv", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    FusedGroup("self_attn.o", ("self_attn.o_proj",)),
    FusedGroup("mlp.gate_up", ("mlp.gate_proj", "mlp.up_proj")),
    FusedGroup("mlp.down", ("mlp.down_proj",)),
)
"""The quantised linear layers of one decoder layer, as vLLM groups them."""


def layer_prefix(layer: int) -> str:
    """``model.layers.<n>.``"""
    return f"model.layers.{layer}."


def observe_prompt(
    geometry: LlamaGeometry, weights: Mapping[str, Tensor], tokens: Sequence[int], observe: Observer
) -> None:
    """Run one prompt through all layers and show ``observe`` the input of each fused group of linear layers.

    ``weights`` have Hugging Face names and any float dtype. The head is not run: nothing there is quantised.
    """
    hidden = weights["model.embed_tokens.weight"][torch.tensor(tokens)].double()
    cosine, sine = _rope_tables(geometry, len(tokens))
    for layer in range(geometry.layers):
        prefix = layer_prefix(layer)
        own = {name: weights[prefix + name].double() for name in _LAYER_WEIGHTS}
        attended = _normed(hidden, own["input_layernorm.weight"], geometry.norm_epsilon)
        observe(prefix + "self_attn.qkv", attended)
        mixed = _attention(geometry, own, attended, cosine, sine)
        observe(prefix + "self_attn.o", mixed)
        hidden = hidden + mixed @ own["self_attn.o_proj.weight"].t()
        fed = _normed(hidden, own["post_attention_layernorm.weight"], geometry.norm_epsilon)
        observe(prefix + "mlp.gate_up", fed)
        gate = fed @ own["mlp.gate_proj.weight"].t()
        product = torch.nn.functional.silu(gate) * (fed @ own["mlp.up_proj.weight"].t())
        observe(prefix + "mlp.down", product)
        hidden = hidden + product @ own["mlp.down_proj.weight"].t()


_LAYER_WEIGHTS: Final = (
    "input_layernorm.weight",
    "post_attention_layernorm.weight",
    *(f"{member}.weight" for group in GROUPS for member in group.members),
)


def _normed(hidden: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    return hidden * torch.rsqrt(hidden.pow(2).mean(-1, keepdim=True) + epsilon) * weight


def _rope_tables(geometry: LlamaGeometry, tokens: int) -> tuple[Tensor, Tensor]:
    half = torch.arange(0, geometry.head_size, 2, dtype=torch.float64) / geometry.head_size
    angles = torch.arange(tokens, dtype=torch.float64)[:, None] / geometry.rope_theta**half
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos(), angles.sin()


def _rotated(states: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    first, second = states.chunk(2, dim=-1)
    return states * cosine + torch.cat((-second, first), dim=-1) * sine


def _attention(geometry: LlamaGeometry, own: Mapping[str, Tensor], fed: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    """Causal grouped-query attention of ``fed`` ``[tokens, hidden]``, heads concatenated."""

    def heads(name: str, count: int) -> Tensor:
        return (fed @ own[name].t()).view(len(fed), count, geometry.head_size).transpose(0, 1)

    repeats = geometry.heads // geometry.kv_heads
    query = _rotated(heads("self_attn.q_proj.weight", geometry.heads), cosine, sine)
    key = _rotated(heads("self_attn.k_proj.weight", geometry.kv_heads), cosine, sine).repeat_interleave(repeats, 0)
    value = heads("self_attn.v_proj.weight", geometry.kv_heads).repeat_interleave(repeats, 0)
    scores = query @ key.transpose(1, 2) / geometry.head_size**0.5
    future = torch.ones(len(fed), len(fed), dtype=torch.bool).triu(1)
    weights = scores.masked_fill(future, float("-inf")).softmax(-1)
    return (weights @ value).transpose(0, 1).reshape(len(fed), -1)
