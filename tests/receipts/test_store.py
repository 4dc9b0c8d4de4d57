"""Files that are written once: complete or not there, never replaced, and checked when they are read."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from receipts import store
from receipts.errors import EvidenceError, HomeError, InputError
from receipts.store import BlobStore, check_writable, open_below, write_exclusive

ABC = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"  # FIPS 180-4, "abc"


def test_a_file_appears_whole_read_only_and_alone_in_folders_that_were_missing(tmp_path: Path) -> None:
    path = tmp_path / "campaign" / "attempt-0001" / "000001-handoff.json"
    write_exclusive(path, b"{}\n")
    assert path.read_bytes() == b"{}\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    assert path.stat().st_nlink == 1
    assert list(path.parent.iterdir()) == [path]


def test_a_taken_name_is_refused_and_the_file_there_stays(tmp_path: Path) -> None:
    path = tmp_path / "a"
    write_exclusive(path, b"first")
    with pytest.raises(EvidenceError, match="never rewritten"):
        write_exclusive(path, b"second")
    assert path.read_bytes() == b"first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_that_points_nowhere_also_takes_the_name(tmp_path: Path) -> None:
    (tmp_path / "a").symlink_to(tmp_path / "b")
    with pytest.raises(EvidenceError):
        write_exclusive(tmp_path / "a", b"x")
    assert not (tmp_path / "b").exists()


def test_a_write_that_fails_half_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_handle: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(store, "sync_file", full)
    with pytest.raises(HomeError, match="No space left on device") as caught:
        write_exclusive(tmp_path / "a", b"x")
    assert caught.value.next_step is not None and "free space" in caught.value.next_step
    assert list(tmp_path.iterdir()) == []


def test_the_order_is_bytes_to_the_drive_then_the_name_then_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, steps = tmp_path / "a", []
    sync = store.sync_file

    def watched(handle: int) -> None:
        kind = "folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file"
        steps.append((kind, path.exists()))
        sync(handle)

    monkeypatch.setattr(store, "sync_file", watched)
    write_exclusive(path, b"x")
    assert steps == [("file", False), ("folder", True)]


def test_a_disk_that_takes_less_than_needed_is_found_by_writing(tmp_path: Path) -> None:
    # A limit on file sizes stands in for a full disk: it needs no root and stops the same system calls.
    code = (
        "import resource, sys; from pathlib import Path; from receipts.errors import HomeError\n"
        "from receipts.store import check_writable\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (8192, 8192))\n"
        "check_writable(Path(sys.argv[1]), 4096)\n"
        "try: check_writable(Path(sys.argv[1]), 65536)\n"
        "except HomeError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    assert "cannot be written: File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_is_not_there_is_refused_and_not_made(tmp_path: Path) -> None:
    with pytest.raises(HomeError):
        check_writable(tmp_path / "nowhere", 1)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_without_permission_is_refused(tmp_path: Path) -> None:
    # Root may write anywhere: a process of its own becomes nobody, which may write nowhere in here.
    for folder in (tmp_path,):
        folder.chmod(0o555)
    code = (
        "import os, sys; from pathlib import Path; from receipts.errors import HomeError\n"
        "from receipts.store import check_writable\n"
        "folder = os.open(sys.argv[1], os.O_RDONLY); os.fchdir(folder)\n"
        "if os.geteuid() == 0: os.setuid(65534)\n"
        "try: check_writable(Path('.'), 1)\n"
        "except HomeError as error: print(error)\n"
    )
    try:
        done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True, check=True)
    finally:
        for folder in (tmp_path,):
            folder.chmod(0o755)
    assert "Permission denied" in done.stdout


def test_a_read_only_file_system_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read_only(*_: object, **__: object) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(store.os, "open", read_only)
    with pytest.raises(HomeError, match="Read-only file system"):
        check_writable(tmp_path, 1)


def test_a_blob_is_kept_under_its_digest_once_and_read_back(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    source = tmp_path / "source"
    source.write_bytes(b"abc")
    assert blobs.put_bytes(b"abc") == blobs.put_file(source) == ABC
    assert blobs.path(ABC) == tmp_path / "blobs" / "ba" / ABC.removeprefix("sha256:")
    with blobs.open(ABC) as file:
        assert file.read() == b"abc"
    assert [path for path in (tmp_path / "blobs").rglob("*") if path.is_file()] == [blobs.path(ABC)]


def test_a_changed_missing_or_linked_blob_is_refused_on_reading(tmp_path: Path) -> None:
    blobs = BlobStore(tmp_path / "blobs")
    blobs.put_bytes(b"abc")
    blobs.path(ABC).chmod(0o644)
    blobs.path(ABC).write_bytes(b"abd")
    with pytest.raises(EvidenceError, match="now holds bytes with digest"):
        blobs.open(ABC)
    with pytest.raises(EvidenceError, match="now holds bytes with digest"):
        blobs.put_bytes(b"abc")
    blobs.path(ABC).rename(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match="cannot be read"):
        blobs.open(ABC)
    blobs.path(ABC).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(EvidenceError, match="cannot be read"):
        blobs.open(ABC)


@pytest.mark.parametrize("digest", ["sha256:xyz", "../../etc/passwd", "blake3:" + "0" * 64, ABC.upper()])
def test_what_is_no_digest_names_no_blob(tmp_path: Path, digest: str) -> None:
    with pytest.raises(InputError):
        BlobStore(tmp_path).path(digest)


def test_a_large_file_is_kept_in_slices(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(bytes(store.SLICE_BYTES) * 3 + b"tail")
    blobs = BlobStore(tmp_path / "blobs")
    with blobs.open(blobs.put_file(source)) as file:
        assert file.read() == source.read_bytes()


@pytest.mark.parametrize("path", ["/etc/passwd", "../x", "a/../b", "", "a//b", "./a", "a\x00b"])
def test_a_path_that_may_leave_the_home_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(EvidenceError):
        open_below(tmp_path, path)


def test_a_link_or_pipe_anywhere_on_the_way_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "real" / "file").write_bytes(b"x")
    (tmp_path / "linked").symlink_to(tmp_path / "real")
    os.mkfifo(tmp_path / "pipe")
    with open_below(tmp_path, "real/file") as file:
        assert file.read() == b"x"
    with pytest.raises(OSError, match="Not a directory"):
        open_below(tmp_path, "linked/file")
    with pytest.raises(OSError, match="not a regular file"):
        open_below(tmp_path, "pipe")
