"""PING while the engine prefills, in a thread of its own, so that the receiver keeps the slot.

Until ``stop`` has joined the thread it alone writes to the socket; it and ``check`` take turns at reading. C code
that holds the GIL delays a PING by as long as it holds it; the receiver's silence limit (30 s), not the 5 s interval,
is what counts.
"""

from __future__ import annotations

import contextlib
import select
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from producer.handoff import frames
from producer.handoff.enrollment import SenderTimes
from producer.handoff.errors import LinkError, RefusedError, WireError
from producer.handoff.frames import FrameType
from producer.handoff.stream import Deadline, FrameStream

_NS = 1_000_000_000
_FRAME_S = 5.0
"""A PING leaves, and a frame that has begun arrives, within this time."""
_LAST_WORD_S = 1.0
"""How long a NACK is looked for after sending has failed."""


@dataclass
class Pings:
    """How many PINGs the receiver has not answered yet: a PONG may come for each of them and for nothing else."""

    unanswered: int = 0

    def allowed(self, *kinds: FrameType) -> tuple[FrameType, ...]:
        """``kinds``, NACK, and PONG while one is owed: what the receiver may say now."""
        return (*kinds, FrameType.NACK, FrameType.PONG) if self.unanswered else (*kinds, FrameType.NACK)


class Keepalive:
    """Keeps a slot from construction to ``stop``."""

    def __init__(self, stream: FrameStream, times: SenderTimes, deadline: Deadline, pings: Pings) -> None:
        self._stream = stream
        self._deadline = deadline
        self._pings = pings
        self._ping_ns = int(times.ping_s * _NS)
        self._silence_ns = int(times.silence_s * _NS)
        self._lost: WireError | None = None
        self._turn = threading.Lock()
        """Held by whoever reads; what ended the slot is set while it is held."""
        self._heard_ns = time.monotonic_ns()
        self._next_ping_ns = self._heard_ns + self._ping_ns
        self._wake, self._woken = socket.socketpair()
        self._stopped = False
        self._thread = threading.Thread(target=self._run, name="keepalive", daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._lost is None

    def check(self) -> None:
        """Raises what ended the slot, if anything did; also what the receiver said and nobody has heard yet."""
        if not self._stopped:
            with self._turn:
                if self._lost is None:
                    self._guarded(self._hear_waiting)
        self._raise_lost()

    def _raise_lost(self) -> None:
        if self._lost is not None:
            raise self._lost

    def stop(self) -> None:
        """Join the thread, hear what still lies on the socket, and raise what ended the slot, if anything did."""
        if not self._stopped:
            self._stopped = True
            self._wake.send(b"\x00")
            self._thread.join()
            self._wake.close()
            self._woken.close()
            if self._lost is None:
                self._guarded(self._hear_waiting)
        self._raise_lost()

    def _run(self) -> None:
        self._guarded(self._keep)

    def _guarded(self, step: Callable[[], None]) -> None:
        try:
            step()
        except WireError as error:
            self._lost = self._lost or error

    def _keep(self) -> None:
        while self._lost is None and self._wait():
            with self._turn:
                if self._lost is None:
                    self._guarded(self._listen_and_ping)

    def _listen_and_ping(self) -> None:
        # Listen first: after the GIL was held for long, the answer may lie there already.
        self._hear_waiting()
        now = time.monotonic_ns()
        if now - self._heard_ns > self._silence_ns:
            raise LinkError("peer_silent", "the receiver answers no PING")
        if now >= self._next_ping_ns:
            self._pings.unanswered += 1
            self._stream.write([frames.build(FrameType.PING, {}).wire], self._limit())
            self._next_ping_ns = now + self._ping_ns

    def _wait(self) -> bool:
        """Until there is input or a PING is due; False when the thread is to end."""
        if self._stream.has_input():  # what was read ahead no longer lies on the socket
            return True
        poll = select.poll()
        poll.register(self._woken, select.POLLIN)
        poll.register(self._stream.sock, select.POLLIN)
        left_ns = max(0, min(self._next_ping_ns - time.monotonic_ns(), int(self._deadline.seconds() * _NS)))
        ready = {descriptor for descriptor, _ in poll.poll(left_ns / 1e6)}
        return self._woken.fileno() not in ready

    def _hear_waiting(self) -> None:
        while self._stream.has_input():
            hear(self._stream, self._limit(), self._pings)
            self._heard_ns = time.monotonic_ns()

    def _limit(self) -> Deadline:
        return Deadline.after(_FRAME_S).earlier(self._deadline)


def hear(stream: FrameStream, limit: Deadline, pings: Pings, *kinds: FrameType) -> frames.Frame | None:
    """Take a frame off the stream: one of ``kinds``, or None for a PONG that was owed.

    Raises what a NACK says, or that the receiver is gone, or SessionError unexpected_frame.
    """
    frame = stream.read_frame(limit, pings.allowed(*kinds))
    if frame.type is FrameType.NACK:
        raise refused(frame)
    if frame.type is FrameType.PONG:
        pings.unanswered -= 1
        return None
    return frame


def refused(frame: frames.Frame) -> RefusedError:
    """The error that a NACK frame stands for."""
    digests = frame.header.get("digests")
    return RefusedError(
        frame.header["code"], frame.header["reason"], digests=None if digests is None else tuple(digests)
    )


def last_word(stream: FrameStream, pings: Pings) -> RefusedError | None:
    """The NACK that a receiver sent before the connection broke, if it did."""
    with contextlib.suppress(WireError):
        limit = Deadline.after(_LAST_WORD_S)
        while True:
            hear_error = _heard(stream, limit, pings)
            if hear_error is not None:
                return hear_error
    return None


def _heard(stream: FrameStream, limit: Deadline, pings: Pings) -> RefusedError | None:
    try:
        hear(stream, limit, pings)
    except RefusedError as error:
        return error
    return None
