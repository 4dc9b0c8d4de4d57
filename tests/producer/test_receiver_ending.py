"""A receiver that is told to end: the handoff under way is finished, nothing new begins, and a second word cuts it."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from handoff_lane import FAST, PROMPT, admitted, handoff_id, payload, producer_side, receiver_config
from handoff_raw import RawProducer

from producer import receiving
from producer.handoff import inspection, receiver, sender
from producer.handoff.admission import AdmissionStore
from producer.handoff.enrollment import ReceiverAddress
from producer.handoff.errors import LinkError, WireError
from producer.handoff.frames import FrameType
from producer.handoff.serving import ReceiverSession, Slot
from producer.handoff.stream import FrameStream
from receipts.clock import HostClock


@dataclass
class Serving:
    """A receiver in a thread, with the two words that end it."""

    work_dir: Path
    stop: threading.Event
    cut: threading.Event
    thread: threading.Thread
    address: ReceiverAddress


@pytest.fixture
def serving(tmp_path: Path) -> Iterator[Serving]:
    running = start(tmp_path)
    yield running
    running.stop.set()
    running.cut.set()
    running.thread.join(15)
    assert not running.thread.is_alive()


def start(work_dir: Path) -> Serving:
    stop, cut, ready = threading.Event(), threading.Event(), threading.Event()
    bound: list[tuple[str, int]] = []

    def on_ready(host: str, port: int) -> None:
        bound.append((host, port))
        ready.set()

    config = receiver_config(work_dir)
    thread = threading.Thread(target=lambda: receiver.serve(config, ready=on_ready, stop=stop, cut=cut))
    thread.start()
    assert ready.wait(30), "the receiver did not come up"
    return Serving(work_dir, stop, cut, thread, ReceiverAddress(*bound[0]))


def opened(serving: Serving, size: int) -> sender.OpenedHandoff:
    return sender.connect(producer_side(), serving.address, size, clock=HostClock("here"), times=FAST)


def test_the_handoff_under_way_is_admitted_and_no_other_begins(serving: Serving) -> None:
    content, identifier = payload(), handoff_id()
    with opened(serving, content.bytes) as handoff:
        serving.stop.set()
        wait_until_not_listening(serving)
        assert not inspection.is_serving(serving.work_dir)
        assert serving.thread.is_alive()
        handoff.send(identifier, PROMPT, content.n_tokens, content.tensors, content.digests)
    serving.thread.join(15)
    assert not serving.thread.is_alive()
    assert admitted(serving.work_dir) == [f"{identifier}.json"]


def test_a_second_word_cuts_the_handoff(serving: Serving) -> None:
    content = payload()
    with opened(serving, content.bytes) as handoff:
        serving.stop.set()
        serving.cut.set()
        serving.thread.join(15)
        assert not serving.thread.is_alive()
        with pytest.raises(WireError):
            handoff.send(handoff_id(), PROMPT, content.n_tokens, content.tensors, content.digests)
    assert admitted(serving.work_dir) == []


def test_the_next_receiver_of_the_folder_waits_for_the_one_that_is_ending(serving: Serving) -> None:
    content, identifier = payload(), handoff_id()
    following: list[Serving] = []
    with opened(serving, content.bytes) as handoff:
        serving.stop.set()
        wait_until_not_listening(serving)
        beginning = threading.Thread(target=lambda: following.append(start(serving.work_dir)))
        beginning.start()
        beginning.join(1)
        assert beginning.is_alive()
        handoff.send(identifier, PROMPT, content.n_tokens, content.tensors, content.digests)
    beginning.join(30)
    (second,) = following
    try:
        with opened(second, content.bytes) as handoff:
            handoff.send(handoff_id(), PROMPT, content.n_tokens, content.tensors, content.digests)
        assert len(admitted(serving.work_dir)) == 2
    finally:
        second.stop.set()
        second.cut.set()
        second.thread.join(15)


@pytest.fixture
def joined(tmp_path: Path) -> Iterator[tuple[RawProducer, ReceiverSession, FrameStream]]:
    """A producer by hand that is connected, and the session that serves it, not yet running."""
    config = receiver_config(tmp_path)
    store = AdmissionStore(tmp_path, config.memory_limit_bytes, config.clock, {"lane": "loopback", "receiver": "here"})
    with (
        socket.create_server(("127.0.0.1", 0)) as listener,
        RawProducer(ReceiverAddress(*listener.getsockname())) as producer,
    ):
        stream = FrameStream(listener.accept()[0], congestion="auto")
        yield producer, ReceiverSession(config, store, Slot(), stream), stream
        stream.close()


def test_whoever_is_being_turned_away_does_not_get_the_slot_meanwhile(
    joined: tuple[RawProducer, ReceiverSession, FrameStream], monkeypatch: pytest.MonkeyPatch
) -> None:
    producer, session, stream = joined
    heard: list[str] = []
    cut = stream.cut

    def slow_cut() -> None:
        """Between the decision to cut and the cut, the stranger opens the slot."""
        producer_opens = threading.Thread(target=lambda: open_slot(producer, heard))
        producer_opens.start()
        producer_opens.join(1)
        cut()
        producer_opens.join(10)

    monkeypatch.setattr(stream, "cut", slow_cut)
    running = threading.Thread(target=session.run)
    running.start()
    session.turn_away()
    running.join(10)
    assert not running.is_alive()
    assert heard == []
    assert session.outcome == "peer_gone"


def test_whoever_holds_the_slot_is_not_turned_away(
    joined: tuple[RawProducer, ReceiverSession, FrameStream],
) -> None:
    producer, session, _ = joined
    running = threading.Thread(target=session.run)
    running.start()
    content = payload()
    producer.opened(content.bytes)
    session.turn_away()
    producer.begin(content)
    producer.layers(content)
    producer.end(content)
    assert producer.answer().type is FrameType.ACK
    producer.stream.close()
    running.join(10)
    assert not session.is_stranger


def open_slot(producer: RawProducer, heard: list[str]) -> None:
    with contextlib.suppress(WireError):
        producer.opened(192)
        heard.append("OPENED")


def wait_until_not_listening(serving: Serving) -> None:
    """Return as soon as the port is closed; fails the test when that never happens."""
    quick = replace(FAST, connect_s=1, handshake_s=1)
    for _ in range(100):
        try:
            sender.connect(producer_side(), serving.address, 1, clock=HostClock("here"), times=quick).close()
        except LinkError as error:
            if error.code == "unreachable":
                return
        except WireError:  # busy, or cut as a stranger: it still listened
            pass
    pytest.fail("the receiver goes on listening")


def test_told_to_end_twice_by_sigterm_a_receiver_process_still_finishes_its_handoff(tmp_path: Path) -> None:
    """The second one comes when whoever started it ends; only a second Ctrl-C cuts (``producer.receiving``)."""
    program = (
        "import sys, threading\n"
        "sys.path.insert(0, sys.argv[1])\n"
        "from pathlib import Path\n"
        "from handoff_lane import receiver_config\n"
        "from producer import receiving\n"
        "receiving.receiver_config = lambda _: receiver_config(Path(sys.argv[2]))\n"
        "receiving.serve(None, lambda host, port: print(host, port, flush=True))\n"
    )
    content, identifier = payload(), handoff_id()
    with subprocess.Popen(
        [sys.executable, "-c", program, str(Path(__file__).parent), str(tmp_path)], stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        host, port = process.stdout.readline().split()
        address = ReceiverAddress(host, int(port))
        size = content.bytes
        with sender.connect(producer_side(), address, size, clock=HostClock("here"), times=FAST) as handoff:
            running = receiving.RunningReceiver(process)
            assert not running.ends(0.5)
            assert not running.ends(0.5)
            handoff.send(identifier, PROMPT, content.n_tokens, content.tensors, content.digests)
        assert running.ends(20)
    assert admitted(tmp_path) == [f"{identifier}.json"]
