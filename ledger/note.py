"""C2SP signed notes and checkpoints: the written form of a signed tree head. Pure.

A note is text ending in a newline, an empty line, and one signature line a signer:
``— <name> <base64(key id ‖ signature)>``. The key id is SHA-256(name ‖ 0x0A ‖ 0x01 ‖ public key)[:4] for
Ed25519. A checkpoint is a note whose text is ``origin\\nsize\\nbase64(root)\\n`` (C2SP tlog-checkpoint).
Reading is strict: what is not exactly of this form is refused.
"""

from __future__ import annotations

import base64
import hashlib
import re
from dataclasses import dataclass
from typing import Final, Protocol

from receipts import canonical
from receipts.errors import EvidenceError

ED25519: Final = b"\x01"
SIGNATURE_BYTES: Final = 64
MAX_NOTE_BYTES: Final = 65_536
MAX_SIGNATURES: Final = 64
_DASH: Final = "— "
_SIZE: Final = re.compile(r"0|[1-9][0-9]{0,15}")


class NoteSigner(Protocol):
    """Who signs a note."""

    @property
    def name(self) -> str: ...
    @property
    def key_id(self) -> bytes: ...
    def sign(self, message: bytes) -> bytes: ...


class NoteVerifier(Protocol):
    """Whose signature on a note counts."""

    @property
    def name(self) -> str: ...
    @property
    def key_id(self) -> bytes: ...
    def verify(self, signature: bytes, message: bytes) -> bool: ...


@dataclass(frozen=True)
class NoteSignature:
    """One signature line."""

    name: str
    key_id: bytes
    signature: bytes


@dataclass(frozen=True)
class SignedNote:
    """A note as read; nothing about its signatures was checked yet."""

    text: str
    signatures: tuple[NoteSignature, ...]

    def signed_by(self, verifier: NoteVerifier) -> bool:
        """Whether there are lines of this name and key id, and every one of them verifies."""
        own = [line for line in self.signatures if (line.name, line.key_id) == (verifier.name, verifier.key_id)]
        return bool(own) and all(verifier.verify(line.signature, self.text.encode()) for line in own)


def key_id(name: str, public_key: bytes) -> bytes:
    """The four bytes that name an Ed25519 key on a signature line."""
    return hashlib.sha256(name.encode() + b"\n" + ED25519 + public_key).digest()[:4]


def is_name(name: str) -> bool:
    """Whether ``name`` may stand on a signature line: not empty, no white space, no plus sign."""
    return bool(name) and "+" not in name and not any(letter.isspace() for letter in name) and name.isprintable()


def sign(text: str, *signers: NoteSigner) -> bytes:
    """The note over ``text`` with one line a signer. Raises ValueError on a text or name that no note can hold."""
    if not text.endswith("\n") or not _clean(text):
        raise ValueError("the text of a note ends in a newline and holds no other control character")
    lines: list[str] = []
    for signer in signers:
        if not is_name(signer.name):
            raise ValueError(f"{signer.name!r} cannot be a signer's name")
        blob = base64.b64encode(signer.key_id + signer.sign(text.encode())).decode("ascii")
        lines.append(f"{_DASH}{signer.name} {blob}\n")
    return (text + "\n" + "".join(lines)).encode()


def parse(data: bytes) -> SignedNote:
    """Read a signed note. Raises EvidenceError that says what is not as the format has it."""
    if len(data) > MAX_NOTE_BYTES:
        raise EvidenceError(f"a signed note is at most {MAX_NOTE_BYTES} bytes, not {len(data)}")
    try:
        whole = data.decode("utf-8")
    except UnicodeDecodeError:
        raise EvidenceError("the signed note is not UTF-8") from None
    if not _clean(whole):
        raise EvidenceError("the signed note holds a control character other than newline")
    head, separator, tail = whole.rpartition("\n\n")
    if not separator or not tail.endswith("\n"):
        raise EvidenceError("the signed note has no empty line followed by signature lines")
    lines = tail[:-1].split("\n")
    if len(lines) > MAX_SIGNATURES:
        raise EvidenceError(f"the signed note has more than {MAX_SIGNATURES} signatures")
    return SignedNote(head + "\n", tuple(_signature(line) for line in lines))


@dataclass(frozen=True)
class Checkpoint:
    """A signed tree head: ``size`` leaves under ``root`` (``sha256:<hex>``), and the note that says so."""

    origin: str
    size: int
    root: str
    note: bytes

    @property
    def note_sha256(self) -> str:
        """``sha256:<hex>`` of the note's bytes."""
        return "sha256:" + hashlib.sha256(self.note).hexdigest()


def checkpoint_text(origin: str, size: int, root: str) -> str:
    """The three lines of a checkpoint; ``root`` is ``sha256:<hex>``."""
    return f"{origin}\n{size}\n{base64.b64encode(bytes.fromhex(root.removeprefix('sha256:'))).decode('ascii')}\n"


def sign_checkpoint(size: int, root: str, signer: NoteSigner) -> Checkpoint:
    """The checkpoint of a tree head, signed; the origin is the signer's name."""
    return Checkpoint(signer.name, size, root, sign(checkpoint_text(signer.name, size, root), signer))


def parse_checkpoint(data: bytes) -> tuple[Checkpoint, SignedNote]:
    """Read a checkpoint, its signatures unchecked. Raises EvidenceError.

    The format allows further lines after the third; ours never have any, so they are refused.
    """
    note = parse(data)
    lines = note.text[:-1].split("\n")
    if len(lines) != 3:
        raise EvidenceError(f"a checkpoint has the lines origin, size and root, not {len(lines)} lines")
    origin, size, root = lines
    if not is_name(origin):
        raise EvidenceError(f"{origin!r} is no origin")
    if not _SIZE.fullmatch(size):
        raise EvidenceError(f"{size!r} is no tree size")
    return Checkpoint(origin, int(size), "sha256:" + _base64(root, 32, "root").hex(), data), note


def verify_checkpoint(data: bytes, verifier: NoteVerifier) -> Checkpoint:
    """Read a checkpoint and check that ``verifier`` signed it under its own name as origin. Raises EvidenceError."""
    checkpoint, note = parse_checkpoint(data)
    if checkpoint.origin != verifier.name:
        raise EvidenceError(f"the checkpoint is of origin {checkpoint.origin}, not {verifier.name}")
    if not note.signed_by(verifier):
        raise EvidenceError(f"the checkpoint has no valid signature by key {verifier.key_id.hex()} of {verifier.name}")
    return checkpoint


def _signature(line: str) -> NoteSignature:
    name, space, blob = line.removeprefix(_DASH).partition(" ")
    if not line.startswith(_DASH) or not space or not is_name(name):
        raise EvidenceError(f"{line[:60]!r} is no signature line")
    raw = _base64(blob, None, "signature")
    # Lines of other algorithms may stand beside ours; only a key id and something behind it is asked for.
    if len(raw) < 5:
        raise EvidenceError(f"the signature of {name} is too short")
    return NoteSignature(name, raw[:4], raw[4:])


def _base64(text: str, length: int | None, what: str) -> bytes:
    try:
        raw = canonical.from_base64(text)
    except ValueError:
        raw = None
    if raw is None or (length is not None and len(raw) != length):
        raise EvidenceError(f"the {what} {text[:60]!r} is not the base64 of {length or 'its'} bytes")
    return raw


def _clean(text: str) -> bool:
    return not any(ord(letter) < 0x20 and letter != "\n" for letter in text)
