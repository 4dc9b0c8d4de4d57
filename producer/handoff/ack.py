"""The receiver's signature over what it admitted: what an HMAC cannot show an auditor.

Pure. The message is ``soakledger/ack/1\\n`` and the RFC 8785 bytes of the eleven fields of AckStatement.
"""

from __future__ import annotations

import base64
import re
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Final

from producer.handoff.errors import SessionError
from receipts import canonical

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

ACK_LABEL: Final = b"soakledger/ack/1\n"
SIGNATURE: Final = r"ed25519:[A-Za-z0-9+/]{85}[AQgw]=="
"""64 bytes in padded standard base64: the last letter carries two bits, so its four unused ones must be zero."""

_PREFIX: Final = "ed25519:"


@dataclass(frozen=True)
class AckStatement:
    """The eleven signed fields. Nonces are 64 hex, digests carry their prefix."""

    lane: str
    receiver: str
    identity: str
    cache_identity: str
    mode: str
    handoff_id: str
    prompt_sha256: str
    root: str
    total_bytes: int
    nonce_p: str
    nonce_r: str

    def message(self) -> bytes:
        """The bytes that are signed."""
        return ACK_LABEL + canonical.dumps(asdict(self))


def sign(statement: AckStatement, private_key: Ed25519PrivateKey) -> str:
    """``ed25519:<base64 of 64 bytes>`` over the statement's message."""
    return _PREFIX + base64.b64encode(private_key.sign(statement.message())).decode("ascii")


def verify(statement: AckStatement, signature: str, public_key: bytes) -> None:
    """Check a signature with the lane's enrolled public key (32 raw bytes). Raises SessionError bad_signature.

    A second spelling of the same 64 bytes does not verify either: one signature has one text.
    """
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        if not re.fullmatch(SIGNATURE, signature):
            raise ValueError("not an ed25519 signature")
        raw = canonical.from_base64(signature.removeprefix(_PREFIX))
        Ed25519PublicKey.from_public_bytes(public_key).verify(raw, statement.message())
    except (InvalidSignature, ValueError):
        raise SessionError(
            "bad_signature", "the receiver's signature does not verify with the enrolled public key"
        ) from None
