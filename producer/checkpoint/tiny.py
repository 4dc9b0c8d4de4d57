"""A tiny random Llama for tests: the same numbers on every machine, in NVFP4 or in bfloat16."""

from __future__ import annotations

import hashlib
from typing import Final

import torch
from torch import Tensor

from producer.checkpoint.llama import GROUPS, LlamaGeometry, layer_prefix

TINY: Final = LlamaGeometry(
    layers=4,
    hidden=256,
    intermediate=512,
    heads=4,
    kv_heads=2,
    head_size=64,
    vocabulary=1024,
    context=8192,
    rope_theta=10000.0,
    norm_epsilon=1e-5,
    bos_token=1,
    eos_token=2,
    pad_token=2,
)

TINY_CHAT_TEMPLATE: Final = (
    "{% for message in messages %}{{ message['role'] + ': ' + message['content'] + '\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ 'assistant: ' }}{% endif %}"
)
"""There is no tokenizer, but a lane enrolls a chat template and each end reads its own."""

CALIBRATION_PROMPTS: Final = tuple(tuple((start + 37 * i) % TINY.vocabulary for i in range(64)) for start in (3, 500))


def tiny_weights() -> dict[str, Tensor]:
    """Weights under Hugging Face names, all exactly representable in bfloat16, so both twins start from the same.

    Uniform, of variance 1/K, so that activations neither die nor explode over the layers.
    """
    sizes = {
        "self_attn.q_proj": (TINY.heads * TINY.head_size, TINY.hidden),
        "self_attn.k_proj": (TINY.kv_heads * TINY.head_size, TINY.hidden),
        "self_attn.v_proj": (TINY.kv_heads * TINY.head_size, TINY.hidden),
        "self_attn.o_proj": (TINY.hidden, TINY.heads * TINY.head_size),
        "mlp.gate_proj": (TINY.intermediate, TINY.hidden),
        "mlp.up_proj": (TINY.intermediate, TINY.hidden),
        "mlp.down_proj": (TINY.hidden, TINY.intermediate),
    }
    weights = {
        "model.embed_tokens.weight": _uniform("model.embed_tokens.weight", (TINY.vocabulary, TINY.hidden), 1.0),
        "model.norm.weight": torch.ones(TINY.hidden),
    }
    for layer in range(TINY.layers):
        prefix = layer_prefix(layer)
        weights[prefix + "input_layernorm.weight"] = torch.ones(TINY.hidden)
        weights[prefix + "post_attention_layernorm.weight"] = torch.ones(TINY.hidden)
        for member in (member for group in GROUPS for member in group.members):
            name = f"{prefix}{member}.weight"
            weights[name] = _uniform(name, sizes[member], (3.0 / sizes[member][1]) ** 0.5)
    return weights


def _uniform(name: str, shape: tuple[int, int], bound: float) -> Tensor:
    # SHAKE-256 instead of torch.randn: integers from a hash are equal on every CPU and in every version.
    count = shape[0] * shape[1]
    stream = hashlib.shake_256(f"soakledger/tiny/1\n{name}".encode()).digest(2 * count)
    integers = torch.frombuffer(bytearray(stream), dtype=torch.int16).to(torch.float64)
    return (integers / 32768.0 * bound).reshape(shape).to(torch.bfloat16).to(torch.float32)
