"""One attempt a lane at a time: a flock in the producer's work folder, found before an attempt takes a number.

There and not beside the lane file: two files that name the same producer are one lane.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from producer.host import linux
from producer.lane import Lane
from receipts.errors import BusyError, InputError
from receipts.store import make_folder, read_bounded

LOCK: Final = "campaign.lock"
_MOST_NOTE_BYTES: Final = 4096


@contextlib.contextmanager
def lane_held(lane: Lane, campaign: str) -> Iterator[Path]:
    """Hold the lane for one launch. Raises BusyError naming the holder's pid, what it runs, and its age."""
    path = lane.producer.work_dir / LOCK
    make_folder(path.parent)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise InputError("is in place of the lane's lock and is no regular file", where=str(path))
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise BusyError(_holder(path), where=lane.name, next_step="wait for it to end") from None
        note_holder(path, campaign)
        yield path
    finally:
        os.close(descriptor)


def note_holder(path: Path, what: str) -> None:
    """Write into the lock file who holds it and what it runs."""
    path.write_text(json.dumps({"pid": os.getpid(), "runs": what}), encoding="ascii")


def _holder(path: Path) -> str:
    runs = "an attempt"
    with contextlib.suppress(OSError, ValueError):
        runs = str(json.loads(read_bounded(path, _MOST_NOTE_BYTES))["runs"])
    found = linux.flock_holders(path)
    who = str(found[0]) if found else "a process that is not visible from here"
    return f"the lane is busy with {runs}: {who}"
