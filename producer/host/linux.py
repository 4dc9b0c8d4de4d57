"""What Linux knows of processes, locks and interfaces: the only home of /proc."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

from receipts.clock import boot_id
from receipts.kinds import Instance

_PR_SET_PDEATHSIG: Final = 1


@dataclass(frozen=True)
class Usage:
    """What a process holds right now. ``rss_bytes`` resident memory, ``fds`` descriptors, ``threads`` tasks."""

    rss_bytes: int
    fds: int
    threads: int


@dataclass(frozen=True)
class Holder:
    """A process that holds a lock, as far as /proc tells: the words for "who has it"."""

    pid: int
    command: str
    user: str
    age_s: int | None

    def __str__(self) -> str:
        age = "" if self.age_s is None else f", running for {self.age_s} s"
        return f"pid {self.pid} ({self.command}, user {self.user}{age})"


def start_ticks(pid: int) -> str | None:
    """Field 22 of /proc/PID/stat: clock ticks between boot and the start. None when there is no such process.

    A zombie has ended: it counts as gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    # The command stands in parentheses and may hold anything, so read after the last one (proc(5)).
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] in {"Z", "X"} else fields[19]


def instance_of(pid: int, host: str) -> Instance:
    """The identity of a living process. Raises ProcessLookupError when it is gone."""
    ticks = start_ticks(pid)
    if ticks is None:
        raise ProcessLookupError(pid)
    return Instance(host=host, boot_id=boot_id(), pid=pid, start_ticks=ticks)


def is_alive(instance: Instance) -> bool:
    """Whether exactly this process still runs: a reused pid or another boot is not it."""
    return instance.boot_id == boot_id() and start_ticks(instance.pid) == instance.start_ticks


def usage(pid: int | None = None) -> Usage:
    """Memory, descriptors and threads of a process, of this one by default."""
    process = psutil.Process(pid)
    return Usage(process.memory_info().rss, process.num_fds(), process.num_threads())


def flock_holders(path: Path) -> list[Holder]:
    """Processes that hold a flock on ``path``, the lock's owner first (proc_locks(5)); empty when none is seen."""
    try:
        status = path.stat()
        lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    except OSError:
        return []
    wanted = f"{os.major(status.st_dev):02x}:{os.minor(status.st_dev):02x}:{status.st_ino}"
    pids = [int(parts[4]) for parts in map(str.split, lines) if len(parts) >= 6 and parts[5] == wanted]
    holders = [described(pid) for pid in pids if pid > 0]
    # The owner may have exited while a child that inherited the descriptor still holds the lock.
    if not any(holders):
        holders = [described(pid) for pid in _with_open(status.st_dev, status.st_ino)]
    return [holder for holder in holders if holder is not None]


def described(pid: int) -> Holder | None:
    """Who ``pid`` is, or None when it is gone."""
    try:
        process = psutil.Process(pid)
        with process.oneshot():
            command = " ".join(process.cmdline()) or process.name()
            age = max(0, int(_now() - process.create_time()))
            return Holder(pid, command[:120], process.username(), age)
    except psutil.Error:
        return None


def end_with_parent() -> None:
    """For the child, between fork and exec: get SIGTERM when the thread that started it is gone (prctl(2))."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def interface_of(address: str) -> str | None:
    """The interface that carries a local address, or None."""
    for name, addresses in psutil.net_if_addrs().items():
        if any(item.family in (socket.AF_INET, socket.AF_INET6) and item.address == address for item in addresses):
            return name
    return None


def peer_uid(connection: socket.socket) -> int:
    """The uid at the other end of a Unix socket (SO_PEERCRED)."""
    import struct

    credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def _with_open(device: int, inode: int) -> list[int]:
    found = []
    for folder in Path("/proc").glob("[0-9]*/fd"):
        if int(folder.parent.name) == os.getpid():
            continue  # we opened it to ask
        try:
            for link in folder.iterdir():
                status = link.stat()
                if (status.st_dev, status.st_ino) == (device, inode):
                    found.append(int(folder.parent.name))
                    break
        except OSError:
            continue
    return found


def _now() -> float:
    import time

    return time.time()
