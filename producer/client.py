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
    begun = time.monotonic()
    end = begun + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(canonical.file_bytes(request))
        except OSError as error:
            return Reply("not_listening", text=f"{path.name}: {error.strerror or error}")
        return _answer(connection, end, interrupt, lambda: waiting(time.monotonic() - begun) if waiting else None)


def _answer(connection: socket.socket, end: float, interrupt: int | None, tick: Callable[[], None]) -> Reply:
    data = bytearray()
    watched: list[Any] = [connection] if interrupt is None else [connection, interrupt]
    while not data.endswith(b"\n"):
        left_s = end - time.monotonic()
        if left_s <= 0:
            return Reply("deadline", text="no answer by the deadline")
        ready, _, _ = select.select(watched, [], [], min(_TICK_S, left_s))
        if not ready:
            tick()
            continue
        if interrupt in ready:
            return Reply("interrupted", text="the orchestrator was told to end")
        try:
            piece = connection.recv(1 << 20)
        except OSError as error:
            return Reply("closed", text=error.strerror or str(error))
        if not piece:
            return Reply("closed", text="the producer closed the connection without an answer")
        data += piece
    try:
        value = canonical.parse(bytes(data))
    except CanonicalError as error:
        return Reply("closed", text=f"an answer that is no answer: {error}")
    return Reply("answer", value) if isinstance(value, dict) else Reply("closed", text="an answer that is no object")
