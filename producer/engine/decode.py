"""The other end of a handoff, for proof: canonical tensors go back into a paged cache and tokens are decoded from them.

A ``kv_both`` connector says that all but the last prompt token are known elsewhere, and writes them into the request's
blocks before the forward pass (FACTS section 1). What it decodes equals a local prefill's tokens only if the tensors
are that prompt's KV: a test of what the receiver really holds. It is no part of the producer that serves.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from producer.engine.base import Binding, EngineSettings, EngineTouchedError
from producer.engine.binding import attention_layers, read_binding
from producer.engine.capture import DESK
from producer.engine.layout import pack
from producer.engine.native import NativeEngine, build, enter_environment
from producer.handoff.manifest import expected_tensors
from receipts.clock import HostClock

PARAMETER: Final = "soakledger_load"
"""Member of ``kv_transfer_params``: the number under which the tensors of this request lie in ``_SHELF``."""

_SHELF: Final[dict[int, list[torch.Tensor]]] = {}
"""Tensors to load, K and V of each layer in turn, ``[tokens, kv_heads, head_size]``."""
_NUMBERS: Final = itertools.count(1)


class DecodeEngine(NativeEngine):
    """An engine that can decode from a handoff's tensors as well as from a prompt of its own."""

    @classmethod
    def open(cls, settings: EngineSettings, clock: HostClock) -> DecodeEngine:
        """Load the model with the loading connector in place of the capturing one. Errors as ``NativeEngine.open``."""
        environment = enter_environment(settings)
        engine = build(settings, connector="LoadConnector", module="producer.engine.decode", role="kv_both")
        binding = read_binding(engine, settings)
        _LANE.isa, _LANE.layers = binding.isa, list(attention_layers(engine))
        return cls(engine, DESK, binding, environment, clock, b"")

    def decode(self, ids: Sequence[int], tensors: Sequence[memoryview | bytes], tokens: int) -> list[int]:
        """``tokens`` greedy tokens after ``ids``, its KV taken from ``tensors`` in manifest order.

        The last prompt token is computed here, since its logits are not in the KV. Raises ValueError when the tensors
        are not those of a prompt of that length.
        """
        number = next(_NUMBERS)
        _SHELF[number] = _shaped(self.binding, len(ids), tensors)
        try:
            return [int(token) for token in self._run(ids, tokens, {PARAMETER: number}).token_ids]
        finally:
            del _SHELF[number]


def _shaped(binding: Binding, n_tokens: int, tensors: Sequence[memoryview | bytes]) -> list[torch.Tensor]:
    descriptions = expected_tensors(binding.geometry, n_tokens)
    if [item.bytes for item in descriptions] != [len(tensor) for tensor in tensors]:
        raise ValueError(f"{len(tensors)} tensors are not the KV of {n_tokens} tokens of this model")
    if any(item.first_token for item in descriptions):
        raise ValueError("decoding from the tail that a window layer ships is not built yet")
    dtype = getattr(torch, binding.kv_dtype)
    return [
        torch.frombuffer(bytearray(tensor), dtype=dtype).view(item.shape)
        for item, tensor in zip(descriptions, tensors, strict=True)
    ]


@dataclass
class _Lane:
    """What the connector needs of the loaded model; known only after vLLM has built the connector."""

    isa: str = ""
    layers: list[str] = field(default_factory=list)


_LANE: Final = _Lane()


@dataclass
class LoadMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """Loads of one step: shelf number, the request's blocks, tokens to load."""

    loads: list[tuple[int, list[int], int]] = field(default_factory=list)


class LoadConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Writes shelved tensors into a request's blocks, synchronously, before its first forward pass."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._caches: dict[str, torch.Tensor] = {}
        self._loads: list[tuple[int, list[int], int]] = []

    # The worker's half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:  # noqa: ARG002
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, LoadMetadata)
        for number, blocks, n_tokens in metadata.loads:
            index = torch.tensor(blocks, dtype=torch.long)
            shelf = _SHELF[number]
            for layer, name in enumerate(_LANE.layers):
                keys, values = shelf[2 * layer][:n_tokens], shelf[2 * layer + 1][:n_tokens]
                pack(_LANE.isa, self._caches[name], index, keys, values)

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:
        pass

    def wait_for_save(self) -> None:
        pass

    # The scheduler's half

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:
        if _number(request) is None:
            return 0, False
        return max(request.num_prompt_tokens - 1 - num_computed_tokens, 0), False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        number = _number(request)
        if number is None or num_external_tokens == 0:
            return
        if num_external_tokens != request.num_prompt_tokens - 1:
            raise EngineTouchedError(f"{num_external_tokens} of {request.num_prompt_tokens} tokens are to be loaded")
        # Only blocks of loaded tokens: the rest of the request's blocks is not to be touched.
        needed = -(-num_external_tokens // self._vllm_config.cache_config.block_size)
        self._loads.append((number, list(blocks.get_block_ids()[0])[:needed], num_external_tokens))

    def build_connector_meta(self, scheduler_output: Any) -> LoadMetadata:  # noqa: ARG002
        loads, self._loads = self._loads, []
        return LoadMetadata(loads)


def _number(request: Any) -> int | None:
    return (request.kv_transfer_params or {}).get(PARAMETER)
