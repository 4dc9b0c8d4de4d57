"""Records of a lane's journal: the producer host's own chained account (DESIGN section 6, docs/formats/journal.md)."""

from __future__ import annotations

import signal
from typing import Any, Final, Literal

from receipts.kinds import (
    ClockBlock,
    Count,
    Document,
    HandoffId,
    Instance,
    MovedFile,
    Nanoseconds,
    Ordinal,
    Outcome,
    UtcTime,
)
from receipts.names import Blake3, Identifier, Sha256, Told

DeathSite = Literal["watchdog", "engine_touched", "third_error", "signal", "exit", "not_known"]
"""The three sites of status 75, an end by a signal, any other exit, and an exit whose status nobody saw."""

Observer = Literal["self", "keeper", "supervisor", "ritual", "control", "runner"]


def signal_name(number: int) -> str:
    """``SIGKILL`` for 9; a number that this system has no name for stays one."""
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


class JournalRecord(ClockBlock):
    """One record; ``prev`` is the SHA-256 of the previous record's file bytes, 64 zeros first."""

    v: Literal[1] = 1
    n: Ordinal
    prev: Sha256
    lane: Identifier
    at_ns: Nanoseconds
    recorded_at: UtcTime
    kind: Identifier
    body: dict[str, Any]


class StartEvent(Document):
    """A start became ready: its fresh startup receipt is on disk."""

    instance: Instance
    startup_receipt_sha256: Sha256
    identity: Sha256
    cache_identity: Sha256
    mode: Literal["native", "exact"]


class FailedStartEvent(Document):
    """An exit before the fresh startup receipt."""

    instance: Instance
    status: int | None
    signal: int | None
    reason: Told
    observed_by: Observer


class HandoffEvent(Document):
    """A handoff that this instance served to its end, whoever asked for it (the odometer)."""

    instance: Instance
    handoff_id: HandoffId
    outcome: Outcome
    prompt_sha256: Sha256
    payload_root: Blake3 | None
    payload_bytes: Count | None
    handoffs_before: Count
    used_by: Told | None
    """``<campaign>/<attempt>`` as the request said, or null for use outside any campaign."""


class DeathEvent(Document):
    """An exit after the fresh startup receipt that no journalled stop commanded."""

    instance: Instance
    site: DeathSite
    status: int | None
    signal: int | None
    reason: Told
    uptime_ns: Nanoseconds | None
    last_handoff_id: HandoffId | None
    died_ns: Nanoseconds
    """When it died, or the latest time at which it can have been alive, on the record's own clock."""
    observed_by: Observer


class StopEvent(Document):
    """A commanded stop, journalled before the signal is sent."""

    instance: Instance
    why: Told
    observed_by: Observer


class RitualEvent(Document):
    """The ritual's moves, before the start that follows."""

    moved: tuple[MovedFile, ...]
    removed: tuple[str, ...]


EVENTS: Final[dict[str, type[Document]]] = {
    "start": StartEvent,
    "failed_start": FailedStartEvent,
    "handoff": HandoffEvent,
    "death": DeathEvent,
    "stop": StopEvent,
    "ritual": RitualEvent,
}
"""The kinds of the main job; later ones (latch, unlatch, bare_restart, command …) need no new field here."""
