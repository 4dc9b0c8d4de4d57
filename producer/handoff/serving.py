"""One connection at the receiver, from HELLO to ACK: the state machine of DESIGN section 9.

Trust only grows: a HELLO that is enrolled gets a HELLO_ACK and nothing else; an OPEN that verifies gets the slot
and the reserve; an END that verifies gets the admission. NACK and ABORT end a session and grant nothing.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Literal

from producer.handoff import ack, frames, manifest, session
from producer.handoff.admission import Admission, AdmissionStore
from producer.handoff.assembly import Assembly, check_begin
from producer.handoff.enrollment import ReceiverConfig
from producer.handoff.errors import AbortedError, LinkError, SessionError, WireError
from producer.handoff.frames import Frame, FrameType
from producer.handoff.hashing import HashThreads
from producer.handoff.reserve import Reserve
from producer.handoff.session import SessionKeys, Transcript
from producer.handoff.stream import Deadline, FrameStream, Silence

SLOT_SETTLES_S: Final = 0.25
"""How long a second producer waits for the slot: the end of the session that held it may not have been seen yet."""
_ENROLLED_FIELDS = ("lane", "identity", "cache_identity", "mode")


class Slot:
    """The one place of the one producer that may be admitted at a time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._holder: str | None = None

    @property
    def holder(self) -> str | None:
        """``address:port`` of the producer that holds it."""
        return self._holder

    @contextlib.contextmanager
    def held_by(self, peer: str) -> Iterator[None]:
        """Hold the slot for a session. Raises SessionError busy, naming the holder."""
        if not self._lock.acquire(timeout=SLOT_SETTLES_S):
            raise SessionError("busy", f"the slot is held by {self._holder}")
        self._holder = peer
        try:
            yield
        finally:
            self._holder = None
            self._lock.release()


@dataclass(frozen=True)
class _Opened:
    """A session whose OPEN verified."""

    hello: Frame
    nonce_r: bytes
    keys: SessionKeys
    transcript: Transcript


@dataclass(frozen=True)
class _Received:
    """A payload that is complete, with the root the receiver computed itself."""

    begin: Frame
    manifest: bytes
    root: str
    first_byte_ns: int


class ReceiverSession:
    """Serves one connection; ``run`` returns when it is over and closed."""

    def __init__(
        self,
        config: ReceiverConfig,
        store: AdmissionStore,
        slot: Slot,
        stream: FrameStream,
        accepted_ns: int | None = None,
    ) -> None:
        """``accepted_ns``: when the connection was, on ``time.monotonic_ns``; the handshake's time runs from there."""
        self._config = config
        self._store = store
        self._slot = slot
        self._stream = stream
        self._accepted_ns = time.monotonic_ns() if accepted_ns is None else accepted_ns
        self._standing = threading.Lock()
        """Held while it is settled whether a stranger takes the slot or is turned away: never both."""
        self._stands: Literal["stranger", "turned_away", "holder"] = "stranger"
        self.outcome: str | None = None
        """``admitted``, or the code of what ended the session; None while it runs."""

    @property
    def is_stranger(self) -> bool:
        """Whether it has neither taken the slot nor been turned away."""
        return self._stands == "stranger"

    def turn_away(self) -> None:
        """Cut the connection without a word, from any thread, unless it has taken the slot."""
        with self._standing:
            if self._stands == "stranger":
                self._stands = "turned_away"
                self._stream.cut()

    def run(self) -> None:
        """Never raises a WireError: what went wrong is answered with a NACK where somebody still listens."""
        try:
            acknowledgement = self._session()
            self.outcome = "admitted"
            with contextlib.suppress(LinkError):
                self._stream.write([acknowledgement.wire], Deadline.after(self._config.times.write_s))
        except AbortedError as error:
            self.outcome = error.code
        except WireError as error:
            self.outcome = error.code
            self._refuse(error)
        self._stream.close_after_drain(self._config.times.drain_s)

    def _session(self) -> Frame:
        """The ACK to send. The slot is free before any last word leaves: the next handoff never finds it busy."""
        opened = self._handshake()
        with self._slot.held_by(self._stream.info.peer):
            self._take_slot()
            return self._transfer(opened)

    def _take_slot(self) -> None:
        with self._standing:
            if self._stands == "turned_away":
                raise LinkError("peer_gone", "the connection was cut before it had the slot")
            self._stands = "holder"

    # -- HELLO, HELLO_ACK, OPEN

    def _handshake(self) -> _Opened:
        limit = Deadline(self._accepted_ns + int(self._config.times.handshake_s * 1e9), "handshake_timeout")
        hello = self._stream.read_frame(limit, (FrameType.HELLO,))
        self._check_hello(hello)
        nonce_r = os.urandom(session.NONCE_BYTES)
        keys = session.derive_keys(self._config.handoff_key, bytes.fromhex(hello.header["nonce"]), nonce_r)
        transcript = Transcript()
        transcript.add(hello)
        fields = {"receiver": self._config.name, "nonce": nonce_r.hex()}
        answer = session.sealed(transcript, keys, FrameType.HELLO_ACK, fields)
        self._stream.write([answer.wire], limit)
        opening = self._stream.read_frame(limit, (FrameType.OPEN, FrameType.ABORT))
        _raise_abort(opening)
        session.verify(transcript, keys, opening)
        return _Opened(hello, nonce_r, keys, transcript)

    def _check_hello(self, hello: Frame) -> None:
        for name in _ENROLLED_FIELDS:
            if hello.header[name] != getattr(self._config, name):
                raise SessionError("not_enrolled", f"{name}: {hello.header[name]!r} is not the enrolled one")
        if hello.header["bytes"] > self._config.memory_limit_bytes:
            raise SessionError("too_large", f"{hello.header['bytes']} bytes, at most {self._config.memory_limit_bytes}")

    # -- OPENED to ACK

    def _transfer(self, opened: _Opened) -> Frame:
        size = opened.hello.header["bytes"]
        reserve = self._reserve(size, opened.nonce_r)
        try:
            self._send(opened.transcript, frames.build(FrameType.OPENED, {"reserved": size}))
            return self._admit(opened, self._receive_payload(opened, reserve), reserve)
        except BaseException:
            reserve.release()
            raise

    def _reserve(self, size: int, nonce_r: bytes) -> Reserve:
        self._store.make_room(size)
        try:
            return Reserve(size, nonce_r)
        except (OSError, ValueError) as error:
            raise SessionError("no_memory", f"{size} bytes could not be reserved: {error}") from None

    def _receive_payload(self, opened: _Opened, reserve: Reserve) -> _Received:
        with HashThreads() as hashing:  # they stand ready before BEGIN: from there on every moment is the window's
            begin = self._next(opened.transcript, FrameType.BEGIN)
            descriptions = check_begin(begin.header, self._config.geometry, opened.hello.header["bytes"])
            if self._store.was_admitted(begin.header["handoff_id"]):
                raise SessionError("replayed", f"handoff {begin.header['handoff_id']} was admitted before")
            assembly = Assembly(descriptions, reserve.view, hashing)
            end, first_byte_ns = self._receive_layers(opened, assembly)
            return self._verified(opened, begin, end, assembly, first_byte_ns)

    def _receive_layers(self, opened: _Opened, assembly: Assembly) -> tuple[Frame, int]:
        """Every body straight into the reserve. Returns END and the stamp of the first bytes."""
        silence = Silence(self._config.times.silence_s)
        first_byte_ns = 0
        while True:
            frame = self._next(opened.transcript, FrameType.LAYER, FrameType.END)
            if frame.type is FrameType.END:
                return frame, first_byte_ns
            opened.transcript.add(frame)
            index, view = assembly.expect(frame.header, frame.body_len)
            while view:
                count = self._stream.read_into(view, silence)
                first_byte_ns = first_byte_ns or self._config.clock.stamp()
                assembly.received(index, count)
                view = view[count:]

    def _verified(self, opened: _Opened, begin: Frame, end: Frame, assembly: Assembly, first_byte_ns: int) -> _Received:
        """END's mac against the root computed here. Raises SessionError range_missing, BytesDifferError."""
        digests = assembly.digests()
        array = manifest.tensors_array(assembly.descriptions, digests)
        document = manifest.manifest_bytes(begin.header["prompt_sha256"], begin.header["n_tokens"], array)
        root = manifest.root(document)
        try:
            session.verify(opened.transcript, opened.keys, end, session.root_bytes(root))
        except SessionError:
            raise BytesDifferError(digests) from None
        return _Received(begin, document, root, first_byte_ns)

    def _admit(self, opened: _Opened, received: _Received, reserve: Reserve) -> Frame:
        """Record, then hold. Returns the ACK; the handoff is admitted whether or not it arrives."""
        statement = self._statement(opened, received)
        signature = ack.sign(statement, self._config.signing_key)
        record = {
            "v": 1,
            "lane": statement.lane,
            "receiver": statement.receiver,
            **self._config.clock.block(),
            "handoff_id": statement.handoff_id,
            "prompt_sha256": statement.prompt_sha256,
            "root": statement.root,
            "total_bytes": statement.total_bytes,
            "nonces": {"p": statement.nonce_p, "r": statement.nonce_r},
            "sig": signature,
            "first_byte_ns": str(received.first_byte_ns),
            "admitted_ns": str(self._config.clock.stamp()),
        }
        self._store.admit(
            Admission(
                statement.handoff_id,
                record,
                received.manifest,
                reserve,
                self._stream.bytes_received,
                self._stream.info.document(),
            )
        )
        fields = {"root": received.root, "sig": signature}
        return session.sealed(opened.transcript, opened.keys, FrameType.ACK, fields, session.root_bytes(received.root))

    def _statement(self, opened: _Opened, received: _Received) -> ack.AckStatement:
        return ack.AckStatement(
            lane=self._config.lane,
            receiver=self._config.name,
            identity=self._config.identity,
            cache_identity=self._config.cache_identity,
            mode=self._config.mode,
            handoff_id=received.begin.header["handoff_id"],
            prompt_sha256=received.begin.header["prompt_sha256"],
            root=received.root,
            total_bytes=received.begin.header["total_bytes"],
            nonce_p=opened.hello.header["nonce"],
            nonce_r=opened.nonce_r.hex(),
        )

    # -- frames

    def _next(self, transcript: Transcript, *wanted: FrameType) -> Frame:
        """The next frame that moves the session on; PINGs on the way are answered."""
        silence = Silence(self._config.times.silence_s)
        allowed = (*wanted, FrameType.PING, FrameType.ABORT)
        while True:
            frame = self._stream.read_frame(silence, allowed)
            _raise_abort(frame)
            if frame.type is FrameType.PING:
                self._send(transcript, frames.build(FrameType.PONG, {}))
                continue
            if frame.type is FrameType.BEGIN:
                transcript.add(frame)
            return frame

    def _send(self, transcript: Transcript, frame: Frame) -> None:
        self._stream.write([frame.wire], Deadline.after(self._config.times.write_s, "peer_gone"))
        transcript.add(frame)

    def _refuse(self, error: WireError) -> None:
        """Say why, where somebody still listens, and close so that the word arrives."""
        digests = error.digests if isinstance(error, BytesDifferError) else ()
        with contextlib.suppress(LinkError):
            if error.code != "peer_gone":
                nack(self._stream, error.code, error.reason, digests, self._config.times.write_s)


class BytesDifferError(SessionError):
    """END did not verify; carries the receiver's own digests, so that the producer can name the tensor."""

    def __init__(self, digests: list[str]) -> None:
        super().__init__("bytes_differ", "END's mac does not verify with the root computed from the bytes received")
        self.digests = tuple(digests)


def nack(stream: FrameStream, code: str, reason: str, digests: tuple[str, ...], write_s: float) -> None:
    """Send NACK. Raises LinkError when it cannot leave."""
    header: dict[str, object] = {"code": code, "reason": reason[: frames.MAX_REASON_CHARS]}
    if digests:
        header["digests"] = list(digests)
    stream.write([frames.build(FrameType.NACK, header).wire], Deadline.after(write_s))


def _raise_abort(frame: Frame) -> None:
    if frame.type is FrameType.ABORT:
        raise AbortedError(frame.header["code"], frame.header["reason"])
