"""What a receiver admitted: the durable record of each handoff, and the bytes it still holds.

A record is made durable before the ACK leaves (DESIGN section 9), so an acknowledged handoff always has one.
Held handoffs are evicted oldest first when room is needed, each with a record of its own.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producer.handoff.errors import SessionError
from producer.handoff.reserve import Reserve
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import EvidenceError, SoakledgerError
from receipts.store import write_exclusive


@dataclass(frozen=True)
class Admission:
    """One admitted handoff. ``record`` is the file's document, ``manifest`` names the tensors with digests."""

    handoff_id: str
    record: Mapping[str, Any]
    manifest: bytes
    reserve: Reserve
    bytes_received: int
    socket: Mapping[str, str | None]


class AdmissionStore:
    """Admitted handoffs of one receiver, at most ``memory_limit_bytes`` of them in memory."""

    def __init__(self, work_dir: Path, memory_limit_bytes: int, clock: HostClock, names: Mapping[str, str]) -> None:
        """``names`` = {lane, receiver}, written into eviction records."""
        self._admissions = work_dir / "admissions"
        self._evictions = work_dir / "evictions"
        for folder in (self._admissions, self._evictions):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._limit_bytes = memory_limit_bytes
        self._clock = clock
        self._names = dict(names)
        self._held: dict[str, Admission] = {}
        self._unrecorded: set[str] = set()
        """Evicted by this process, without a record of it."""
        self._lock = threading.Lock()

    def was_admitted(self, handoff_id: str) -> bool:
        """Whether a record exists, from this process or an earlier one."""
        return (self._admissions / f"{handoff_id}.json").exists()

    def was_evicted(self, handoff_id: str) -> bool:
        """Whether it was evicted: by its record, or in this process when that could not be written."""
        return handoff_id in self._unrecorded or (self._evictions / f"{handoff_id}.json").exists()

    def make_room(self, size: int) -> None:
        """Evict, oldest first, until ``size`` more bytes fit under the limit."""
        with self._lock:
            while self._held and self._held_bytes() + size > self._limit_bytes:
                self._evict(next(iter(self._held)))

    def admit(self, admission: Admission) -> None:
        """Make the record durable, then hold the bytes. Raises SessionError replayed or record_failed."""
        path = self._admissions / f"{admission.handoff_id}.json"
        try:
            write_exclusive(path, canonical.file_bytes(dict(admission.record)))
        except EvidenceError:
            raise SessionError("replayed", f"handoff {admission.handoff_id} was admitted before") from None
        except SoakledgerError as error:
            raise SessionError("record_failed", error.headline) from None
        with self._lock:
            self._held[admission.handoff_id] = admission

    def find(self, handoff_id: str) -> Admission | None:
        with self._lock:
            return self._held.get(handoff_id)

    def held(self) -> tuple[Admission, ...]:
        """Oldest first."""
        with self._lock:
            return tuple(self._held.values())

    def _held_bytes(self) -> int:
        return sum(len(item.reserve) for item in self._held.values())

    def _evict(self, handoff_id: str) -> None:
        self._unrecorded.add(handoff_id)
        admission = self._held.pop(handoff_id)
        record = {
            "v": 1,
            **self._names,
            **self._clock.block(),
            "handoff_id": handoff_id,
            "root": admission.record["root"],
            "total_bytes": admission.record["total_bytes"],
            "evicted_ns": str(self._clock.stamp()),
        }
        try:
            write_exclusive(self._evictions / f"{handoff_id}.json", canonical.file_bytes(record))
            self._unrecorded.discard(handoff_id)
        except SoakledgerError as error:  # the memory is needed either way
            sys.stderr.write(
                f"soakledger receiver: handoff {handoff_id} was evicted, but its eviction record could not be written: "
                f"{error.headline}\n"
            )
            sys.stderr.flush()
        admission.reserve.release()
