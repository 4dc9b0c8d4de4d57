"""Whoever has said nothing waits on the doorstep, and no flood of such keeps the producer out."""

from __future__ import annotations

import multiprocessing
import socket
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
from handoff_lane import (
    FAST,
    PROMPT,
    handoff_id,
    payload,
    producer_side,
    receiver_config,
    receiver_process,
    receiver_thread,
)

from producer.handoff import sender
from producer.handoff.doorstep import MOST_SILENT, Doorstep
from producer.handoff.enrollment import ReceiverAddress
from producer.handoff.errors import LinkError, RefusedError
from receipts.clock import HostClock

CLOCK = HostClock("here")


@contextmanager
def doorstep(patience_s: float = 60) -> Iterator[tuple[tuple[str, int], list[socket.socket]]]:
    """A doorstep with its address, and the connections that it gave a session."""
    taken: list[socket.socket] = []
    stop = threading.Event()
    with socket.create_server(("127.0.0.1", 0), backlog=512) as listener:
        step = Doorstep(listener, lambda sock, _: taken.append(sock), patience_s)
        thread = threading.Thread(target=step.run, args=(stop,))
        thread.start()
        try:
            yield listener.getsockname(), taken
        finally:
            stop.set()
            thread.join(10)
            for sock in taken:
                sock.close()


def is_closed(connection: socket.socket) -> bool:
    connection.settimeout(5)
    try:
        return connection.recv(1) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def wait_for(taken: list[socket.socket], count: int) -> None:
    end = time.monotonic() + 5
    while len(taken) < count and time.monotonic() < end:
        time.sleep(0.01)
    assert len(taken) == count


def test_a_connection_gets_a_session_with_its_first_byte_and_keeps_that_byte() -> None:
    with doorstep() as (address, taken), socket.create_connection(address) as ours:
        time.sleep(0.2)
        assert taken == []
        ours.sendall(b"K")
        wait_for(taken, 1)
        assert taken[0].recv(1) == b"K"


def test_one_that_hangs_up_without_a_word_gets_none() -> None:
    with doorstep() as (address, taken):
        socket.create_connection(address).close()
        with socket.create_connection(address) as ours:
            ours.sendall(b"K")
            wait_for(taken, 1)


def test_one_that_is_silent_for_too_long_gets_a_session_that_tells_it_so() -> None:
    with doorstep(patience_s=0.2) as (address, taken), socket.create_connection(address):
        wait_for(taken, 1)


def test_the_oldest_silent_one_goes_when_there_are_too_many_and_those_who_spoke_do_not() -> None:
    with doorstep() as (address, taken):
        speaker = socket.create_connection(address)
        speaker.sendall(b"K")
        wait_for(taken, 1)
        silent = [socket.create_connection(address) for _ in range(MOST_SILENT + 1)]
        assert is_closed(silent[0])
        silent[1].sendall(b"K")
        wait_for(taken, 2)
        for connection in (speaker, *silent):
            connection.close()


@pytest.mark.parametrize("lost", [1, 3])
def test_a_producer_whose_connection_is_lost_before_hello_ack_connects_anew(tmp_path: Path, lost: int) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path)) as address, socket.create_server(("127.0.0.1", 0)) as front:

        def go_between() -> None:
            for _ in range(lost):
                front.accept()[0].close()
            ours, theirs = front.accept()[0], socket.create_connection((address.host, address.port))
            with ours, theirs:
                back = threading.Thread(target=pass_on, args=(theirs, ours))
                back.start()
                pass_on(ours, theirs)
                back.join(10)

        between = threading.Thread(target=go_between)
        between.start()
        where = ReceiverAddress(*front.getsockname())
        with sender.connect(producer_side(), where, data.bytes, clock=CLOCK, times=FAST) as opened:
            opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, data.digests)
        between.join(10)


def test_a_refusal_before_hello_ack_is_no_reason_to_connect_anew(tmp_path: Path) -> None:
    config = receiver_config(tmp_path, lane="another")
    with receiver_thread(config) as address:
        started = time.monotonic()
        with pytest.raises(RefusedError):
            sender.connect(producer_side(), address, 1, clock=CLOCK, times=FAST)
        assert time.monotonic() - started < 2


def test_a_receiver_that_always_hangs_up_is_gone_when_the_time_to_connect_is_over() -> None:
    with socket.create_server(("127.0.0.1", 0)) as front:
        stop = threading.Event()

        def hang_up() -> None:
            front.settimeout(0.05)
            while not stop.is_set():
                try:
                    front.accept()[0].close()
                except TimeoutError:
                    continue

        thread = threading.Thread(target=hang_up)
        thread.start()
        try:
            with pytest.raises(LinkError) as caught:
                sender.connect(
                    producer_side(), ReceiverAddress(*front.getsockname()), 1, clock=CLOCK,
                    times=replace(FAST, connect_s=0.5),
                )  # fmt: skip
        finally:
            stop.set()
            thread.join(10)
    assert caught.value.code == "peer_gone"


def pass_on(source: socket.socket, target: socket.socket) -> None:
    try:
        while piece := source.recv(65536):
            target.sendall(piece)
        target.shutdown(socket.SHUT_WR)
    except OSError:
        pass


def flood(host: str, port: int) -> None:
    """Connect as fast as it goes, say nothing, keep the last 200."""
    kept: deque[socket.socket] = deque()
    while True:
        try:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex((host, port))
            kept.append(connection)
            if len(kept) > 200:
                kept.popleft().close()
        except OSError:
            time.sleep(0.001)


@pytest.mark.slow
def test_a_producer_gets_through_while_a_stranger_connects_as_fast_as_it_can(tmp_path: Path) -> None:
    data = payload()
    with receiver_process(tmp_path) as running:
        address = running.address
        stranger = multiprocessing.get_context("spawn").Process(
            target=flood, args=(address.host, address.port), daemon=True
        )
        stranger.start()
        try:
            time.sleep(1.5)
            for _ in range(10):
                with sender.connect(producer_side(), address, data.bytes, clock=CLOCK, times=FAST) as opened:
                    opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, data.digests)
        finally:
            stranger.kill()
            stranger.join()
