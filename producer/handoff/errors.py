"""What can go wrong on the wire, each with a code that a NACK or an ABORT can carry.

The codes are part of the format (docs/formats/wire.md lists every one; a test holds the two together).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from receipts.errors import LaneError

CODES: Final[Mapping[str, str]] = {
    # bytes that are no frame
    "bad_magic": "the first four bytes are not KVH2",
    "bad_version": "the version is not 2",
    "unknown_type": "the type is none of 1 to 12",
    "header_too_large": "header_len is over the type's limit",
    "body_too_large": "body_len is over 64 MiB",
    "body_not_allowed": "a body on a type that has none",
    "bad_header": "the header is not strict JSON, or not an object",
    "not_canonical": "the header is not in its RFC 8785 form",
    "unknown_field": "a header field that the type does not have",
    "missing_field": "a header field that the type must have is absent",
    "bad_field": "a header field has the wrong type, form or range",
    "short_frame": "the connection ended inside a frame",
    # frames that the session does not allow
    "unexpected_frame": "a known type that may not come now",
    "handshake_timeout": "HELLO and OPEN did not both come within the handshake limit",
    "not_enrolled": "lane, identity, cache identity or mode is not the enrolled one",
    "too_large": "HELLO asks for more than the receiver's memory limit",
    "wrong_receiver": "HELLO_ACK names another receiver than the one asked for",
    "bad_mac": "a mac does not verify",
    "busy": "another producer holds the slot",
    "no_memory": "the receiver could not reserve the buffer",
    "bad_reserved": "OPENED names another size than HELLO asked for",
    "stale_slot": "no byte from the producer within the silence limit: the slot was freed",
    "geometry_differs": "BEGIN's tensors are not what the enrolled geometry gives for n_tokens",
    "size_differs": "BEGIN's total_bytes is not HELLO's bytes, or not the sum of the tensors'",
    "replayed": "this handoff id was admitted before",
    "unknown_tensor": "LAYER names a tensor that BEGIN does not have",
    "range_overlap": "a range begins before the end of the one before it",
    "range_gap": "a range begins after the end of the one before it",
    "range_beyond": "a range reaches past the end of its tensor",
    "range_missing": "END came before every byte",
    "short_body": "a LAYER's body is shorter than its count of tokens",
    "long_body": "a LAYER's body is longer than its count of tokens",
    "bytes_differ": "END's mac does not verify with the root the receiver computed",
    "record_failed": "the admission record could not be made durable",
    # what only one end sees
    "root_differs": "ACK names another root than the producer's",
    "bad_signature": "ACK's signature does not verify",
    "unreachable": "no connection to the receiver's address within the connect limit",
    "peer_gone": "the connection was lost, or took no bytes within the receiver's write limit",
    "peer_silent": "no byte from the receiver within the silence limit while PINGs are sent",
    "deadline": "a time limit of the producer passed: handshake, OPENED, one frame, or the session",
    "closed": "this end closed the session before",
    # what an ABORT says
    "engine_failed": "the engine raised during the prefill",
    "cancelled": "the handoff was given up before BEGIN",
}


class WireError(LaneError):
    """A handoff failed; ``code`` is the name of the fault (one of CODES, or what a peer sent)."""

    def __init__(self, code: str, reason: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(f"{code}: {reason}", where=where, next_step=next_step)
        self.code = code
        self.reason = reason


class FrameError(WireError):
    """Bytes that are no frame of version 2."""


class SessionError(WireError):
    """A well-formed frame that the session does not allow: order, enrollment, mac, ranges, size."""


class LinkError(WireError):
    """The other end was not reached, went away, or stayed silent past a limit."""


class RefusedError(WireError):
    """The receiver answered NACK. ``digests`` are the receiver's, one per tensor, when it said bytes_differ."""

    def __init__(
        self,
        code: str,
        reason: str,
        *,
        digests: tuple[str, ...] | None = None,
        first_difference: int | None = None,
        where: str | None = None,
    ) -> None:
        super().__init__(code, reason, where=where)
        self.digests = digests
        self.first_difference = first_difference
        """Index of the first differing tensor, when the two ends' digests say so."""


class AbortedError(WireError):
    """The producer sent ABORT."""
