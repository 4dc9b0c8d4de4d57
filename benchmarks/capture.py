"""What capturing adds to a prefill: ``python -m benchmarks.capture [--checkpoint DIR] [--json]``.

Measured twice, in ONE process and engine. Capture is switched on and off per request, interleaved: separate processes
differ by ×0.92 to ×1.15 for the same code and cannot be compared (FACTS section 6). That difference of two long times
drowns when the machine is shared, so the connector's own work behind the last chunk (copy, layout, BLAKE3) is timed by
itself too, and the noise of the difference is told beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.figures import Figure
from receipts.clock import HostClock
from receipts.prompts import seeded_token_ids

SAMPLE: Final = Path("lane/checkpoints/smollm2-135m-nvfp4")
ADDED_SHARE_LIMIT: Final = 0.02
"""Capture may add this share to the prefill (issue 2, "Must reach")."""


def measure(checkpoint: Path, tokens: int, pairs: int, threads: int) -> dict[str, Any]:
    """``pairs`` interleaved pairs of prefills of ``tokens`` tokens, the order within a pair alternating."""
    from producer.engine.base import EngineSettings
    from producer.engine.native import NativeEngine

    settings = EngineSettings(checkpoint, "native", 1024**3, max(4096, tokens + 16), 1024, threads)
    engine = NativeEngine.open(settings, HostClock("here"))
    capture_ns = _timed_capture()
    ids = seeded_token_ids(20260823, tokens, 3, engine.binding.vocab_size)
    _with_capture_ns(engine, ids)
    engine.prefill_without_capture(ids)
    capture_ns.clear()
    on: list[int] = []
    off: list[int] = []
    for pair in range(pairs):
        if pair % 2:
            off.append(engine.prefill_without_capture(ids))
            on.append(_with_capture_ns(engine, ids))
        else:
            on.append(_with_capture_ns(engine, ids))
            off.append(engine.prefill_without_capture(ids))
    engine.close()
    return _document(engine.binding, tokens, on, off, sorted(capture_ns, reverse=True)[:pairs], checkpoint)


def _document(
    binding: Any, tokens: int, on: list[int], off: list[int], capture: list[int], checkpoint: Path
) -> dict[str, Any]:
    prefill = statistics.median(off)
    differences = [with_ns - without_ns for with_ns, without_ns in zip(on, off, strict=True)]
    added = statistics.median(differences)
    # 1.25 · s / √n is the standard error of a median of normal values.
    noise = 1.25 * statistics.stdev(differences) / len(differences) ** 0.5
    figures = [
        Figure("capture's own work / prefill", statistics.median(capture) / prefill, "", "<=", ADDED_SHARE_LIMIT),
        Figure("prefill with capture − without, share", added / prefill, "", "<=", ADDED_SHARE_LIMIT),
        Figure("noise of that difference (±, 1 s.e.)", noise / prefill, "", "<=", None),
        Figure("prefill without capture", prefill / 1e6, "ms", "<=", None),
        Figure("capture's own work", statistics.median(capture) / 1e6, "ms", "<=", None),
    ]
    return {
        "machine": f"{_cpu_model()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "checkpoint": checkpoint.name,
        "linear_kernels": dict(binding.linear_kernels),
        "tokens": tokens,
        "pairs": len(on),
        "figures": [figure.document() for figure in figures],
    }


def _timed_capture() -> list[int]:
    """Nanoseconds of every ``wait_for_save`` from now on; those that capture are the long ones."""
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    connector = get_kv_transfer_group()
    whole, times = connector.wait_for_save, []

    def timed() -> None:
        begun = time.perf_counter_ns()
        whole()
        times.append(time.perf_counter_ns() - begun)

    connector.wait_for_save = timed
    return times


def _with_capture_ns(engine: Any, ids: Sequence[int]) -> int:
    prefilled = engine.prefill(ids)
    prefilled.captured.release()
    return int(prefilled.last_token_ns - prefilled.compute_start_ns)


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _built(checkpoint: Path | None) -> Path:
    if checkpoint is not None:
        return checkpoint
    from producer.checkpoint.build import build_sample

    build_sample(SAMPLE, progress=lambda _step, _done, _total: None)
    return SAMPLE


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.capture")
    parser.add_argument("--checkpoint", type=Path, help=f"default: {SAMPLE}, built when it is not there")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    result = measure(_built(options.checkpoint), options.tokens, options.pairs, options.threads)
    figures = [Figure(**item) for item in result["figures"]]
    if options.json:
        sys.stdout.write(json.dumps(result, indent=1) + "\n")
    else:
        sys.stdout.write(f"machine: {result['machine']}\n")
        for figure in figures:
            sys.stdout.write(f"{figure.name}: {figure.value:.4g} {figure.unit} ({figure.reached})\n")
    return 1 if any(figure.reached == "NO" for figure in figures) else 0


if __name__ == "__main__":
    sys.exit(main())
