"""The Ed25519 keys of a ledger. The private one lives outside every evidence home, 0600.

``cryptography`` is imported when a key is used, not when this module is.
"""

from __future__ import annotations

import base64
import binascii
import contextlib
import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ledger import note
from ledger.home import config_folder
from receipts import canonical
from receipts.errors import EvidenceError, HomeError
from receipts.store import sync_file, sync_folder, write_all

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PUBLIC_PREFIX: Final = "ed25519:"
_PRIVATE_PREFIX: Final = "PRIVATE+KEY"
_LOST_KEY_STEP: Final = (
    "restore the key file from your backup; without it the ledger still verifies, "
    "but takes no further registration, attempt or verdict"
)


@dataclass(frozen=True)
class VerifyKey:
    """A public key and the name that it signs notes under (the ledger's origin)."""

    name: str
    public_bytes: bytes

    @classmethod
    def from_text(cls, name: str, text: str) -> VerifyKey:
        """From ``ed25519:<base64>``. Raises EvidenceError on anything else."""
        try:
            raw = canonical.from_base64(text.removeprefix(PUBLIC_PREFIX))
        except ValueError:
            raw = b""
        if not text.startswith(PUBLIC_PREFIX) or len(raw) != 32:
            raise EvidenceError(f"{text[:60]!r} is no Ed25519 public key")
        return cls(name, raw)

    @property
    def text(self) -> str:
        return PUBLIC_PREFIX + base64.b64encode(self.public_bytes).decode("ascii")

    @property
    def key_id(self) -> bytes:
        return note.key_id(self.name, self.public_bytes)

    def verify(self, signature: bytes, message: bytes) -> bool:
        from cryptography.exceptions import InvalidSignature

        try:
            self._key.verify(signature, message)
        except InvalidSignature:
            return False
        return True

    @cached_property
    def _key(self) -> Ed25519PublicKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        return Ed25519PublicKey.from_public_bytes(self.public_bytes)


@dataclass(frozen=True)
class SigningKey:
    """A private key and the name that it signs notes under."""

    name: str
    seed: bytes = field(repr=False)

    @classmethod
    def generate(cls, name: str) -> SigningKey:
        return cls(name, os.urandom(32))

    @classmethod
    def load(cls, origin: str, environ: Mapping[str, str]) -> SigningKey:
        """The key of ``origin`` on this machine. Raises HomeError when it is lost, unsafe or another's."""
        path = key_path(origin, environ)
        try:
            handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        except FileNotFoundError:
            raise HomeError(
                f"the signing key of ledger {origin} is not on this machine", where=str(path), next_step=_LOST_KEY_STEP
            ) from None
        except OSError as error:
            raise HomeError(
                f"the signing key cannot be read: {error.strerror}", where=str(path), next_step=_LOST_KEY_STEP
            ) from None
        mode = os.fstat(handle).st_mode
        if not stat.S_ISREG(mode):  # a pipe would hang
            os.close(handle)
            raise HomeError("the signing key is not a regular file", where=str(path), next_step=_LOST_KEY_STEP)
        with os.fdopen(handle, "rb") as file:
            if stat.S_IMODE(mode) & 0o077:
                raise HomeError(
                    "the signing key can be read by others than its owner",
                    where=str(path),
                    next_step=f"chmod 600 {path}, and consider who may have read it",
                )
            return cls._parsed(origin, file.read(4096), path)

    @classmethod
    def _parsed(cls, origin: str, data: bytes, path: Path) -> SigningKey:
        parts = data.decode("utf-8", "replace").removesuffix("\n").split("+", 4)
        try:
            raw = base64.b64decode(parts[4], validate=True) if len(parts) == 5 else b""
        except (binascii.Error, ValueError):
            raw = b""
        key = cls(origin, raw[1:])
        if len(raw) != 33 or raw[:1] != note.ED25519 or key.file_bytes() != data:
            raise HomeError(f"this is not the signing key of {origin}", where=str(path), next_step=_LOST_KEY_STEP)
        return key

    def save(self, environ: Mapping[str, str]) -> Path:
        """Write the key file, 0600, never over another. Raises HomeError."""
        path = key_path(self.name, environ)
        try:
            path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HomeError(f"the signing key cannot be written: {error.strerror}", where=str(path)) from None
        try:
            write_all(handle, self.file_bytes())
            sync_file(handle)
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink()
            raise HomeError(f"the signing key cannot be written: {error.strerror}", where=str(path)) from None
        finally:
            os.close(handle)
        sync_folder(path.parent)
        return path

    def file_bytes(self) -> bytes:
        """The private key in the form of C2SP note keys: ``PRIVATE+KEY+<name>+<key id>+<base64(0x01 ‖ seed)>``."""
        blob = base64.b64encode(note.ED25519 + self.seed).decode("ascii")
        return f"{_PRIVATE_PREFIX}+{self.name}+{self.key_id.hex()}+{blob}\n".encode()

    @property
    def key_id(self) -> bytes:
        return self.verify_key.key_id

    @cached_property
    def verify_key(self) -> VerifyKey:
        return VerifyKey(self.name, self._key.public_key().public_bytes_raw())

    def sign(self, message: bytes) -> bytes:
        return self._key.sign(message)

    @cached_property
    def _key(self) -> Ed25519PrivateKey:
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return Ed25519PrivateKey.from_private_bytes(self.seed)


def key_path(origin: str, environ: Mapping[str, str]) -> Path:
    """``$XDG_CONFIG_HOME/soakledger/<32 hex of origin>.key``; a restored origin ``…/r<k>`` adds ``-r<k>``."""
    return config_folder(environ) / (origin.partition("/")[2].replace("/", "-") + ".key")
