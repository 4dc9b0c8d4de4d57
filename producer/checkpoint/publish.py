"""Publishing a checkpoint whole or not at all: a hidden folder beside the place, fsync, one rename.

The hidden folder is locked while it is filled, so that a second build waits for nobody and a killed one leaves
only what the next build clears away.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from producer.checkpoint.manifest import (
    MANIFEST_NAME,
    CheckpointManifest,
    Progress,
    describe,
    read_manifest,
    verify,
)
from receipts import canonical
from receipts.errors import BusyError, InputError


def publish(
    out: Path,
    write: Callable[[Path], None],
    *,
    repository: str,
    revision: str,
    recipe: str,
    progress: Progress,
) -> CheckpointManifest:
    """Let ``write`` fill a folder and make it appear at ``out``; does nothing when the same is there already.

    Raises InputError when ``out`` holds something else or cannot be written, BusyError when another build of
    ``out`` is running.
    """
    there = _already_there(out, (repository, revision, recipe), progress)
    if there is not None:
        return there
    try:
        with _building_folder(out) as folder:
            write(folder)
            manifest = describe(folder, repository=repository, revision=revision, recipe=recipe)
            (folder / MANIFEST_NAME).write_bytes(canonical.file_bytes(manifest.document()))
            progress("writing", 0, manifest.total_bytes)
            _sync(folder)
            folder.rename(out)
            _sync_folder(out.parent)
            progress("writing", manifest.total_bytes, manifest.total_bytes)
    except OSError as error:
        raise InputError(
            f"the checkpoint cannot be written: {error.strerror or error}",
            where=str(error.filename or out),
            next_step="name another folder, or make room for it and make it writable",
        ) from error
    return manifest


def _already_there(out: Path, source: tuple[str, str, str], progress: Progress) -> CheckpointManifest | None:
    if not out.is_symlink() and not out.exists():
        return None
    if not out.is_dir():
        raise InputError("exists and is not a folder", where=str(out), next_step="name another folder")
    if not any(out.iterdir()):
        return None
    manifest = read_manifest(out)
    found = (manifest.repository, manifest.revision, manifest.recipe)
    if found != source:
        raise InputError(
            f"holds another checkpoint: {' '.join(found)}, not {' '.join(source)}",
            where=str(out),
            next_step="name another folder, or move this one aside",
        )
    verify(out, manifest, progress=progress)
    progress("already there, every file as its manifest says", len(manifest.files), len(manifest.files))
    return manifest


@contextmanager
def _building_folder(out: Path) -> Iterator[Path]:
    """An empty, locked folder beside ``out``; removed if the build fails. Raises OSError, BusyError."""
    out.parent.mkdir(parents=True, exist_ok=True)
    folder = out.parent / f".{out.name}.building"
    descriptor = _lock(folder)
    try:
        _clear(folder)
        yield folder
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    finally:
        os.close(descriptor)


def _lock(folder: Path) -> int:
    while True:
        folder.mkdir(exist_ok=True)
        descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The other build may have renamed the folder between our open and our lock.
            if folder.exists() and os.path.samestat(os.fstat(descriptor), folder.stat()):
                return descriptor
        except OSError as error:
            os.close(descriptor)
            if error.errno in (errno.EWOULDBLOCK, errno.EAGAIN):
                raise BusyError("another build of this checkpoint is running", where=str(folder)) from None
            raise
        os.close(descriptor)


def _clear(folder: Path) -> None:
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink()


def _sync(folder: Path) -> None:
    for path in folder.iterdir():
        with path.open("rb") as stream:
            os.fsync(stream.fileno())
    _sync_folder(folder)


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
