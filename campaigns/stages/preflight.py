"""preflight: everything that must hold before the producer is used; a failed item ends the attempt there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import psutil

from campaigns.attempt import Attempt, Place
from campaigns.interrupts import Interrupts
from campaigns.progress import Progress
from campaigns.stages.outcome import StageOutcome
from ledger.keys import key_path
from producer import identity as identities
from producer import lease
from producer.instance import Artefacts
from receipts import environment
from receipts.errors import HomeError, SoakledgerError
from receipts.kinds import Check, PreflightBody
from receipts.store import check_writable

DISK_FLOOR_BYTES: Final = 256 << 20
"""Free space that must be there before an attempt is opened, and again at its preflight."""
RESERVED_BYTES: Final = 64 << 20
"""What is really reserved for a moment before an attempt is opened: a quota shows in no figure of the disk."""
MEMORY_FACTOR: Final = 2
"""Free memory wanted, as a multiple of the KV allocation: weights and the receiver's buffer come on top."""


class _Interrupted(Exception):
    """A signal came in the middle of a check that takes long."""


def run(attempt: Attempt, stage: str, interrupts: Interrupts, progress: Progress) -> StageOutcome:
    """Check, record the checks and the environment, and say whether the attempt may go on."""
    tree = attempt.tree()
    attempt.write(Place(stage), "environment", environment.capture(attempt.clock), tree)
    begun = attempt.begin()
    try:
        checks = tuple(_guarded(name, check) for name, check in _checks(attempt, interrupts, progress))
    except _Interrupted:
        return StageOutcome("interrupted")
    attempt.write(Place(stage), "preflight", PreflightBody(checks=checks, span=attempt.span(begun)), tree)
    failed = [check for check in checks if not check.ok]
    for check in failed:
        progress.say(f"preflight {check.name}: expected {check.expected or '—'}, found {check.found}")
    if failed:
        return StageOutcome("precondition", "preflight failed: " + ", ".join(check.name for check in failed))
    return StageOutcome("done")


def _checks(attempt: Attempt, interrupts: Interrupts, progress: Progress) -> Iterator[tuple[str, Callable[[], Check]]]:
    yield "identity", lambda: _identity(attempt, interrupts, progress)
    yield "lease", lambda: _lease(attempt)
    yield "disk", lambda: _disk(attempt.ledger.home.path)
    yield "key", lambda: _key(attempt)
    yield "memory", lambda: _memory(attempt)


def _guarded(name: str, check: Callable[[], Check]) -> Check:
    try:
        return check()
    except SoakledgerError as error:
        return Check(name=name, ok=False, expected=None, found=str(error), how="refused")


def _identity(attempt: Attempt, interrupts: Interrupts, progress: Progress) -> Check:
    lane = attempt.lane

    def hashing(what: str, done: int, total: int) -> None:
        if interrupts:
            raise _Interrupted
        progress.hashing(what, done, total)

    progress.say("preflight: hashing vLLM, torch, the checkpoint and the overlay")
    enrolled = identities.read(lane.producer.identity)
    found = identities.files_half(lane, hashing)
    identities.require_equal(enrolled, found, where=str(lane.producer.identity))
    return Check(
        name="identity",
        ok=identities.digest(enrolled) == attempt.identity,
        expected=attempt.identity,
        found=identities.digest(enrolled),
        how="every file hashed (sha256)",
    )


def _lease(attempt: Attempt) -> Check:
    lane = attempt.lane
    holder = lease.settled_holder(lane.producer.lease)
    resident = Artefacts.of(lane).ready_instance()
    ours = holder is not None and resident is not None and holder.pid == resident.pid
    return Check(
        name="lease",
        ok=holder is None or ours,
        expected="free, or held by this lane's producer",
        found="free" if holder is None else f"held by {holder}",
        how="flock",
    )


def require_disk(home: Path) -> None:
    """Refuse an attempt that its preflight would end for want of space, before it has a number. Raises HomeError."""
    check_writable(home, RESERVED_BYTES)
    free = shutil.disk_usage(home).free
    if free < DISK_FLOOR_BYTES:
        raise HomeError(
            f"{free >> 20} MiB are free on this disk, and an attempt wants {DISK_FLOOR_BYTES >> 20}",
            where=str(home),
            next_step="free space on this disk, or choose another home",
        )


def _disk(home: Path) -> Check:
    check_writable(home, 1 << 20)
    free = shutil.disk_usage(home).free
    return Check(
        name="disk",
        ok=free >= DISK_FLOOR_BYTES,
        expected=f"at least {DISK_FLOOR_BYTES} bytes free",
        found=f"{free} bytes free",
        how="a file written and synced; statvfs",
    )


def _key(attempt: Attempt) -> Check:
    path = key_path(attempt.ledger.origin, os.environ)
    attempt.ledger.signing_key()
    private = not path.stat().st_mode & 0o077
    return Check(
        name="key",
        ok=private,
        expected="the ledger's own key, readable by its owner only",
        found=f"mode {path.stat().st_mode & 0o777:o}",
        how="loaded and compared with genesis",
    )


def _memory(attempt: Attempt) -> Check:
    wanted = MEMORY_FACTOR * attempt.lane.producer.kv_cache_memory_bytes
    resident = Artefacts.of(attempt.lane).ready_instance()
    available = psutil.virtual_memory().available
    return Check(
        name="memory",
        ok=resident is not None or available >= wanted,
        expected=f"at least {wanted} bytes available" if resident is None else "the producer is loaded already",
        found=f"{available} bytes available",
        how="MemAvailable",
    )
