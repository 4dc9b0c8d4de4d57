"""The receiver process: listens, serves one producer at a time, and answers questions on its local socket.

A connection waits on the doorstep until it says something, and has a thread from then on. A stranger is a connection
that has not taken the slot; strangers are bounded in number and time: the oldest is closed without a word for the
newest, so that a flood cannot keep the producer out.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from producer.handoff import inspection
from producer.handoff.admission import AdmissionStore
from producer.handoff.doorstep import Doorstep
from producer.handoff.enrollment import MAX_STRANGERS, ReceiverConfig
from producer.handoff.errors import WireError
from producer.handoff.inspection import InspectionServer
from producer.handoff.manifest import expected_tensors
from producer.handoff.serving import ReceiverSession, Slot
from producer.handoff.stream import FrameStream
from receipts.errors import BusyError, InputError, LaneError

ACCEPT_POLL_S = 0.05
BACKLOG = 4096
"""Connections that the kernel may keep until they are accepted; it drops what comes beyond, a producer too."""
ENDING_S = 20.0
"""How long a receiver waits for an earlier one of its folder that is finishing its last handoff."""


def serve(
    config: ReceiverConfig,
    *,
    ready: Callable[[str, int], None],
    stop: threading.Event,
    cut: threading.Event | None = None,
) -> None:
    """Serve until ``stop`` is set. ``ready(address, port)`` is called once connections are taken.

    With ``cut`` the handoff that is under way at ``stop`` is finished first, until ``cut`` is set too: a producer whose
    receiver vanishes in the middle of a send must die of it. Nothing new begins meanwhile, and port and local socket
    are free. Raises InputError on a geometry without a known layout, BusyError when another receiver holds
    ``work_dir``, LaneError when the address cannot be bound.
    """
    _require_known_layout(config)
    config.work_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
    with _work_dir_held(config.work_dir):
        store = AdmissionStore(
            config.work_dir,
            config.memory_limit_bytes,
            config.clock,
            {"lane": config.lane, "receiver": config.name},
        )
        slot = Slot()
        connections = Connections(config, store, slot)
        try:
            with _listening(config) as listener, InspectionServer(config, store, slot):
                ready(*listener.getsockname()[:2])
                Doorstep(listener, connections.take, config.times.handshake_s).run(stop)
            if cut is not None:
                connections.finish(cut)
        finally:
            connections.close()


class Connections:
    """The connections that are being served."""

    def __init__(self, config: ReceiverConfig, store: AdmissionStore, slot: Slot) -> None:
        self._config = config
        self._store = store
        self._slot = slot
        self._lock = threading.Lock()
        self._open: dict[threading.Thread, tuple[ReceiverSession, FrameStream]] = {}

    def take(self, sock: socket.socket, accepted_ns: int | None = None) -> None:
        """Serve a connection, accepted at that stamp of ``time.monotonic_ns`` or now, in a thread of its own."""
        try:
            stream = FrameStream(sock, congestion=self._config.congestion)
        except (OSError, WireError):  # gone before it was served
            sock.close()
            return
        session = ReceiverSession(self._config, self._store, self._slot, stream, accepted_ns)
        thread = threading.Thread(target=self._run, args=(session, stream), name="handoff", daemon=True)
        with self._lock:
            self._make_room()
            self._open[thread] = (session, stream)
        thread.start()

    def finish(self, cut: threading.Event) -> None:
        """End the strangers and wait for the session that holds the slot, until ``cut``."""
        with self._lock:
            remaining = list(self._open.items())
        for _, (session, _) in remaining:
            session.turn_away()
        for thread, _ in remaining:
            while thread.is_alive() and not cut.is_set():
                thread.join(timeout=ACCEPT_POLL_S)

    def close(self) -> None:
        """End every session and wait for its thread."""
        with self._lock:
            remaining = dict(self._open)
        for _, stream in remaining.values():
            stream.cut()
        for thread in remaining:
            thread.join(timeout=10)

    def _make_room(self) -> None:
        """With the lock held: one stranger more fits after it. Whoever was cut is on its way out and does not count."""
        strangers = [session for session, _ in self._open.values() if session.is_stranger]
        if len(strangers) >= MAX_STRANGERS:
            strangers[0].turn_away()

    def _run(self, session: ReceiverSession, stream: FrameStream) -> None:
        try:
            session.run()
        finally:
            stream.close()
            with self._lock:
                self._open.pop(threading.current_thread(), None)


def _require_known_layout(config: ReceiverConfig) -> None:
    try:
        expected_tensors(config.geometry, 1)
    except ValueError as error:
        raise InputError(f"the enrolled geometry cannot be received: {error}") from None


@contextlib.contextmanager
def _listening(config: ReceiverConfig) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in config.address else socket.AF_INET
    try:
        listener = socket.create_server((config.address, config.port), family=family, backlog=BACKLOG)
    except OSError as error:
        raise LaneError(
            f"the receiver cannot listen: {error.strerror or error}",
            where=f"{config.address}:{config.port}",
            next_step="free the port, or name another handoff port in lane.toml",
        ) from None
    with listener:
        yield listener


@contextlib.contextmanager
def _work_dir_held(work_dir: Path) -> Iterator[IO[bytes]]:
    """One receiver a work folder: its records and its socket have one writer."""
    path = work_dir / "receiver.lock"
    with os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+b") as file:
        end = time.monotonic() + ENDING_S
        while not _locked(file):
            if inspection.is_serving(work_dir) or time.monotonic() >= end:
                raise BusyError(
                    "another receiver serves from this folder",
                    where=str(work_dir),
                    next_step="stop it, or give this lane its own work_dir",
                )
            time.sleep(ACCEPT_POLL_S)
        yield file


def _locked(file: IO[bytes]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
