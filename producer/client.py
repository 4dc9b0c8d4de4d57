"""The asking end of ``producer.sock``: one request, one answer, and the ways in which no answer comes."""

from __future__ import annotations

import select
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from receipts import canonical
from receipts.errors import CanonicalError

_TICK_S: Final = 1.0
_FULL_QUEUE_S: Final = 0.05

Ending = Literal["answer", "bad_answer", "closed", "deadline", "interrupted", "not_listening"]


@dataclass(frozen=True)
class Reply:
    """How a request ended. ``value`` is the answer; only with ``ending`` "answer"."""

    ending: Ending
    value: dict[str, Any] | None = None
    text: str = ""


def ask(
    path: Path,
    request: dict[str, Any],
    *,
    timeout_s: float,
    interrupt: int | None = None,
    waiting: Callable[[float], None] | None = None,
) -> Reply:
    """Send one request line and wait for its answer line, the deadline, or a readable ``interrupt`` descriptor.

    ``waiting`` is told the seconds so far, about once a second while nothing comes.
    """
    asking = _Asking(time.monotonic() + timeout_s, interrupt, waiting or (lambda _: None))
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.setblocking(False)
        ended = asking.connect(connection, path) or asking.send(connection, canonical.file_bytes(request))
        return ended or asking.answer(connection)


class _Asking:
    """One question under one deadline: to connect, to send and to wait all end with it, and with the interrupt."""

    def __init__(self, end: float, interrupt: int | None, waiting: Callable[[float], None]) -> None:
        self._begun = time.monotonic()
        self._end = end
        self._interrupts = [] if interrupt is None else [interrupt]
        self._waiting = waiting

    def connect(self, connection: socket.socket, path: Path) -> Reply | None:
        while True:
            try:
                connection.connect(str(path))
                return None
            except BlockingIOError:  # its queue of connections is full; no event tells when it no longer is
                if ended := self._wait(most_s=_FULL_QUEUE_S):
                    return ended
            except OSError as error:
                return Reply("not_listening", text=f"{path.name}: {error.strerror or error}")

    def send(self, connection: socket.socket, line: bytes) -> Reply | None:
        rest = memoryview(line)
        while rest:
            if ended := self._wait(writes=connection):
                return ended
            try:
                rest = rest[connection.send(rest) :]
            except BlockingIOError:
                continue
            except OSError as error:
                return Reply("closed", text=f"the producer did not take the whole request: {error.strerror or error}")
        return None

    def answer(self, connection: socket.socket) -> Reply:
        data = bytearray()
        while not data.endswith(b"\n"):
            if ended := self._wait(reads=connection):
                return ended
            try:
                piece = connection.recv(1 << 20)
            except BlockingIOError:
                continue
            except OSError as error:
                return Reply("closed", text=error.strerror or str(error))
            if not piece:
                return Reply("closed", text="the producer closed the connection without an answer")
            data += piece
        try:
            value = canonical.parse(bytes(data))
        except CanonicalError as error:
            return Reply("bad_answer", text=f"an answer that is no answer: {error}")
        return Reply("answer", value) if isinstance(value, dict) else Reply("bad_answer", text="an answer is an object")

    def _wait(
        self, *, reads: socket.socket | None = None, writes: socket.socket | None = None, most_s: float | None = None
    ) -> Reply | None:
        """Wait for a socket or ``most_s`` seconds. The reply that ends the question, None when it goes on."""
        until = self._end if most_s is None else min(self._end, time.monotonic() + most_s)
        while True:
            left_s = until - time.monotonic()
            if left_s <= 0 and until == self._end:
                return Reply("deadline", text="no answer by the deadline")
            read: list[Any] = [*self._interrupts, *([reads] if reads else [])]
            ready, writable, _ = select.select(read, [writes] if writes else [], [], max(0.0, min(_TICK_S, left_s)))
            if any(item in ready for item in self._interrupts):
                return Reply("interrupted", text="the orchestrator was told to end")
            if ready or writable or left_s <= 0:
                return None
            self._waiting(time.monotonic() - self._begun)
