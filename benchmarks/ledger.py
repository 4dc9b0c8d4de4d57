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

TOOL: Final = {"version": "0.0.0", "commit": None}
RECORD_LIMIT_MS: Final = 5.0
"""A recorded receipt (file and entry) p50 must not pass this."""


def measure(entries: int, receipts: int) -> dict[str, Any]:
    """Record ``receipts`` receipts of ordinary size, then verify a ledger of ``entries`` synthetic entries."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        root = Path(folder)
        os.environ["XDG_CONFIG_HOME"] = str(root / "config")
        os.environ["XDG_STATE_HOME"] = str(root / "state")
        home = EvidenceHome(root / "evidence")
        with Ledger.create(home, clock=HostClock("here"), tool=TOOL) as ledger:
            record_ms = [_timed_ms(lambda n=n: _record(ledger, n)) for n in range(1, receipts + 1)]
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
        "tool": TOOL, "tree": {"size": 1, "root": "sha256:" + "5d" * 32},
        "body": {"outcome": "acknowledged"} | {f"observed_{k}": "81231000111222" for k in range(60)},
    }  # fmt: skip
    ledger.record("receipt", stem, f"receipts/{stem}.json", document)


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
