"""What the producer asks of an engine, and what an engine gives back. No torch, no vLLM."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from producer.handoff.manifest import KVGeometry, TensorDescription
from receipts.errors import LaneError


class EngineTouchedError(LaneError):
    """A forward failed or a step span: the engine cannot be used again. Status 75 by the resident."""


@dataclass(frozen=True)
class EngineSettings:
    """What of a lane decides how the engine is built."""

    checkpoint: Path
    mode: Literal["native", "exact"]
    kv_cache_memory_bytes: int
    context_tokens: int
    chunk_tokens: int
    threads: int


@dataclass(frozen=True)
class Binding:
    """What is bound in the loaded engine, read off its layers and never from a config (DESIGN section 7)."""

    linear_kernels: Mapping[str, int]
    """Class of the linear kernel or method → number of layers it is bound to."""
    attention_backend: str
    isa: str
    model_dtype: str
    kv_dtype: str
    block_size: int
    chunk_tokens: int
    max_num_seqs: int
    prefix_caching: bool
    eager: bool
    runner: str
    rope_modules: int
    vocab_size: int
    context_tokens: int
    geometry: KVGeometry

    def document(self) -> dict[str, Any]:
        """The binding as part of the identity document; ``geometry`` is a member of its own."""
        layers = [
            {
                "attention": layer.attention,
                "window": layer.window,
                "kv_heads": layer.kv_heads,
                "head_size": layer.head_size,
                "kv_group": layer.kv_group,
            }
            for layer in self.geometry.layers
        ]
        return {
            "linear_kernels": dict(sorted(self.linear_kernels.items())),
            "attention_backend": self.attention_backend,
            "isa": self.isa,
            "model_dtype": self.model_dtype,
            "block_size": self.block_size,
            "chunk_tokens": self.chunk_tokens,
            "max_num_seqs": self.max_num_seqs,
            "prefix_caching": self.prefix_caching,
            "eager": self.eager,
            "runner": self.runner,
            "geometry": {
                "kv_dtype": self.kv_dtype,
                "rope_modules": self.rope_modules,
                "vocab_size": self.vocab_size,
                "context_tokens": self.context_tokens,
                "layers": layers,
            },
        }


@dataclass(frozen=True)
class Captured:
    """The KV of one prefill in the canonical layout: private memory, frozen until ``release``."""

    n_tokens: int
    descriptions: tuple[TensorDescription, ...]
    buffers: tuple[memoryview, ...]
    digests: tuple[str, ...]
    """``blake3:<hex>`` of each tensor, made while its bytes were hot."""
    on_release: Callable[[], None] = field(default=lambda: None, repr=False)

    def release(self) -> None:
        """The bytes are no longer needed; their memory may be used for the next prefill."""
        self.on_release()


@dataclass(frozen=True)
class Prefilled:
    """One prefill: its KV, the greedy next token, and when computing began and the last token was there."""

    captured: Captured
    compute_start_ns: int
    last_token_ns: int
    first_token: int


class Engine(Protocol):
    """An engine that holds one model and does one thing at a time."""

    @property
    def binding(self) -> Binding: ...

    @property
    def environment(self) -> Mapping[str, str]: ...

    def prefill(self, ids: Sequence[int]) -> Prefilled:
        """Compute and capture the KV of a prompt. Raises EngineTouchedError; the engine is then unusable."""

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        """Greedy continuation of a prompt."""

    def free_blocks(self) -> int: ...

    def rope_cache(self) -> bytes | None:
        """The model's cos/sin tables, one after another, or None where the model has none."""

    def close(self) -> None: ...
