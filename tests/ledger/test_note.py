"""C2SP signed notes: the published example, and everything that must not pass for one."""

from __future__ import annotations

import base64
import hashlib

import pytest

from ledger import note
from ledger.keys import SigningKey, VerifyKey
from receipts.errors import EvidenceError

# The example of golang.org/x/mod/sumdb/note, which the C2SP specification took over.
EXAMPLE = (
    "If you think cryptography is the answer to your problem,\n"
    "then you don't know what your problem is.\n"
    "\n"
    "— PeterNeumann x08go/ZJkuBS9UG/SffcvIAQxVBtiFupLLr8pAcElZInNIuGUgYN1FFYC2pZSNXgKvqfqdngotpRZb6KE6RyyBwJnAM=\n"
).encode()
VERIFIER = VerifyKey("PeterNeumann", base64.b64decode("ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW")[1:])
ORIGIN = "soakledger.invalid/" + "ab" * 16
KEY = SigningKey(ORIGIN, bytes(range(32)))
ROOT = "sha256:" + "5d" * 32


def test_the_published_note_verifies_and_its_key_id_is_as_published() -> None:
    assert VERIFIER.key_id.hex() == "c74f20a3"
    assert note.parse(EXAMPLE).signed_by(VERIFIER)


def test_a_changed_letter_of_the_published_note_does_not_verify() -> None:
    assert not note.parse(EXAMPLE.replace(b"problem is", b"problem Is")).signed_by(VERIFIER)


def test_a_checkpoint_is_three_lines_an_empty_line_and_a_signature_by_the_hand_made_key_id() -> None:
    data = note.sign_checkpoint(57, ROOT, KEY).note
    public = KEY.verify_key.public_bytes
    expected_id = hashlib.sha256(ORIGIN.encode() + b"\n\x01" + public).digest()[:4]
    lines = data.decode().split("\n")
    assert lines[:4] == [ORIGIN, "57", base64.b64encode(b"\x5d" * 32).decode(), ""]
    assert base64.b64decode(lines[4].split(" ")[2])[:4] == expected_id
    assert note.verify_checkpoint(data, KEY.verify_key) == note.Checkpoint(ORIGIN, 57, ROOT, data)


def test_equal_heads_give_equal_bytes_and_the_digest_is_over_them() -> None:
    first, second = note.sign_checkpoint(57, ROOT, KEY), note.sign_checkpoint(57, ROOT, KEY)
    assert first.note == second.note
    assert first.note_sha256 == "sha256:" + hashlib.sha256(first.note).hexdigest()


GOOD = note.sign_checkpoint(57, ROOT, KEY).note


@pytest.mark.parametrize(
    "bad",
    [
        GOOD.replace(b"\n57\n", b"\n58\n"),
        GOOD.replace(b"\n57\n", b"\n057\n"),
        GOOD.replace(b"\n57\n", b"\n+57\n"),
        GOOD.replace(b"\n57\n", b"\n57\nmore\n"),
        GOOD.replace(b"\n57\n", b"\n57\r\n"),
        GOOD[:-1],
        GOOD + b"\n",
        GOOD.replace("— ".encode(), b"- "),
        GOOD.replace(b"=\n\n", b"\n\n"),
        GOOD.replace(ORIGIN.encode(), b"soakledger.invalid/other"),
        b"\xff" + GOOD,
        b"",
        b"\n\n",
    ],
)
def test_anything_but_the_signed_bytes_is_refused(bad: bytes) -> None:
    with pytest.raises(EvidenceError):
        note.verify_checkpoint(bad, KEY.verify_key)


def test_a_signature_by_another_key_under_the_same_name_is_refused() -> None:
    other = SigningKey(ORIGIN, b"\x07" * 32)
    with pytest.raises(EvidenceError, match="no valid signature"):
        note.verify_checkpoint(note.sign_checkpoint(57, ROOT, other).note, KEY.verify_key)


ALPHABET = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"


def respelled(text: str) -> str:
    """Another text that a loose decoder takes for the same bytes: an unused bit of the last letter is set."""
    letters = text.rstrip("=")
    other = letters[:-1] + ALPHABET[ALPHABET.index(letters[-1]) + 1] + "=" * (len(text) - len(letters))
    assert base64.b64decode(other) == base64.b64decode(text)
    return other


def test_a_second_spelling_of_a_notes_signature_or_root_is_refused() -> None:
    lines = GOOD.decode().split("\n")
    signature = lines[4].split(" ")[2]
    for written in (lines[2], signature):
        with pytest.raises(EvidenceError, match="is not the base64"):
            note.verify_checkpoint(GOOD.replace(written.encode(), respelled(written).encode()), KEY.verify_key)
    unpadded = GOOD.replace(signature.encode(), signature.rstrip("=").encode())
    with pytest.raises(EvidenceError, match="is not the base64"):
        note.verify_checkpoint(unpadded, KEY.verify_key)
