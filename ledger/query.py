"""What the command line asks of a ledger, as typed rows. No printing, no transaction left open."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import sqlalchemy as sa

from ledger.entry import Entry
from ledger.store import Ledger

_ATTEMPT_COLUMNS: Final = (
    "campaign", "attempt", "family", "lane", "opened_at", "closed_at", "ended", "verdict",
    "open_seq", "close_seq", "verdict_seq", "host", "boot_id", "pid", "start_ticks",
)  # fmt: skip


@dataclass(frozen=True)
class AttemptRow:
    """An attempt with its end and its latest verdict; None where there is none yet."""

    campaign: str
    attempt: int
    family: str | None
    lane: str | None
    opened_at: str
    closed_at: str | None
    ended: str | None
    verdict: str | None
    open_seq: int
    close_seq: int | None
    verdict_seq: int | None
    host: str | None
    boot_id: str | None
    pid: int | None
    start_ticks: str | None


@dataclass(frozen=True)
class CampaignRow:
    """One registration of a campaign."""

    registration_seq: int
    campaign: str
    family: str
    registered_at: str
    spec_sha256: str
    resolved_sha256: str
    parent: str | None
    """Number of the registration that this one amends."""
    reason: str | None


def log(
    ledger: Ledger,
    *,
    first: int = 0,
    limit: int | None = None,
    kind: str | None = None,
    subject: str | None = None,
    campaign: str | None = None,
    attempt: int | None = None,
) -> Iterator[Entry]:
    """Entries from ``first`` on that fit every filter given, at most ``limit``.

    ``campaign`` and ``attempt`` go by the data of an entry, so registration, attempts, receipts and verdicts of
    a campaign are all found; so are the process events of the lane that were taken in while an attempt of it was open.
    """
    kinds = None if kind is None else (kind,)
    spans = [] if campaign is None and attempt is None else list(_spans(ledger, campaign, attempt))
    found = (
        entry
        for entry in ledger.entries(first, kinds=kinds, subject=subject)
        if _concerns(entry, campaign, attempt) or any(span.holds(entry) for span in spans)
    )
    return islice(found, limit)


@dataclass(frozen=True)
class _Span:
    """From an attempt's opening to its last word: which of its lane's process events are its own."""

    lane: str
    first: int
    last: int | None

    def holds(self, entry: Entry) -> bool:
        return (
            entry.kind == "process_event"
            and entry.seq > self.first
            and (self.last is None or entry.seq < self.last)
            and entry.subject.rpartition("/")[0] == self.lane
        )


def _spans(ledger: Ledger, campaign: str | None, attempt: int | None) -> Iterator[_Span]:
    for row in attempts(ledger, campaign):
        if row.lane is not None and attempt in (None, row.attempt):
            ends = [seq for seq in (row.close_seq, row.verdict_seq) if seq is not None]
            yield _Span(row.lane, row.open_seq, max(ends) if row.close_seq is not None else None)


def show(ledger: Ledger, seq: int) -> Entry:
    """One entry, its columns compared with its body. Raises InputError (no such entry) or EvidenceError."""
    entry = ledger.entry(seq)
    _ = entry.leaf
    return entry


def attempts(ledger: Ledger, campaign: str | None = None) -> list[AttemptRow]:
    """The attempts of a campaign, or all, in the order they were opened."""
    view = sa.table("attempts_with_verdicts", *(sa.column(name) for name in _ATTEMPT_COLUMNS))
    query = sa.select(view).order_by(view.c.open_seq)
    if campaign is not None:
        query = query.where(view.c.campaign == campaign)
    return [AttemptRow(*row) for row in ledger.fetch(query)]


def campaigns(ledger: Ledger) -> list[CampaignRow]:
    """Every registration, in order."""
    columns = tuple(CampaignRow.__dataclass_fields__)
    table = sa.table("campaign", *(sa.column(name) for name in columns))
    return [CampaignRow(*row) for row in ledger.fetch(sa.select(table).order_by(table.c.registration_seq))]


def _concerns(entry: Entry, campaign: str | None, attempt: int | None) -> bool:
    if campaign is None and attempt is None:
        return True
    data: Any = entry.leaf["data"]  # a log also lists what has not the shape of its kind
    if not isinstance(data, dict):
        return False
    return (campaign is None or data.get("campaign") == campaign) and (
        attempt is None or data.get("attempt") == attempt
    )
