"""``producer enroll``: load the engine once, read what is bound, and freeze the identity document."""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from producer import identity as identities
from producer import resident
from producer.lane import Lane
from producer.lease import Lease
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import IdentityError


def enroll_producer(lane: Lane, *, renew: bool, say: Callable[[str], None]) -> tuple[str, Path, bool]:
    """Freeze the lane's identity. Returns its digest, its path, and whether a document was written.

    An existing document whose files are unchanged stays. One that differs is kept unless ``renew``: then it is
    moved aside, never deleted. Raises IdentityError naming the differences, LeaseHeldError.
    """
    path = lane.producer.identity
    say("hashing every file of vLLM, torch, the checkpoint and the overlay")
    half = identities.files_half(lane)
    if path.exists():
        enrolled = identities.read(path)
        changed = identities.differences({key: enrolled.get(key) for key in half}, half)
        if not changed:
            return identities.digest(enrolled), path, False
        if not renew:
            raise IdentityError(
                "the files are not the enrolled ones\n" + "\n".join(f"  {item}" for item in changed),
                where=str(path),
                next_step="put them back, or enroll anew with --renew: that is a new identity",
            )
    lease = Lease.take(lane.producer.lease)
    try:
        say("loading the engine to read what is bound")
        engine = resident.open_engine(lane, HostClock(lane.producer.host))
        document = {**half, **resident.bound_half(lane, engine), "known_answer": resident.known_answer(engine)}
        engine.close()
    finally:
        lease.release()
    if path.exists():
        path.rename(path.with_name(f"{path.name}.stale-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"))
    _freeze(path, canonical.file_bytes(document))
    return identities.digest(document), path, True


def _freeze(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
