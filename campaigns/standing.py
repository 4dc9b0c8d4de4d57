"""How an attempt stands: its verdict, RUNNING while its orchestrator lives, else LOST. Derived, never written."""

from __future__ import annotations

from datetime import UTC, datetime

from campaigns.lost import is_running
from ledger.query import AttemptRow
from ledger.store import Ledger
from receipts.kinds import attempt_folder
from receipts.leaves import AttemptOpen


def standing_of(ledger: Ledger, row: AttemptRow, now: datetime | None = None) -> str:
    """One phrase: the verdict and how it ended, or RUNNING or LOST with the age of the last sign of life."""
    if row.verdict is not None:
        return f"{row.verdict} ({row.ended}), opened {row.opened_at}"
    if row.ended is not None:
        return f"closed without a verdict ({row.ended}), opened {row.opened_at}"
    opened = AttemptOpen.read(ledger.entry(row.open_seq).data)
    age = _age_s(_last_sign(ledger, row), now or datetime.now(UTC))
    if is_running(opened):
        return f"RUNNING as pid {opened.pid}, last sign of life {age} s ago"
    return f"LOST, last sign of life {age} s ago"


def _last_sign(ledger: Ledger, row: AttemptRow) -> str:
    last = row.opened_at
    prefix = attempt_folder(row.campaign, row.attempt) + "/"
    for entry in ledger.entries(row.open_seq, kinds={"receipt"}, subject_prefix=prefix):
        last = entry.recorded_at
    return last


def _age_s(moment: str, now: datetime) -> int:
    return max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
