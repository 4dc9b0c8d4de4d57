"""Frames: what is one, what is none, and by which name it is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from producer.handoff import frames
from producer.handoff.errors import CODES, FrameError
from producer.handoff.frames import FrameType
from receipts import canonical

SHA = "sha256:" + "a" * 64
HELLO: dict[str, Any] = {
    "lane": "loopback", "identity": SHA, "cache_identity": SHA, "mode": "native", "nonce": "0" * 64, "bytes": 1,
}  # fmt: skip


def prefix(magic: bytes = b"KVH2", version: int = 2, kind: int = 11, header_len: int = 2, body_len: int = 0) -> bytes:
    return struct.pack("<4sHHIQ", magic, version, kind, header_len, body_len)


def refused(kind: FrameType, header: bytes) -> str:
    parsed = frames.parse_prefix(prefix(kind=kind, header_len=len(header)))
    with pytest.raises(FrameError) as caught:
        frames.parse_frame(parsed, header)
    return caught.value.code


def test_a_ping_is_these_22_bytes() -> None:
    assert frames.build(FrameType.PING, {}).wire == b"KVH2\x02\x00\x0b\x00\x02\x00\x00\x00" + b"\x00" * 8 + b"{}"


@pytest.mark.parametrize(
    ("raw", "code"),
    [
        (prefix(magic=b"KVH1"), "bad_magic"),
        (prefix(magic=b"GET "), "bad_magic"),
        (prefix(version=1), "bad_version"),
        (prefix(version=3), "bad_version"),
        (prefix(kind=0), "unknown_type"),
        (prefix(kind=13), "unknown_type"),
        (prefix(kind=1, header_len=65_537), "header_too_large"),
        (prefix(kind=5, header_len=4_194_305), "header_too_large"),
        (prefix(kind=9, header_len=4_194_305), "header_too_large"),
        (prefix(kind=11, body_len=1), "body_not_allowed"),
        (prefix(kind=6, body_len=67_108_865), "body_too_large"),
    ],
)
def test_a_prefix_outside_the_limits_is_refused_by_name(raw: bytes, code: str) -> None:
    with pytest.raises(FrameError) as caught:
        frames.parse_prefix(raw)
    assert caught.value.code == code


def test_the_limits_themselves_are_allowed() -> None:
    assert frames.parse_prefix(prefix(kind=1, header_len=65_536)).header_len == 65_536
    assert frames.parse_prefix(prefix(kind=5, header_len=4_194_304)).type is FrameType.BEGIN
    assert frames.parse_prefix(prefix(kind=6, body_len=67_108_864)).body_len == 67_108_864


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b'{"reserved": 1}', "not_canonical"),
        (b'{"reserved":1.0}', "not_canonical"),
        (b'{"reserved":1}\n', "not_canonical"),
        (b'{"reserved":1,"reserved":1}', "bad_header"),
        (b'{"reserved":9007199254740992}', "bad_header"),
        (b'{"reserved":NaN}', "bad_header"),
        (b"[]", "bad_header"),
        (b"", "bad_header"),
        (b"\xff", "bad_header"),
        (b"{}", "missing_field"),
        (b'{"extra":1,"reserved":1}', "unknown_field"),
        (b'{"reserved":true}', "bad_field"),
        (b'{"reserved":"1"}', "bad_field"),
        (b'{"reserved":0}', "bad_field"),
        (b'{"reserved":-1}', "bad_field"),
    ],
)
def test_a_header_that_is_not_exactly_its_types_is_refused_by_name(header: bytes, code: str) -> None:
    assert refused(FrameType.OPENED, header) == code


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("lane", "Loopback"),
        ("lane", "../x"),
        ("lane", "a" * 65),
        ("identity", "a" * 64),
        ("identity", SHA.upper()),
        ("mode", "fast"),
        ("nonce", "0" * 63),
        ("nonce", "0" * 64 + "\n"),
        ("bytes", 0),
    ],
)
def test_a_hello_field_of_the_wrong_form_is_refused(field: str, value: object) -> None:
    with pytest.raises(FrameError) as caught:
        frames.check_header(FrameType.HELLO, {**HELLO, field: value})
    assert caught.value.code == "bad_field"
    assert f"HELLO.{field}" in caught.value.reason


def test_an_unknown_member_of_a_tensor_description_is_refused() -> None:
    tensor = {"layer": 0, "part": "k", "dtype": "bfloat16", "order": "token,kv_head,head_dim", "shape": [1, 1, 2],
              "first_token": 0, "tokens": 1, "bytes": 4}  # fmt: skip
    begin = {"handoff_id": "0" * 32, "prompt_sha256": SHA, "n_tokens": 1, "total_bytes": 4}
    frames.check_header(FrameType.BEGIN, {**begin, "tensors": [tensor]})
    with pytest.raises(FrameError) as caught:
        frames.check_header(FrameType.BEGIN, {**begin, "tensors": [{**tensor, "digest": "x"}]})
    assert caught.value.code == "unknown_field"


def test_every_code_stands_in_the_format_document() -> None:
    text = Path("docs/formats/wire.md").read_text(encoding="utf-8")
    missing = [code for code, meaning in CODES.items() if f"| `{code}` | {meaning} |" not in text]
    assert missing == []


def test_the_fast_form_of_a_header_is_rfc_8785s_for_every_character() -> None:
    text = "".join(chr(code) for code in (*range(0x300), 0x2028, 0x2029, 0xFEFF, 0xFFFF, 0x1F600))
    for header in ({"code": "busy", "reason": text}, {"reason": '"\\/', "code": "a"}):
        assert frames.build(FrameType.NACK, header).header_bytes == canonical.dumps(header)
    assert frames.build(FrameType.HELLO, HELLO).header_bytes == canonical.dumps(HELLO)


@pytest.mark.parametrize("number", [1, 2048, 10**15 - 1, 10**15, 2**53 - 1])
def test_a_layer_header_reads_the_same_whatever_the_size_of_its_numbers(number: int) -> None:
    header = {"count": number, "first_token": number, "tensor": number}
    built = frames.build(FrameType.LAYER, header, 1)
    read = frames.parse_frame(built.prefix, built.header_bytes)
    assert dict(read.header) == header
    assert read.wire == built.wire


@pytest.mark.parametrize(
    ("header", "code"),
    [
        (b'{"count":0,"first_token":0,"tensor":0}', "bad_field"),
        (b'{"count":01,"first_token":0,"tensor":0}', "bad_header"),
        (b'{"count":1,"first_token":00,"tensor":0}', "bad_header"),
        (b'{"count":1,"first_token":01,"tensor":0}', "bad_header"),
        (b'{"count":1,"first_token":0,"tensor":00}', "bad_header"),
        (b'{"count":1,"first_token":0,"tensor":01}', "bad_header"),
        (b'{"count":1,"first_token":-1,"tensor":0}', "bad_field"),
        (b'{"count":1,"first_token":0,"tensor":1.5}', "bad_field"),
        (b'{"count":1,"first_token":0,"tensor":0}\n', "not_canonical"),
        (b'{"count":1,"first_token":0}', "missing_field"),
        (b'{"tensor":0,"count":1,"first_token":0}', "not_canonical"),
        (b'{"count":9007199254740992,"first_token":0,"tensor":0}', "bad_header"),
        ('{"count":١,"first_token":0,"tensor":0}'.encode(), "bad_header"),
    ],
)
def test_a_layer_header_that_is_nearly_right_is_refused_by_name(header: bytes, code: str) -> None:
    assert refused(FrameType.LAYER, header) == code


VECTOR: dict[str, Any] = json.loads(
    Path("docs/formats/wire.md").read_text(encoding="utf-8").split("```json\n")[1].split("\n```")[0]
)


@pytest.mark.parametrize("item", VECTOR["refused"], ids=lambda item: f"{item['type']}-{item['code']}")
def test_a_frame_that_fails_several_checks_has_the_code_of_the_first(item: dict[str, str]) -> None:
    with pytest.raises(FrameError) as caught:
        frames.parse_frame(frames.parse_prefix(bytes.fromhex(item["prefix"])), item["header"].encode())
    assert caught.value.code == item["code"]


def test_the_document_refuses_a_frame_for_every_code_that_bytes_alone_can_earn() -> None:
    assert {item["code"] for item in VECTOR["refused"]} == {
        "bad_magic", "bad_version", "unknown_type", "header_too_large", "body_not_allowed", "body_too_large",
        "bad_header", "not_canonical", "unknown_field", "missing_field", "bad_field",
    }  # fmt: skip


@pytest.mark.parametrize("sig", VECTOR["sig_refused"])
def test_a_signature_has_one_text(sig: str) -> None:
    header = json.loads(next(item["header"] for item in VECTOR["frames"] if item["type"] == "ACK"))
    frames.check_header(FrameType.ACK, header)
    with pytest.raises(FrameError) as caught:
        frames.check_header(FrameType.ACK, {**header, "sig": sig})
    assert caught.value.code == "bad_field"


@pytest.mark.parametrize("letter", "AQgw")
def test_the_last_letter_of_a_signature_is_one_of_four(letter: str) -> None:
    frames.check_header(
        FrameType.ACK, {"root": "blake3:" + "0" * 64, "mac": "0" * 64, "sig": "ed25519:" + "A" * 85 + letter + "=="}
    )


@pytest.mark.parametrize(
    ("order", "fits"),
    [
        ("token,kv_head,head_dim", True),
        ("a", True),
        (",".join("abcdefgh"), True),
        (",".join("abcdefghi"), False),
        ("", False),
        ("token,", False),
        (",token", False),
        ("token, kv_head", False),
        ("Token", False),
    ],
)
def test_an_order_is_one_to_eight_names_between_commas(order: str, fits: bool) -> None:
    begin = json.loads(next(item["header"] for item in VECTOR["frames"] if item["type"] == "BEGIN"))
    begin["tensors"][1]["order"] = order
    if fits:
        frames.check_header(FrameType.BEGIN, begin)
    else:
        with pytest.raises(FrameError, match=r"BEGIN.tensors\[1\].order") as caught:
            frames.check_header(FrameType.BEGIN, begin)
        assert caught.value.code == "bad_field"
