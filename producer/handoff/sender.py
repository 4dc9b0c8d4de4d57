"""The producer's end of a handoff: open before the engine is touched, keep the slot, send, believe only proof.

``connect`` ends with OPENED: nothing of a prompt has left yet. While the engine prefills, a thread sends PING
and listens; once ``send`` or ``abort`` is called that thread is joined first, so that one thread at a time owns
the socket. Every wait ends at the session's wall-clock deadline.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from producer.handoff import ack, frames, keepalive, manifest, session
from producer.handoff.enrollment import ProducerSide, ReceiverAddress, SenderTimes
from producer.handoff.errors import LinkError, SessionError, WireError
from producer.handoff.frames import Frame, FrameType
from producer.handoff.keepalive import Keepalive, Pings
from producer.handoff.manifest import KVGeometry, TensorDescription
from producer.handoff.sending import PayloadSender, Tensor
from producer.handoff.session import SessionKeys, Transcript
from producer.handoff.stream import Congestion, Deadline, FrameStream, SocketInfo
from receipts.clock import HostClock
from receipts.errors import InputError

DEFAULT_TIMES = SenderTimes()

_AGAIN_S = 0.02
_FILL_BYTES_PER_S = 50_000_000
"""Slowest rate at which a receiver may fill its reserve; adds to the wait for OPENED."""


@dataclass(frozen=True)
class Acknowledgement:
    """A handoff that the receiver admitted, with everything the receipt says of it. Stamps are of one clock."""

    handoff_id: str
    root: str
    tensors_root: str
    manifest: bytes
    signature: str
    nonce_p: str
    nonce_r: str
    first_byte_ns: int
    """Just before the first LAYER was hashed or sent."""
    ack_ns: int
    """When the ACK had verified: root, mac and signature."""
    bytes_sent: int
    socket: SocketInfo


def connect(
    side: ProducerSide,
    address: ReceiverAddress,
    payload_bytes: int,
    *,
    clock: HostClock,
    times: SenderTimes = DEFAULT_TIMES,
    congestion: Congestion = "auto",
) -> OpenedHandoff:
    """HELLO to OPENED. Raises LinkError (unreachable, peer_gone, deadline), RefusedError, SessionError, FrameError.

    A connection that is lost before HELLO_ACK is made anew within the time of ``connect_s``.
    Raises InputError before it connects on a geometry without a known layout. Whatever it raises, the engine was
    not touched and nothing of a prompt has left.
    """
    _require_known_layout(side.geometry)
    deadline = Deadline.after(times.session_s)
    where = f"{address.host}:{address.port}"
    again = Deadline.after(times.connect_s).earlier(deadline)
    gone: LinkError | None = None
    while True:
        try:
            stream = _connected(address, deadline, times, congestion)
        except LinkError as error:
            raise gone or error from None
        greeting = _Greeting()
        try:
            return _opened(side, stream, payload_bytes, deadline, clock, times, greeting)
        except WireError as error:
            stream.close()
            error.where = where
            if greeting.answered or not isinstance(error, LinkError):
                raise
            if error.code != "peer_gone" or time.monotonic_ns() >= again.at_ns:
                raise gone or error from None
            # A receiver that strangers flood may have taken us for one of them: nothing was answered yet, so once more.
            gone = gone or error
            time.sleep(_AGAIN_S)
        except BaseException:
            stream.close()
            raise


@dataclass
class _Greeting:
    """Whether the receiver has answered HELLO."""

    answered: bool = False


def _require_known_layout(geometry: KVGeometry) -> None:
    try:
        manifest.expected_tensors(geometry, 1)
    except ValueError as error:
        raise InputError(f"the enrolled geometry cannot be sent: {error}") from None


def _connected(address: ReceiverAddress, deadline: Deadline, times: SenderTimes, congestion: Congestion) -> FrameStream:
    try:
        sock = socket.create_connection((address.host, address.port), min(times.connect_s, deadline.seconds()))
    except OSError as error:
        raise LinkError(
            "unreachable",
            f"the receiver does not answer: {error.strerror or error}",
            where=f"{address.host}:{address.port}",
            next_step="start it with `soakledger receiver serve`, or check the path to it",
        ) from None
    return FrameStream(sock, congestion=congestion)


def _opened(
    side: ProducerSide,
    stream: FrameStream,
    payload_bytes: int,
    deadline: Deadline,
    clock: HostClock,
    times: SenderTimes,
    greeting: _Greeting,
) -> OpenedHandoff:
    nonce_p = os.urandom(session.NONCE_BYTES)
    transcript = Transcript()
    hello = frames.build(
        FrameType.HELLO,
        {
            "lane": side.lane,
            "identity": side.identity,
            "cache_identity": side.cache_identity,
            "mode": side.mode,
            "nonce": nonce_p.hex(),
            "bytes": payload_bytes,
        },
    )
    limit = Deadline.after(times.handshake_s).earlier(deadline)
    stream.write([hello.wire], limit)
    transcript.add(hello)
    answer = _expect(stream, FrameType.HELLO_ACK, limit)
    greeting.answered = True
    if answer.header["receiver"] != side.receiver:
        raise SessionError("wrong_receiver", f"{answer.header['receiver']!r} answered, {side.receiver!r} was asked for")
    nonce_r = bytes.fromhex(answer.header["nonce"])
    keys = session.derive_keys(side.handoff_key, nonce_p, nonce_r)
    session.verify(transcript, keys, answer)
    stream.write([session.sealed(transcript, keys, FrameType.OPEN, {}).wire], limit)
    limit = Deadline.after(times.handshake_s + payload_bytes / _FILL_BYTES_PER_S).earlier(deadline)
    opened = _expect(stream, FrameType.OPENED, limit)
    if opened.header["reserved"] != payload_bytes:
        raise SessionError("bad_reserved", f"{opened.header['reserved']} bytes reserved, {payload_bytes} asked for")
    transcript.add(opened)
    return OpenedHandoff(
        side, stream, payload_bytes, _Trust(transcript, keys, nonce_p.hex(), nonce_r.hex()), deadline, clock, times
    )


@dataclass(frozen=True)
class _Trust:
    """What the handshake established."""

    transcript: Transcript
    keys: SessionKeys
    nonce_p: str
    nonce_r: str


@dataclass(frozen=True)
class _Manifest:
    """The producer's own manifest and its root."""

    tensors: list[dict[str, Any]]
    document: bytes
    root: str

    @classmethod
    def of(
        cls, prompt_sha256: str, n_tokens: int, descriptions: Sequence[TensorDescription], digests: Sequence[str]
    ) -> _Manifest:
        tensors = manifest.tensors_array(descriptions, digests)
        document = manifest.manifest_bytes(prompt_sha256, n_tokens, tensors)
        return cls(tensors, document, manifest.root(document))


class OpenedHandoff:
    """A slot at the receiver, kept by PINGs until ``send`` or ``abort``. A context manager: leaving closes it."""

    def __init__(
        self,
        side: ProducerSide,
        stream: FrameStream,
        payload_bytes: int,
        trust: _Trust,
        deadline: Deadline,
        clock: HostClock,
        times: SenderTimes,
    ) -> None:
        self._side = side
        self._stream = stream
        self._payload_bytes = payload_bytes
        self._trust = trust
        self._deadline = deadline
        self._clock = clock
        self._closed = False
        self._pings = Pings()
        self._keepalive = Keepalive(stream, times, deadline, self._pings)

    def __enter__(self) -> OpenedHandoff:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def nonces(self) -> tuple[str, str]:
        """nonce_p and nonce_r, 64 hex each."""
        return self._trust.nonce_p, self._trust.nonce_r

    @property
    def socket(self) -> SocketInfo:
        return self._stream.info

    @property
    def alive(self) -> bool:
        """Whether nothing has ended the slot so far; ``check`` says what did."""
        return not self._closed and self._keepalive.alive

    def check(self) -> None:
        """Raises what ended the slot since OPENED: RefusedError stale_slot, LinkError peer_gone, peer_silent …"""
        self._require_open()
        self._keepalive.check()

    def send(
        self,
        handoff_id: str,
        prompt_sha256: str,
        n_tokens: int,
        tensors: Sequence[Tensor],
        digests: Sequence[str] | None,
    ) -> Acknowledgement:
        """BEGIN to a verified ACK. ``digests`` None: BLAKE3 is made here, inside the timed window.

        Each tensor is a C-contiguous view of its ``bytes`` bytes, sent from where it lies; it must not change
        before the ACK. Raises RefusedError, SessionError, LinkError; the connection is closed whatever happens.
        """
        self._require_open()
        try:
            self._keepalive.stop()
            self._check_payload(n_tokens, tensors, digests)
            return self._exchange(handoff_id, prompt_sha256, n_tokens, tensors, digests)
        except WireError as error:
            error.where = self._stream.info.peer
            raise
        finally:
            self.close()

    def abort(self, code: str, reason: str) -> None:
        """Give the handoff up, saying why; a receiver that is gone is no error."""
        if self._closed:
            return
        with contextlib.suppress(WireError):
            self._keepalive.stop()
        frame = frames.build(FrameType.ABORT, {"code": code, "reason": reason[: frames.MAX_REASON_CHARS]})
        with contextlib.suppress(WireError):
            self._stream.write([frame.wire], Deadline.after(1.0))
        self.close()

    def close(self) -> None:
        """End the connection. Without a ``send`` before it the receiver frees the slot."""
        if not self._closed:
            self._closed = True
            with contextlib.suppress(WireError):
                self._keepalive.stop()
            self._stream.close()

    def _exchange(
        self,
        handoff_id: str,
        prompt_sha256: str,
        n_tokens: int,
        tensors: Sequence[Tensor],
        digests: Sequence[str] | None,
    ) -> Acknowledgement:
        descriptions = [description for description, _ in tensors]
        # Digests that were made at capture give the root before a byte leaves: the window is the wire's own time.
        made = None if digests is None else _Manifest.of(prompt_sha256, n_tokens, descriptions, digests)
        payload = PayloadSender(
            self._stream, self._trust.transcript, self._trust.keys, self._deadline, tensors, self._pings
        )
        payload.begin(
            {
                "handoff_id": handoff_id,
                "prompt_sha256": prompt_sha256,
                "n_tokens": n_tokens,
                "total_bytes": self._payload_bytes,
            }
        )
        first_byte_ns = self._clock.stamp()
        sent = payload.layers(digests)
        made = made or _Manifest.of(prompt_sha256, n_tokens, descriptions, sent)
        answer = payload.end(made.root)
        self._verify_ack(answer, handoff_id, prompt_sha256, made.root)
        ack_ns = self._clock.stamp()
        return Acknowledgement(
            handoff_id=handoff_id,
            root=made.root,
            tensors_root=manifest.tensors_root(made.tensors),
            manifest=made.document,
            signature=answer.header["sig"],
            nonce_p=self._trust.nonce_p,
            nonce_r=self._trust.nonce_r,
            first_byte_ns=first_byte_ns,
            ack_ns=ack_ns,
            bytes_sent=self._stream.bytes_sent,
            socket=self._stream.info,
        )

    def _verify_ack(self, answer: Frame, handoff_id: str, prompt_sha256: str, root: str) -> None:
        """The mac with the producer's own root, the root, the signature. Raises SessionError."""
        if answer.header["root"] != root:
            raise SessionError("root_differs", f"the receiver acknowledges {answer.header['root']}, not {root}")
        session.verify(self._trust.transcript, self._trust.keys, answer, session.root_bytes(root))
        statement = ack.AckStatement(
            lane=self._side.lane,
            receiver=self._side.receiver,
            identity=self._side.identity,
            cache_identity=self._side.cache_identity,
            mode=self._side.mode,
            handoff_id=handoff_id,
            prompt_sha256=prompt_sha256,
            root=root,
            total_bytes=self._payload_bytes,
            nonce_p=self._trust.nonce_p,
            nonce_r=self._trust.nonce_r,
        )
        ack.verify(statement, answer.header["sig"], self._side.receiver_public_key)

    def _check_payload(self, n_tokens: int, tensors: Sequence[Tensor], digests: Sequence[str] | None) -> None:
        expected = manifest.expected_tensors(self._side.geometry, n_tokens)
        if tuple(description for description, _ in tensors) != expected:
            raise SessionError("geometry_differs", "the tensors are not what the enrolled geometry gives")
        if manifest.total_bytes(expected) != self._payload_bytes:
            raise SessionError("size_differs", f"{manifest.total_bytes(expected)} bytes, {self._payload_bytes} opened")
        if digests is not None and len(digests) != len(tensors):
            raise SessionError("geometry_differs", f"{len(digests)} digests for {len(tensors)} tensors")
        for index, (description, data) in enumerate(tensors):
            if data.nbytes != description.bytes or not data.c_contiguous:
                raise SessionError("size_differs", f"tensor {index} has {data.nbytes} of {description.bytes} bytes")

    def _require_open(self) -> None:
        if self._closed:
            raise SessionError("closed", "this handoff was sent, aborted or closed before")


def _expect(stream: FrameStream, kind: FrameType, limit: Deadline) -> Frame:
    """The frame of ``kind`` that must come now. Raises RefusedError when it is a NACK."""
    frame = stream.read_frame(limit, (kind, FrameType.NACK))
    if frame.type is FrameType.NACK:
        raise keepalive.refused(frame)
    return frame
