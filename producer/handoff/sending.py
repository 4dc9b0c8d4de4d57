"""Sending a payload: BEGIN, the LAYER frames from the tensors' own memory, END; and reading the answer.

A NACK that comes while bytes still leave is heard before the next LAYER, and again when the connection breaks:
the receiver's word says more than a reset.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from producer.handoff import frames, keepalive, manifest, session
from producer.handoff.errors import LinkError, RefusedError
from producer.handoff.frames import Frame, FrameType
from producer.handoff.manifest import TensorDescription
from producer.handoff.session import SessionKeys, Transcript
from producer.handoff.stream import SLICE_BYTES, Deadline, FrameStream

Tensor = tuple[TensorDescription, memoryview]


class PayloadSender:
    """One payload on one opened session, under the session's deadline."""

    def __init__(
        self,
        stream: FrameStream,
        transcript: Transcript,
        keys: SessionKeys,
        deadline: Deadline,
        tensors: Sequence[Tensor],
    ) -> None:
        self._stream = stream
        self._transcript = transcript
        self._keys = keys
        self._deadline = deadline
        self._tensors = tensors
        self._digests: list[str] = []
        self._phase = "before BEGIN"

    def begin(self, fields: Mapping[str, Any]) -> None:
        """Send BEGIN; ``tensors`` is added to ``fields``."""
        documents = [description.document() for description, _ in self._tensors]
        frame = frames.build(FrameType.BEGIN, {**fields, "tensors": documents})
        self._transcript.add(frame)
        self._write([frame.wire])

    def layers(self, digests: Sequence[str] | None) -> list[dict[str, Any]]:
        """Send every byte; the manifest's ``tensors``. ``digests`` None: they are made on the way."""
        for index, (description, data) in enumerate(self._tensors):
            self._phase = f"after {index} of {len(self._tensors)} tensors"
            made = self._send_tensor(index, description, data, hashed=digests is None)
            self._digests.append(made if digests is None else digests[index])
        self._phase = "after the last tensor"
        return manifest.tensors_array([description for description, _ in self._tensors], self._digests)

    def end(self, root: str) -> Frame:
        """Send END and wait for the receiver's answer. Returns its ACK, not yet verified. Raises RefusedError."""
        self._write([session.sealed(self._transcript, self._keys, FrameType.END, {}, session.root_bytes(root)).wire])
        self._phase = "after END"
        while True:
            try:
                frame = self._stream.read_frame(self._deadline, {FrameType.ACK, FrameType.NACK, FrameType.PONG})
            except LinkError as error:
                raise self._placed(error) from None
            if frame.type is FrameType.ACK:
                return frame
            if frame.type is FrameType.NACK:
                raise self._explained(keepalive.refused(frame))

    def _send_tensor(self, index: int, description: TensorDescription, data: memoryview, *, hashed: bool) -> str:
        from blake3 import blake3

        hasher = blake3()
        for first_token, count, body in ranges(description, data):
            self._hear()
            frame = frames.build(
                FrameType.LAYER, {"tensor": index, "first_token": first_token, "count": count}, len(body)
            )
            self._transcript.add(frame)
            head = [frame.wire]
            for start in range(0, len(body), SLICE_BYTES):
                part = body[start : start + SLICE_BYTES]
                if hashed:
                    hasher.update(part)
                self._write([*head, part])
                head = []
        return "blake3:" + hasher.hexdigest()

    def _write(self, buffers: Sequence[bytes | memoryview]) -> None:
        try:
            self._stream.write(buffers, self._deadline)
        except LinkError as error:
            word = keepalive.last_word(self._stream) if error.code == "peer_gone" else None
            raise self._explained(word) if word is not None else self._placed(error) from None

    def _hear(self) -> None:
        try:
            while self._stream.has_input():
                keepalive.hear(self._stream, self._deadline)
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
