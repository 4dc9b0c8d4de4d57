"""Small documents and a clock that stands still, for the tests of the ledger."""

from __future__ import annotations

import contextlib
import sqlite3
from datetime import UTC, datetime
from typing import Any

from ledger import merkle
from ledger.entry import build_entry
from ledger.store import Ledger
from ledger.tables import entry_values
from receipts.clock import HostClock

TOOL = {"version": "0.1.0", "commit": None}
BOOT = "6f1d0f0a-4f4e-4f27-9d5c-0d3a5f7a2b11"

OPENED: dict[str, Any] = {
    "campaign": "soak-n12", "family": "bounded-soak", "attempt": 1, "rehearsal": False, "registration_seq": 1,
    "spec_sha256": "sha256:" + "3" * 64, "resolved_sha256": "sha256:" + "4" * 64, "lane": "loopback",
    "lane_sha256": "sha256:" + "7" * 64, "identity": "sha256:" + "1" * 64, "cache_identity": "sha256:" + "2" * 64,
    "enrollment_seq": 0, "checkpoint_note_sha256": "sha256:" + "8" * 64, "prev_attempt_open": None,
    "attempts_before": 0, "host": "here", "boot_id": "b", "clock": "boottime", "at_ns": "1", "pid": 4711,
    "start_ticks": "81231",
}  # fmt: skip


def still_clock() -> HostClock:
    return HostClock(
        "here", BOOT, "boottime", lambda: 1, lambda: 1, lambda: datetime(2026, 11, 30, 20, 41, 7, 512_999, UTC)
    )


def receipt(n: int, *, outcome: str = "acknowledged", attempt: int = 1) -> dict[str, Any]:
    return {
        "v": 1,
        "kind": "handoff",
        "lane": "loopback",
        "host": "here",
        "campaign": "soak-n12",
        "attempt": attempt,
        "stage": "soak",
        "case": None,
        "run": 1,
        "rep": n,
        "n": n,
        "recorded_at": "2026-11-30T20:41:07.512Z",
        "tool": TOOL,
        "tree": {"size": 1, "root": "sha256:" + "0" * 64},
        "body": {"outcome": outcome, "manifest_blob": None},
    }


def record_receipt(ledger: Ledger, n: int, **fields: Any) -> None:
    stem = f"soak-n12/attempt-0001/soak/{n:06d}-handoff"
    ledger.record("receipt", stem, f"receipts/{stem}.json", receipt(n, **fields))


def forge(ledger: Ledger, kind: str, data: Any, subject: str = "") -> int:
    """An entry such as whoever can write to the file, and has no key, puts behind the last: nothing else moves."""
    last = list(ledger.entries())[-1]
    leaf = {**last.leaf, "seq": last.seq + 1, "prev": last.leaf_hash, "kind": kind, "subject": subject}
    entry = build_entry({**leaf, "ref": None, "data": data})
    frontier = ledger.frontier(entry.seq)
    with contextlib.closing(sqlite3.connect(ledger.home.ledger_db, isolation_level=None)) as connection:
        connection.execute("INSERT INTO entry VALUES (?, ?, ?, ?, ?, ?, ?)", tuple(entry_values(entry).values()))
        for (level, index), node in frontier.append(bytes.fromhex(entry.leaf_hash)):
            connection.execute("INSERT INTO node VALUES (?, ?, ?)", (level, index, node.hex()))
    return entry.seq


def rewrite(ledger: Ledger, seq: int, old: str, new: str, *, chained: bool) -> None:
    """Change a body with its leaf_hash; ``chained`` also makes every entry behind it name the new hashes.

    The node table stays as it is: whoever reads heads from it sees the old tree.
    """
    entries = list(ledger.entries(seq))
    with contextlib.closing(sqlite3.connect(ledger.home.ledger_db, isolation_level=None)) as connection:
        guards = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in guards:
            connection.execute(f"DROP TRIGGER {name}")
        prev = entries[0].prev_hash
        for entry in entries if chained else entries[:1]:
            body = entry.body.decode().replace(entry.prev_hash, prev)
            body = body.replace(old, new) if entry.seq == seq else body
            row = (body, merkle.leaf_hash(body.encode()).hex(), prev, entry.seq)
            connection.execute("UPDATE entry SET body = ?, leaf_hash = ?, prev_hash = ? WHERE seq = ?", row)
            prev = row[1]
        for _, text in guards:
            connection.execute(text)
