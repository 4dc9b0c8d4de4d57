"""What recording and verifying cost: ``python -m benchmarks.ledger [--json] [--entries N]``."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.store import Ledger
from receipts.clock import HostClock
from receipts.kinds import HandoffBody
from receipts.metrics import measure_receipt

TOOL: Final = {"version": "0.0.0", "commit": None}
BLOCK: Final = {"host": "here", "boot_id": "0b4d9d0c-3f6f-4f7d-9d6e-000000000001", "clock": "CLOCK_BOOTTIME"}
AWAKE: Final = {"awake_start_ns": "81231000111222", "awake_end_ns": "81239000111222"}
ENDS: Final = {"local": "127.0.0.1:47900", "peer": "127.0.0.1:51234", "interface": "lo", "congestion": "reno"}
SHA256: Final = "sha256:" + "5d" * 32
BLAKE3: Final = "blake3:" + "a7" * 32
BODY: Final = HandoffBody.read(
    {
        "handoff_id": "00" * 16, "outcome": "acknowledged", "prompt_sha256": SHA256, "prompt_tokens": 2048,
        "payload_bytes": 47185920, "payload_root": BLAKE3, "tensors_root": BLAKE3, "manifest_blob": None,
        "transfer": "after", "digest": "at_capture", "error": None,
        "producer": BLOCK | AWAKE | {
            "identity": SHA256, "cache_identity": SHA256, "mode": "native", "pid": 4242, "start_ticks": "812310",
            "handoffs_before": 3, "journal": {"n": 7, "head": SHA256}, "request_ns": "81231000111222",
            "compute_start_ns": "81231000211222", "last_token_ns": "81238900111222", "first_byte_ns": "81238910111222",
            "ack_ns": "81238960111222", "free_blocks": 100, "rss_bytes": 1 << 30, "fds": 40, "threads": 9,
            "socket": ENDS, "wire_busy_ns": None,
        },
        "receiver": BLOCK | AWAKE | {
            "name": "here", "root": BLAKE3, "signature": "ed25519:" + "A" * 86 + "==", "admission": SHA256,
            "first_byte_ns": "81238920111222", "admitted_ns": "81238959111222", "bytes_received": 47200000,
            "nonce_p": "00" * 32, "nonce_r": "11" * 32, "enrollment_seq": 1, "socket": ENDS,
        },
        "runner": BLOCK | AWAKE | {"started_ns": "81231000000000", "ended_ns": "81239000111222"},
    }
)  # fmt: skip
"""A handoff as the runner records it: every figure that a receipt gives is measured and projected too."""

RECORD_LIMIT_MS: Final = 5.0
"""A recorded receipt (file and entry) p50 must not pass this."""


def measure(entries: int, receipts: int) -> dict[str, Any]:
    """Record ``receipts`` receipts of ordinary size, then verify a ledger of ``entries`` synthetic entries."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        root = Path(folder)
        os.environ["XDG_CONFIG_HOME"] = str(root / "config")
        os.environ["XDG_STATE_HOME"] = str(root / "state")
        home = EvidenceHome(root / "evidence")
        with Ledger.create(home, clock=HostClock("here"), tool=TOOL, measure=measure_receipt) as ledger:
            record_ms = [_timed_ms(lambda n=n: _record(ledger, n)) for n in range(1, receipts + 1)]
            fsync_ms = [_timed_ms(lambda: _fsync(root / "one")) for _ in range(receipts)]
            append_ms = [_timed_ms(lambda n=n: ledger.append("deviation", "", {"n": n})) for n in range(receipts)]
            checkpoint_ms = _timed_ms(ledger.checkpoint)
            missing = entries - ledger.size()
            for first in range(0, missing, 5000):
                count = min(5000, missing - first)
                ledger.append_many([("deviation", "", _synthetic(first + n)) for n in range(count)])
            ledger.checkpoint()
        verify_ms = _timed_ms(lambda: _require_clean(home))
    return {
        "machine": f"{platform.machine()}, {os.cpu_count()} CPUs, {platform.system()} {platform.release()}",
        "record_receipt_p50_ms": statistics.median(record_ms),
        "record_receipt_p99_ms": statistics.quantiles(record_ms, n=100)[98],
        "record_receipt_limit_ms": RECORD_LIMIT_MS,
        "record_receipt_ok": statistics.median(record_ms) <= RECORD_LIMIT_MS,
        "fsync_p50_ms": statistics.median(fsync_ms),
        "append_entry_p50_ms": statistics.median(append_ms),
        "checkpoint_ms": checkpoint_ms,
        "verify_entries": entries,
        "verify_s": verify_ms / 1000,
    }


def _record(ledger: Ledger, n: int) -> None:
    stem = f"bench/attempt-0001/soak/{n:06d}-handoff"
    document = {
        "v": 1, "kind": "handoff", "lane": "loopback", "host": "here", "campaign": "bench", "attempt": 1,
        "stage": "soak", "case": None, "run": 1, "rep": n, "n": n, "recorded_at": "2026-11-30T20:41:07.512Z",
        "tool": TOOL, "tree": {"size": 1, "root": "sha256:" + "5d" * 32}, "body": BODY.document(),
    }  # fmt: skip
    ledger.record("receipt", stem, f"receipts/{stem}.json", document)


def _fsync(path: Path) -> None:
    with path.open("ab") as file:
        file.write(b"x")
        file.flush()
        os.fsync(file.fileno())


def _synthetic(n: int) -> dict[str, Any]:
    return {"n": n, "text": "a synthetic entry of an ordinary size " * 6}


def _require_clean(home: EvidenceHome) -> None:
    report = verify(home)
    if not report.ok:
        raise SystemExit("\n".join(map(str, report.faults)))


def _timed_ms(action: Any) -> float:
    start = time.perf_counter_ns()
    action()
    return (time.perf_counter_ns() - start) / 1e6


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    parser.add_argument("--entries", type=int, default=100_000)
    parser.add_argument("--receipts", type=int, default=200)
    options = parser.parse_args()
    result = measure(options.entries, options.receipts)
    lines = json.dumps(result) if options.json else "\n".join(f"{name}: {value}" for name, value in result.items())
    sys.stdout.write(lines + "\n")
    return 0 if result["record_receipt_ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
