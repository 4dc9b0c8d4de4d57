"""A lane for the wire's tests: both ends' enrollment, a receiver in a thread or a process, and payloads."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from producer.handoff import receiver
from producer.handoff.enrollment import ProducerSide, ReceiverAddress, ReceiverConfig, ReceiverTimes, SenderTimes
from producer.handoff.manifest import (
    KVGeometry,
    LayerGeometry,
    TensorDescription,
    expected_tensors,
    total_bytes,
)
from receipts import canonical
from receipts.clock import HostClock

KEY = bytes(range(32))
SIGNING = bytes(range(32, 64))
IDENTITY = canonical.sha256(b"the identity of this test")
CACHE_IDENTITY = canonical.sha256(b"its cache identity")
PROMPT = canonical.sha256(b"a prompt")

SMALL = KVGeometry(tuple(LayerGeometry("full", None, 2, 8, 0) for _ in range(3)), "bfloat16")
"""3 layers × K,V × 2 heads × 8 × 2 bytes = 192 bytes a token."""
SMOLLM2 = KVGeometry(tuple(LayerGeometry("full", None, 3, 64, 0) for _ in range(30)), "bfloat16")
"""The sample model: 23,040 bytes a token (FACTS section 1)."""

FAST = SenderTimes(connect_s=5, handshake_s=5, session_s=60, ping_s=0.05, silence_s=5)


def signing_key() -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(SIGNING)


def producer_side(geometry: KVGeometry = SMALL, **changes: Any) -> ProducerSide:
    side = ProducerSide(
        lane="loopback",
        identity=IDENTITY,
        cache_identity=CACHE_IDENTITY,
        mode="native",
        receiver="here",
        receiver_public_key=signing_key().public_key().public_bytes_raw(),
        handoff_key=KEY,
        geometry=geometry,
    )
    return replace(side, **changes)


def receiver_config(work_dir: Path, geometry: KVGeometry = SMALL, **changes: Any) -> ReceiverConfig:
    config = ReceiverConfig(
        name="here",
        lane="loopback",
        address="127.0.0.1",
        port=0,
        work_dir=work_dir,
        memory_limit_bytes=64 * 1024 * 1024,
        handoff_key=KEY,
        signing_key=signing_key(),
        identity=IDENTITY,
        cache_identity=CACHE_IDENTITY,
        mode="native",
        geometry=geometry,
        clock=HostClock("here"),
        times=ReceiverTimes(handshake_s=5, silence_s=5, write_s=2, drain_s=1),
    )
    return replace(config, **changes)


@dataclass(frozen=True)
class Payload:
    """A prompt's tensors over memory of our own."""

    n_tokens: int
    tensors: list[tuple[TensorDescription, memoryview]]
    digests: list[str]
    raw: bytes
    bytes: int = field(default=0)


def payload(geometry: KVGeometry = SMALL, n_tokens: int = 5, seed: int = 1) -> Payload:
    descriptions = expected_tensors(geometry, n_tokens)
    size = total_bytes(descriptions)
    block = bytes((seed * 131 + index * 7 + index // 251) % 256 for index in range(65521))
    raw = (block * (size // len(block) + 1))[:size]
    tensors = []
    offset = 0
    for item in descriptions:
        tensors.append((item, memoryview(raw)[offset : offset + item.bytes]))
        offset += item.bytes
    digests = [canonical.blake3_digest(bytes(data)) for _, data in tensors]
    return Payload(n_tokens, tensors, digests, raw, size)


def handoff_id() -> str:
    return os.urandom(16).hex()


@contextlib.contextmanager
def receiver_thread(config: ReceiverConfig) -> Iterator[ReceiverAddress]:
    stop = threading.Event()
    bound: list[tuple[str, int]] = []
    ready = threading.Event()

    def on_ready(host: str, port: int) -> None:
        bound.append((host, port))
        ready.set()

    thread = threading.Thread(target=lambda: receiver.serve(config, ready=on_ready, stop=stop))
    thread.start()
    try:
        assert ready.wait(10), "the receiver did not come up"
        yield ReceiverAddress(*bound[0])
    finally:
        stop.set()
        thread.join(15)
        assert not thread.is_alive(), "the receiver did not stop"


@dataclass(frozen=True)
class ReceiverProcess:
    address: ReceiverAddress
    process: multiprocessing.process.BaseProcess


@contextlib.contextmanager
def receiver_process(work_dir: Path, geometry: KVGeometry = SMALL, **changes: Any) -> Iterator[ReceiverProcess]:
    """A receiver in a process of its own, started afresh (spawn): nothing of ours is in its memory."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=_serve_in_process, args=(work_dir, geometry, changes, theirs), daemon=True)
    process.start()
    try:
        assert ours.poll(30), "the receiver did not come up"
        yield ReceiverProcess(ReceiverAddress(*ours.recv()), process)
    finally:
        with contextlib.suppress(OSError):
            ours.send("stop")
        process.join(15)
        if process.is_alive():
            process.kill()
            process.join(5)


def _serve_in_process(work_dir: Path, geometry: KVGeometry, changes: dict[str, Any], pipe: Any) -> None:
    stop = threading.Event()

    def wait() -> None:
        with contextlib.suppress(EOFError):
            pipe.recv()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    config = receiver_config(work_dir, geometry, **changes)
    receiver.serve(config, ready=lambda host, port: pipe.send((host, port)), stop=stop)


def admitted(work_dir: Path) -> list[str]:
    """The handoffs with a record, whatever else lies there."""
    folder = work_dir / "admissions"
    return sorted(path.name for path in folder.iterdir()) if folder.exists() else []
