"""The ritual: the only legal start of a producer (DESIGN section 8, chapter 28.7).

Refuse while the lease is held; move the stale startup receipt and RoPE cache aside, nothing deleted; remove the dead
socket; start; wait for the *fresh* startup receipt, which appears only after model load and warm-up.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

from producer import lease
from producer.host import linux
from producer.instance import Artefacts, StartupReceipt
from producer.journal import Journal
from producer.lane import Lane, require_built
from producer.runtime import process
from producer.unseen import write_unseen_deaths
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import InputError, LaneError, LeaseHeldError
from receipts.events import RitualEvent, StopEvent
from receipts.kinds import Instance, MovedFile
from receipts.store import read_bounded

READY_DEADLINE_S: Final = 600
STOP_GRACE_S: Final = 10
_POLL_S: Final = 0.05
_MOST_ASIDE_BYTES: Final = 1 << 28
"""More than a startup receipt or a RoPE cache has."""

Waiting = Callable[[str], None]
"""Told what the start is doing, for a person."""


@dataclass(frozen=True)
class Ready:
    """A producer that is ready: its instance, its startup receipt and the ritual's own account."""

    instance: Instance
    startup: StartupReceipt
    startup_sha256: str
    moved: tuple[MovedFile, ...]
    removed: tuple[str, ...]
    log: Path


def start(
    lane: Lane,
    clock: HostClock,
    *,
    waiting: Waiting = lambda _: None,
    give_up: Callable[[], bool] = lambda: False,
    deadline_s: int = READY_DEADLINE_S,
) -> Ready:
    """Perform the ritual and wait until the producer is ready.

    Raises LeaseHeldError while anyone holds the lease, LaneError with the last log lines on a failed start.
    ``give_up`` is asked while waiting; when it says yes the start is stopped again.
    """
    require_built(lane)
    artefacts = Artefacts.of(lane)
    if lease.settled_holder(lane.producer.lease) is not None:
        raise lease.held_error(lane.producer.lease)
    artefacts.work_dir.mkdir(parents=True, exist_ok=True)
    moved = _move_aside(artefacts)
    removed = _remove_dead_socket(artefacts)
    journal = Journal(artefacts.work_dir, lane.name, clock)
    write_unseen_deaths(journal, "ritual")
    journal.append(RitualEvent(moved=moved, removed=removed))
    stamp = _stamp()
    kept = process.start(lane, artefacts.logs / f"producer-{stamp}-{os.getpid()}.log")
    startup, digest = _wait(lane, artefacts, kept, clock, waiting, give_up, deadline_s)
    return Ready(kept.instance, startup, digest, moved, removed, kept.log)


def stop(lane: Lane, clock: HostClock, instance: Instance, why: str) -> None:
    """End a producer on command: journalled first, then SIGTERM, after a grace SIGKILL. Returns when it is gone.

    A stop that cannot be journalled (HomeError) ends the producer all the same, and is raised when it is gone.
    """
    if not linux.is_alive(instance):
        return
    journal = Journal(lane.producer.work_dir, lane.name, clock)
    try:
        journal.append(StopEvent(instance=instance, why=why, observed_by="runner"))
    finally:
        # Whoever orders a stop must not be left with the accelerator held because a disk is full.
        _end(lane, instance)


def _end(lane: Lane, instance: Instance) -> None:
    for number, grace_s in ((signal.SIGTERM, STOP_GRACE_S), (signal.SIGKILL, STOP_GRACE_S)):
        try:
            os.kill(instance.pid, number)
        except ProcessLookupError:
            return
        if _gone(instance, grace_s):
            lease.settled_holder(lane.producer.lease)
            return
    raise LaneError(f"producer pid {instance.pid} does not end, not even by SIGKILL")


def _move_aside(artefacts: Artefacts) -> tuple[MovedFile, ...]:
    stamp = _stamp()
    moved = []
    for path in (artefacts.rope_cache, artefacts.startup_receipt):
        if not path.exists():
            continue
        try:
            data = read_bounded(path, _MOST_ASIDE_BYTES)
        except OSError as error:
            raise InputError(
                f"cannot be moved aside for a fresh start: {error.strerror}",
                where=str(path),
                next_step="find out what put it there, and take it away",
            ) from None
        target = path.with_name(f"{path.name}.stale-{stamp}")
        extra = 0
        while target.exists():  # two rituals within one second: nothing may be replaced
            extra += 1
            target = path.with_name(f"{path.name}.stale-{stamp}.{extra}")
        path.rename(target)
        moved.append(MovedFile(old=path.name, new=target.name, bytes=len(data), sha256=canonical.sha256(data)))
    return tuple(moved)


def _remove_dead_socket(artefacts: Artefacts) -> tuple[str, ...]:
    if not artefacts.socket.exists():
        return ()
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        try:
            probe.connect(str(artefacts.socket))
        except OSError:
            artefacts.socket.unlink()
            return (artefacts.socket.name,)
    raise LeaseHeldError(
        "somebody still listens on the producer's socket, though the lease is free",
        where=str(artefacts.socket),
        next_step="find the process that serves it; it is not this lane's producer",
    )


def _wait(
    lane: Lane,
    artefacts: Artefacts,
    kept: process.Kept,
    clock: HostClock,
    waiting: Waiting,
    give_up: Callable[[], bool],
    deadline_s: int,
) -> tuple[StartupReceipt, str]:
    end = time.monotonic() + deadline_s
    shown = ""
    while True:
        found = artefacts.read_startup()
        if found is not None and found[0].instance == kept.instance and _is_on_record(lane, clock, kept.instance):
            return found
        if not linux.is_alive(kept.instance):
            kept.keeper.wait()
            raise _failed(kept, "the producer did not become ready")
        if give_up() or time.monotonic() > end:
            stop(lane, clock, kept.instance, "the start was given up")
            raise _failed(kept, "the start was given up before the producer was ready")
        tail = process.log_tail(kept.log, 1)
        if tail and tail[0] != shown:
            shown = tail[0]
            waiting(shown)
        time.sleep(_POLL_S)


def _is_on_record(lane: Lane, clock: HostClock, instance: Instance) -> bool:
    """Whether the start stands in the journal, as it does a moment after its receipt is there."""
    for record in Journal(lane.producer.work_dir, lane.name, clock).backwards():
        if record.kind == "start":
            return bool(record.body["instance"] == instance.document())
    return False


def _failed(kept: process.Kept, what: str) -> LaneError:
    tail = [f"| {line}" for line in process.log_tail(kept.log)]
    return LaneError(what, where=str(kept.log), details=tail)


def _gone(instance: Instance, grace_s: float) -> bool:
    end = time.monotonic() + grace_s
    while time.monotonic() < end:
        if not linux.is_alive(instance):
            return True
        time.sleep(_POLL_S)
    return False


def _stamp() -> str:
    return datetime.now(UTC).strftime("%Y%m%dT%H%M%SZ")
