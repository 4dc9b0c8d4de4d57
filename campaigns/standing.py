"""How an attempt stands: its verdict, RUNNING while its orchestrator lives, else LOST. Derived, never written."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from campaigns.lost import is_running
from ledger.query import AttemptRow
from ledger.store import Ledger
from receipts.errors import EvidenceError
from receipts.kinds import attempt_folder
from receipts.leaves import AttemptOpen
from templates.story import Life


@dataclass(frozen=True)
class Standing:
    """One attempt in a list: ``how`` it ended, or its last sign of life where it did not."""

    attempt: str
    word: str
    how: str
    opened_at: str


def standing_of(ledger: Ledger, row: AttemptRow, now: datetime | None = None) -> Standing:
    """The verdict and how it ended, or RUNNING or LOST with the age of the last sign of life."""
    attempt = f"{row.campaign}/{row.attempt}"
    if row.ended is not None or row.verdict is not None:
        how = f"{row.ended}, the producer died" if _has_death(ledger, attempt) else str(row.ended)
        return Standing(attempt, row.verdict or "no verdict", how, row.opened_at)
    entry = next(iter(ledger.entries(row.open_seq, row.open_seq, kinds={"attempt_open"}, subject=attempt)), None)
    if entry is None:
        raise EvidenceError(
            f"table attempt has this attempt, and entry {row.open_seq} did not open it",
            where=attempt,
            next_step="soakledger ledger verify names it; soakledger ledger reproject takes it away",
        )
    opened = AttemptOpen.read(entry.data)
    sign = f"last sign of life {_age_s(_last_sign(ledger, row), now or datetime.now(UTC))} s ago"
    if is_running(opened):
        return Standing(attempt, "RUNNING", f"pid {opened.pid}, {sign}", row.opened_at)
    return Standing(attempt, "LOST", sign, row.opened_at)


def life_of(ledger: Ledger, campaign: str, attempt: int) -> Life | None:
    """``running`` or ``lost`` for an attempt that nobody closed; None for one that has ended."""
    subject = f"{campaign}/{attempt}"
    if any(ledger.latest(kind, subject) for kind in ("attempt_close", "attempt_abandoned")):
        return None
    opened = ledger.latest("attempt_open", subject)
    return None if opened is None else "running" if is_running(AttemptOpen.read(opened.data)) else "lost"


def _has_death(ledger: Ledger, attempt: str) -> bool:
    verdict = ledger.latest("verdict", attempt)
    criteria = verdict.data["criteria"] if verdict is not None else ()
    return any(not death["injected"] for criterion in criteria for death in criterion["deaths"] or ())


def _last_sign(ledger: Ledger, row: AttemptRow) -> str:
    last = row.opened_at
    prefix = attempt_folder(row.campaign, row.attempt) + "/"
    for entry in ledger.entries(row.open_seq, kinds={"receipt"}, subject_prefix=prefix):
        last = entry.recorded_at
    return last


def _age_s(moment: str, now: datetime) -> int:
    return max(0, int((now - datetime.fromisoformat(moment)).total_seconds()))
