"""Verification of the files: each that an entry answers for, each blob that one names, and those nobody names."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import re
from collections.abc import Mapping, Sequence
from typing import Final

from ledger.audit_entries import NamedFile
from ledger.findings import Findings
from ledger.home import EvidenceHome
from receipts.errors import EvidenceError
from receipts.store import MOST_BLOB_BYTES, files_below, open_below

MOST_READ_BYTES: Final = 16 << 20
"""A file longer than its entry says is hashed up to this size, to tell whose bytes it holds."""
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_CANNOT_OPEN: Final[Mapping[int | None, str]] = {
    errno.ENOENT: "the file is missing",
    errno.ELOOP: "is a symbolic link and not the file itself",
    errno.ENOTDIR: "lies behind a symbolic link or a file in place of a folder",
    errno.EINVAL: "is not a regular file",
}


def listed_files(home: EvidenceHome) -> list[str]:
    """Every file below ``receipts/`` and ``blobs/``, relative to the home."""
    return [f"{root.name}/{name}" for root in (home.receipts, home.blobs) for name in files_below(root)]


def strays(home: EvidenceHome) -> list[str]:
    """Names directly in the home that are no part of one."""
    known = {"ledger.db", "ledger.db-journal", "receipts", "blobs", "checkpoints", "reports"}
    return sorted(path.name for path in home.path.iterdir() if path.name not in known)


def check_files(home: EvidenceHome, named: Sequence[NamedFile], findings: Findings) -> None:
    """Compare each file with the ref of its entry: there, regular, of this length, of this digest."""
    by_digest = {item.ref.sha256: item.entry for item in named}
    for item in named:
        findings.count("files")
        file = _opened(home, item.ref.path, item.entry, findings)
        if file is None:
            continue
        with file:
            found_size = os.fstat(file.fileno()).st_size
            if found_size > max(item.ref.size, MOST_READ_BYTES):
                found = "(not read)"  # a file blown up with holes would be hashed for hours
            else:
                found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        if found == item.ref.sha256 and found_size == item.ref.size:
            continue
        length = "longer than" if found_size > item.ref.size else "shorter than" if found_size < item.ref.size else ""
        what = f"the file is {length or 'different from'} what its entry says"
        if found in by_digest:
            what += f": it holds the file of entry {by_digest[found]}"
        findings.fault(
            item.ref.path,
            what,
            entry=item.entry,
            expected=f"{item.ref.size} bytes {item.ref.sha256}",
            found=f"{found_size} bytes {found}",
        )


def check_blobs(home: EvidenceHome, named: Mapping[str, int], findings: Findings) -> None:
    """Compare each blob with the digest that it is kept under."""
    for digest, entry in named.items():
        if not _DIGEST.fullmatch(digest):
            findings.fault(f"entry {entry}", f"names a blob by {digest[:80]!r}, which is no digest", entry=entry)
            continue
        findings.count("blobs")
        path = blob_path(digest)
        file = _opened(home, path, entry, findings)
        if file is None:
            continue
        with file:
            size = os.fstat(file.fileno()).st_size
            if size > MOST_BLOB_BYTES:
                found = f"{size} bytes (not read)"
            else:
                found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            findings.fault(path, "the blob was changed", entry=entry, expected=digest, found=found)


def orphans(listed: Sequence[str], named: Sequence[NamedFile], blobs: Mapping[str, int]) -> list[str]:
    """The listed files that no entry names."""
    known = {item.ref.path for item in named} | {blob_path(digest) for digest in blobs}
    return [path for path in listed if path not in known]


def blob_path(digest: str) -> str:
    """Where the blob of a digest lies, relative to the home."""
    hexadecimal = digest.removeprefix("sha256:")
    return f"blobs/{hexadecimal[:2]}/{hexadecimal}"


def _opened(home: EvidenceHome, path: str, entry: int, findings: Findings) -> io.BufferedReader | None:
    try:
        return open_below(home.path, path)
    except EvidenceError as error:
        findings.fault(f"entry {entry}", error.what, entry=entry)
    except OSError as error:
        what = _CANNOT_OPEN.get(error.errno, f"the file cannot be read: {error.strerror}")
        findings.fault(path, what, entry=entry)
    return None
