"""Ends of the wire that do one thing wrong: a producer by hand, a receiver by hand."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from handoff_lane import PROMPT, Payload, handoff_id, producer_side

from producer.handoff import frames, manifest, session
from producer.handoff.enrollment import ReceiverAddress
from producer.handoff.errors import LinkError
from producer.handoff.frames import Frame, FrameType
from producer.handoff.session import SessionKeys, Transcript
from producer.handoff.stream import Deadline, FrameStream

NONCE_P = bytes([7]) * 32


class RawProducer:
    """Speaks the wire step by step; every step can be left out, repeated or changed."""

    def __init__(self, address: ReceiverAddress) -> None:
        self.stream = FrameStream(socket.create_connection((address.host, address.port), 5), congestion="auto")
        self.side = producer_side()
        self.transcript = Transcript()
        self.keys = SessionKeys(b"", b"")
        self.sent = b""

    def __enter__(self) -> RawProducer:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()

    def put(self, frame: Frame, body: bytes = b"") -> None:
        self.transcript.add(frame)
        self.raw(frame.wire + body)

    def raw(self, data: bytes) -> None:
        self.sent += data
        self.stream.write([data], Deadline.after(5))

    def answer(self) -> Frame:
        return self.stream.read_frame(Deadline.after(15), set(FrameType))

    def hello(self, payload_bytes: int, **changes: Any) -> Frame:
        header = {
            "lane": self.side.lane, "identity": self.side.identity, "cache_identity": self.side.cache_identity,
            "mode": self.side.mode, "nonce": NONCE_P.hex(), "bytes": payload_bytes, **changes,
        }  # fmt: skip
        self.put(frames.build(FrameType.HELLO, header))
        return self.answer()

    def opened(self, payload_bytes: int) -> None:
        """HELLO to OPENED, done right."""
        answer = self.hello(payload_bytes)
        self.keys = session.derive_keys(self.side.handoff_key, NONCE_P, bytes.fromhex(answer.header["nonce"]))
        session.verify(self.transcript, self.keys, answer)
        self.raw(session.sealed(self.transcript, self.keys, FrameType.OPEN, {}).wire)
        reserved = self.answer()
        assert reserved.type is FrameType.OPENED, reserved.header
        self.transcript.add(reserved)

    def begin(self, data: Payload, **changes: Any) -> None:
        header = {
            "handoff_id": handoff_id(), "prompt_sha256": PROMPT, "n_tokens": data.n_tokens,
            "tensors": [item.document() for item, _ in data.tensors], "total_bytes": data.bytes, **changes,
        }  # fmt: skip
        self.put(frames.build(FrameType.BEGIN, header))

    def layer(self, tensor: int, first_token: int, count: int, body: bytes) -> None:
        header = {"tensor": tensor, "first_token": first_token, "count": count}
        self.put(frames.build(FrameType.LAYER, header, len(body)), body)

    def layers(self, data: Payload) -> None:
        for index, (item, view) in enumerate(data.tensors):
            self.layer(index, item.first_token, item.tokens, bytes(view))

    def end(self, data: Payload, keys: SessionKeys | None = None) -> Frame:
        frame = session.sealed(self.transcript, keys or self.keys, FrameType.END, {}, true_root(data))
        self.raw(frame.wire)
        return frame


def true_root(data: Payload) -> bytes:
    array = manifest.tensors_array([item for item, _ in data.tensors], data.digests)
    return session.root_bytes(manifest.root(manifest.manifest_bytes(PROMPT, data.n_tokens, array)))


class RawReceiver:
    """The other end by hand, for a producer that must not be fooled."""

    def __init__(self, stream: FrameStream, key: bytes) -> None:
        self.stream = stream
        self.key = key
        self.transcript = Transcript()
        self.keys = SessionKeys(b"", b"")

    def take(self) -> Frame:
        frame = self.stream.read_frame(Deadline.after(15), set(FrameType))
        self.transcript.add(frame)
        return frame

    def put(self, frame: Frame) -> None:
        self.transcript.add(frame)
        self.stream.write([frame.wire], Deadline.after(5))

    def opened(self, name: str = "here", *, behind: bytes = b"") -> None:
        """HELLO to OPENED, done right; ``behind`` leaves in one piece with it."""
        hello = self.take()
        nonce = bytes([9]) * 32
        self.keys = session.derive_keys(self.key, bytes.fromhex(hello.header["nonce"]), nonce)
        fields = {"receiver": name, "nonce": nonce.hex()}
        answer = session.sealed(self.transcript, self.keys, FrameType.HELLO_ACK, fields)
        self.stream.write([answer.wire], Deadline.after(5))
        self.take()
        opened = frames.build(FrameType.OPENED, {"reserved": hello.header["bytes"]})
        self.transcript.add(opened)
        self.stream.write([opened.wire + behind], Deadline.after(5))

    def payload(self) -> Frame:
        """BEGIN to END; the bodies are thrown away. Returns END."""
        while True:
            frame = self.stream.read_frame(Deadline.after(15), set(FrameType))
            if frame.type is FrameType.PING:
                continue
            left = frame.body_len
            while left:
                left -= self.stream.read_into(memoryview(bytearray(min(left, 65536))), Deadline.after(5))
            self.transcript.add(frame)
            if frame.type is FrameType.END:
                return frame


@contextmanager
def raw_receiver(key: bytes, act: Callable[[RawReceiver], None]) -> Iterator[ReceiverAddress]:
    """Listens once and lets ``act`` play the receiver's part."""
    listener = socket.create_server(("127.0.0.1", 0))

    def play() -> None:
        try:
            sock, _ = listener.accept()
            stream = FrameStream(sock, congestion="auto")
            try:
                act(RawReceiver(stream, key))
            except LinkError:
                pass  # the producer has hung up, as it should
            finally:
                stream.close()
        except OSError:
            pass  # the test ended without a connection

    thread = threading.Thread(target=play)
    thread.start()
    try:
        yield ReceiverAddress(*listener.getsockname())
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        thread.join(20)
