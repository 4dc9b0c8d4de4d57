"""The last-seen mark: what this machine knows the ledger's head to have been, kept outside the home.

A ledger that was rolled back together with all its checkpoints still contradicts the mark. It only ever
moves forward, and only after the history up to the new head was found to continue the old one.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import re
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledger.home import state_folder
from ledger.keys import key_path
from receipts import canonical
from receipts.errors import EvidenceError, HomeError, SoakledgerError
from receipts.store import open_regular, sync_file, write_all

_MOST_BYTES: Final = 65_536
_MARK_SETTLES_S: Final = 0.25
"""How long a writer that runs now may take from its commit to the mark."""
_ROOT: Final = re.compile(r"sha256:[0-9a-f]{64}")


@dataclass(frozen=True)
class Mark:
    """A head of the ledger ``origin`` that was seen: ``root`` is ``sha256:<hex>``."""

    origin: str
    size: int
    root: str

    def document(self) -> dict[str, object]:
        return {"v": 1, "origin": self.origin, "size": self.size, "root": self.root}


def mark_path(origin: str, environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/soakledger/seen/<sha256 of origin>.json``."""
    return state_folder(environ) / "seen" / (hashlib.sha256(origin.encode()).hexdigest() + ".json")


def read_mark(origin: str, environ: Mapping[str, str]) -> Mark | None:
    """The mark of ``origin``, None where this machine has none. Raises EvidenceError on a damaged one."""
    path = mark_path(origin, environ)
    try:
        with _undisturbed(path), open_regular(path) as file:
            data = file.read(_MOST_BYTES)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise EvidenceError(f"the last-seen mark cannot be read: {error.strerror}", where=str(path)) from None
    return _parsed(data, origin, path)


def advance(mark: Mark, environ: Mapping[str, str], *, create: bool) -> None:
    """Move the mark forward to ``mark``; a mark that is further on stays. Raises HomeError or EvidenceError.

    ``create`` False leaves a machine without a mark as it is: reading makes nothing.
    """
    path = mark_path(mark.origin, environ)
    if not create and not path.exists():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with _locked(path):
            _move(path, mark)
    except OSError as error:
        raise HomeError(f"the last-seen mark cannot be written: {error.strerror}", where=str(path)) from None


def is_outside(origin: str, size: int, known: int, environ: Mapping[str, str]) -> bool:
    """Whether entries behind the first ``known`` of ``size`` came past this machine, which holds the signing key.

    Its mark moves a moment after each commit, so a writer that runs now is given that moment. What remains is no proof
    of anything: a kill between the two, a full disk or a power cut leaves entries behind the mark as an outsider does.
    """
    if not key_path(origin, environ).exists():
        return False
    end = time.monotonic() + _MARK_SETTLES_S
    while (mark := read_mark(origin, environ)) is not None and max(mark.size, known) < size:
        if time.monotonic() >= end:
            return True
        time.sleep(0.01)
    return False


def outside_words(known: int, size: int) -> str:
    """What is said of the entries that ``is_outside`` finds."""
    return (
        f"who wrote entries {known} … {size - 1} ({size - known} of them): no checkpoint covers them, and this "
        "machine, which holds the signing key, did not see them written. A killed writer, a full disk or a power cut "
        "leaves such a tail, and so does anyone who can write to the file"
    )


def _move(path: Path, mark: Mark) -> None:
    """Under the lock. The mark is rewritten where it lies: every append pays for it, and replacing a file costs ten
    times as much. It never gets shorter and is one write inside one sector, so that no kill and no power cut tears it;
    without an fsync an older mark may come back, which is weaker but never wrong."""
    data = canonical.file_bytes(mark.document())
    try:
        handle = os.open(path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        _create(path, data)
        return
    try:
        old = _parsed(os.pread(handle, _MOST_BYTES, 0), mark.origin, path)
        if old.size < mark.size:
            os.pwrite(handle, data, 0)
    finally:
        os.close(handle)


def _parsed(data: bytes, origin: str, path: Path) -> Mark:
    try:
        document = canonical.parse_canonical(data.removesuffix(b"\n"))
    except SoakledgerError as error:
        raise EvidenceError(f"the last-seen mark is damaged: {error.what}", where=str(path)) from None
    match document:
        case {"v": 1, "origin": str(found), "size": int(size), "root": str(root)} if (
            found == origin and size >= 0 and _ROOT.fullmatch(root)
        ):
            return Mark(origin, size, root)
    raise EvidenceError(f"the last-seen mark is damaged or not of {origin}", where=str(path))


def _create(path: Path, data: bytes) -> None:
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, data)
        sync_file(handle)
    finally:
        os.close(handle)
    temporary.replace(path)


@contextlib.contextmanager
def _locked(mark: Path) -> Iterator[None]:
    """Alone with the mark."""
    handle = os.open(_lock_of(mark), os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


@contextlib.contextmanager
def _undisturbed(mark: Path) -> Iterator[None]:
    """While nobody writes the mark. A mark that was brought here without its lock is read all the same."""
    try:
        handle = os.open(_lock_of(mark), os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        yield
        return
    try:
        fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def _lock_of(mark: Path) -> Path:
    return mark.with_suffix(".lock")
