"""Asking the producer: one deadline over connecting, sending and waiting, an interrupt that is heard in each."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from producer import client

pytestmark = pytest.mark.timeout(30)

LARGE = {"v": 1, "ids": list(range(1_000_000))}
"""More than any socket's buffer takes."""


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as bound:
        bound.bind(str(tmp_path / "producer.sock"))
        bound.listen(1)
        yield bound


@pytest.fixture
def interrupt() -> Iterator[tuple[int, Callable[[], Any]]]:
    """A descriptor that can be read once the function was called."""
    reads, writes = os.pipe()
    yield reads, lambda: os.write(writes, b"x")
    os.close(reads)
    os.close(writes)


def ask(path: Path, request: dict[str, Any], timeout_s: float = 20, **words: Any) -> client.Reply:
    return client.ask(path / "producer.sock", request, timeout_s=timeout_s, **words)


def answering(listener: socket.socket, line: bytes) -> None:
    """Take one request line and answer with ``line``."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while not connection.recv(1 << 20).endswith(b"\n"):
                pass
            connection.sendall(line)

    threading.Thread(target=serve, daemon=True).start()


def test_an_answer_comes_back_however_long_the_request_is(tmp_path: Path, listener: socket.socket) -> None:
    answering(listener, b'{"v":1}\n')
    assert ask(tmp_path, LARGE) == client.Reply("answer", {"v": 1})


@pytest.mark.parametrize("line", [b'{"v":1,"v":1}\n', b"[]\n", b"garbage\n", b"\n"])
def test_an_answer_that_is_none_is_a_bad_answer(tmp_path: Path, listener: socket.socket, line: bytes) -> None:
    answering(listener, line)
    assert ask(tmp_path, {"v": 1}).ending == "bad_answer"


def test_a_connection_that_ends_without_an_answer_is_closed(tmp_path: Path, listener: socket.socket) -> None:
    answering(listener, b"")
    assert ask(tmp_path, {"v": 1}).ending == "closed"


def test_nobody_there_is_told_at_once(tmp_path: Path) -> None:
    assert ask(tmp_path, {"v": 1}).ending == "not_listening"


@pytest.mark.parametrize("request_", [{"v": 1}, LARGE], ids=["small", "large"])
@pytest.mark.usefixtures("listener")
def test_one_that_listens_and_takes_nothing_is_a_deadline_and_not_an_absence(
    tmp_path: Path, request_: dict[str, Any]
) -> None:
    assert ask(tmp_path, request_, timeout_s=0.3).ending == "deadline"


@pytest.mark.parametrize("request_", [{"v": 1}, LARGE], ids=["small", "large"])
@pytest.mark.usefixtures("listener")
def test_an_interrupt_is_heard_while_the_request_is_sent_and_while_it_is_waited_for(
    tmp_path: Path, request_: dict[str, Any], interrupt: tuple[int, Callable[[], Any]]
) -> None:
    reads, happen = interrupt
    threading.Timer(0.2, happen).start()
    assert ask(tmp_path, request_, interrupt=reads).ending == "interrupted"


def test_a_full_queue_of_connections_is_waited_for_until_the_deadline(tmp_path: Path, listener: socket.socket) -> None:
    waiting = []
    for _ in range(8):
        other = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        other.setblocking(False)
        waiting.append(other)
        try:
            other.connect(str(tmp_path / "producer.sock"))
        except BlockingIOError:
            break
    assert ask(tmp_path, {"v": 1}, timeout_s=0.3).ending == "deadline"
    for other in waiting:
        other.close()
    assert listener.fileno() >= 0


@pytest.mark.usefixtures("listener")
def test_who_waits_is_told_for_how_long(tmp_path: Path) -> None:
    told: list[float] = []
    begun = time.monotonic()
    ask(tmp_path, {"v": 1}, timeout_s=2.5, waiting=told.append)
    assert told == sorted(told)
    assert 1 <= len(told) <= 3
    assert told[-1] <= time.monotonic() - begun
