"""The accelerator lease: one flock, held for the producer's whole life.

The path is the lab's (``/tmp/ferrite.gpu.lock``), so that everything that wants the accelerator waits in one
line. The kernel drops the lock with its holder: a lease is never stale, and never taken from anyone.
"""

from __future__ import annotations

import fcntl
import os
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from producer.host import linux
from receipts.errors import InputError, LeaseHeldError

SETTLE_S: Final = 10.0
_POLL_S: Final = 0.05
_QUESTIONS_S: Final = 0.25
"""How long a taker stands back for processes that only ask who holds the lease."""
_QUESTION_POLL_S: Final = 0.005


@dataclass(frozen=True)
class Lease:
    """A held lease. It ends with ``release`` or with the process."""

    path: Path
    descriptor: int

    @classmethod
    def take(cls, path: Path) -> Lease:
        """Take the lease without waiting for a holder. Raises LeaseHeldError naming the holder."""
        descriptor = _open(path)
        if not _locked_alone(descriptor):
            os.close(descriptor)
            raise held_error(path)
        lease = cls(path, descriptor)
        if not lease.is_on_path():
            lease.release()
            raise LeaseHeldError(
                "the lock file was replaced while it was being locked",
                where=str(path),
                next_step="find out who removes the lease file; it must never be unlinked",
            )
        return lease

    def is_on_path(self) -> bool:
        """Whether the held descriptor is still the file at the path: an unlinked lock file gives two holders."""
        try:
            held, named = os.fstat(self.descriptor), self.path.stat()
        except OSError:
            return False
        return (held.st_dev, held.st_ino) == (named.st_dev, named.st_ino)

    def release(self) -> None:
        os.close(self.descriptor)


def holder(path: Path) -> linux.Holder | None:
    """Who holds the lease right now; None when it is free. Never takes it for longer than the question."""
    if not path.exists():
        return None
    descriptor = _open(path)
    try:
        # A shared lock collides with the exclusive one, but two askers never refuse one another.
        if _locked(descriptor, fcntl.LOCK_SH):
            return None
        found = linux.flock_holders(path)
        return found[0] if found else linux.Holder(0, "not visible from here", "not known", None)
    finally:
        os.close(descriptor)


def settled_holder(path: Path, grace_s: float = SETTLE_S) -> linux.Holder | None:
    """Who holds the lease once a process that is just ending has let go of it; None when it is free.

    The first thread of an ending process can be gone while its last one still holds the descriptors, so "dead" comes
    before "free". A living holder is named at once; a dead one is waited for, ``grace_s`` at most.
    """
    end = time.monotonic() + grace_s
    while (found := holder(path)) is not None and linux.start_ticks(found.pid) is None and time.monotonic() < end:
        time.sleep(_POLL_S)
    return found


def held_error(path: Path) -> LeaseHeldError:
    """The refusal that names pid, command and user of the holder."""
    found = holder(path)
    who = str(found) if found else "a process that has just let go"
    return LeaseHeldError(
        f"the accelerator lease is held by {who}",
        where=str(path),
        next_step="wait for it to end, or stop it the way it was started; the lease is never taken by force",
    )


def _locked_alone(descriptor: int) -> bool:
    """Lock it exclusively. An asker's shared lock is gone in a moment and refuses nobody; a holder does at once."""
    end = time.monotonic() + _QUESTIONS_S
    while not _locked(descriptor, fcntl.LOCK_EX):
        if not _locked(descriptor, fcntl.LOCK_SH) or time.monotonic() > end:
            return False
        fcntl.flock(descriptor, fcntl.LOCK_UN)  # two takers must not stand in one another's way
        time.sleep(_QUESTION_POLL_S)
    return True


def _locked(descriptor: int, kind: int) -> bool:
    try:
        fcntl.flock(descriptor, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _open(path: Path) -> int:
    try:
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o666)
    except OSError as error:
        raise InputError(f"the lease file cannot be opened: {error.strerror}", where=str(path)) from None
