"""Keys, transcript and macs against the test vector of docs/formats/wire.md, recomputed with hashlib and hmac alone."""

from __future__ import annotations

import hashlib
import hmac
import json
from pathlib import Path
from typing import Any

import pytest

from producer.handoff import ack, frames, manifest, session
from producer.handoff.errors import SessionError
from producer.handoff.frames import Frame, FrameType
from producer.handoff.manifest import KVGeometry, LayerGeometry
from producer.handoff.session import SessionKeys, Transcript
from receipts import canonical
from receipts.errors import CanonicalError
from receipts.kinds import AdmissionBody

GEOMETRY = KVGeometry((LayerGeometry("full", None, 1, 2, 0),), "bfloat16")
DIRECTION = {"HELLO_ACK": "key_r2p", "OPEN": "key_p2r", "END": "key_p2r", "ACK": "key_r2p"}


@pytest.fixture(scope="module")
def vector() -> dict[str, Any]:
    text = Path("docs/formats/wire.md").read_text(encoding="utf-8")
    return dict(json.loads(text.split("```json\n")[1].split("\n```")[0]))


def rfc5869(key: bytes, salt: bytes, info: bytes) -> bytes:
    """HKDF for L = 32: one round of expand."""
    extracted = hmac.new(salt, key, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def session_frames(vector: dict[str, Any]) -> list[dict[str, str]]:
    return [item for item in vector["frames"] if item["type"] not in ("PING", "PONG", "NACK", "ABORT")]


def parsed(item: dict[str, str]) -> Frame:
    return frames.parse_frame(frames.parse_prefix(bytes.fromhex(item["prefix"])), item["header"].encode())


def keys_of(vector: dict[str, Any]) -> SessionKeys:
    return session.derive_keys(*(bytes.fromhex(vector[name]) for name in ("handoff_key", "nonce_p", "nonce_r")))


def test_both_keys_are_rfc_5869s(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["handoff_key"])
    salt = bytes.fromhex(vector["nonce_p"] + vector["nonce_r"])
    assert rfc5869(key, salt, b"KVH2 p2r").hex() == vector["key_p2r"] == keys_of(vector).p2r.hex()
    assert rfc5869(key, salt, b"KVH2 r2p").hex() == vector["key_r2p"] == keys_of(vector).r2p.hex()
    expected = "sha256:" + hashlib.sha256(b"soakledger/handoff-key/1\n" + key).hexdigest()
    assert session.handoff_key_id(key) == vector["handoff_key_id"] == expected


def test_every_mac_of_the_vector_is_the_formula_of_the_document(vector: dict[str, Any]) -> None:
    seen = b""
    checked = []
    for item in session_frames(vector):
        raw = bytes.fromhex(item["prefix"])
        header = json.loads(item["header"])
        if "mac" in header:
            found = header.pop("mac")
            rest = json.dumps(header, sort_keys=True, separators=(",", ":")).encode()
            t = hashlib.sha256(seen + raw + rest).digest()
            assert t.hex() == item["t"]
            root = bytes.fromhex(vector["root"][7:]) if item["type"] in ("END", "ACK") else b""
            message = item["type"].encode() + b"\x00" + t + root
            key = bytes.fromhex(vector[DIRECTION[item["type"]]])
            assert hmac.new(key, message, hashlib.sha256).hexdigest() == found
            checked.append(item["type"])
        seen += raw + item["header"].encode()
    assert checked == ["HELLO_ACK", "OPEN", "END", "ACK"]


def test_our_transcript_verifies_every_frame_of_the_vector(vector: dict[str, Any]) -> None:
    transcript, keys = Transcript(), keys_of(vector)
    for item in session_frames(vector):
        frame = parsed(item)
        if "mac" in frame.header:
            root = session.root_bytes(vector["root"]) if item["type"] in ("END", "ACK") else b""
            session.verify(transcript, keys, frame, root)
        else:
            transcript.add(frame)


def test_the_vectors_digests_manifest_and_root_are_ours(vector: dict[str, Any]) -> None:
    descriptions = manifest.expected_tensors(GEOMETRY, 2)
    array = manifest.tensors_array(descriptions, vector["tensor_digests"])
    document = manifest.manifest_bytes(vector["prompt_sha256"], 2, array)
    assert document.decode() == vector["manifest"]
    assert manifest.root(document) == vector["root"]
    assert manifest.tensors_root(array) == vector["tensors_root"]


def test_the_vectors_signature_verifies_and_binds_every_field(vector: dict[str, Any]) -> None:
    message = json.loads(vector["ack_message"].removeprefix("soakledger/ack/1\n"))
    assert len(message) == 11
    public = bytes.fromhex(vector["receiver_public_key"])
    statement = ack.AckStatement(**message)
    assert statement.message().decode() == vector["ack_message"]
    ack.verify(statement, vector["sig"], public)
    for name, value in message.items():
        changed = ack.AckStatement(**{**message, name: value + 1 if isinstance(value, int) else value + "x"})
        with pytest.raises(SessionError, match="bad_signature"):
            ack.verify(changed, vector["sig"], public)


@pytest.mark.parametrize("sig", ["", "ed25519:", "ed25519:!!!!", "rsa:AAAA", "ed25519:" + "A" * 86 + "=="])
def test_what_is_no_signature_is_refused(vector: dict[str, Any], sig: str) -> None:
    statement = ack.AckStatement(**json.loads(vector["ack_message"].removeprefix("soakledger/ack/1\n")))
    with pytest.raises(SessionError, match="bad_signature"):
        ack.verify(statement, sig, bytes.fromhex(vector["receiver_public_key"]))


def test_every_other_spelling_of_the_vectors_signature_is_refused_wherever_it_is_read(vector: dict[str, Any]) -> None:
    statement = ack.AckStatement(**json.loads(vector["ack_message"].removeprefix("soakledger/ack/1\n")))
    record = json.loads(vector["admission_record"])
    assert record["sig"] == vector["sig"]
    for sig in vector["sig_refused"]:
        with pytest.raises(SessionError, match="bad_signature"):
            ack.verify(statement, sig, bytes.fromhex(vector["receiver_public_key"]))
        with pytest.raises(CanonicalError, match="AdmissionBody"):
            AdmissionBody.read({**record, "sig": sig})


def test_the_vectors_admission_record_is_canonical_and_says_what_was_signed(vector: dict[str, Any]) -> None:
    record = json.loads(vector["admission_record"])
    assert vector["admission_record"].encode() == canonical.file_bytes(record)
    assert AdmissionBody.read(record).document() == record
    signed = json.loads(vector["ack_message"].removeprefix("soakledger/ack/1\n"))
    told = {**record, "nonce_p": record["nonces"]["p"], "nonce_r": record["nonces"]["r"]}
    shared = ("lane", "receiver", "handoff_id", "prompt_sha256", "root", "total_bytes", "nonce_p", "nonce_r")
    assert {name: told[name] for name in shared} == {name: signed[name] for name in shared}
    assert record["host"] == record["receiver"]


def opened_transcript(vector: dict[str, Any], upto: str) -> Transcript:
    transcript = Transcript()
    for item in session_frames(vector):
        if item["type"] == upto:
            return transcript
        transcript.add(parsed(item))
    raise AssertionError(upto)


def frame_of(vector: dict[str, Any], kind: str) -> Frame:
    return parsed(next(item for item in vector["frames"] if item["type"] == kind))


def test_a_mac_made_with_the_other_directions_key_is_refused(vector: dict[str, Any]) -> None:
    keys = keys_of(vector)
    with pytest.raises(SessionError, match="bad_mac"):
        session.verify(opened_transcript(vector, "OPEN"), SessionKeys(keys.r2p, keys.p2r), frame_of(vector, "OPEN"))


def test_an_end_verifies_only_with_the_root_of_its_payload(vector: dict[str, Any]) -> None:
    root = session.root_bytes(vector["root"])
    for wrong in (b"", bytes(32), root[:-1] + bytes([root[-1] ^ 1])):
        with pytest.raises(SessionError, match="bad_mac"):
            session.verify(opened_transcript(vector, "END"), keys_of(vector), frame_of(vector, "END"), wrong)
    session.verify(opened_transcript(vector, "END"), keys_of(vector), frame_of(vector, "END"), root)


def test_ping_pong_nack_and_abort_leave_the_transcript_as_it_was(vector: dict[str, Any]) -> None:
    transcript = opened_transcript(vector, "OPEN")
    for kind in ("PING", "PONG", "NACK", "ABORT"):
        transcript.add(frame_of(vector, kind))
    session.verify(transcript, keys_of(vector), frame_of(vector, "OPEN"))


def test_a_frame_left_out_of_the_transcript_breaks_the_mac(vector: dict[str, Any]) -> None:
    transcript = Transcript()
    for item in session_frames(vector):
        if item["type"] == "END":
            break
        if item["type"] != "LAYER":
            transcript.add(parsed(item))
    with pytest.raises(SessionError, match="bad_mac"):
        session.verify(transcript, keys_of(vector), frame_of(vector, "END"), session.root_bytes(vector["root"]))


def test_the_types_that_carry_a_mac_are_the_four_of_the_document() -> None:
    with_mac = {kind.name for kind in FrameType if "mac" in frames._FIELDS[kind]}
    assert with_mac == set(DIRECTION)
