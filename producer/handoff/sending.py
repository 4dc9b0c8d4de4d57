"""Sending a payload: BEGIN, the LAYER frames from the tensors' own memory, END; and reading the answer.

A NACK that comes while bytes still leave is heard before the next LAYER, and again when the connection breaks:
the receiver's word says more than a reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from producer.handoff import frames, keepalive, session
from producer.handoff.errors import LinkError, RefusedError
from producer.handoff.frames import Frame, FrameType
from producer.handoff.keepalive import Pings
from producer.handoff.manifest import TensorDescription
from producer.handoff.session import SessionKeys, Transcript
from producer.handoff.stream import SLICE_BYTES, Deadline, FrameStream

Tensor = tuple[TensorDescription, memoryview]

BATCH_BYTES: Final = 2 * 1024 * 1024
"""How much leaves before the receiver's side of the line is looked at again."""
MAX_BUFFERS: Final = 256
"""Buffers of one system call; every kernel takes at least 1,024 (IOV_MAX)."""


@dataclass(frozen=True)
class _Layer:
    """One LAYER frame: its tensor's index, prefix and header as sent, and the body where it lies."""

    tensor: int
    complete: int
    """How many tensors have left whole once this frame has."""
    wire: bytes
    body: memoryview


class PayloadSender:
    """One payload on one opened session, under the session's deadline."""

    def __init__(
        self,
        stream: FrameStream,
        transcript: Transcript,
        keys: SessionKeys,
        deadline: Deadline,
        tensors: Sequence[Tensor],
        pings: Pings,
    ) -> None:
        self._pings = pings
        self._stream = stream
        self._transcript = transcript
        self._keys = keys
        self._deadline = deadline
        self._tensors = tensors
        self._digests: list[str] = []
        self._layers: list[_Layer] = []
        self._phase = "before BEGIN"

    def begin(self, fields: Mapping[str, Any]) -> None:
        """Send BEGIN; ``tensors`` is added to ``fields``."""
        documents = [description.document() for description, _ in self._tensors]
        frame = frames.build(FrameType.BEGIN, {**fields, "tensors": documents})
        self._transcript.add(frame)
        self._write([frame.wire])
        self._layers = list(self._framed())

    def layers(self, digests: Sequence[str] | None) -> list[str]:
        """Send every byte; each tensor's digest. ``digests`` None: they are made on the way."""
        if digests is None:
            self._digests = self._send_hashed()
        else:
            self._digests = list(digests)
            self._send_as_they_are()
        self._phase = "after the last tensor"
        return self._digests

    def end(self, root: str) -> Frame:
        """Send END and wait for the receiver's answer. Returns its ACK, not yet verified. Raises RefusedError."""
        self._write([session.sealed(self._transcript, self._keys, FrameType.END, {}, session.root_bytes(root)).wire])
        self._phase = "after END"
        while True:
            frame = self._heard(FrameType.ACK)
            if frame is not None:
                return frame

    def _framed(self) -> Iterator[_Layer]:
        """Every LAYER in order, taken into the transcript: nothing of a frame hangs on the bytes of its body."""
        for index, (description, data) in enumerate(self._tensors):
            for first_token, count, body in ranges(description, data):
                header = {"tensor": index, "first_token": first_token, "count": count}
                frame = frames.build(FrameType.LAYER, header, len(body))
                self._transcript.add(frame)
                ends = first_token + count == description.first_token + description.tokens
                yield _Layer(index, index + ends, frame.wire, body)

    def _send_as_they_are(self) -> None:
        """As few system calls as the batches allow: what Python does between two of them is on the window's time."""
        pending: list[bytes | memoryview] = []
        size = 0
        for layer in self._layers:
            pending.append(layer.wire)
            for start in range(0, len(layer.body), BATCH_BYTES):
                part = layer.body[start : start + BATCH_BYTES]
                pending.append(part)
                size += len(part)
                if size >= BATCH_BYTES or len(pending) >= MAX_BUFFERS:
                    self._sent(pending, layer, start + len(part))
                    pending, size = [], 0
        if pending:
            self._sent(pending, layer, len(layer.body))

    def _sent(self, buffers: Sequence[bytes | memoryview], layer: _Layer, done: int) -> None:
        """Send ``buffers``, which end with byte ``done`` of the layer's body."""
        self._hear()
        self._write(buffers)
        complete = layer.complete if done == len(layer.body) else layer.tensor
        self._phase = f"after {complete} of {len(self._tensors)} tensors"

    def _send_hashed(self) -> list[str]:
        """Slice by slice, digested just before it leaves; the digests."""
        from blake3 import blake3

        hashers = [blake3() for _ in self._tensors]
        for layer in self._layers:
            head = [layer.wire]
            for start in range(0, len(layer.body), SLICE_BYTES):
                part = layer.body[start : start + SLICE_BYTES]
                hashers[layer.tensor].update(part)
                self._sent([*head, part], layer, start + len(part))
                head = []
        return ["blake3:" + hasher.hexdigest() for hasher in hashers]

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        try:
            self._stream.write(buffers, self._deadline)
        except LinkError as error:
            word = keepalive.last_word(self._stream, self._pings) if error.code == "peer_gone" else None
            raise self._explained(word) if word is not None else self._placed(error) from None

    def _hear(self) -> None:
        while self._stream.has_input():
            self._heard()

    def _heard(self, *kinds: FrameType) -> Frame | None:
        try:
            return keepalive.hear(self._stream, self._deadline, self._pings, *kinds)
        except RefusedError as error:
            raise self._explained(error) from None
        except LinkError as error:
            raise self._placed(error) from None

    def _placed(self, error: LinkError) -> LinkError:
        return LinkError(error.code, f"{error.reason} ({self._phase})")

    def _explained(self, refusal: RefusedError) -> RefusedError:
        """The refusal, with the first tensor on which the two ends differ when it says bytes_differ."""
        if refusal.digests is None:
            return RefusedError(refusal.code, f"{refusal.reason} ({self._phase})")
        index = first_difference(self._digests, refusal.digests)
        if index is None:
            found = "every tensor's digest is equal: the transcript, not a payload byte, was altered"
        else:
            description = self._tensors[index][0]
            found = f"first differing tensor {index}: layer {description.layer} {description.part}"
        return RefusedError(
            refusal.code,
            f"{refusal.reason}; {found}",
            digests=refusal.digests,
            first_difference=index,
        )


def first_difference(own: Sequence[str], theirs: Sequence[str]) -> int | None:
    """Index of the first digest that differs, or of the first that one end lacks; None when all are equal."""
    for index in range(max(len(own), len(theirs))):
        if index >= len(own) or index >= len(theirs) or own[index] != theirs[index]:
            return index
    return None


def ranges(description: TensorDescription, data: memoryview) -> Iterator[tuple[int, int, memoryview]]:
    """``(first_token, count, bytes)`` of each LAYER of a tensor: whole tokens, at most 64 MiB, in order."""
    flat = data.cast("B")
    row_bytes = description.bytes // description.tokens
    step = max(1, frames.MAX_BODY_BYTES // row_bytes)
    for done in range(0, description.tokens, step):
        count = min(step, description.tokens - done)
        yield description.first_token + done, count, flat[done * row_bytes : (done + count) * row_bytes]
