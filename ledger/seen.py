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
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ledger.home import state_folder
from receipts import canonical
from receipts.errors import EvidenceError, HomeError, SoakledgerError
from receipts.store import open_regular, write_all

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
        with open_regular(path) as file:
            data = file.read(65_536)
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
        with _locked(path.with_suffix(".lock")):
            old = read_mark(mark.origin, environ)
            if old is None or old.size < mark.size:
                _replace(path, canonical.file_bytes(mark.document()))
    except OSError as error:
        raise HomeError(f"the last-seen mark cannot be written: {error.strerror}", where=str(path)) from None


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


def _replace(path: Path, data: bytes) -> None:
    # No fsync: after a power cut an older mark may stand here, which is weaker but never wrong, and the
    # rename keeps it whole. The evidence itself is durable before its mark moves.
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        write_all(handle, data)
    finally:
        os.close(handle)
    temporary.replace(path)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    handle = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)
