"""What a handoff carries: the tensors' descriptions, their digests, the manifest and its root.

Pure. Independent of chunking, block ids, nonces and handoff ids, so that one prompt under one identity has
one root wherever and whenever it is computed (docs/formats/wire.md).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from receipts import canonical

Part = Literal["k", "v", "latent", "state", "scale"]
AttentionKind = Literal["full", "window", "chunk"]

MANIFEST_FORMAT: Final = "soakledger/kv-manifest/1"
TOKEN_MAJOR: Final = "token,kv_head,head_dim"
"""``order`` of K and V: ``[token][kv_head][head_dim]``, heads in global order, little-endian."""

ELEMENT_BYTES: Final[Mapping[str, int]] = {"bfloat16": 2, "float16": 2, "float32": 4}


@dataclass(frozen=True)
class LayerGeometry:
    """What decides the KV tensors of one layer; part of the identity (DESIGN section 7)."""

    attention: AttentionKind
    window: int | None
    """Tokens kept by a ``window`` layer, or the chunk length of a ``chunk`` layer; None for ``full``."""
    kv_heads: int
    head_size: int
    kv_group: int


@dataclass(frozen=True)
class KVGeometry:
    """The KV geometry of a model: its layers in order and the dtype of the cache."""

    layers: tuple[LayerGeometry, ...]
    kv_dtype: str


@dataclass(frozen=True)
class TensorDescription:
    """One tensor of a handoff, as BEGIN and the manifest name it. ``bytes`` is the product of shape and dtype."""

    layer: int
    part: Part
    dtype: str
    order: str
    shape: tuple[int, ...]
    first_token: int
    tokens: int
    bytes: int

    def document(self) -> dict[str, Any]:
        return {
            "layer": self.layer,
            "part": self.part,
            "dtype": self.dtype,
            "order": self.order,
            "shape": list(self.shape),
            "first_token": self.first_token,
            "tokens": self.tokens,
            "bytes": self.bytes,
        }


def expected_tensors(geometry: KVGeometry, n_tokens: int) -> tuple[TensorDescription, ...]:
    """The tensors that a prompt of ``n_tokens`` ships: layer by layer, K before V.

    A window layer of W tokens ships its last min(n, W). Raises ValueError on an attention kind or a dtype
    without a known layout: an unknown layout is refused by name, never guessed.
    """
    if n_tokens < 1:
        raise ValueError("a prompt has at least one token")
    if geometry.kv_dtype not in ELEMENT_BYTES:
        raise ValueError(f"KV dtype {geometry.kv_dtype!r} has no known layout")
    descriptions: list[TensorDescription] = []
    for index, layer in enumerate(geometry.layers):
        tokens = _tokens_kept(layer, n_tokens)
        shape = (tokens, layer.kv_heads, layer.head_size)
        size = tokens * layer.kv_heads * layer.head_size * ELEMENT_BYTES[geometry.kv_dtype]
        for part in _KV:
            descriptions.append(
                TensorDescription(index, part, geometry.kv_dtype, TOKEN_MAJOR, shape, n_tokens - tokens, tokens, size)
            )
    return tuple(descriptions)


def total_bytes(descriptions: Sequence[TensorDescription]) -> int:
    """Payload bytes of the tensors together."""
    return sum(item.bytes for item in descriptions)


def tensors_array(descriptions: Sequence[TensorDescription], digests: Sequence[str]) -> list[dict[str, Any]]:
    """The descriptions with each tensor's ``digest`` (``blake3:<hex>`` over its bytes), in their order."""
    if len(descriptions) != len(digests):
        raise ValueError(f"{len(descriptions)} tensors but {len(digests)} digests")
    return [{**item.document(), "digest": digest} for item, digest in zip(descriptions, digests, strict=True)]


def tensors_root(array: Sequence[Mapping[str, Any]]) -> str:
    """BLAKE3 over the canonical array alone: the bytes without the prompt, so other prompts must differ here."""
    return canonical.blake3_digest(canonical.dumps(list(array)))


def manifest_bytes(prompt_sha256: str, n_tokens: int, array: Sequence[Mapping[str, Any]]) -> bytes:
    """Canonical manifest ``{format, prompt_sha256, n_tokens, tensors}``."""
    return canonical.dumps(
        {"format": MANIFEST_FORMAT, "prompt_sha256": prompt_sha256, "n_tokens": n_tokens, "tensors": list(array)}
    )


def root(manifest: bytes) -> str:
    """BLAKE3 of the manifest: the payload root that both ends must compute alike."""
    return canonical.blake3_digest(manifest)


_KV: Final[tuple[Part, Part]] = ("k", "v")


def _tokens_kept(layer: LayerGeometry, n_tokens: int) -> int:
    if layer.attention == "full":
        return n_tokens
    if layer.attention == "window" and layer.window is not None and layer.window > 0:
        return min(n_tokens, layer.window)
    raise ValueError(f"attention kind {layer.attention!r} (window {layer.window}) has no known layout")
