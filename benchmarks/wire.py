"""How fast a verified handoff is, against an unhashed plain Python stream between the same two processes.

``python -m benchmarks.wire [--json]``. Rounds are interleaved in one run; a ratio is the median over the rounds
of (handoff ÷ plain of the same round), and the middle half of the rounds is shown beside it. Each round begins with
the next of the three, and each turn a moment after the last, whose memory is still being freed. Plain: sendmsg and
recv_into, 1 MiB slices, reno, nothing hashed. A handoff's time runs from before its first LAYER to its verified ACK,
the admission record's fsync included.

Two ways are measured. *At capture* is how the producer works: its digests are made while it captures, and the receiver
digests in the window. *In the window* makes both there, which costs a core's whole BLAKE3 rate at each end.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import mmap
import multiprocessing
import os
import platform
import socket
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from producer.handoff import receiver, sender
from producer.handoff.enrollment import ProducerSide, ReceiverAddress, ReceiverConfig
from producer.handoff.manifest import KVGeometry, LayerGeometry, TensorDescription, expected_tensors, total_bytes
from producer.handoff.stream import SLICE_BYTES, describe, tune
from receipts import canonical
from receipts.clock import HostClock

MODEL = KVGeometry(tuple(LayerGeometry("full", None, 3, 64, 0) for _ in range(30)), "bfloat16")
"""SmolLM2-135M: 23,040 bytes a token."""
CASES = (("47 MB", 2048, 31), ("1 GB", 43403, 7))
"""Name, tokens (47,185,920 and 1,000,005,120 bytes), rounds."""
SETTLE_S = 0.02
"""Before each turn: a process still frees the memory of the last one."""
FLOOR = 0.50
MEMORY_ALLOWANCE_BYTES = 64 * 1024 * 1024

KEY = bytes(range(32))
SIGNING = bytes(range(32, 64))
IDENTITY = canonical.sha256(b"benchmark")
PROMPT = canonical.sha256(b"prompt")


@dataclass(frozen=True)
class Payload:
    n_tokens: int
    bytes: int
    memory: memoryview
    tensors: list[tuple[TensorDescription, memoryview]]
    digests: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON document instead of lines")
    arguments = parser.parse_args()
    document = {"machine": machine(), "floor": FLOOR, "cases": [measure(*case) for case in CASES]}
    if arguments.json:
        print(json.dumps(document, indent=2))
    else:
        print_lines(document)
    return 0


def measure(name: str, n_tokens: int, rounds: int) -> dict[str, Any]:
    """One payload size: throughputs in GB/s, ratios to plain, and the receiver's peak memory."""
    payload = make_payload(n_tokens)
    samples: dict[str, list[float]] = {"plain": [], "digest_in_window": [], "digest_at_capture": []}
    with peer(payload.bytes) as (handoff, plain, _), socket.create_connection(plain) as stream:
        tune(stream, "reno")
        congestion = describe(stream).congestion
        turns: list[tuple[str, Callable[[], float]]] = [
            ("plain", lambda: plain_round(stream, payload)),
            ("digest_in_window", lambda: handoff_round(handoff, payload, None)),
            ("digest_at_capture", lambda: handoff_round(handoff, payload, payload.digests)),
        ]
        for number in range(rounds + 1):  # the first round warms both processes and is left out
            for key, turn in turns[number % 3 :] + turns[: number % 3]:
                time.sleep(SETTLE_S)
                samples[key].append(turn())
    kept = {key: values[1:] for key, values in samples.items()}
    return {
        "payload": name,
        "payload_bytes": payload.bytes,
        "rounds": rounds,
        "congestion": congestion,
        "plain_gb_per_s": statistics.median(kept["plain"]),
        **{f"{key}_gb_per_s": statistics.median(kept[key]) for key in ("digest_in_window", "digest_at_capture")},
        **{f"{key}_ratio": ratio(kept[key], kept["plain"]) for key in ("digest_in_window", "digest_at_capture")},
        "receiver_peak_over_payload_bytes": memory_over_payload(payload),
    }


def ratio(handoffs: list[float], plains: list[float]) -> dict[str, float]:
    """Median and middle half of handoff ÷ plain, round by round."""
    low, median, high = statistics.quantiles((a / b for a, b in zip(handoffs, plains, strict=True)), n=4)
    return {"median": median, "lower_quartile": low, "upper_quartile": high}


def plain_round(stream: socket.socket, payload: Payload) -> float:
    started = time.perf_counter_ns()
    sent = 0
    while sent < payload.bytes:
        sent += stream.sendmsg([payload.memory[sent : sent + SLICE_BYTES]])
    stream.recv(1)
    return payload.bytes / (time.perf_counter_ns() - started)


def handoff_round(address: ReceiverAddress, payload: Payload, digests: list[str] | None) -> float:
    with sender.connect(producer_side(), address, payload.bytes, clock=HostClock("here")) as opened:
        done = opened.send(os.urandom(16).hex(), PROMPT, payload.n_tokens, payload.tensors, digests)
    return payload.bytes / (done.ack_ns - done.first_byte_ns)


def memory_over_payload(payload: Payload) -> int | None:
    """Peak resident bytes of a fresh receiver after three handoffs, less the payload it holds; None off Linux."""
    if not Path("/proc/self/status").exists():
        return None
    with peer(payload.bytes) as (handoff, _, pid):
        for _ in range(3):
            handoff_round(handoff, payload, None)
        status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    peak_kib = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))
    return peak_kib * 1024 - payload.bytes


def make_payload(n_tokens: int) -> Payload:
    descriptions = expected_tensors(MODEL, n_tokens)
    size = total_bytes(descriptions)
    memory = memoryview(private(size))
    block = os.urandom(SLICE_BYTES)
    for start in range(0, size, SLICE_BYTES):
        memory[start : start + SLICE_BYTES] = block[: size - start]
    tensors = []
    offset = 0
    for item in descriptions:
        tensors.append((item, memory[offset : offset + item.bytes]))
        offset += item.bytes
    return Payload(n_tokens, size, memory, tensors, [_digest(data) for _, data in tensors])


def private(size: int) -> mmap.mmap:
    """Memory as the receiver reserves it and torch allocates it."""
    return mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)


def producer_side() -> ProducerSide:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    public = Ed25519PrivateKey.from_private_bytes(SIGNING).public_key().public_bytes_raw()
    return ProducerSide("loopback", IDENTITY, IDENTITY, "native", "here", public, KEY, MODEL)


@contextlib.contextmanager
def peer(size: int) -> Iterator[tuple[ReceiverAddress, tuple[str, int], int]]:
    """The other process: a receiver that holds one payload of ``size``, and a plain sink."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    with tempfile.TemporaryDirectory(prefix="wire") as folder:
        process = context.Process(target=_peer, args=(folder, size, theirs), daemon=True)
        process.start()
        try:
            handoff, plain = ours.recv()
            assert process.pid is not None
            yield ReceiverAddress(*handoff), plain, process.pid
        finally:
            ours.send("stop")
            process.join(20)


def _peer(folder: str, size: int, pipe: Connection) -> None:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    stop = threading.Event()
    sink = socket.create_server(("127.0.0.1", 0))
    config = ReceiverConfig(
        name="here",
        lane="loopback",
        address="127.0.0.1",
        port=0,
        work_dir=Path(folder),
        memory_limit_bytes=size,
        handoff_key=KEY,
        signing_key=Ed25519PrivateKey.from_private_bytes(SIGNING),
        identity=IDENTITY,
        cache_identity=IDENTITY,
        mode="native",
        geometry=MODEL,
        clock=HostClock("here"),
    )

    def wait() -> None:
        pipe.recv()
        stop.set()

    def ready(host: str, port: int) -> None:
        pipe.send(((host, port), sink.getsockname()))

    threading.Thread(target=wait, daemon=True).start()
    threading.Thread(target=_plain_sink, args=(sink, size), daemon=True).start()
    receiver.serve(config, ready=ready, stop=stop)


def _plain_sink(listener: socket.socket, size: int) -> None:
    stream, _ = listener.accept()
    tune(stream, "reno")
    memory = memoryview(private(size))
    while True:
        received = 0
        while received < size:
            count = stream.recv_into(memory[received : received + SLICE_BYTES])
            if count == 0:
                return
            received += count
        stream.sendall(b"k")


def _digest(data: memoryview) -> str:
    from blake3 import blake3

    return "blake3:" + blake3(data).hexdigest()


def machine() -> dict[str, Any]:
    cpu = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        cpu = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), cpu)
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "blake3_gb_per_s": blake3_rate(),
    }


def blake3_rate() -> float:
    """One thread over 64 MiB in 1 MiB updates, GB/s: what the ratio hangs on."""
    from blake3 import blake3

    data = memoryview(bytearray(os.urandom(SLICE_BYTES)))
    hasher = blake3()
    started = time.perf_counter_ns()
    for _ in range(64):
        hasher.update(data)
    return 64 * SLICE_BYTES / (time.perf_counter_ns() - started)


def print_lines(document: dict[str, Any]) -> None:
    host = document["machine"]
    print(f"{host['cpu']}, {host['cores']} cores, {host['system']}, Python {host['python']}")
    print(f"BLAKE3, one thread: {host['blake3_gb_per_s']:.2f} GB/s")
    for case in document["cases"]:
        print(f"{case['payload']} ({case['payload_bytes']} bytes, {case['rounds']} rounds, {case['congestion']})")
        print(f"  plain stream, unhashed      {case['plain_gb_per_s']:.2f} GB/s")
        for key, text in (("digest_in_window", "digests in the window"), ("digest_at_capture", "digest at capture")):
            found = case[key + "_ratio"]
            spread = f"{found['lower_quartile']:.2f}–{found['upper_quartile']:.2f}"
            rate = case[key + "_gb_per_s"]
            print(f"  handoff, {text:<22}{rate:.2f} GB/s, {found['median']:.2f} of plain (middle half {spread})")
        over = case["receiver_peak_over_payload_bytes"]
        print("  receiver's peak over the payload: " + ("—" if over is None else f"{over / 2**20:.1f} MiB"))


if __name__ == "__main__":
    sys.exit(main())
