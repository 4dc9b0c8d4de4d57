"""Putting a payload together: every tensor's ranges ascending and contiguous, every byte exactly once, hashed once.

The digest of a tensor is taken from the reserved buffer, after the bytes are there: every half slice, on the
bytes just received, by hash threads while the next ones come in (FACTS section 6).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from producer.handoff.errors import SessionError
from producer.handoff.hashing import HashThreads
from producer.handoff.manifest import KVGeometry, TensorDescription, expected_tensors, total_bytes

if TYPE_CHECKING:
    from blake3 import blake3

HASH_BYTES: Final = 1024 * 1024


def check_begin(header: Mapping[str, Any], geometry: KVGeometry, hello_bytes: int) -> tuple[TensorDescription, ...]:
    """The tensors of a BEGIN that HELLO and the enrolled geometry allow. Raises SessionError.

    In this order: total_bytes against HELLO (size_differs), the tensors against the geometry (geometry_differs),
    total_bytes against their sum (size_differs).
    """
    if header["total_bytes"] != hello_bytes:
        raise SessionError("size_differs", f"total_bytes {header['total_bytes']}, but HELLO asked for {hello_bytes}")
    expected = expected_tensors(geometry, header["n_tokens"])
    found = header["tensors"]
    if len(found) != len(expected):
        raise SessionError("geometry_differs", f"{len(found)} tensors, the geometry gives {len(expected)}")
    for index, (item, wanted) in enumerate(zip(found, expected, strict=True)):
        if item != wanted.document():
            raise SessionError("geometry_differs", f"tensor {index} is not what the geometry gives")
    if total_bytes(expected) != hello_bytes:
        raise SessionError("size_differs", f"the tensors have {total_bytes(expected)} bytes, not {hello_bytes}")
    return expected


@dataclass
class _Progress:
    """One tensor on its way in. Offsets count from the tensor's first byte."""

    description: TensorDescription
    offset: int
    hasher: blake3
    next_token: int
    hashed: int = 0
    received: int = 0

    @property
    def row_bytes(self) -> int:
        return self.description.bytes // self.description.tokens


class Assembly:
    """The tensors of one handoff inside the reserved buffer, in BEGIN's order, without gaps between them."""

    def __init__(self, descriptions: Sequence[TensorDescription], buffer: memoryview, hashing: HashThreads) -> None:
        from blake3 import blake3

        self._hashing = hashing

        self.descriptions = tuple(descriptions)
        self._buffer = buffer
        self._tensors: list[_Progress] = []
        offset = 0
        for item in self.descriptions:
            self._tensors.append(_Progress(item, offset, blake3(), item.first_token))
            offset += item.bytes

    def expect(self, header: Mapping[str, Any], body_len: int) -> tuple[int, memoryview]:
        """Where the body of a LAYER goes: the tensor's index and its view. Raises SessionError range_*, *_body."""
        index, first, count = header["tensor"], header["first_token"], header["count"]
        if index >= len(self._tensors):
            raise SessionError("unknown_tensor", f"tensor {index} of {len(self._tensors)}")
        tensor = self._tensors[index]
        what = f"tensor {index}: tokens {first} to {first + count}"
        if first < tensor.next_token:
            raise SessionError("range_overlap", f"{what}, the next one due is {tensor.next_token}")
        if first > tensor.next_token:
            raise SessionError("range_gap", f"{what}, the next one due is {tensor.next_token}")
        end = tensor.description.first_token + tensor.description.tokens
        if first + count > end:
            raise SessionError("range_beyond", f"{what}, the tensor ends at {end}")
        size = count * tensor.row_bytes
        if body_len != size:
            code = "short_body" if body_len < size else "long_body"
            raise SessionError(code, f"{what} are {size} bytes, the body has {body_len}")
        tensor.next_token += count
        start = tensor.offset + tensor.received
        return index, self._buffer[start : start + size]

    def received(self, index: int, count: int) -> None:
        """``count`` more bytes of the tensor are in the buffer; digests them once half a slice is there."""
        tensor = self._tensors[index]
        tensor.received += count
        if tensor.received - tensor.hashed >= HASH_BYTES or tensor.received == tensor.description.bytes:
            self._digest(index, tensor)

    def digests(self) -> list[str]:
        """Every tensor's ``blake3:<hex>``. Raises SessionError range_missing, naming the first incomplete one."""
        for index, tensor in enumerate(self._tensors):
            if tensor.received != tensor.description.bytes:
                raise SessionError(
                    "range_missing",
                    f"tensor {index} has {tensor.received} of {tensor.description.bytes} bytes",
                )
        self._hashing.finish()
        return ["blake3:" + tensor.hasher.hexdigest() for tensor in self._tensors]

    def _digest(self, index: int, tensor: _Progress) -> None:
        self._hashing.update(
            index, tensor.hasher, self._buffer[tensor.offset + tensor.hashed : tensor.offset + tensor.received]
        )
        tensor.hashed = tensor.received
