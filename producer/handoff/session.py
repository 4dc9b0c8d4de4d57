"""The trust of one session: keys, transcript and macs. Pure; nonces and keys come from the caller.

A mac is HMAC-SHA-256 under the key of the sender's direction over ``type name ‖ 0x00 ‖ T ‖ R``. T binds every
earlier frame of the session and the frame itself (its prefix as sent, its header without ``mac``); R is the
sender's root in END and ACK. So a mac of one session, direction, type or payload is worth nothing in another.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from producer.handoff import frames
from producer.handoff.errors import SessionError
from producer.handoff.frames import Frame, FrameType
from receipts import canonical

KEY_BYTES: Final = 32
NONCE_BYTES: Final = 32
_PLACEHOLDER: Final = "0" * 64
"""Stands in for a mac while the prefix is built: header_len counts the header with its mac."""

_OUTSIDE_TRANSCRIPT: Final = (FrameType.PING, FrameType.PONG, FrameType.NACK, FrameType.ABORT)


@dataclass(frozen=True, repr=False)
class SessionKeys:
    """The two keys of a session, 32 bytes each: producer to receiver, receiver to producer."""

    p2r: bytes
    r2p: bytes

    def of_sender(self, kind: FrameType) -> bytes:
        """The key under which a frame of ``kind`` is authenticated."""
        return self.r2p if kind in (FrameType.HELLO_ACK, FrameType.ACK) else self.p2r


def derive_keys(handoff_key: bytes, nonce_p: bytes, nonce_r: bytes) -> SessionKeys:
    """HKDF-SHA-256 (RFC 5869), L = 32, salt = nonce_p ‖ nonce_r. Raises ValueError on a wrong length."""
    if (len(handoff_key), len(nonce_p), len(nonce_r)) != (KEY_BYTES, NONCE_BYTES, NONCE_BYTES):
        raise ValueError("the handoff key and both nonces have 32 bytes each")
    salt = nonce_p + nonce_r
    return SessionKeys(_hkdf(handoff_key, salt, b"KVH2 p2r"), _hkdf(handoff_key, salt, b"KVH2 r2p"))


def handoff_key_id(handoff_key: bytes) -> str:
    """The public name of a handoff key: ``sha256:<64 hex>`` over a label and the key."""
    return canonical.sha256(b"soakledger/handoff-key/1\n" + handoff_key)


class Transcript:
    """SHA-256 over prefix and header of every frame of the session so far, in order."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, frame: Frame) -> None:
        """Take in a frame as sent, its mac included. PING, PONG, NACK and ABORT are no part of it."""
        if frame.type not in _OUTSIDE_TRANSCRIPT:
            self._hash.update(frame.wire)

    def digest_before(self, prefix: bytes, header_without_mac: Mapping[str, Any]) -> bytes:
        """T for a frame that is not yet taken in: 32 raw bytes."""
        copy = self._hash.copy()
        copy.update(prefix)
        copy.update(canonical.dumps(dict(header_without_mac)))
        return copy.digest()


def mac(key: bytes, kind: FrameType, transcript_digest: bytes, root: bytes = b"") -> str:
    """64 lower-case hex of HMAC-SHA-256 over ``type name ‖ 0x00 ‖ T ‖ R``."""
    message = kind.name.encode("ascii") + b"\x00" + transcript_digest + root
    return hmac.new(key, message, hashlib.sha256).hexdigest()


def sealed(
    transcript: Transcript, keys: SessionKeys, kind: FrameType, fields: Mapping[str, Any], root: bytes = b""
) -> Frame:
    """A frame with its mac, ready to send; the transcript takes it in."""
    shape = frames.build(kind, {**fields, "mac": _PLACEHOLDER})
    value = mac(keys.of_sender(kind), kind, transcript.digest_before(shape.prefix.raw, fields), root)
    frame = frames.build(kind, {**fields, "mac": value})
    transcript.add(frame)
    return frame


def verify(transcript: Transcript, keys: SessionKeys, frame: Frame, root: bytes = b"") -> None:
    """Check a received frame's mac, then take the frame in. Raises SessionError bad_mac."""
    fields = {name: value for name, value in frame.header.items() if name != "mac"}
    expected = mac(keys.of_sender(frame.type), frame.type, transcript.digest_before(frame.prefix.raw, fields), root)
    if not hmac.compare_digest(expected, str(frame.header["mac"])):
        raise SessionError("bad_mac", f"the mac of {frame.type.name} does not verify")
    transcript.add(frame)


def root_bytes(root: str) -> bytes:
    """The 32 raw bytes of ``blake3:<64 hex>``, as R takes them."""
    return bytes.fromhex(root.removeprefix("blake3:"))


def _hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    from cryptography.hazmat.primitives.hashes import SHA256  # late: start-up of the commands is measured
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF

    return HKDF(algorithm=SHA256(), length=KEY_BYTES, salt=salt, info=info).derive(key)
