"""Files that are written once and never again: receipts, verdicts and blobs (DESIGN section 4).

A file appears under its final name complete and durable, or not at all: temporary file in the same folder,
fsync, ``link()`` (which never replaces), fsync of the folder. Reading follows no symbolic link.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import io
import os
import re
import secrets
import stat
import sys
from collections.abc import Callable, Iterator
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Final

from receipts.errors import EvidenceError, HomeError, InputError

SLICE_BYTES: Final = 1 << 20
MOST_BLOB_BYTES: Final = 1 << 30
"""The largest blob. A file blown up with holes beyond all measure would be read for days."""
_READ_ONLY: Final = 0o444
_DIGEST: Final = re.compile(r"sha256:([0-9a-f]{64})")
_NEXT_STEP: Final = {
    errno.ENOSPC: "free space on this disk, or choose another home",
    errno.EDQUOT: "free space within the quota, or choose another home",
    errno.EFBIG: "raise the limit on file sizes (ulimit -f), or choose another home",
    errno.EROFS: "choose a home on a disk that is mounted for writing",
    errno.EACCES: "choose a home that this user may write to",
    errno.EPERM: "choose a home that this user may write to, on a file system that has hard links",
}


def write_exclusive(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, which must not be there yet: complete, durable and 0444.

    Missing folders are made. Raises EvidenceError when the name is taken, HomeError when it cannot be written.
    """

    def fill(handle: int) -> None:
        write_all(handle, data)

    make_folder(path.parent)
    _publish(path.parent, fill, lambda: path)


def check_writable(folder: Path, need_bytes: int) -> None:
    """Refuse a folder that cannot take ``need_bytes`` now, by really writing a file there and removing it.

    Raises HomeError: disk full, read-only, not writable, or not there.
    """
    probe = folder / f".probe.{secrets.token_hex(8)}.tmp"
    try:
        handle = os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            _reserve(handle, max(need_bytes, 1))
            sync_file(handle)
        finally:
            os.close(handle)
            probe.unlink()
    except OSError as error:
        raise _home_error(error, folder) from None


class BlobStore:
    """Bulky bytes under their own digest: ``<2 hex>/<sha256>``. Digests are written ``sha256:<64 hex>``."""

    def __init__(self, root: Path) -> None:
        self._root = root

    def path(self, digest: str) -> Path:
        """Where the blob of ``digest`` is or would be. Raises InputError on what is no digest."""
        match = _DIGEST.fullmatch(digest)
        if match is None:
            raise InputError(f"{digest[:80]!r} is no sha256:<64 hex> digest")
        return self._root / match[1][:2] / match[1]

    def put_bytes(self, data: bytes) -> str:
        """Keep ``data``; returns its digest. Keeping the same bytes again is no error and writes nothing."""
        return self._put(io.BytesIO(data))

    def put_file(self, source: Path) -> str:
        """Keep the bytes of the regular file ``source``, in slices of 1 MiB; returns their digest."""
        try:
            file = open_regular(source)
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", where=str(source)) from None
        with file:
            return self._put(file)

    def open(self, digest: str) -> io.BufferedReader:
        """The blob, open at its start, after its bytes were checked. Raises EvidenceError: missing or different."""
        path = self.path(digest)
        try:
            file = open_regular(path)
        except OSError as error:
            raise EvidenceError(f"blob {digest} cannot be read: {error.strerror}", where=str(path)) from None
        if os.fstat(file.fileno()).st_size > MOST_BLOB_BYTES:
            file.close()
            raise EvidenceError(f"blob {digest} is larger than any blob", where=str(path))
        found = "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()
        if found != digest:
            file.close()
            raise EvidenceError(f"blob {digest} now holds bytes with digest {found}", where=str(path))
        file.seek(0)
        return file

    def _put(self, source: BinaryIO) -> str:
        hasher = hashlib.sha256()

        def fill(handle: int) -> None:
            size = 0
            while piece := source.read(SLICE_BYTES):
                size += len(piece)
                if size > MOST_BLOB_BYTES:
                    raise InputError(f"a blob has at most {MOST_BLOB_BYTES} bytes, and this one has more")
                hasher.update(piece)
                write_all(handle, piece)

        def final() -> Path:
            path = self.path("sha256:" + hasher.hexdigest())
            make_folder(path.parent)
            return path

        make_folder(self._root)
        try:
            _publish(self._root, fill, final)
        except EvidenceError:
            # The name is taken: fine when it holds these bytes, which open() checks.
            self.open("sha256:" + hasher.hexdigest()).close()
        return "sha256:" + hasher.hexdigest()


def open_regular(path: Path) -> io.BufferedReader:
    """Open a regular file for reading, following no symbolic link in its last part. Raises OSError."""
    return _regular(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC), str(path))


def read_bounded(path: Path, most_bytes: int) -> bytes:
    """All bytes of the regular file that ``path`` names, links followed: it may be anyone's.

    Raises OSError, with EINVAL on what is no regular file (a pipe would hang, a device has no end) and EFBIG on more
    than ``most_bytes``.
    """
    with _regular(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), str(path)) as file:
        data = file.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise OSError(errno.EFBIG, f"larger than the {most_bytes} bytes that are read", str(path))
    return data


def open_below(root: Path, relative: str) -> io.BufferedReader:
    """Open the regular file ``root/relative``, following no symbolic link below ``root``.

    ``relative`` is a POSIX path without ``.``, ``..`` or a leading slash; anything else is EvidenceError.
    Raises OSError when it is not there (ENOENT), is behind a link (ELOOP, ENOTDIR) or is not a regular file (EINVAL).
    """
    parts = relative_parts(relative)
    folder = os.open(root, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for part in parts[:-1]:
            below = os.open(part, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=folder)
            os.close(folder)
            folder = below
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        return _regular(os.open(parts[-1], flags, dir_fd=folder), relative)
    finally:
        os.close(folder)


def relative_parts(relative: str) -> tuple[str, ...]:
    """The parts of a POSIX path that stays below its root. Raises EvidenceError on one that may not."""
    parts = relative.split("/")
    if "\x00" in relative or any(part in ("", ".", "..") for part in parts):
        raise EvidenceError(f"{relative[:200]!r} is no path below the evidence home")
    return tuple(parts)


def files_below(root: Path) -> Iterator[str]:
    """Every name below ``root`` that is not a folder, as POSIX paths relative to it; links are not followed."""
    for folder, folders, names in os.walk(root):
        linked = [name for name in folders if Path(folder, name).is_symlink()]
        for name in sorted(names + linked):
            yield PurePosixPath(Path(folder, name).relative_to(root)).as_posix()


def make_folder(folder: Path) -> None:
    """Make ``folder`` and what is missing above it, durably. Raises HomeError."""
    if folder.is_dir():
        return
    try:
        make_parent = folder.parent
        if not make_parent.is_dir():
            make_folder(make_parent)
        folder.mkdir(exist_ok=True)
        sync_folder(make_parent)
    except OSError as error:
        raise _home_error(error, folder) from None


def write_all(handle: int, data: bytes) -> None:
    """Write every byte to a descriptor. Raises OSError."""
    view = memoryview(data)
    while view:
        view = view[os.write(handle, view) :]


def sync_file(handle: int) -> None:
    """fsync, and on macOS F_FULLFSYNC, because there fsync does not flush the drive (FACTS section 8)."""
    if sys.platform == "darwin":  # not run on a Mac
        import fcntl

        fcntl.fcntl(handle, fcntl.F_FULLFSYNC)
    else:
        os.fsync(handle)


def sync_folder(folder: Path) -> None:
    """Make the names in ``folder`` durable."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        sync_file(handle)
    finally:
        os.close(handle)


def _publish(folder: Path, fill: Callable[[int], None], final: Callable[[], Path]) -> None:
    """Fill a temporary file in ``folder`` and link it to the name that ``final`` gives after the bytes are known."""
    temporary = folder / f".{secrets.token_hex(8)}.tmp"
    target = folder
    try:
        handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            fill(handle)
            os.fchmod(handle, _READ_ONLY)
            sync_file(handle)
        finally:
            os.close(handle)
        target = final()
        os.link(temporary, target, follow_symlinks=False)
        temporary.unlink()
        sync_folder(target.parent)
    except FileExistsError:
        raise EvidenceError(
            "is there already, and evidence is never rewritten",
            where=str(target),
            next_step="find out which process wrote it; soakledger ledger verify lists files that no entry names",
        ) from None
    except OSError as error:
        raise _home_error(error, target) from None
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()


def _reserve(handle: int, need_bytes: int) -> None:
    # Reserving finds a full disk without writing gigabytes; the first bytes are written for real, because a
    # reservation alone does not touch the limits of every file system.
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(handle, 0, need_bytes)
        write_all(handle, bytes(min(need_bytes, SLICE_BYTES)))
        return
    for start in range(0, need_bytes, SLICE_BYTES):  # macOS has no posix_fallocate; not run on a Mac
        write_all(handle, bytes(min(need_bytes - start, SLICE_BYTES)))


def _regular(handle: int, name: str) -> io.BufferedReader:
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise OSError(errno.EINVAL, "not a regular file", name)
    return os.fdopen(handle, "rb")


def _home_error(error: OSError, where: Path) -> HomeError:
    return HomeError(
        f"cannot be written: {error.strerror or error}",
        where=str(where),
        next_step=_NEXT_STEP.get(error.errno or 0, "check that the home exists and can be written"),
    )
