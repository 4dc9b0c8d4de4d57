"""The accelerator lease: one holder, named to whoever is refused."""

from __future__ import annotations

import fcntl
import subprocess
import sys
from pathlib import Path

import pytest

from producer import lease
from producer.lease import Lease
from receipts.errors import InputError, LeaseHeldError

HOLD = "import fcntl, os, sys, time\nf = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)\nfcntl.flock(f, fcntl.LOCK_EX)\n"
HOLD += "print('held', flush=True)\nsys.stdin.read()\n"


def hold(path: Path, extra: str = "") -> subprocess.Popen[str]:
    """A stranger that holds the lease until its stdin is closed."""
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD + extra, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder


def end(holder: subprocess.Popen[str]) -> None:
    holder.communicate("")


def test_a_free_lease_is_taken_and_given_back(tmp_path: Path) -> None:
    held = Lease.take(tmp_path / "gpu.lock")
    assert held.is_on_path()
    held.release()
    assert lease.holder(tmp_path / "gpu.lock") is None


def test_a_second_taker_is_refused_and_told_pid_command_and_user_of_the_holder(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    holder = hold(path)
    try:
        with pytest.raises(LeaseHeldError) as refusal:
            Lease.take(path)
        assert f"pid {holder.pid} " in str(refusal.value)
        assert "import fcntl" in str(refusal.value)
        assert "user " in str(refusal.value)
    finally:
        end(holder)


def test_the_lease_ends_with_its_holder_without_anyone_cleaning_up(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    holder = hold(path)
    holder.kill()
    holder.communicate()
    Lease.take(path).release()


def test_a_child_that_inherited_the_descriptor_is_named_when_the_owner_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import fcntl, os, sys, time\n"
            "f = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT); os.set_inheritable(f, True)\n"
            "fcntl.flock(f, fcntl.LOCK_EX)\n"
            "pid = os.fork()\n"
            "if pid: print(pid, flush=True); os._exit(0)\n"
            "sys.stdin.read()\n",
            str(path),
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdin is not None
    child = int(holder.stdout.readline())
    holder.wait()
    try:
        found = lease.holder(path)
        assert found is not None
        assert found.pid == child
    finally:
        holder.stdin.close()
        holder.stdout.close()


def test_an_unlinked_lock_file_is_noticed_by_its_holder(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    held = Lease.take(path)
    path.unlink()
    assert not held.is_on_path()
    path.touch()
    assert not held.is_on_path()
    held.release()


def test_asking_who_holds_the_lease_neither_creates_nor_takes_it(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    assert lease.holder(path) is None
    assert not path.exists()


def test_a_lease_path_that_is_a_link_or_a_folder_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "gpu.lock").symlink_to(tmp_path / "elsewhere")
    for path in (tmp_path / "gpu.lock", tmp_path):
        with pytest.raises(InputError, match=str(path)):
            Lease.take(path)


def test_a_living_holder_is_named_at_once_and_an_ending_one_is_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.lock"
    holder = hold(path)
    try:
        found = lease.settled_holder(path, grace_s=3600)
        assert found is not None
        assert found.pid == holder.pid
    finally:
        end(holder)
    answers = [lease.linux.Holder(0, "not visible", "not known", None), None]
    monkeypatch.setattr(lease, "holder", lambda _: answers.pop(0))
    assert lease.settled_holder(path, grace_s=3600) is None
    assert answers == []


def test_somebody_who_only_asks_who_holds_the_lease_refuses_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.lock"
    asker = path.open("w")
    fcntl.flock(asker, fcntl.LOCK_SH)  # what holder() takes for the moment of its question
    monkeypatch.setattr(lease.time, "sleep", lambda _: asker.close())
    Lease.take(path).release()


def test_a_holder_is_not_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "gpu.lock"
    held = Lease.take(path)
    monkeypatch.setattr(lease.time, "sleep", lambda _: pytest.fail("it waited"))
    with pytest.raises(LeaseHeldError):
        Lease.take(path)
    held.release()


def test_a_shared_lock_that_stays_is_refused_in_the_end(tmp_path: Path) -> None:
    path = tmp_path / "gpu.lock"
    with path.open("w") as stranger:
        fcntl.flock(stranger, fcntl.LOCK_SH)
        with pytest.raises(LeaseHeldError):
            Lease.take(path)
