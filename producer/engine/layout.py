"""Where K and V of a token lie in vLLM's paged cache, per instruction set, and how they come out canonical.

vLLM gives one logical view per layer ``[blocks, kv_heads, block_size, 2 × head_size]``. On a CPU the bytes inside a
(block, head) are packed for the attention kernel of that instruction set (FACTS section 2), so raw block bytes are no
identity. A layout that is not known is refused by name, never guessed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import torch
from torch import Tensor

from receipts.errors import InputError

Unpacked = tuple[Tensor, Tensor]
"""K and V, each ``[tokens, kv_heads, head_size]`` contiguous."""


def unpack(isa: str, layer: Tensor, blocks: Tensor, n_tokens: int) -> Unpacked:
    """K and V of the first ``n_tokens`` tokens that lie in ``blocks`` (ids in order) of one layer's cache."""
    return _UNPACKERS[require_known(isa)](layer, blocks, n_tokens)


def pack(isa: str, layer: Tensor, blocks: Tensor, keys: Tensor, values: Tensor) -> None:
    """Write canonical K and V into ``blocks`` of one layer's cache: the inverse of ``unpack``."""
    _PACKERS[require_known(isa)](layer, blocks, keys, values)


def require_known(isa: str) -> str:
    """``isa`` if its layout is known here. Raises InputError naming it otherwise."""
    if isa not in _UNPACKERS:
        raise InputError(
            f"the KV layout of instruction set {isa!r} is not known; known: {', '.join(sorted(_UNPACKERS))}",
            next_step="run this producer on a machine with a known layout, or add and prove an unpacker",
        )
    return isa


def _halves(layer: Tensor, blocks: Tensor) -> tuple[Tensor, int, int, int, int]:
    """The blocks' own bytes as ``[blocks, heads, 2·N·D]``: first K's N·D elements, then V's."""
    count, heads, block_size, content = len(blocks), layer.shape[1], layer.shape[2], layer.shape[3]
    return layer[blocks].reshape(count, heads, block_size * content), count, heads, block_size, content // 2


def _unpack_vec(layer: Tensor, blocks: Tensor, n_tokens: int) -> Unpacked:
    """``vec``, ``vec16``: K column-major ``[D, N]`` per (block, head), V row-major ``[N, D]`` (cpu_attn_vec.hpp)."""
    flat, count, heads, size, dim = _halves(layer, blocks)
    keys = flat[..., : size * dim].view(count, heads, dim, size).permute(0, 3, 1, 2)
    values = flat[..., size * dim :].view(count, heads, size, dim).permute(0, 2, 1, 3)
    return _first(keys, n_tokens), _first(values, n_tokens)


def _pack_vec(layer: Tensor, blocks: Tensor, keys: Tensor, values: Tensor) -> None:
    flat, count, heads, size, dim = _halves(layer, blocks)
    columns = _padded(keys, count, size).permute(0, 2, 3, 1)
    rows = _padded(values, count, size).permute(0, 2, 1, 3)
    flat[..., : size * dim] = columns.reshape(count, heads, dim * size)
    flat[..., size * dim :] = rows.reshape(count, heads, size * dim)
    layer[blocks] = flat.view(count, heads, size, 2 * dim)


def _unpack_token_major(layer: Tensor, blocks: Tensor, n_tokens: int) -> Unpacked:
    """FlashAttention on CUDA: K then V inside each token's content, any stride order. Not run on a GPU."""
    dim = layer.shape[3] // 2
    chosen = layer[blocks].permute(0, 2, 1, 3)
    return _first(chosen[..., :dim], n_tokens), _first(chosen[..., dim:], n_tokens)


def _pack_token_major(layer: Tensor, blocks: Tensor, keys: Tensor, values: Tensor) -> None:
    size = layer.shape[2]
    both = torch.cat([_padded(keys, len(blocks), size), _padded(values, len(blocks), size)], dim=-1)
    layer[blocks] = both.permute(0, 2, 1, 3)


def _first(tokens: Tensor, n_tokens: int) -> Tensor:
    return tokens.reshape(-1, tokens.shape[2], tokens.shape[3])[:n_tokens].contiguous()


def _padded(tokens: Tensor, count: int, size: int) -> Tensor:
    full = torch.zeros((count * size, tokens.shape[1], tokens.shape[2]), dtype=tokens.dtype, device=tokens.device)
    full[: tokens.shape[0]] = tokens
    return full.view(count, size, tokens.shape[1], tokens.shape[2])


_UNPACKERS: Final[dict[str, Callable[[Tensor, Tensor, int], Unpacked]]] = {
    "vec": _unpack_vec,
    "vec16": _unpack_vec,  # head sizes such as 80; packs alike, seen through the wheel's own cpu_attn_reshape_and_cache
    "flash_attn": _unpack_token_major,
}
_PACKERS: Final[dict[str, Callable[[Tensor, Tensor, Tensor, Tensor], Any]]] = {
    "vec": _pack_vec,
    "vec16": _pack_vec,
    "flash_attn": _pack_token_major,
}
