"""``producer enroll``: load the engine once, read what is bound, and freeze the identity document."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from producer import identity as identities
from producer import resident
from producer.lane import Lane, require_built
from producer.lease import Lease
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import IdentityError


def enroll_producer(lane: Lane, *, renew: bool, say: Callable[[str], None]) -> tuple[str, Path, bool]:
    """Freeze the lane's identity. Returns its digest, its path, and whether a document was written.

    An existing document whose files are unchanged stays. One that differs is kept unless ``renew``: then it is
    moved aside, never deleted. Raises IdentityError naming the differences, LeaseHeldError.
    """
    require_built(lane)
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
                "the files are not the enrolled ones",
                details=[str(item) for item in changed],
                where=str(path),
                next_step="put them back, or enroll anew with --renew: that is a new identity",
            )
    lease = Lease.take(lane.producer.lease)
    try:
        words = path.with_name("enroll.log")
        say(f"loading the engine to read what is bound; its own words go to {words}")
        with _said_into(words):
            engine = resident.open_engine(lane, HostClock(lane.producer.host))
            document = {**half, **resident.bound_half(lane, engine), "known_answer": resident.known_answer(engine)}
            engine.close()
    finally:
        lease.release()
    if path.exists():
        path.rename(path.with_name(f"{path.name}.stale-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}"))
    _freeze(path, canonical.file_bytes(document))
    return identities.digest(document), path, True


@contextlib.contextmanager
def _said_into(log: Path) -> Iterator[None]:
    """Whatever is written to this process's standard output and error meanwhile goes to ``log``, native code's too."""
    log.parent.mkdir(parents=True, exist_ok=True)
    sys.stdout.flush()
    sys.stderr.flush()
    kept = [os.dup(1), os.dup(2)]
    try:
        with log.open("ab") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for number, descriptor in enumerate(kept, 1):
            os.dup2(descriptor, number)
            os.close(descriptor)


def _freeze(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
