"""The data of ledger entries that are not receipts (DESIGN section 6, docs/formats/ledger.md)."""

from __future__ import annotations

from typing import Any, Literal

from receipts.kinds import (
    ClockBlock,
    Count,
    Document,
    Nanoseconds,
    Ordinal,
    Ticks,
)
from receipts.names import Identifier, Sha256, Told

Ended = Literal["complete", "interrupted", "aborted", "abort_if", "precondition", "abandoned"]


class Registration(Document):
    """The freezing of a spec: its raw text and what it resolves to, each by digest."""

    campaign: Identifier
    family: Identifier
    spec_sha256: Sha256
    """Over the raw bytes of the spec file."""
    resolved_sha256: Sha256
    """Over the RFC 8785 bytes of ``resolved``."""
    spec: str
    resolved: dict[str, Any]
    parent_seq: Count | None
    """The registration of the same campaign id that this one amends."""
    after_attempt: Count | None
    """Attempts of the campaign that existed when it was amended."""
    reason: str | None
    weaker: tuple[dict[str, str | None], ...]
    """What is weaker than in any earlier registration: {field, old, new, than_seq}."""


class AttemptOpen(ClockBlock):
    """One launch, written before anything is done."""

    campaign: Identifier
    family: Identifier
    attempt: Ordinal
    rehearsal: bool
    registration_seq: Count
    spec_sha256: Sha256
    resolved_sha256: Sha256
    lane: Identifier
    lane_sha256: Sha256
    identity: Sha256
    cache_identity: Sha256
    enrollment_seq: Count
    checkpoint_note_sha256: Sha256
    prev_attempt_open: Count | None
    attempts_before: Count
    at_ns: Nanoseconds
    pid: Ordinal
    start_ticks: Ticks


class StageClose(Document):
    """How far a stage got. ``last_n`` is the last running number of its receipts, 0 when it wrote none."""

    stage: Identifier
    last_n: Count
    reached_end: bool
    started_ns: Nanoseconds | None
    closed_ns: Nanoseconds | None


class Cleanup(Document):
    """One thing that the runner had to put back, and whether it is back."""

    what: str
    ok: bool
    found: Told | None


class AttemptClose(ClockBlock):
    campaign: Identifier
    attempt: Ordinal
    ended: Ended
    signal: str | None
    reason: Told | None
    stages: tuple[StageClose, ...]
    cleanup: tuple[Cleanup, ...]
    at_ns: Nanoseconds


class AttemptAbandoned(Document):
    """Written by whoever found that an attempt's orchestrator is gone."""

    campaign: Identifier
    attempt: Ordinal
    ended: Literal["abandoned"]
    found: str
    pid: Ordinal
    start_ticks: Ticks
    boot_id: str


class Deviation(Document):
    """Something that did not go as the spec foresaw; kept as such, never promoted to a pass."""

    campaign: Identifier | None
    attempt: Ordinal | None
    what: Identifier
    text: Told
    evidence: dict[str, Any]


class Enrollment(Document):
    """``lane enroll``: what both ends agreed on, with the receiver's public key."""

    lane: Identifier
    identity: dict[str, Any]
    identity_sha256: Sha256
    cache_identity: Sha256
    receiver: Identifier
    receiver_public_key: str
    handoff_key_id: Sha256
    template_sha256: dict[str, str | None]


class ProcessEvent(Document):
    """A record of the lane's journal as a ledger took it in; ``injected`` is set for deaths only."""

    record: dict[str, Any]
    record_sha256: Sha256
    injected: bool | None
    merged_n: tuple[Ordinal, ...]
    """Number of the earlier record of the same death, which stands for this one; empty where this is the first."""
