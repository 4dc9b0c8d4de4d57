"""The asking end of ``producer.sock``: one request, one answer, and the ways in which no answer comes."""

from __future__ import annotations

import select
import socket
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from receipts import canonical
from receipts.errors import CanonicalError

Ending = Literal["answer", "bad_answer", "closed", "deadline", "interrupted", "not_listening"]


@dataclass(frozen=True)
class Reply:
    """How a request ended. ``value`` is the answer; only with ``ending`` "answer"."""

    ending: Ending
    value: dict[str, Any] | None = None
    text: str = ""


def ask(path: Path, request: dict[str, Any], *, timeout_s: float, interrupt: int | None = None) -> Reply:
    """Send one request line and wait for its answer line, the deadline, or a readable ``interrupt`` descriptor."""
    end = time.monotonic() + timeout_s
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(timeout_s)
        try:
            connection.connect(str(path))
            connection.sendall(canonical.file_bytes(request))
        except OSError as error:
            return Reply("not_listening", text=f"{path.name}: {error.strerror or error}")
        return _answer(connection, end, interrupt)


def _answer(connection: socket.socket, end: float, interrupt: int | None) -> Reply:
    data = bytearray()
    watched: list[Any] = [connection] if interrupt is None else [connection, interrupt]
    while not data.endswith(b"\n"):
        ready, _, _ = select.select(watched, [], [], max(0.0, end - time.monotonic()))
        if not ready:
            return Reply("deadline", text="no answer by the deadline")
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
