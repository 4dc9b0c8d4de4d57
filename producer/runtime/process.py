"""The process runtime: a keeper that starts the resident as its child, waits for it and journals how it ended.

Only a parent sees an exit status. The keeper is that parent, small and apart from whoever ordered the start, so that a
death is seen and written down even when the orchestrator is gone.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final

from producer.engine.deaths import found_lease_held, site_of_status
from producer.host import linux
from producer.instance import Artefacts
from producer.interpreter import child_environment
from producer.journal import Journal
from producer.lane import Lane, LaneConfig
from receipts.clock import HostClock
from receipts.errors import LaneError
from receipts.events import DeathEvent, FailedStartEvent
from receipts.kinds import Instance
from receipts.store import open_regular

_TAIL_BYTES: Final = 64 * 1024


@dataclass(frozen=True)
class Kept:
    """A keeper that was started: its process, and the resident instance it reported."""

    keeper: subprocess.Popen[str]
    instance: Instance
    log: Path


def start(lane: Lane, log: Path) -> Kept:
    """Start keeper and resident, both in a session of their own, with the output of both in ``log``.

    Raises LaneError when the log cannot be written, or when the keeper ends before it names a resident.
    """
    command = [sys.executable, "-m", "producer.runtime.process", str(lane.source), str(log)]
    with opened_log(log) as output:
        keeper = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
            env=child_environment(),
        )
    line = _line(keeper.stdout)
    if not line.endswith("\n"):
        raise _keeper_failed(keeper, log)
    return Kept(keeper, Instance.read(json.loads(line)), log)


def log_tail(log: Path, lines: int = 12) -> list[str]:
    """The last lines of a resident's log, for a person."""
    try:
        with open_regular(log) as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - _TAIL_BYTES))
            return file.read(_TAIL_BYTES).decode("utf-8", "replace").splitlines()[-lines:]
    except OSError:
        return []


def keep(lane: Lane, log: Path) -> None:
    """Be the keeper: start the resident, report its instance on stdout, wait, journal its end."""
    clock = HostClock(lane.producer.host)
    born_ns = clock.stamp()
    with opened_log(log) as output:
        resident = subprocess.Popen(
            [sys.executable, "-m", "producer.resident", "--lane", str(lane.source)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            env=child_environment(),
        )
    instance = _instance_of_child(resident.pid, clock)
    with contextlib.suppress(BrokenPipeError):  # the starter may be gone already; the resident needs its keeper more
        print(json.dumps(instance.document()), flush=True)
    sys.stdout = open(os.devnull, "w")  # noqa: SIM115, PTH123 - the starter may be gone; our pipe must not matter
    os.close(1)
    status = resident.wait()
    died_ns = clock.stamp()  # before anything else: reading a journal takes time
    journal_end(lane, clock, Ended(instance, born_ns, died_ns, status), log)


@dataclass(frozen=True)
class Ended:
    """How an instance ended: nothing on record is of it before ``born_ns``, and it was gone at ``died_ns``."""

    instance: Instance
    born_ns: int
    died_ns: int
    status: int
    """As subprocess has it: negative is a signal's number."""


def journal_end(lane: Lane, clock: HostClock, ended: Ended, log: Path) -> None:
    """Write the one event of an end, unless the dying process wrote it or a stop was commanded."""
    journal = Journal(lane.producer.work_dir, lane.name, clock)
    ready_ns: int | None = None
    last_handoff: str | None = None
    for record in journal.backwards():
        if record.boot_id != clock.boot_id or int(record.at_ns) < ended.born_ns:
            break
        if record.body.get("instance") != ended.instance.document():
            continue
        if record.kind in {"stop", "death", "failed_start"}:
            return
        if record.kind == "handoff" and last_handoff is None:
            last_handoff = record.body["handoff_id"]
        elif record.kind == "start":
            ready_ns = int(record.at_ns)
            break
    number = -ended.status if ended.status < 0 else None
    status = None if number else ended.status
    reason = " | ".join(log_tail(log, 4))  # one line wherever it is shown
    if ready_ns is None and found_lease_held(Artefacts.of(lane).work_dir, ended.instance):
        return  # no failed start: it never was its turn
    if ready_ns is None:
        failed = FailedStartEvent(
            instance=ended.instance, status=status, signal=number, reason=reason, observed_by="keeper"
        )
        journal.append(failed)
        return
    journal.append(
        DeathEvent(
            instance=ended.instance,
            site=site_of_status(ended.status, Artefacts.of(lane).work_dir, ended.instance),
            status=status,
            signal=number,
            reason=reason,
            uptime_ns=str(ended.died_ns - ready_ns),
            last_handoff_id=last_handoff,
            died_ns=str(ended.died_ns),
            observed_by="keeper",
        )
    )


def _instance_of_child(pid: int, clock: HostClock) -> Instance:
    try:
        return linux.instance_of(pid, clock.host)
    except ProcessLookupError:
        # It ended before we looked; as its parent we may still name it: nobody else can have its pid yet.
        return Instance(host=clock.host, boot_id=clock.boot_id, pid=pid, start_ticks="0")


def opened_log(log: Path, whose: str = "producer") -> IO[bytes]:
    """A log to append to, made where it is missing. Raises LaneError, also on what is no regular file."""
    try:
        log.parent.mkdir(parents=True, exist_ok=True)
        # Opening a pipe that nobody reads would wait for its reader.
        handle = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            os.close(handle)
            raise OSError(errno.EINVAL, "not a regular file", str(log))
        return os.fdopen(handle, "ab")
    except OSError as error:
        raise LaneError(
            f"the {whose}'s log cannot be written: {error.strerror or error}",
            where=str(log),
            next_step="free space there, or give this user the right to write there",
        ) from None


def _keeper_failed(keeper: subprocess.Popen[str], log: Path) -> LaneError:
    """The keeper closed its stdout without naming a resident: it has ended, or is ending."""
    status = keeper.wait()
    how = f"by signal {-status}" if status < 0 else f"with status {status}"
    tail = [f"| {line}" for line in log_tail(log)]
    return LaneError(f"the producer's keeper ended {how} before a producer was there", where=str(log), details=tail)


def _line(stream: IO[str] | None) -> str:
    assert stream is not None
    return stream.readline()


def main() -> None:
    # The orchestrator's terminal is not ours: its Ctrl-C and hang-up must not end the one who writes deaths down.
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    keep(LaneConfig.load(Path(sys.argv[1])), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
