"""Every way in which a handoff goes wrong on the wire has a name, and nothing is admitted."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from handoff_lane import (
    FAST,
    KEY,
    PROMPT,
    SMOLLM2,
    Payload,
    admitted,
    handoff_id,
    payload,
    producer_side,
    receiver_config,
    receiver_process,
    receiver_thread,
)
from handoff_raw import RawProducer, RawReceiver, raw_receiver, true_root
from test_handoff import hand_off

from producer.handoff import frames, inspection, keepalive, receiver, sender, session
from producer.handoff.admission import AdmissionStore
from producer.handoff.enrollment import MAX_STRANGERS, ReceiverAddress, ReceiverTimes, SenderTimes
from producer.handoff.errors import CODES, RefusedError, WireError
from producer.handoff.frames import FrameType
from producer.handoff.keepalive import Keepalive
from producer.handoff.manifest import KVGeometry, LayerGeometry
from producer.handoff.receiver import Connections
from producer.handoff.serving import ReceiverSession, Slot
from producer.handoff.session import SessionKeys
from producer.handoff.stream import Deadline, FrameStream
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import InputError

CLOCK = HostClock("here")
DATA = payload()
ROW = 2 * 8 * 2
"""Bytes of one token of one tensor in SMALL."""


@pytest.fixture
def lane(tmp_path: Path) -> Iterator[ReceiverAddress]:
    """A receiver that must live on: after the test it still serves a good handoff."""
    with receiver_thread(receiver_config(tmp_path)) as address:
        yield address
        assert admitted(tmp_path) == [], "something was admitted"
        wait_for(lambda: inspection.status(tmp_path)["producer"] is None)
        assert hand_off(address, DATA).root == "blake3:" + true_root(DATA).hex()
        assert len(admitted(tmp_path)) == 1


def nack_after(address: ReceiverAddress, act: Callable[[RawProducer], None]) -> str:
    """The code of the NACK that ends a session which went right up to OPENED and then did ``act``."""
    with RawProducer(address) as producer:
        producer.opened(DATA.bytes)
        act(producer)
        answer = producer.answer()
    assert answer.type is FrameType.NACK
    assert answer.header["code"] in CODES
    return str(answer.header["code"])


def with_begin(act: Callable[[RawProducer], None]) -> Callable[[RawProducer], None]:
    def run(producer: RawProducer) -> None:
        producer.begin(DATA)
        act(producer)

    return run


def flip_one_byte(producer: RawProducer) -> None:
    for index, (item, view) in enumerate(DATA.tensors):
        body = bytearray(view)
        if index == 3:
            body[17] ^= 1
        producer.layer(index, item.first_token, item.tokens, bytes(body))
    producer.end(DATA)


def wrong_end_mac(producer: RawProducer) -> None:
    producer.layers(DATA)
    producer.raw(frames.build(FrameType.END, {"mac": "0" * 64}).wire)


def other_direction(producer: RawProducer) -> None:
    producer.layers(DATA)
    producer.end(DATA, SessionKeys(producer.keys.r2p, producer.keys.p2r))


def skip_a_tensor(producer: RawProducer) -> None:
    for index in range(5):
        producer.layer(index, 0, 5, bytes(5 * ROW))
    producer.end(DATA)


def all_but_the_last_token(producer: RawProducer) -> None:
    for index in range(6):
        producer.layer(index, 0, 4, bytes(4 * ROW))
    producer.end(DATA)


def overlap(producer: RawProducer) -> None:
    producer.layer(0, 0, 3, bytes(3 * ROW))
    producer.layer(0, 2, 3, bytes(3 * ROW))


def the_same_range_twice(producer: RawProducer) -> None:
    producer.layer(0, 0, 5, bytes(5 * ROW))
    producer.layer(0, 0, 5, bytes(5 * ROW))


@pytest.mark.parametrize(
    ("act", "code"),
    [
        (flip_one_byte, "bytes_differ"),
        (wrong_end_mac, "bytes_differ"),
        (other_direction, "bytes_differ"),
        (skip_a_tensor, "range_missing"),
        (all_but_the_last_token, "range_missing"),
        (lambda p: p.end(DATA), "range_missing"),
        (overlap, "range_overlap"),
        (the_same_range_twice, "range_overlap"),
        (lambda p: p.layer(0, 1, 4, bytes(4 * ROW)), "range_gap"),
        (lambda p: p.layer(0, 0, 6, bytes(6 * ROW)), "range_beyond"),
        (lambda p: p.layer(6, 0, 5, bytes(5 * ROW)), "unknown_tensor"),
        (lambda p: p.layer(0, 0, 5, bytes(5 * ROW - 1)), "short_body"),
        (lambda p: p.layer(0, 0, 5, bytes(5 * ROW + 1)), "long_body"),
        (lambda p: p.layer(0, 0, 5, b""), "short_body"),
        (lambda p: p.begin(DATA), "unexpected_frame"),
        (lambda p: p.raw(b"KVH3" + bytes(16)), "bad_magic"),
    ],
)
def test_a_payload_that_is_not_what_begin_said_is_refused(
    lane: ReceiverAddress, act: Callable[[RawProducer], None], code: str
) -> None:
    assert nack_after(lane, with_begin(act)) == code


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"total_bytes": 959}, "size_differs"),
        ({"n_tokens": 6}, "geometry_differs"),
        ({"n_tokens": 6, "total_bytes": 959}, "size_differs"),
        ({"tensors": [{**item.document(), "part": "latent"} for item, _ in DATA.tensors]}, "geometry_differs"),
        ({"tensors": [item.document() for item, _ in DATA.tensors][:5]}, "geometry_differs"),
        ({"tensors": [item.document() for item, _ in reversed(DATA.tensors)]}, "geometry_differs"),
        ({"tensors": [{**item.document(), "dtype": "float16"} for item, _ in DATA.tensors]}, "geometry_differs"),
    ],
)
def test_a_begin_that_the_enrolled_geometry_does_not_give_is_refused(
    lane: ReceiverAddress, changes: dict[str, object], code: str
) -> None:
    assert nack_after(lane, lambda p: p.begin(DATA, **changes)) == code


def test_more_bytes_than_the_tensors_have_are_refused_though_both_ends_agree_on_them(lane: ReceiverAddress) -> None:
    with RawProducer(lane) as producer:
        producer.opened(DATA.bytes + 1)
        producer.begin(DATA, total_bytes=DATA.bytes + 1)
        assert producer.answer().header["code"] == "size_differs"


def test_an_end_before_begin_is_refused(lane: ReceiverAddress) -> None:
    assert nack_after(lane, lambda p: p.end(DATA)) == "unexpected_frame"


def test_half_a_frame_and_then_the_end_of_the_connection_is_a_short_frame(lane: ReceiverAddress) -> None:
    def act(producer: RawProducer) -> None:
        producer.begin(DATA)
        header = {"tensor": 0, "first_token": 0, "count": 5}
        producer.raw(frames.build(FrameType.LAYER, header, 5 * ROW).wire + bytes(ROW))
        producer.stream.sock.shutdown(socket.SHUT_WR)

    assert nack_after(lane, act) == "short_frame"


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"identity": canonical.sha256(b"another")}, "identity"),
        ({"cache_identity": canonical.sha256(b"another")}, "cache_identity"),
        ({"mode": "exact"}, "mode"),
        ({"lane": "other"}, "lane"),
    ],
)
def test_a_hello_with_anything_not_enrolled_is_refused_by_field(
    lane: ReceiverAddress, changes: dict[str, str], field: str
) -> None:
    with RawProducer(lane) as producer:
        answer = producer.hello(DATA.bytes, **changes)
    assert (answer.type, answer.header["code"]) == (FrameType.NACK, "not_enrolled")
    assert answer.header["reason"].startswith(f"{field}:")


def test_a_hello_that_asks_for_more_than_the_limit_is_refused_before_anything_is_reserved(
    lane: ReceiverAddress, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_reserve(*_: object) -> None:
        raise AssertionError("reserved")

    with monkeypatch.context() as patch:
        patch.setattr("producer.handoff.serving.Reserve", no_reserve)
        with RawProducer(lane) as producer:
            answer = producer.hello(64 * 1024 * 1024 + 1)
    assert (answer.type, answer.header["code"]) == (FrameType.NACK, "too_large")


def test_an_open_with_a_wrong_mac_takes_no_slot(lane: ReceiverAddress, tmp_path: Path) -> None:
    with RawProducer(lane) as producer:
        producer.hello(DATA.bytes)
        producer.raw(frames.build(FrameType.OPEN, {"mac": "0" * 64}).wire)
        answer = producer.answer()
        assert (answer.type, answer.header["code"]) == (FrameType.NACK, "bad_mac")
        assert inspection.status(tmp_path)["producer"] is None


def test_three_strangers_that_only_say_hello_leave_the_slot_free(lane: ReceiverAddress, tmp_path: Path) -> None:
    strangers = [RawProducer(lane) for _ in range(3)]
    try:
        assert [stranger.hello(DATA.bytes).type for stranger in strangers] == [FrameType.HELLO_ACK] * 3
        assert inspection.status(tmp_path)["producer"] is None
        with sender.connect(producer_side(), lane, DATA.bytes, clock=CLOCK, times=FAST) as opened:
            opened.check()
    finally:
        for stranger in strangers:
            stranger.stream.close()


def test_a_flood_of_silent_connections_does_not_keep_the_producer_out(lane: ReceiverAddress) -> None:
    flood = [socket.create_connection((lane.host, lane.port), 5) for _ in range(40)]
    try:
        with sender.connect(producer_side(), lane, DATA.bytes, clock=CLOCK, times=FAST) as opened:
            opened.check()
    finally:
        for connection in flood:
            connection.close()


def test_strangers_that_come_faster_than_the_cut_ones_leave_are_still_at_most_sixteen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    leave, cut = threading.Event(), []
    monkeypatch.setattr(ReceiverSession, "run", lambda _self: leave.wait(10) and None)
    monkeypatch.setattr(FrameStream, "cut", lambda self: cut.append(self.info.peer))
    config = receiver_config(tmp_path)
    store = AdmissionStore(tmp_path, config.memory_limit_bytes, config.clock, {"lane": "loopback", "receiver": "here"})
    connections = Connections(config, store, Slot())
    with socket.create_server(("127.0.0.1", 0)) as listener:
        ours = []
        for _ in range(19):
            ours.append(socket.create_connection(listener.getsockname(), 5))
            connections.take(listener.accept()[0])
        oldest = [f"127.0.0.1:{connection.getsockname()[1]}" for connection in ours[:3]]
        assert cut == oldest
        leave.set()
        connections.close()
        for connection in ours:
            connection.close()


def test_a_recorded_session_that_is_played_again_fails_at_open(lane: ReceiverAddress) -> None:
    with RawProducer(lane) as first:
        first.opened(DATA.bytes)
        recorded = first.sent
    with RawProducer(lane) as second:
        second.raw(recorded)
        answers = [second.answer(), second.answer()]
    assert [answer.type for answer in answers] == [FrameType.HELLO_ACK, FrameType.NACK]
    assert answers[1].header["code"] == "bad_mac"


def test_a_handoff_id_is_admitted_once_even_over_a_restart(tmp_path: Path) -> None:
    name = handoff_id()
    for _ in range(2):
        with receiver_thread(receiver_config(tmp_path)) as address:
            if not admitted(tmp_path):
                hand_off(address, DATA, name=name)
            with pytest.raises(WireError) as caught:
                hand_off(address, DATA, name=name)
            assert caught.value.code == "replayed"
    assert admitted(tmp_path) == [f"{name}.json"]


def test_a_second_producer_meanwhile_gets_busy_and_the_first_goes_on(tmp_path: Path) -> None:
    with (
        receiver_thread(receiver_config(tmp_path)) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=FAST) as first,
    ):
        with pytest.raises(WireError) as caught:
            sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=FAST)
        assert caught.value.code == "busy"
        first.send(handoff_id(), PROMPT, DATA.n_tokens, DATA.tensors, None)
    assert len(admitted(tmp_path)) == 1


def test_a_silent_slot_is_freed_and_said_so(tmp_path: Path) -> None:
    config = receiver_config(tmp_path, times=ReceiverTimes(silence_s=0.3, drain_s=1))
    with receiver_thread(config) as address:
        assert nack_after(address, lambda _: None) == "stale_slot"
        hand_off(address, DATA)


def test_a_producer_whose_slot_was_freed_learns_it_before_begin(tmp_path: Path) -> None:
    config = receiver_config(tmp_path, times=ReceiverTimes(silence_s=0.3, drain_s=1))
    quiet = replace(FAST, ping_s=30)
    with (
        receiver_thread(config) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=quiet) as opened,
    ):
        wait_for(lambda: not opened.alive)
        with pytest.raises(WireError) as caught:
            opened.check()
        assert caught.value.code == "stale_slot"
    assert admitted(tmp_path) == []


@pytest.mark.slow
def test_pings_keep_the_slot_through_a_prefill_longer_than_the_silence_limit(tmp_path: Path) -> None:
    config = receiver_config(tmp_path, times=ReceiverTimes(silence_s=2.0))
    with (
        receiver_thread(config) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=FAST) as opened,
    ):
        finish = time.monotonic() + 3.0
        while time.monotonic() < finish:  # the engine computes
            sum(range(1000))
        opened.check()
        opened.send(handoff_id(), PROMPT, DATA.n_tokens, DATA.tensors, None)
    assert len(admitted(tmp_path)) == 1


@pytest.mark.parametrize(
    "garbage", [b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", b"\x16\x03\x01\x02\x00\x01\x00\x01", bytes(64), b"KVH2" * 8]
)
def test_a_port_scanners_garbage_disturbs_nobody(lane: ReceiverAddress, garbage: bytes) -> None:
    with sender.connect(producer_side(), lane, DATA.bytes, clock=CLOCK, times=FAST) as opened:
        with socket.create_connection((lane.host, lane.port), 5) as scanner:
            scanner.sendall(garbage)
            scanner.shutdown(socket.SHUT_WR)
            answer = b"".join(iter(lambda: scanner.recv(4096), b""))
        assert any(code in answer for code in (b"bad_magic", b"bad_version", b"short_frame"))
        opened.check()


def test_a_trickle_meets_the_handshake_deadline(tmp_path: Path) -> None:
    config = receiver_config(tmp_path, times=ReceiverTimes(handshake_s=0.4, drain_s=0.1))
    with receiver_thread(config) as address, RawProducer(address) as producer:
        hello = frames.build(FrameType.PING, {}).wire
        for byte in hello[:6]:  # each byte within any idle limit
            producer.raw(bytes([byte]))
            time.sleep(0.05)
        assert producer.answer().header["code"] == "handshake_timeout"


def test_an_abort_frees_the_slot_and_admits_nothing(lane: ReceiverAddress) -> None:
    opened = sender.connect(producer_side(), lane, DATA.bytes, clock=CLOCK, times=FAST)
    opened.abort("engine_failed", "raised in layer 3")
    with pytest.raises(WireError) as caught:
        opened.check()
    assert caught.value.code == "closed"


# -- what the producer sees


def failing_send(address: ReceiverAddress, data: Payload = DATA) -> WireError:
    with pytest.raises(WireError) as caught:
        hand_off(address, data)
    return caught.value


def test_nobody_listening_is_said_before_the_engine_is_touched() -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = ReceiverAddress(*free.getsockname())
    error = failing_send(address)
    assert error.code == "unreachable"
    assert error.where == f"127.0.0.1:{address.port}"


def test_a_receiver_with_another_name_is_refused(tmp_path: Path) -> None:
    with receiver_thread(receiver_config(tmp_path, name="there")) as address:
        assert failing_send(address).code == "wrong_receiver"


def test_a_receiver_with_another_key_is_refused_and_gets_nothing_of_the_prompt(tmp_path: Path) -> None:
    with receiver_thread(receiver_config(tmp_path, handoff_key=bytes(32))) as address:
        assert failing_send(address).code == "bad_mac"
    assert admitted(tmp_path) == []


def test_a_flipped_byte_is_named_by_tensor(tmp_path: Path) -> None:
    """The digests are of the capture; one byte of the memory changed after it."""
    raw = bytearray(DATA.tensors[3][1])
    raw[17] ^= 1
    tensors = [*DATA.tensors[:3], (DATA.tensors[3][0], memoryview(raw)), *DATA.tensors[4:]]
    with receiver_thread(receiver_config(tmp_path)) as address:
        error = failing_send(address, replace(DATA, tensors=tensors))
    assert error.code == "bytes_differ"
    assert "first differing tensor 3: layer 1 v" in error.reason
    assert admitted(tmp_path) == []


def fooled(act: Callable[[RawReceiver], None]) -> str:
    """The code with which a producer refuses a receiver that plays ``act``."""
    with raw_receiver(KEY, act) as address:
        return failing_send(address).code


def test_end_reflected_as_ack_is_refused() -> None:
    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        end = receiver.payload()
        root = "blake3:" + true_root(DATA).hex()
        sig = "ed25519:" + "A" * 86 + "=="
        receiver.put(frames.build(FrameType.ACK, {"mac": end.header["mac"], "root": root, "sig": sig}))

    assert fooled(act) == "bad_mac"


def test_an_ack_made_with_the_producers_direction_is_refused() -> None:
    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        receiver.payload()
        swapped = SessionKeys(receiver.keys.r2p, receiver.keys.p2r)
        fields = {"root": "blake3:" + true_root(DATA).hex(), "sig": "ed25519:" + "A" * 86 + "=="}
        frame = session.sealed(receiver.transcript, swapped, FrameType.ACK, fields, true_root(DATA))
        receiver.stream.write([frame.wire], Deadline.after(5))

    assert fooled(act) == "bad_mac"


def test_a_receiver_that_skipped_the_bytes_cannot_make_an_ack() -> None:
    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        receiver.payload()
        guess = "blake3:" + "0" * 64
        fields = {"root": guess, "sig": "ed25519:" + "A" * 86 + "=="}
        frame = session.sealed(receiver.transcript, receiver.keys, FrameType.ACK, fields, session.root_bytes(guess))
        receiver.stream.write([frame.wire], Deadline.after(5))

    assert fooled(act) == "root_differs"


def test_an_ack_with_a_good_mac_but_no_signature_of_the_enrolled_key_is_refused() -> None:
    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        receiver.payload()
        fields = {"root": "blake3:" + true_root(DATA).hex(), "sig": "ed25519:" + "A" * 86 + "=="}
        frame = session.sealed(receiver.transcript, receiver.keys, FrameType.ACK, fields, true_root(DATA))
        receiver.stream.write([frame.wire], Deadline.after(5))

    assert fooled(act) == "bad_signature"


def refuses_behind_opened(receiver: RawReceiver) -> None:
    nack = frames.build(FrameType.NACK, {"code": "stale_slot", "reason": "no memory after all"})
    receiver.opened(behind=nack.wire)
    receiver.take()  # until the producer hangs up


def test_a_nack_right_behind_opened_is_heard_before_the_engine_is_touched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Keepalive, "_run", lambda _: None)  # the thread has not had its turn yet
    with (
        raw_receiver(KEY, refuses_behind_opened) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=FAST) as opened,
        pytest.raises(RefusedError, match="no memory after all"),
    ):
        opened.check()


def test_a_nack_right_behind_opened_is_heard_without_anybody_asking() -> None:
    rare = replace(FAST, ping_s=60)
    with (
        raw_receiver(KEY, refuses_behind_opened) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=rare) as opened,
    ):
        wait_for(lambda: not opened.alive)


def pong_unasked(receiver: RawReceiver) -> None:
    receiver.opened()
    receiver.put(frames.build(FrameType.PONG, {}))


def test_a_pong_that_nobody_asked_for_ends_the_slot() -> None:
    never = replace(FAST, ping_s=30)
    with (
        raw_receiver(KEY, pong_unasked) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=never) as opened,
    ):
        wait_for(lambda: not opened.alive)
        with pytest.raises(WireError) as caught:
            opened.check()
    assert caught.value.code == "unexpected_frame"


def test_a_second_pong_for_one_ping_ends_the_slot() -> None:
    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        assert receiver.take().type is FrameType.PING
        for _ in range(2):
            receiver.put(frames.build(FrameType.PONG, {}))
        with contextlib.suppress(WireError):
            receiver.take()  # until the producer hangs up

    rarely = replace(FAST, ping_s=1.0)
    with (
        raw_receiver(KEY, act) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=rarely) as opened,
    ):
        wait_for(lambda: not opened.alive)
        with pytest.raises(WireError) as caught:
            opened.check()
    assert caught.value.code == "unexpected_frame"


def test_a_pong_that_comes_late_is_taken_up_to_the_ack() -> None:
    """The PING is answered only after END; the answer that fails the test is the one after it."""

    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        assert receiver.take().type is FrameType.PING
        receiver.payload()
        receiver.put(frames.build(FrameType.PONG, {}))
        receiver.put(frames.build(FrameType.NACK, {"code": "no_memory", "reason": "so"}))

    with (
        raw_receiver(KEY, act) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=replace(FAST, ping_s=0.2)) as opened,
    ):
        wait_for(lambda: opened._pings.unanswered == 1)
        with pytest.raises(WireError) as caught:
            opened.send(handoff_id(), PROMPT, DATA.n_tokens, DATA.tensors, DATA.digests)
    assert caught.value.code == "no_memory"


def test_a_receiver_that_does_not_answer_hello_meets_the_handshake_limit() -> None:
    release = threading.Event()
    with raw_receiver(KEY, lambda _: release.wait(20) and None) as address:
        with pytest.raises(WireError) as caught:
            sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=replace(FAST, handshake_s=0.2))
        release.set()
    assert caught.value.code == "deadline"


def test_the_wait_for_opened_grows_with_the_bytes_to_fill(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    after = Deadline.after

    def recording(seconds: float, code: str = "deadline") -> Deadline:
        asked.append(seconds)
        return after(seconds, code)

    with raw_receiver(KEY, lambda receiver: receiver.opened()) as address, monkeypatch.context() as patch:
        patch.setattr(Deadline, "after", recording)
        sender.connect(producer_side(), address, 75_000_000, clock=CLOCK, times=replace(FAST, ping_s=30)).close()
    assert FAST.handshake_s + 1.5 in asked


@pytest.mark.parametrize(
    ("layer", "dtype"),
    [
        (LayerGeometry("chunk", 512, 2, 8, 0), "bfloat16"),
        (LayerGeometry("window", None, 2, 8, 0), "bfloat16"),
        (LayerGeometry("window", 0, 2, 8, 0), "bfloat16"),
        (LayerGeometry("full", None, 2, 8, 0), "float8_e4m3fn"),
    ],
)
def test_a_geometry_without_a_layout_is_refused_before_either_end_speaks(
    tmp_path: Path, layer: LayerGeometry, dtype: str
) -> None:
    geometry = KVGeometry((layer,), dtype)
    at_once = threading.Event()
    at_once.set()
    with pytest.raises(InputError, match="no known layout"):
        receiver.serve(receiver_config(tmp_path, geometry), ready=lambda *_: None, stop=at_once)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.setblocking(False)
        address = ReceiverAddress(*listener.getsockname())
        with pytest.raises(InputError, match="no known layout"):
            sender.connect(producer_side(geometry), address, 1, clock=CLOCK, times=FAST)
        with pytest.raises(BlockingIOError):
            listener.accept()


def test_the_limits_of_the_document_are_ours() -> None:
    text = Path("docs/formats/wire.md").read_text(encoding="utf-8")
    ours, theirs = SenderTimes(), ReceiverTimes()
    for row in (
        f"| the TCP connection | {ours.connect_s:.0f} s | `unreachable` |",
        f"| HELLO to leave, HELLO_ACK to be complete and OPEN to leave | {ours.handshake_s:.0f} s together,",
        f"| OPENED to be complete | {ours.handshake_s:.0f} s + HELLO's `bytes` / {sender._FILL_BYTES_PER_S:,} s,",
        f"| any byte of the receiver's, from OPENED to BEGIN | {ours.silence_s:.0f} s since the last | `peer_silent` |",
        f"to be complete, from OPENED to BEGIN | {keepalive._FRAME_S:.0f} s | `deadline` |",
        f"| the whole session, from before the connection | {ours.session_s:.0f} s | `deadline` |",
        f"| a NACK, after sending failed | {keepalive._LAST_WORD_S:.0f} s | `peer_gone` |",
        f"It sends a PING every {ours.ping_s:.0f} s",
        f"| HELLO to be complete, HELLO_ACK to leave and OPEN to be complete | {theirs.handshake_s:.0f} s together,",
        f"| the next byte, from OPENED to END, inside a frame or between two | {theirs.silence_s:.0f} s since",
        f"| OPENED, a PONG, ACK or a NACK to leave | {theirs.write_s:.0f} s each |",
        f"| the producer's end of the connection, after its own | {theirs.drain_s:.0f} s | closes |",
        f"A receiver keeps {MAX_STRANGERS}.",
    ):
        assert row in text, row


def test_a_receiver_that_hangs_up_during_the_prefill_is_noticed_before_begin() -> None:
    with (
        raw_receiver(KEY, lambda receiver: receiver.opened()) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=FAST) as opened,
    ):
        wait_for(lambda: not opened.alive)
        with pytest.raises(WireError) as caught:
            opened.check()
    assert caught.value.code == "peer_gone"


def test_a_receiver_that_answers_no_ping_is_silent() -> None:
    release = threading.Event()

    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        release.wait(20)

    times = replace(FAST, silence_s=0.3)
    with (
        raw_receiver(KEY, act) as address,
        sender.connect(producer_side(), address, DATA.bytes, clock=CLOCK, times=times) as opened,
    ):
        wait_for(lambda: not opened.alive)
        with pytest.raises(WireError) as caught:
            opened.check()
        release.set()
    assert caught.value.code == "peer_silent"


def test_a_receiver_killed_after_some_layers_is_gone_and_says_where() -> None:
    def act(receiver: RawReceiver) -> None:
        receiver.opened()
        for _ in range(4):
            frame = receiver.take()
            left = frame.body_len
            while left:
                left -= receiver.stream.read_into(memoryview(bytearray(min(left, 65536))), Deadline.after(5))

    data = payload(SMOLLM2, 512)
    with (
        raw_receiver(KEY, act) as address,
        sender.connect(producer_side(SMOLLM2), address, data.bytes, clock=CLOCK, times=FAST) as opened,
        pytest.raises(WireError) as caught,
    ):
        opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, data.digests)
    assert caught.value.code == "peer_gone"
    assert "of 60 tensors" in caught.value.reason


@pytest.mark.slow
@pytest.mark.timeout(25)  # before the silence that also ends it: what ends it is the session's deadline
def test_a_frozen_receiver_ends_at_the_wall_clock_deadline(tmp_path: Path) -> None:
    """SIGSTOP: the connection stays up and takes no more bytes (FACTS section 6)."""
    data = payload(SMOLLM2, 2048)
    times = replace(FAST, session_s=3.0, silence_s=30)
    with receiver_process(tmp_path, SMOLLM2) as running:
        opened = sender.connect(producer_side(SMOLLM2), running.address, data.bytes, clock=CLOCK, times=times)
        assert running.process.pid is not None
        os.kill(running.process.pid, signal.SIGSTOP)
        try:
            with pytest.raises(WireError) as caught:
                opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, data.digests)
        finally:
            os.kill(running.process.pid, signal.SIGCONT)
    assert caught.value.code == "deadline"
    assert admitted(tmp_path) == []


def wait_for(condition: Callable[[], bool]) -> None:
    finish = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < finish, "it did not come to pass"
        time.sleep(0.01)


def test_two_handoffs_of_one_payload_have_one_root_and_two_signatures(tmp_path: Path) -> None:
    with receiver_thread(receiver_config(tmp_path)) as address:
        first, second = hand_off(address, DATA), hand_off(address, DATA)
    assert first.root == second.root
    assert first.signature != second.signature
