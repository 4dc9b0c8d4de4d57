"""Our out-of-tree vLLM connector: it captures the KV of one prefill into the canonical layout.

vLLM builds it twice in one process, as worker and as scheduler (FACTS section 2). The scheduler's half accumulates the
request's block ids over chunks; the worker's half, told by the step's metadata that this chunk is the last, copies
each layer out once the step's forward is known to have run. Nothing is committed before the engine says that the
request finished by length: ``wait_for_save`` runs in a ``finally`` and would ship the KV of a forward that failed.
"""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field
from typing import Any, Final

import blake3
import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)

from producer.engine.base import Captured, EngineTouchedError
from producer.engine.layout import unpack
from producer.handoff.manifest import KVGeometry, expected_tensors

PARAMETER: Final = "soakledger_capture"
"""Member of ``kv_transfer_params``: false switches the capture off for one request (the benchmark's baseline)."""


@dataclass
class Desk:
    """Where connector and engine meet, one a process: the engine asks, the connector lays down."""

    isa: str = ""
    geometry: KVGeometry | None = None
    layers: list[str] = field(default_factory=list)
    """Layer names in the model's order."""
    draft: Captured | None = None
    spare: torch.Tensor | None = None
    """Memory of a released payload: the next one may be written there, so that its pages are warm."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def take_memory(self, size: int) -> torch.Tensor:
        """Memory that belongs to one payload until that payload, and no other, is released."""
        with self.lock:
            memory, self.spare = self.spare, None
        return memory if memory is not None and memory.numel() >= size else torch.empty(size, dtype=torch.uint8)

    def give_back(self, memory: torch.Tensor) -> None:
        with self.lock:
            self.spare = memory


class _Release:
    """What ends one payload, once: its views refuse to be read from then on, and its memory is free again.

    A slice taken of a view before stays readable, and Python does not count it: whoever sends slices is done first.
    """

    def __init__(self, desk: Desk, memory: torch.Tensor, views: tuple[memoryview, ...]) -> None:
        self._desk = desk
        self._memory: torch.Tensor | None = memory
        self._views = views

    def __call__(self) -> None:
        for view in self._views:
            view.release()
        memory, self._memory = self._memory, None
        if memory is not None:
            self._desk.give_back(memory)


DESK: Final = Desk()


@dataclass
class CaptureMetadata(KVConnectorMetadata):  # type: ignore[misc]
    """What the worker must know of a step: with ``blocks`` this is the last chunk of a prompt of ``n_tokens``."""

    blocks: list[int] | None = None
    n_tokens: int = 0


@dataclass
class _Request:
    """The scheduler's account of one request."""

    n_tokens: int
    blocks: list[int]
    wanted: bool


class CaptureConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """A producer-side connector that moves nothing itself: it lays captured tensors on the desk."""

    def __init__(self, vllm_config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        self._requests: dict[str, _Request] = {}
        self._caches: dict[str, torch.Tensor] = {}
        self._saved: list[str] = []

    # The worker's half

    def register_kv_caches(self, kv_caches: dict[str, torch.Tensor]) -> None:
        self._caches = kv_caches

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        pass

    def wait_for_layer_load(self, layer_name: str) -> None:
        pass

    def save_kv_layer(self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: Any, **kwargs: Any) -> None:  # noqa: ARG002
        self._saved.append(layer_name)

    def wait_for_save(self) -> None:
        """Capture after the last chunk, but never behind a forward that raised (FACTS, hazard 2)."""
        saved, self._saved = self._saved, []
        if sys.exc_info()[0] is not None:
            return
        metadata = self._get_connector_metadata()
        if not isinstance(metadata, CaptureMetadata) or metadata.blocks is None:
            return
        if sorted(saved) != sorted(DESK.layers):
            raise EngineTouchedError(f"{len(saved)} layers were computed in the step, the model has {len(DESK.layers)}")
        DESK.draft = _captured(self._caches, metadata.blocks, metadata.n_tokens)

    # The scheduler's half

    def get_num_new_matched_tokens(self, request: Any, num_computed_tokens: int) -> tuple[int, bool]:  # noqa: ARG002
        return 0, False

    def update_state_after_alloc(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        pass

    def build_connector_meta(self, scheduler_output: Any) -> CaptureMetadata:
        for new in scheduler_output.scheduled_new_reqs:
            _require_one_group(new.block_ids)
            wanted = (getattr(new.sampling_params, "extra_args", None) or {}).get("kv_transfer_params", {})
            self._requests[new.req_id] = _Request(
                len(new.prompt_token_ids), list(new.block_ids[0]), wanted.get(PARAMETER, True)
            )
        self._extend(scheduler_output.scheduled_cached_reqs)
        for finished in scheduler_output.finished_req_ids:
            self._requests.pop(finished, None)
        return self._metadata(scheduler_output)

    def _extend(self, cached: Any) -> None:
        for index, name in enumerate(cached.req_ids):
            fresh = cached.new_block_ids[index]
            if fresh is None:
                continue
            _require_one_group(fresh)
            if name in cached.resumed_req_ids:
                self._requests[name].blocks = list(fresh[0])  # preempted: its blocks are new ones altogether
            else:
                self._requests[name].blocks.extend(fresh[0])

    def _metadata(self, scheduler_output: Any) -> CaptureMetadata:
        computed = {new.req_id: new.num_computed_tokens for new in scheduler_output.scheduled_new_reqs}
        cached = scheduler_output.scheduled_cached_reqs
        computed.update(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for name, scheduled in scheduler_output.num_scheduled_tokens.items():
            request = self._requests[name]
            before = computed[name]
            if request.wanted and before < request.n_tokens <= before + scheduled:
                return CaptureMetadata(blocks=list(request.blocks), n_tokens=request.n_tokens)
        return CaptureMetadata()

    def request_finished(self, request: Any, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:  # noqa: ARG002
        return False, None


def _captured(caches: dict[str, torch.Tensor], blocks: list[int], n_tokens: int) -> Captured:
    assert DESK.geometry is not None
    descriptions = expected_tensors(DESK.geometry, n_tokens)
    memory = DESK.take_memory(sum(item.bytes for item in descriptions))
    index = torch.tensor(blocks, dtype=torch.long)
    buffers: list[memoryview] = []
    digests: list[str] = []
    position = 0
    for layer, name in enumerate(DESK.layers):
        for half, tensor in enumerate(unpack(DESK.isa, caches[name], index, n_tokens)):
            # A window layer ships its last tokens only; its first one is named by the description.
            kept = tensor[descriptions[2 * layer + half].first_token :]
            raw = kept.reshape(-1).view(torch.uint8)
            place = memory[position : position + raw.numel()]
            place.copy_(raw)
            position += raw.numel()
            view = memoryview(place.numpy()).toreadonly()
            buffers.append(view)
            digests.append("blake3:" + blake3.blake3(view).hexdigest())
    views = tuple(buffers)
    return Captured(n_tokens, descriptions, views, tuple(digests), _Release(DESK, memory, views))


def _require_one_group(block_ids: Any) -> None:
    if len(block_ids) != 1:
        raise EngineTouchedError(f"{len(block_ids)} KV-cache groups; capturing more than one is not built yet")
