"""Exit status 75: its three sites, and the words that a dying producer leaves (DESIGN section 8).

EX_TEMPFAIL says "died on purpose, try again". The watchdog cannot write a journal record, because it fires while
nothing else in the process can run; its armed deadline therefore lies in a small file before every engine call.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final, NoReturn

from receipts import canonical
from receipts.errors import CanonicalError
from receipts.events import DeathSite
from receipts.kinds import Instance
from receipts.store import read_bounded

EXIT_TEMPFAIL: Final = 75
ARMED: Final = "watchdog-armed.json"
LEASE_HELD: Final = "lease-held.json"
_MOST_BYTES: Final = 65_536


def die(site: DeathSite, reason: str) -> NoReturn:
    """Leave now with status 75 and one line of reason on stderr; a broken engine is not trusted with a cleanup."""
    try:
        # Past Python's buffers, which may hold what a full disk has refused before.
        os.write(2, f"soakledger producer: exit 75 ({site}): {' '.join(reason.split())}\n".encode("utf-8", "replace"))
    finally:
        os._exit(EXIT_TEMPFAIL)


def note_armed(work_dir: Path, instance: Instance, seconds: int) -> None:
    """Leave the watchdog's last words in advance: whose watchdog is armed, for how long."""
    path = work_dir / ARMED
    path.write_bytes(canonical.file_bytes({"instance": instance.document(), "seconds": seconds}))


def note_lease_held(work_dir: Path, instance: Instance) -> None:
    """Leave word that this start found the lease held: that is no failed start (DESIGN section 8)."""
    (work_dir / LEASE_HELD).write_bytes(canonical.file_bytes({"instance": instance.document()}))


def found_lease_held(work_dir: Path, instance: Instance) -> bool:
    """Whether this very instance left that word."""
    return _left_by(work_dir / LEASE_HELD, instance)


def note_disarmed(work_dir: Path) -> None:
    (work_dir / ARMED).unlink(missing_ok=True)


def site_of_status(status: int, work_dir: Path, instance: Instance) -> DeathSite:
    """The site of an end that nobody journalled, from its exit status (negative: a signal's number)."""
    if status < 0:
        return "signal"
    if status != EXIT_TEMPFAIL:
        return "exit"
    # Of the three sites only the watchdog dies without a record of its own.
    return "watchdog" if _left_by(work_dir / ARMED, instance) else "not_known"


def _left_by(path: Path, instance: Instance) -> bool:
    try:
        left = canonical.parse(read_bounded(path, _MOST_BYTES))
    except (OSError, CanonicalError):
        return False
    return isinstance(left, dict) and left.get("instance") == instance.document()
