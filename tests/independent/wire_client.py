"""A producer's end of the handoff wire, version 2, written from docs/formats/wire.md alone.

It shares no line with our own implementation: only the standard library, `blake3` and `cryptography`.

    python wire_client.py --config client.json --host 127.0.0.1 --port 4711 --tokens 40 --seed 7

prints one JSON line: the accepted ACK, or {"error": {"code", "text"}} and exit status 1.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import os
import random
import select
import socket
import struct
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from blake3 import blake3
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

MAGIC = b"KVH2"
VERSION = 2
PREFIX = struct.Struct("<4sHHIQ")
TYPES = {
    "HELLO": 1,
    "HELLO_ACK": 2,
    "OPEN": 3,
    "OPENED": 4,
    "BEGIN": 5,
    "LAYER": 6,
    "END": 7,
    "ACK": 8,
    "NACK": 9,
    "ABORT": 10,
    "PING": 11,
    "PONG": 12,
}
NAMES = {number: name for name, number in TYPES.items()}
UNHASHED = {"PING", "PONG", "NACK", "ABORT"}
SMALL_HEADER = 65_536
LARGE_HEADER = 4_194_304
LARGEST_BODY = 67_108_864
MAX_INT = 2**53 - 1
DTYPE_SIZE = {"bfloat16": 2, "float16": 2, "float32": 4}
CONNECT_S = 5.0
HANDSHAKE_S = 10.0
FILL_BYTES_PER_S = 50_000_000
FRAME_S = 5.0
LAST_WORD_S = 1.0
SILENCE_S = 30.0
PING_EVERY_S = 5.0
SESSION_S = 900.0

Json = Any
Header = dict[str, Json]


class WireError(Exception):
    """A fault by its code of section 8; `theirs` when the peer said it."""

    def __init__(self, code: str, text: str, *, theirs: bool = False, digests: Sequence[str] = ()) -> None:
        super().__init__(f"{code}: {text}")
        self.code = code
        self.text = text
        self.theirs = theirs
        self.digests = list(digests)


# --- canonical JSON, for what this wire needs: text, integers, true, false, null, arrays, objects ---------------------


_SHORT = {'"': '\\"', "\\": "\\\\", "\b": "\\b", "\f": "\\f", "\n": "\\n", "\r": "\\r", "\t": "\\t"}


def _quoted(text: str) -> str:
    out = ['"']
    for char in text:
        if char in _SHORT:
            out.append(_SHORT[char])
        elif char < " ":
            out.append(f"\\u{ord(char):04x}")
        else:
            out.append(char)
    out.append('"')
    return "".join(out)


def _number(value: float) -> str:
    """ECMAScript's form of a number within ±(2^53 − 1); no document of this wire has one that is not whole."""
    if value.is_integer():
        return str(int(value))
    digits, _, exponent = repr(value).partition("e")
    if not exponent:
        return digits
    sign, digits = ("-", digits[1:]) if digits.startswith("-") else ("", digits)
    if int(exponent) < -6:
        return f"{sign}{digits}e{int(exponent)}"
    return f"{sign}0.{'0' * (-int(exponent) - 1)}{digits.replace('.', '')}"


def _text_of(value: Json) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        if abs(value) > MAX_INT:
            raise ValueError("integer out of range")
        return str(value)
    if isinstance(value, float):
        return _number(value)
    if isinstance(value, str):
        return _quoted(value)
    if isinstance(value, list | tuple):
        return "[" + ",".join(_text_of(item) for item in value) + "]"
    if isinstance(value, dict):
        keys = sorted(value, key=lambda key: key.encode("utf-16-be", "surrogatepass"))
        return "{" + ",".join(_quoted(key) + ":" + _text_of(value[key]) for key in keys) + "}"
    raise TypeError(f"no JSON for {type(value).__name__}")


def canonical(value: Json) -> bytes:
    return _text_of(value).encode("utf-8")


def _depth(text: str) -> int:
    deepest = level = 0
    in_text = escaped = False
    for char in text:
        if in_text:
            if escaped:
                escaped = False
            elif char == "\\":
                escaped = True
            elif char == '"':
                in_text = False
        elif char == '"':
            in_text = True
        elif char in "[{":
            level += 1
            deepest = max(deepest, level)
        elif char in "]}":
            level -= 1
    return deepest


def strict_object(raw: bytes) -> Header:
    """A header's bytes as an object: strict, and equal to its canonical form."""

    def pairs(items: list[tuple[str, Json]]) -> Header:
        seen: set[str] = set()
        for key, _ in items:
            normal = unicodedata.normalize("NFC", key)
            if normal in seen:
                raise ValueError(f"the key {key!r} is there twice")
            seen.add(normal)
        return dict(items)

    def whole(digits: str) -> int:
        if len(digits) > 17 or abs(int(digits)) > MAX_INT:
            raise ValueError("an integer out of range")
        return int(digits)

    def fraction(digits: str) -> float:
        number = float(digits)
        if not abs(number) <= MAX_INT:
            raise ValueError("a number out of range")
        return number

    def constant(name: str) -> Json:
        raise ValueError(f"{name} is no JSON")

    def surrogates(value: Json) -> None:
        if isinstance(value, str):
            value.encode("utf-8")
        elif isinstance(value, list):
            for item in value:
                surrogates(item)
        elif isinstance(value, dict):
            for key, item in value.items():
                surrogates(key)
                surrogates(item)

    try:
        text = raw.decode("utf-8")
        if _depth(text) > 64:
            raise ValueError("more than 64 levels")
        value = json.loads(
            text, object_pairs_hook=pairs, parse_int=whole, parse_float=fraction, parse_constant=constant
        )
        surrogates(value)
    except ValueError as error:
        raise WireError("bad_header", str(error)) from None
    if not isinstance(value, dict):
        raise WireError("bad_header", "the header is not an object")
    if canonical(value) != raw:
        raise WireError("not_canonical", "the header is not in its canonical form")
    return value


# --- digests, keys, macs ----------------------------------------------------------------------------------------------


def sha256_name(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def blake3_name(data: bytes | bytearray | memoryview) -> str:
    return "blake3:" + blake3(data).hexdigest()


def hkdf(key: bytes, salt: bytes, info: bytes) -> bytes:
    """RFC 5869 with SHA-256, one block of output."""
    extracted = hmac.new(salt, key, hashlib.sha256).digest()
    return hmac.new(extracted, info + b"\x01", hashlib.sha256).digest()


def handoff_key_id(key: bytes) -> str:
    return sha256_name(b"soakledger/handoff-key/1\n" + key)


def prompt_sha256(token_ids: Sequence[int]) -> str:
    return sha256_name(b"soakledger/prompt/1\n" + struct.pack(f"<{len(token_ids)}I", *token_ids))


def mac_of(key: bytes, kind: str, transcript: bytes, root: str | None) -> str:
    raw_root = b"" if root is None else bytes.fromhex(root.removeprefix("blake3:"))
    return hmac.new(key, kind.encode("ascii") + b"\x00" + transcript + raw_root, hashlib.sha256).hexdigest()


# --- tensors ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LayerShape:
    kv_heads: int
    head_size: int
    window: int | None = None


@dataclass(frozen=True)
class Geometry:
    dtype: str
    layers: tuple[LayerShape, ...]

    def descriptions(self, n_tokens: int) -> list[Header]:
        described: list[Header] = []
        for number, layer in enumerate(self.layers):
            tokens = n_tokens if layer.window is None else min(n_tokens, layer.window)
            for part in ("k", "v"):
                described.append(
                    {
                        "layer": number,
                        "part": part,
                        "dtype": self.dtype,
                        "order": "token,kv_head,head_dim",
                        "shape": [tokens, layer.kv_heads, layer.head_size],
                        "first_token": n_tokens - tokens,
                        "tokens": tokens,
                        "bytes": tokens * layer.kv_heads * layer.head_size * DTYPE_SIZE[self.dtype],
                    }
                )
        return described


@dataclass(frozen=True)
class Sums:
    digests: list[str]
    tensors_root: str
    manifest: bytes
    root: str


def sums(prompt: str, n_tokens: int, tensors: Sequence[Header], payloads: Iterable[bytes | memoryview]) -> Sums:
    digests = [blake3_name(payload) for payload in payloads]
    listed = [{**tensor, "digest": digest} for tensor, digest in zip(tensors, digests, strict=True)]
    manifest = canonical(
        {"format": "soakledger/kv-manifest/1", "prompt_sha256": prompt, "n_tokens": n_tokens, "tensors": listed}
    )
    return Sums(digests, blake3_name(canonical(listed)), manifest, blake3_name(manifest))


# --- what a producer takes from a receiver ----------------------------------------------------------------------------


def _is_int(value: Json, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_hex(value: Json, length: int) -> bool:
    return isinstance(value, str) and len(value) == length and set(value) <= set("0123456789abcdef")


def _is_named_hash(value: Json, name: str) -> bool:
    return isinstance(value, str) and value.startswith(name) and _is_hex(value[len(name) :], 64)


def _is_identifier(value: Json) -> bool:
    if not isinstance(value, str) or not 1 <= len(value) <= 64:
        return False
    first = set("abcdefghijklmnopqrstuvwxyz0123456789")
    return value[0] in first and set(value) <= first | set("._-")


def _is_signature(value: Json) -> bool:
    if not isinstance(value, str) or not value.startswith("ed25519:"):
        return False
    coded = value.removeprefix("ed25519:")
    try:
        raw = base64.b64decode(coded, validate=True)
    except ValueError:
        return False
    return len(raw) == 64 and base64.b64encode(raw).decode("ascii") == coded


Check = Callable[[Json], bool]
FIELDS: dict[str, dict[str, Check]] = {
    "HELLO_ACK": {"receiver": _is_identifier, "nonce": lambda v: _is_hex(v, 64), "mac": lambda v: _is_hex(v, 64)},
    "OPENED": {"reserved": lambda v: _is_int(v, 1)},
    "ACK": {"root": lambda v: _is_named_hash(v, "blake3:"), "mac": lambda v: _is_hex(v, 64), "sig": _is_signature},
    "NACK": {
        "code": _is_identifier,
        "reason": lambda v: isinstance(v, str) and len(v) <= 2000,
        "digests": lambda v: isinstance(v, list) and bool(v) and all(_is_named_hash(item, "blake3:") for item in v),
    },
    "PONG": {},
}


def check_fields(kind: str, header: Header) -> None:
    known = dict(FIELDS[kind])
    if kind == "NACK" and header.get("code") != "bytes_differ":
        del known["digests"]
    for name in header:
        if name not in known:
            raise WireError("unknown_field", f"{kind} has no field {name!r}")
    for name in known:
        if name not in header:
            raise WireError("missing_field", f"{kind} lacks {name}")
    for name, check in known.items():
        if not check(header[name]):
            raise WireError("bad_field", f"{kind}'s {name} is not in order")


# --- the session ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Enrolled:
    lane: str
    identity: str
    cache_identity: str
    mode: str
    receiver: str
    handoff_key: bytes
    public_key: bytes
    geometry: Geometry

    @staticmethod
    def from_json(data: Header) -> Enrolled:
        shapes = tuple(LayerShape(e["kv_heads"], e["head_size"], e.get("window")) for e in data["geometry"]["layers"])
        return Enrolled(
            lane=data["lane"],
            identity=data["identity"],
            cache_identity=data["cache_identity"],
            mode=data["mode"],
            receiver=data["receiver"],
            handoff_key=bytes.fromhex(data["handoff_key"]),
            public_key=bytes.fromhex(data["public_key"]),
            geometry=Geometry(data["geometry"]["dtype"], shapes),
        )


@dataclass(frozen=True)
class Range:
    """A LAYER: `count` tokens of one tensor from `first_token` of the prompt."""

    tensor: int
    first_token: int
    count: int


@dataclass
class Acknowledged:
    handoff_id: str
    root: str
    tensors_root: str
    sig: str
    nonce_p: str
    nonce_r: str
    total_bytes: int
    message: bytes
    pongs: int = 0


@dataclass
class Client:
    """One session with a receiver. Every step is a method, so that a test can leave the path at any place."""

    enrolled: Enrolled
    address: tuple[str, int]
    nonce_p: bytes = field(default_factory=lambda: os.urandom(32))
    session_s: float = SESSION_S
    handshake_s: float = HANDSHAKE_S

    def __post_init__(self) -> None:
        self.earlier = hashlib.sha256()
        self.nonce_r = b""
        self.key_p2r = b""
        self.key_r2p = b""
        self.asked = 0
        self.pongs = 0
        self.pongs_owed = 0
        self.deadline = time.monotonic() + self.session_s
        try:
            self.socket = socket.create_connection(self.address, timeout=min(CONNECT_S, self.session_s))
        except OSError as error:
            raise WireError("unreachable", str(error)) from None
        self.step_ends = time.monotonic() + self.handshake_s  # of HELLO to OPEN, then of OPENED, then none
        self.keeping = False  # from OPENED to BEGIN, when each frame has a limit of its own
        self.frame_ends = float("inf")
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self.socket.close()

    # bytes

    def write(self, data: bytes | memoryview) -> None:
        """Sends all of it; looks for a NACK before, and once more when sending fails."""
        self._take_early_words()
        try:
            self._arm(FRAME_S if self.keeping else None)
            self.socket.sendall(data)
        except TimeoutError:
            raise WireError("deadline", "the receiver takes no bytes") from None
        except OSError as error:
            self._last_words()
            raise WireError("peer_gone", str(error)) from None

    def _arm(self, most: float | None) -> None:
        left = min(self.deadline, self.step_ends, self.frame_ends) - time.monotonic()
        if left <= 0:
            raise WireError("deadline", "the session or this step of it took too long")
        self.socket.settimeout(left if most is None else min(left, most))

    def _readable(self) -> bool:
        return bool(select.select([self.socket], [], [], 0)[0])

    def _take_early_words(self) -> None:
        while self._readable():
            self.expect()  # a NACK raises, a PONG is counted, anything else is out of its turn

    def _last_words(self) -> None:
        self.deadline = min(self.deadline, time.monotonic() + LAST_WORD_S)
        try:
            while True:
                self.expect()
        except WireError as error:
            if error.theirs:
                raise

    def _exactly(self, size: int, at_boundary: bool, patience: float | None) -> bytes:
        got = bytearray()
        while len(got) < size:
            try:
                self._arm(patience)
                piece = self.socket.recv(size - len(got))
            except TimeoutError:
                if patience is None or time.monotonic() >= min(self.deadline, self.frame_ends):
                    raise WireError("deadline", "the session or this step of it took too long") from None
                raise WireError("peer_silent", "nothing came from the receiver") from None
            except OSError as error:
                raise WireError("peer_gone", str(error)) from None
            if not piece:
                if at_boundary and not got:
                    raise WireError("peer_gone", "the receiver closed the connection")
                raise WireError("short_frame", "the connection ended inside a frame")
            if at_boundary and not got and self.keeping:
                self.frame_ends = time.monotonic() + FRAME_S
            got += piece
        return bytes(got)

    # frames

    def encode(self, kind: str, header: Header, body_len: int = 0, *, sealed_with: str | None = None) -> bytes:
        """Prefix and header of a frame, which enters the transcript; OPEN and END get their mac."""
        if kind in ("OPEN", "END"):
            whole = canonical({**header, "mac": "0" * 64})
            prefix = PREFIX.pack(MAGIC, VERSION, TYPES[kind], len(whole), body_len)
            transcript = self.earlier.copy()
            transcript.update(prefix + canonical(header))
            header = {**header, "mac": mac_of(self.key_p2r, kind, transcript.digest(), sealed_with)}
        text = canonical(header)
        frame = PREFIX.pack(MAGIC, VERSION, TYPES[kind], len(text), body_len) + text
        if kind not in UNHASHED:
            self.earlier.update(frame)
        return frame

    def send(
        self, kind: str, header: Header, body: bytes | memoryview = b"", *, sealed_with: str | None = None
    ) -> None:
        frame = self.encode(kind, header, len(body), sealed_with=sealed_with)
        self.write(frame + body if len(body) < 65_536 else frame)
        if len(body) >= 65_536:
            self.write(body)

    def expect(self, *kinds: str, patience: float | None = None) -> tuple[str, Header]:
        """The next frame, which must be one of `kinds`, a NACK, or (when one is owed) a PONG; PONGs without kinds."""
        while True:
            prefix = self._exactly(PREFIX.size, True, patience)
            magic, version, number, header_len, body_len = PREFIX.unpack(prefix)
            if magic != MAGIC:
                raise WireError("bad_magic", magic.hex())
            if version != VERSION:
                raise WireError("bad_version", str(version))
            kind = NAMES.get(number)
            if kind is None:
                raise WireError("unknown_type", str(number))
            if header_len > (LARGE_HEADER if kind in ("BEGIN", "NACK") else SMALL_HEADER):
                raise WireError("header_too_large", f"{kind}: {header_len}")
            if body_len and kind != "LAYER":
                raise WireError("body_not_allowed", f"{kind}: {body_len}")
            if body_len > LARGEST_BODY:
                raise WireError("body_too_large", f"{kind}: {body_len}")
            pong = kind == "PONG" and self.pongs_owed > 0
            if not (kind in kinds or kind == "NACK" or pong):
                raise WireError("unexpected_frame", f"{kind} may not come now")
            raw = self._exactly(header_len, False, patience)
            self.frame_ends = float("inf")
            header = strict_object(raw)
            check_fields(kind, header)
            if kind == "NACK":
                raise WireError(header["code"], header["reason"], theirs=True, digests=header.get("digests", []))
            if kind == "PONG":
                self.pongs += 1
                self.pongs_owed -= 1
                if "PONG" in kinds or not kinds:
                    return kind, header
                continue
            if "mac" in header:
                bare = {name: value for name, value in header.items() if name != "mac"}
                transcript = self.earlier.copy()
                transcript.update(prefix + canonical(bare))
                self.their_transcript = transcript.digest()
            self.earlier.update(prefix + raw)
            return kind, header

    def abort(self, code: str, reason: str) -> None:
        """Gives up. What still comes is not looked at: after a fault the line may stand inside a frame."""
        frame = self.encode("ABORT", {"code": code, "reason": reason[:2000]})
        with contextlib.suppress(OSError):
            self.socket.settimeout(1.0)
            self.socket.sendall(frame)
        self.close()

    # the steps

    def hello_header(self, size: int) -> Header:
        return {
            "lane": self.enrolled.lane,
            "identity": self.enrolled.identity,
            "cache_identity": self.enrolled.cache_identity,
            "mode": self.enrolled.mode,
            "nonce": self.nonce_p.hex(),
            "bytes": size,
        }

    def hello(self, size: int) -> None:
        self.asked = size
        self.send("HELLO", self.hello_header(size))
        _, answer = self.expect("HELLO_ACK")
        if answer["receiver"] != self.enrolled.receiver:
            raise WireError("wrong_receiver", answer["receiver"])
        self.nonce_r = bytes.fromhex(answer["nonce"])
        salt = self.nonce_p + self.nonce_r
        self.key_p2r = hkdf(self.enrolled.handoff_key, salt, b"KVH2 p2r")
        self.key_r2p = hkdf(self.enrolled.handoff_key, salt, b"KVH2 r2p")
        ours = mac_of(self.key_r2p, "HELLO_ACK", self.their_transcript, None)
        if not hmac.compare_digest(ours, answer["mac"]):
            raise WireError("bad_mac", "HELLO_ACK")

    def open(self) -> None:
        self.send("OPEN", {})
        self.step_ends = time.monotonic() + self.handshake_s + self.asked / FILL_BYTES_PER_S
        _, answer = self.expect("OPENED")
        self.step_ends = float("inf")
        self.keeping = True
        if answer["reserved"] != self.asked:
            raise WireError("bad_reserved", str(answer["reserved"]))

    def ping(self) -> None:
        self.pongs_owed += 1
        self.send("PING", {})

    def pong(self) -> None:
        while self.pongs_owed:
            self.expect("PONG", patience=SILENCE_S)

    def begin(self, handoff_id: str, prompt: str, n_tokens: int, tensors: list[Header], total: int) -> None:
        self.keeping = False
        self.send(
            "BEGIN",
            {
                "handoff_id": handoff_id,
                "prompt_sha256": prompt,
                "n_tokens": n_tokens,
                "tensors": tensors,
                "total_bytes": total,
            },
        )

    def layer(self, part: Range, body: bytes | memoryview) -> None:
        self.send("LAYER", {"tensor": part.tensor, "first_token": part.first_token, "count": part.count}, body)

    def end(self, root: str) -> None:
        self.send("END", {}, sealed_with=root)

    def ack_message(self, handoff_id: str, prompt: str, root: str, total: int) -> bytes:
        told = {
            "lane": self.enrolled.lane,
            "receiver": self.enrolled.receiver,
            "identity": self.enrolled.identity,
            "cache_identity": self.enrolled.cache_identity,
            "mode": self.enrolled.mode,
            "handoff_id": handoff_id,
            "prompt_sha256": prompt,
            "root": root,
            "total_bytes": total,
            "nonce_p": self.nonce_p.hex(),
            "nonce_r": self.nonce_r.hex(),
        }
        return b"soakledger/ack/1\n" + canonical(told)

    def acknowledgement(self, handoff_id: str, prompt: str, root: str, total: int) -> tuple[str, bytes]:
        _, answer = self.expect("ACK")  # only the session's deadline bounds the receiver's digesting
        if not hmac.compare_digest(answer["root"], root):
            raise WireError("root_differs", answer["root"])
        ours = mac_of(self.key_r2p, "ACK", self.their_transcript, answer["root"])
        if not hmac.compare_digest(ours, answer["mac"]):
            raise WireError("bad_mac", "ACK")
        message = self.ack_message(handoff_id, prompt, root, total)
        signature = base64.b64decode(answer["sig"].removeprefix("ed25519:"))
        try:
            Ed25519PublicKey.from_public_bytes(self.enrolled.public_key).verify(signature, message)
        except InvalidSignature:
            raise WireError("bad_signature", "ACK") from None
        return answer["sig"], message

    # one whole handoff

    def hand_over(
        self,
        token_ids: Sequence[int],
        payloads: Sequence[bytes] | Callable[[], Sequence[bytes]],
        *,
        ranges: Sequence[Range] | None = None,
        handoff_id: str | None = None,
        pings: int = 0,
    ) -> Acknowledged:
        """Enrolled geometry, one prompt: HELLO to ACK. `payloads` may be a function, run as the engine's prefill."""
        tensors = self.enrolled.geometry.descriptions(len(token_ids))
        total = sum(tensor["bytes"] for tensor in tensors)
        prompt = prompt_sha256(token_ids)
        handoff_id = handoff_id or os.urandom(16).hex()
        self.hello(total)
        try:
            self.open()
            for _ in range(pings):
                self.ping()
            if callable(payloads):
                payloads = self._prefill(payloads)
            made = sums(prompt, len(token_ids), tensors, payloads)
            self.begin(handoff_id, prompt, len(token_ids), tensors, total)
            for part in ranges if ranges is not None else whole_tensors(tensors):
                described = tensors[part.tensor]
                row = described["bytes"] // described["tokens"]
                start = (part.first_token - described["first_token"]) * row
                body = memoryview(payloads[part.tensor])[start : start + part.count * row]
                self.layer(part, body)
        except WireError as error:
            if not error.theirs:
                self.abort(error.code, error.text)
            raise
        self.end(made.root)  # the last frame of ours, whatever comes of it
        sig, message = self.acknowledgement(handoff_id, prompt, made.root, total)
        return Acknowledged(
            handoff_id,
            made.root,
            made.tensors_root,
            sig,
            self.nonce_p.hex(),
            self.nonce_r.hex(),
            total,
            message,
            self.pongs,
        )

    def _prefill(self, engine: Callable[[], Sequence[bytes]]) -> Sequence[bytes]:
        made: list[Sequence[bytes]] = []
        failed: list[Exception] = []

        def work() -> None:
            try:
                made.append(engine())
            except Exception as error:
                failed.append(error)

        worker = threading.Thread(target=work, daemon=True)
        worker.start()
        while True:
            worker.join(PING_EVERY_S)
            if not worker.is_alive():
                break
            self.ping()
            self.pong()
        if failed:
            raise WireError("engine_failed", str(failed[0]))
        return made[0]


def whole_tensors(tensors: Sequence[Header]) -> list[Range]:
    return [Range(number, tensor["first_token"], tensor["tokens"]) for number, tensor in enumerate(tensors)]


def in_pieces(tensors: Sequence[Header], tokens: int) -> list[Range]:
    """Ranges of at most `tokens` tokens, those of different tensors interleaved."""
    parts: list[Range] = []
    done = [0] * len(tensors)
    while any(done[n] < tensor["tokens"] for n, tensor in enumerate(tensors)):
        for number, tensor in enumerate(tensors):
            count = min(tokens, tensor["tokens"] - done[number])
            if count:
                parts.append(Range(number, tensor["first_token"] + done[number], count))
                done[number] += count
    return parts


def random_payloads(tensors: Sequence[Header], seed: int) -> list[bytes]:
    source = random.Random(seed)
    return [source.randbytes(tensor["bytes"]) for tensor in tensors]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--piece", type=int, default=7, help="tokens of one LAYER at most")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(arguments)
    enrolled = Enrolled.from_json(json.loads(options.config.read_text("utf-8")))
    tensors = enrolled.geometry.descriptions(options.tokens)
    try:
        with Client(enrolled, (options.host, options.port)) as client:
            done = client.hand_over(
                list(range(options.tokens)),
                lambda: random_payloads(tensors, options.seed),
                ranges=in_pieces(tensors, options.piece),
                pings=2,
            )
    except WireError as error:
        print(json.dumps({"error": {"code": error.code, "text": error.text, "theirs": error.theirs}}))
        return 1
    print(json.dumps({"handoff_id": done.handoff_id, "root": done.root, "sig": done.sig, "bytes": done.total_bytes}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
