"""One tiny model and the engines that the tests open on it; slow to open, so a module shares one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from producer.engine.base import EngineSettings
from receipts.clock import HostClock
from receipts.prompts import seeded_token_ids

CHUNK_TOKENS = 256
BLOCK_TOKENS = 128
"""vLLM's block on a CPU; asserted against the binding."""


def settings(checkpoint: Path) -> EngineSettings:
    return EngineSettings(checkpoint, "native", 64 * 1024**2, 1024, CHUNK_TOKENS, 2)


@contextlib.contextmanager
def opened(engine_class: Any, checkpoint: Path) -> Iterator[Any]:
    """An engine whose environment is gone again afterwards: other tests run in this process too."""
    before = dict(os.environ)
    engine = engine_class.open(settings(checkpoint), HostClock("here"))
    try:
        yield engine
    finally:
        engine.close()
        os.environ.clear()
        os.environ.update(before)


def prompt(seed: int, tokens: int) -> list[int]:
    return list(seeded_token_ids(seed, tokens, 3, 200))


def build_attentive(out: Path) -> None:
    """A tiny Llama whose answers hang on its cache: the random weights of ``build_tiny`` repeat one token whatever
    they attend to, and would let a decode from empty tensors pass."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=512,
        hidden_size=256,
        intermediate_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
        max_position_embeddings=2048,
        initializer_range=0.05,
        dtype=torch.bfloat16,
    )
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(out)
