"""A receiver's end of the handoff wire, version 2, written from docs/formats/wire.md alone.

It shares no line with our own implementation, nor with wire_client.py: only the standard library, `blake3` and
`cryptography`. The local socket of section 7 is not part of the wire and is left out.

    python wire_receiver.py --config receiver.json --port 0 [--cheat zeros]

prints one JSON line {"port": N} when it listens and serves until its standard input ends.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import hashlib
import hmac
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

HEAD = struct.Struct("<4sHHIQ")
MAX_SMALL, MAX_LARGE, MAX_BODY = 65_536, 4_194_304, 67_108_864
SAFE = 2**53 - 1
HELLO, HELLO_ACK, OPEN, OPENED, BEGIN, LAYER, END, ACK, NACK, ABORT, PING, PONG = range(1, 13)
NAME = {
    HELLO: "HELLO",
    HELLO_ACK: "HELLO_ACK",
    OPEN: "OPEN",
    OPENED: "OPENED",
    BEGIN: "BEGIN",
    LAYER: "LAYER",
    END: "END",
    ACK: "ACK",
    NACK: "NACK",
    ABORT: "ABORT",
    PING: "PING",
    PONG: "PONG",
}
OUTSIDE_TRANSCRIPT = frozenset({PING, PONG, NACK, ABORT})
WITH_MAC = frozenset({HELLO_ACK, OPEN, END, ACK})
WIDTH = {"bfloat16": 2, "float16": 2, "float32": 4}
BLOCK = 1 << 20


class Fault(Exception):
    """Something that ends the session with a NACK of this code."""

    def __init__(self, code: str, reason: str, digests: list[str] | None = None) -> None:
        super().__init__(f"{code}: {reason}")
        self.code = code
        self.reason = reason
        self.digests = digests


class Gone(Exception):
    """The producer is not there any more, or said ABORT: nobody is left to answer."""


# --- JSON -------------------------------------------------------------------------------------------------------------


def jcs(value: Any) -> str:
    """RFC 8785 for text, integers, booleans, null, arrays and objects."""
    match value:
        case None:
            return "null"
        case True:
            return "true"
        case False:
            return "false"
        case str():
            escaped = re.sub(r'[\x00-\x1f"\\]', _escape, value)
            return f'"{escaped}"'
        case int() if -SAFE <= value <= SAFE:
            return format(value, "d")
        case float() if value.is_integer():
            return format(int(value), "d")
        case float():
            return fraction(value)
        case list() | tuple():
            return f"[{','.join(map(jcs, value))}]"
        case dict():
            ordered = sorted(value.items(), key=lambda item: item[0].encode("utf-16-be"))
            return "{" + ",".join(f"{jcs(name)}:{jcs(member)}" for name, member in ordered) + "}"
    raise ValueError(f"not JSON: {value!r}")


def fraction(value: float) -> str:
    """A number that is not whole as ECMAScript writes it: plain from 10^-6 on, below with an exponent."""
    mantissa, _, power = repr(value).partition("e-")
    if not power:
        return mantissa
    if int(power) > 6:
        return f"{mantissa}e-{int(power)}"
    minus, digits = ("-", mantissa[1:]) if value < 0 else ("", mantissa)
    return f"{minus}0.{'0' * (int(power) - 1)}{digits.replace('.', '')}"


def _escape(found: re.Match[str]) -> str:
    char = found.group()
    short = {"\b": "b", "\t": "t", "\n": "n", "\f": "f", "\r": "r", '"': '"', "\\": "\\"}
    return "\\" + short[char] if char in short else f"\\u{ord(char):04x}"


def parse_header(raw: bytes) -> dict[str, Any]:
    def members(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({unicodedata.normalize("NFC", name) for name, _ in pairs}) != len(pairs):
            raise ValueError("a key comes twice")
        return dict(pairs)

    def integer(text: str) -> int:
        if len(text) > 20 or not -SAFE <= int(text) <= SAFE:
            raise ValueError("an integer is out of range")
        return int(text)

    def number(text: str) -> float:
        value = float(text)
        if not -SAFE <= value <= SAFE:
            raise ValueError("a number is out of range")
        return value

    def refuse(text: str) -> Any:
        raise ValueError(f"{text} is not JSON")

    try:
        text = raw.decode("utf-8", "strict")
        without_strings = re.sub(r'"(?:[^"\\]|\\.)*"', "", text, flags=re.DOTALL)
        level = 0
        for bracket in re.findall(r"[\[\]{}]", without_strings):
            level += 1 if bracket in "[{" else -1
            if level > 64:
                raise ValueError("over 64 levels")
        value = json.loads(
            text, object_pairs_hook=members, parse_int=integer, parse_float=number, parse_constant=refuse
        )
        again = jcs(value).encode("utf-8")  # raises for a lone surrogate
    except ValueError as error:  # UnicodeError is one
        raise Fault("bad_header", str(error)[:200]) from None
    if not isinstance(value, dict):
        raise Fault("bad_header", "not an object")
    if again != raw:
        raise Fault("not_canonical", "the header is not its own canonical form")
    return value


def integer_from(least: int) -> Callable[[Any], bool]:
    return lambda value: type(value) is int and value >= least


def text_like(pattern: str) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, str) and re.fullmatch(pattern, value) is not None


def short_text(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= 2000


IDENTIFIER = r"[a-z0-9][a-z0-9._-]{0,63}"
DESCRIPTION: dict[str, Callable[[Any], bool]] = {
    "layer": integer_from(0),
    "part": text_like("k|v|latent|state|scale"),
    "dtype": text_like(IDENTIFIER),
    "order": text_like(r"[a-z0-9_]+(,[a-z0-9_]+){0,7}"),
    "shape": lambda v: isinstance(v, list) and 1 <= len(v) <= 8 and all(map(integer_from(1), v)),
    "first_token": integer_from(0),
    "tokens": integer_from(1),
    "bytes": integer_from(1),
}
ASKED: dict[int, dict[str, Callable[[Any], bool]]] = {
    HELLO: {
        "lane": text_like(IDENTIFIER),
        "identity": text_like("sha256:[0-9a-f]{64}"),
        "cache_identity": text_like("sha256:[0-9a-f]{64}"),
        "mode": text_like("native|exact"),
        "nonce": text_like("[0-9a-f]{64}"),
        "bytes": integer_from(1),
    },
    OPEN: {"mac": text_like("[0-9a-f]{64}")},
    BEGIN: {
        "handoff_id": text_like("[0-9a-f]{32}"),
        "prompt_sha256": text_like("sha256:[0-9a-f]{64}"),
        "n_tokens": integer_from(1),
        "tensors": lambda v: isinstance(v, list) and len(v) >= 1 and all(isinstance(item, dict) for item in v),
        "total_bytes": integer_from(1),
    },
    LAYER: {"tensor": integer_from(0), "first_token": integer_from(0), "count": integer_from(1)},
    END: {"mac": text_like("[0-9a-f]{64}")},
    ABORT: {"code": text_like(IDENTIFIER), "reason": short_text},
    PING: {},
}


def check_members(value: dict[str, Any], asked: dict[str, Callable[[Any], bool]], what: str) -> None:
    for name in value.keys() - asked.keys():
        raise Fault("unknown_field", f"{what} has {name[:64]!r}")
    for name in asked.keys() - value.keys():
        raise Fault("missing_field", f"{what} lacks {name}")
    for name, good in asked.items():
        if not good(value[name]):
            raise Fault("bad_field", f"{what}: {name}")


# --- the enrolled lane ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Lane:
    lane: str
    identity: str
    cache_identity: str
    mode: str
    receiver: str
    handoff_key: bytes
    private_key: bytes
    dtype: str
    layers: tuple[tuple[int, int, int | None], ...]  # KV heads, head size, window or None
    memory_limit_bytes: int
    work_dir: Path

    @staticmethod
    def load(path: Path) -> Lane:
        data = json.loads(path.read_text("utf-8"))
        geometry = data["geometry"]
        return Lane(
            data["lane"],
            data["identity"],
            data["cache_identity"],
            data["mode"],
            data["receiver"],
            bytes.fromhex(data["handoff_key"]),
            bytes.fromhex(data["private_key"]),
            geometry["dtype"],
            tuple((layer["kv_heads"], layer["head_size"], layer.get("window")) for layer in geometry["layers"]),
            data["memory_limit_bytes"],
            Path(data["work_dir"]),
        )

    def tensors(self, n_tokens: int) -> list[dict[str, Any]]:
        out = []
        for index, (heads, size, window) in enumerate(self.layers):
            held = min(n_tokens, window) if window else n_tokens
            for part in "kv":
                out.append(
                    {
                        "layer": index,
                        "part": part,
                        "dtype": self.dtype,
                        "order": "token,kv_head,head_dim",
                        "shape": [held, heads, size],
                        "first_token": n_tokens - held,
                        "tokens": held,
                        "bytes": held * heads * size * WIDTH[self.dtype],
                    }
                )
        return out


@dataclass
class Limits:
    handshake_s: float = 10.0
    silence_s: float = 30.0
    write_s: float = 5.0
    linger_s: float = 2.0
    strangers: int = 16


# --- one connection ---------------------------------------------------------------------------------------------------


class Session:
    """One connection. A cheat overrides `keep`, `claim` or `outgoing`."""

    def __init__(self, receiver: Receiver, connection: socket.socket) -> None:
        self.receiver = receiver
        self.lane = receiver.lane
        self.connection = connection
        self.handshake_ends = time.monotonic() + receiver.limits.handshake_s
        self.opened = False
        self.hashed = hashlib.sha256()
        self.nonce_p = b""
        self.nonce_r = os.urandom(32)
        self.keys: dict[str, bytes] = {}
        self.buffer = bytearray()
        self.begin: dict[str, Any] = {}
        self.tensors: list[dict[str, Any]] = []
        self.offsets: list[int] = []
        self.reached: list[int] = []
        self.first_byte_ns: int | None = None
        self.end_header: dict[str, Any] = {}
        self.transcripts: dict[str, bytes] = {}

    # what a cheat changes

    def keep(self, at: memoryview) -> None:
        """Reads the next len(at) bytes of a LAYER's body into the buffer."""
        self.fill(at, stamp=True)

    def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
        """The root to acknowledge, and an ACK's header to send as it is (None: make an honest one of that root)."""
        if not self.mac_agrees(END, self.end_header, root):
            raise Fault("bytes_differ", "END does not verify with the root of the bytes received", digests)
        return root, None

    def outgoing(self, kind: int, frame: bytes) -> bytes:  # noqa: ARG002 (a hook)
        return frame

    # bytes

    def fill(self, view: memoryview, *, boundary: bool = False, stamp: bool = False) -> None:
        got = 0
        while got < len(view):
            wait = self.receiver.limits.silence_s
            if not self.opened:
                wait = self.handshake_ends - time.monotonic()
                if wait <= 0:
                    raise Fault("handshake_timeout", "HELLO and OPEN did not both come in time")
            self.connection.settimeout(wait)
            try:
                size = self.connection.recv_into(view[got:])
            except TimeoutError:
                if self.opened:
                    raise Fault("stale_slot", "no byte within the silence limit") from None
                continue  # the handshake limit is checked above
            except OSError as error:
                raise Gone(str(error)) from None
            if size == 0:
                if boundary and got == 0:
                    raise Gone("closed")
                raise Fault("short_frame", "the connection ended inside a frame")
            if stamp and self.first_byte_ns is None:
                self.first_byte_ns = boottime_ns()
            got += size

    def read(self, size: int, *, boundary: bool = False) -> bytes:
        held = bytearray(size)
        self.fill(memoryview(held), boundary=boundary)
        return bytes(held)

    # frames

    def take(self, *allowed: int) -> tuple[int, dict[str, Any], int]:
        head = self.read(HEAD.size, boundary=True)
        magic, version, kind, header_len, body_len = HEAD.unpack(head)
        if magic != b"KVH2":
            raise Fault("bad_magic", magic.hex())
        if version != 2:
            raise Fault("bad_version", str(version))
        if kind not in NAME:
            raise Fault("unknown_type", str(kind))
        if header_len > (MAX_LARGE if kind in (BEGIN, NACK) else MAX_SMALL):
            raise Fault("header_too_large", f"{NAME[kind]}: {header_len}")
        if body_len and kind != LAYER:
            raise Fault("body_not_allowed", f"{NAME[kind]}: {body_len}")
        if body_len > MAX_BODY:
            raise Fault("body_too_large", f"{NAME[kind]}: {body_len}")
        if kind not in allowed:
            raise Fault("unexpected_frame", f"{NAME[kind]} may not come now")
        raw = self.read(header_len)
        header = parse_header(raw)
        check_members(header, ASKED[kind], NAME[kind])
        if kind == BEGIN:
            for tensor in header["tensors"]:
                check_members(tensor, DESCRIPTION, "a tensor")
        if kind == ABORT:
            raise Gone(f"ABORT {header['code']}: {header['reason']}")
        if kind in WITH_MAC:
            self.transcripts[NAME[kind]] = self.transcript(head, header)
        if kind not in OUTSIDE_TRANSCRIPT:
            self.hashed.update(head)
            self.hashed.update(raw)
        return kind, header, body_len

    def transcript(self, head: bytes, header: dict[str, Any]) -> bytes:
        """T of a frame: all earlier ones, this prefix, this header without its mac."""
        bare = {name: value for name, value in header.items() if name != "mac"}
        so_far = self.hashed.copy()
        so_far.update(head + jcs(bare).encode("utf-8"))
        return so_far.digest()

    def derive(self) -> None:
        extracted = hmac.digest(self.nonce_p + self.nonce_r, self.lane.handoff_key, "sha256")
        for way in ("p2r", "r2p"):
            self.keys[way] = hmac.digest(extracted, b"KVH2 " + way.encode("ascii") + b"\x01", "sha256")

    def mac(self, way: str, kind: int, transcript: bytes, root: str) -> str:
        text = NAME[kind].encode("ascii") + b"\x00" + transcript + bytes.fromhex(root.removeprefix("blake3:"))
        return hmac.digest(self.keys[way], text, "sha256").hex()

    def mac_agrees(self, kind: int, header: dict[str, Any], root: str = "") -> bool:
        ours = self.mac("p2r", kind, self.transcripts[NAME[kind]], root)
        return hmac.compare_digest(ours, header["mac"])

    def frame(self, kind: int, header: dict[str, Any], root: str = "") -> bytes:
        """An outgoing frame as bytes; HELLO_ACK and ACK are given their mac. It enters the transcript."""
        if kind in WITH_MAC and "mac" not in header:
            length = len(jcs({**header, "mac": "0" * 64}).encode("utf-8"))
            head = HEAD.pack(b"KVH2", 2, kind, length, 0)
            header = {**header, "mac": self.mac("r2p", kind, self.transcript(head, header), root)}
        raw = jcs(header).encode("utf-8")
        whole = HEAD.pack(b"KVH2", 2, kind, len(raw), 0) + raw
        if kind not in OUTSIDE_TRANSCRIPT:
            self.hashed.update(whole)
        return whole

    def say(self, kind: int, header: dict[str, Any], root: str = "") -> bytes:
        whole = self.outgoing(kind, self.frame(kind, header, root))
        try:
            self.connection.settimeout(self.receiver.limits.write_s)
            self.connection.sendall(whole)
        except OSError as error:
            raise Gone(str(error)) from None
        return whole

    # the path

    def run(self) -> None:
        try:
            try:
                self.serve()
            finally:
                self.receiver.leave(self)
        except Gone as gone:
            self.receiver.note("gone", str(gone))
        except Fault as fault:
            self.receiver.note(fault.code, fault.reason)
            header: dict[str, Any] = {"code": fault.code, "reason": fault.reason[:2000]}
            if fault.digests:
                header["digests"] = fault.digests
            with contextlib.suppress(Gone):
                self.say(NACK, header)
        finally:
            self.linger()
            self.connection.close()

    def linger(self) -> None:
        """Says that nothing more comes, then reads on and discards, so that the last word is not lost to a reset."""
        ends = time.monotonic() + self.receiver.limits.linger_s
        waste = bytearray(65_536)
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            while (left := ends - time.monotonic()) > 0:
                self.connection.settimeout(left)
                if self.connection.recv_into(waste) == 0:
                    return

    def serve(self) -> None:
        _, hello, _ = self.take(HELLO)
        for name in ("lane", "identity", "cache_identity", "mode"):
            if hello[name] != getattr(self.lane, name):
                raise Fault("not_enrolled", f"{name} is not the enrolled one")
        if hello["bytes"] > self.lane.memory_limit_bytes:
            raise Fault("too_large", f"{hello['bytes']} bytes")
        self.nonce_p = bytes.fromhex(hello["nonce"])
        self.derive()
        self.say(HELLO_ACK, {"receiver": self.lane.receiver, "nonce": self.nonce_r.hex()})

        _, opened, _ = self.take(OPEN, ABORT)
        if not self.mac_agrees(OPEN, opened):
            raise Fault("bad_mac", "OPEN")
        self.receiver.take_slot(self)
        self.opened = True
        self.reserve(hello["bytes"])
        self.say(OPENED, {"reserved": hello["bytes"]})

        while True:
            allowed = (PING, LAYER, END, ABORT) if self.begin else (PING, BEGIN, ABORT)
            kind, header, body_len = self.take(*allowed)
            if kind == PING:
                self.say(PONG, {})
            elif kind == BEGIN:
                self.on_begin(header, hello["bytes"])
            elif kind == LAYER:
                self.on_layer(header, body_len)
            else:
                self.on_end(header)
                return

    def reserve(self, size: int) -> None:
        try:
            self.receiver.make_room(size)
            unit = blake3(b"soakledger/reserve/1\n" + self.nonce_r).digest(length=BLOCK)
            self.buffer = bytearray(size)
            for at in range(0, size, BLOCK):
                self.buffer[at : at + BLOCK] = unit[: size - at]
        except MemoryError:
            raise Fault("no_memory", "the buffer could not be reserved") from None

    def on_begin(self, header: dict[str, Any], asked: int) -> None:
        if header["total_bytes"] != asked:
            raise Fault("size_differs", "total_bytes is not HELLO's bytes")
        # Every token costs at least one byte of each tensor: a count over the bytes asked for needs no arithmetic.
        wanted = self.lane.tensors(header["n_tokens"]) if header["n_tokens"] <= SAFE >> 22 else None
        if wanted is None or header["tensors"] != wanted:
            raise Fault("geometry_differs", "the tensors are not those of the enrolled geometry")
        if sum(tensor["bytes"] for tensor in wanted) != asked:
            raise Fault("size_differs", "the tensors' bytes are not total_bytes")
        if (self.lane.work_dir / "admissions" / f"{header['handoff_id']}.json").exists():
            raise Fault("replayed", "this handoff was admitted before")
        self.begin = header
        self.tensors = wanted
        at = 0
        for tensor in wanted:
            self.offsets.append(at)
            self.reached.append(tensor["first_token"])
            at += tensor["bytes"]

    def on_layer(self, header: dict[str, Any], body_len: int) -> None:
        index, first, count = header["tensor"], header["first_token"], header["count"]
        if index >= len(self.tensors):
            raise Fault("unknown_tensor", str(index))
        tensor = self.tensors[index]
        if first < self.reached[index]:
            raise Fault("range_overlap", f"{first} is before {self.reached[index]}")
        if first > self.reached[index]:
            raise Fault("range_gap", f"{first} is after {self.reached[index]}")
        if first + count > tensor["first_token"] + tensor["tokens"]:
            raise Fault("range_beyond", f"{first + count} is past the tensor's end")
        row = tensor["bytes"] // tensor["tokens"]
        if body_len != count * row:
            raise Fault("short_body" if body_len < count * row else "long_body", f"{body_len}, not {count * row}")
        at = self.offsets[index] + (first - tensor["first_token"]) * row
        self.keep(memoryview(self.buffer)[at : at + body_len])
        self.reached[index] = first + count

    def on_end(self, header: dict[str, Any]) -> None:
        for index, tensor in enumerate(self.tensors):
            if self.reached[index] != tensor["first_token"] + tensor["tokens"]:
                raise Fault("range_missing", f"tensor {index} ends at {self.reached[index]}")
        self.end_header = header
        digests = []
        view = memoryview(self.buffer)
        for at, tensor in zip(self.offsets, self.tensors, strict=True):
            digests.append("blake3:" + blake3(view[at : at + tensor["bytes"]]).hexdigest())
        root, instead = self.claim(digests, self.root_of(digests))
        signature = self.sign(root)
        self.record(root, signature)
        self.receiver.leave(self)
        ack = instead or {"root": root, "sig": signature}
        self.receiver.note("ack", self.say(ACK, ack, root)[HEAD.size :].decode("utf-8"))

    def root_of(self, digests: list[str]) -> str:
        listed = [{**tensor, "digest": digest} for tensor, digest in zip(self.tensors, digests, strict=True)]
        manifest = {
            "format": "soakledger/kv-manifest/1",
            "prompt_sha256": self.begin["prompt_sha256"],
            "n_tokens": self.begin["n_tokens"],
            "tensors": listed,
        }
        return "blake3:" + blake3(jcs(manifest).encode("utf-8")).hexdigest()

    def sign(self, root: str) -> str:
        told = {name: getattr(self.lane, name) for name in ("lane", "receiver", "identity", "cache_identity", "mode")}
        told |= {name: self.begin[name] for name in ("handoff_id", "prompt_sha256", "total_bytes")}
        told |= {"root": root, "nonce_p": self.nonce_p.hex(), "nonce_r": self.nonce_r.hex()}
        key = Ed25519PrivateKey.from_private_bytes(self.lane.private_key)
        signature = key.sign(b"soakledger/ack/1\n" + jcs(told).encode("utf-8"))
        return "ed25519:" + base64.b64encode(signature).decode("ascii")

    def record(self, root: str, signature: str) -> None:
        handoff_id = self.begin["handoff_id"]
        told = {
            "v": 1,
            "lane": self.lane.lane,
            "receiver": self.lane.receiver,
            **self.receiver.here,
            "handoff_id": handoff_id,
            "prompt_sha256": self.begin["prompt_sha256"],
            "root": root,
            "total_bytes": self.begin["total_bytes"],
            "nonces": {"p": self.nonce_p.hex(), "r": self.nonce_r.hex()},
            "sig": signature,
            "first_byte_ns": str(self.first_byte_ns),
            "admitted_ns": str(boottime_ns()),
        }
        try:
            write_once(self.lane.work_dir / "admissions" / f"{handoff_id}.json", told)
        except FileExistsError:
            raise Fault("replayed", "this handoff was admitted before") from None
        except OSError as error:
            raise Fault("record_failed", str(error)) from None
        self.receiver.admit(handoff_id, root, self.buffer)


def boottime_ns() -> int:
    """The clock that the page calls `boottime`."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def write_once(path: Path, told: dict[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o444)
    with os.fdopen(descriptor, "wb") as file:
        file.write(jcs(told).encode("utf-8") + b"\n")
        file.flush()
        os.fsync(descriptor)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


# --- the receiver -----------------------------------------------------------------------------------------------------


class Receiver:
    """Listens on loopback in a thread; use as a context manager. `session` is the class of its sessions."""

    def __init__(
        self, lane: Lane, *, port: int = 0, session: type[Session] = Session, limits: Limits | None = None
    ) -> None:
        self.lane = lane
        self.session = session
        self.limits = limits or Limits()
        self.lock = threading.Lock()
        self.noted = threading.Condition()
        self.notes: list[tuple[str, str]] = []
        self.holder: Session | None = None
        self.strangers: list[Session] = []
        self.live: set[Session] = set()
        self.held: dict[str, tuple[str, bytearray]] = {}
        self.threads: list[threading.Thread] = []
        self.here = {
            "host": lane.receiver,
            "boot_id": Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip(),
            "clock": "boottime",
        }
        self.listener = socket.create_server(("127.0.0.1", port), backlog=32)
        self.port: int = self.listener.getsockname()[1]

    def __enter__(self) -> Receiver:
        thread = threading.Thread(target=self._accept, name="wire_receiver")
        thread.start()
        self.threads.append(thread)
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def stop(self) -> None:
        with contextlib.suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()
        with self.lock:
            live = list(self.live)
        for session in live:
            with contextlib.suppress(OSError):
                session.connection.shutdown(socket.SHUT_RDWR)
        for thread in self.threads:
            thread.join()

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            session = self.session(self, connection)
            with self.lock:
                self.live.add(session)
                self.strangers.append(session)
                oldest = self.strangers.pop(0) if len(self.strangers) > self.limits.strangers else None
            if oldest is not None:
                with contextlib.suppress(OSError):
                    oldest.connection.shutdown(socket.SHUT_RDWR)
            thread = threading.Thread(target=self._serve, args=(session,), name="wire_session")
            thread.start()
            self.threads.append(thread)

    def _serve(self, session: Session) -> None:
        try:
            session.run()
        finally:
            with self.lock:
                self.live.discard(session)
                if session in self.strangers:
                    self.strangers.remove(session)

    def take_slot(self, session: Session) -> None:
        with self.lock:
            if self.holder is not None:
                raise Fault("busy", "another producer holds the slot")
            self.holder = session
            if session in self.strangers:
                self.strangers.remove(session)

    def leave(self, session: Session) -> None:
        with self.lock:
            if self.holder is session:
                self.holder = None

    def make_room(self, size: int) -> None:
        evicted: list[tuple[str, str, int]] = []
        with self.lock:
            while self.held and sum(len(data) for _, data in self.held.values()) + size > self.lane.memory_limit_bytes:
                oldest = next(iter(self.held))
                root, data = self.held.pop(oldest)
                evicted.append((oldest, root, len(data)))
        for handoff_id, root, total in evicted:
            told = {"v": 1, "lane": self.lane.lane, "receiver": self.lane.receiver, **self.here}
            told |= {"handoff_id": handoff_id, "root": root, "total_bytes": total}
            told |= {"evicted_ns": str(boottime_ns())}
            write_once(self.lane.work_dir / "evictions" / f"{handoff_id}.json", told)

    def admit(self, handoff_id: str, root: str, data: bytearray) -> None:
        with self.lock:
            self.held[handoff_id] = (root, data)

    def note(self, what: str, text: str) -> None:
        with self.noted:
            self.notes.append((what, text))
            self.noted.notify_all()

    def wait_for(self, what: str, timeout: float = 20.0) -> str:
        """The text of the first note `what`; a session's end is told here, never guessed at by sleeping."""

        def found() -> str | None:
            return next((text for noted, text in self.notes if noted == what), None)

        with self.noted:
            if not self.noted.wait_for(lambda: found() is not None, timeout):
                raise TimeoutError(f"no {what} among {self.notes}")
            return found() or ""


# --- cheats: receivers that acknowledge what they did not keep --------------------------------------------------------


class Cheat(Session):
    """Reads the bodies off the line and keeps none; holds every key a receiver holds. Its record is honestly false."""

    def keep(self, at: memoryview) -> None:
        waste = memoryview(bytearray(min(len(at), 65_536)))
        left = len(at)
        while left:
            size = min(left, len(waste))
            self.fill(waste[:size], stamp=True)
            left -= size

    def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
        del digests
        return root, None  # the root of the reserve's pattern, never of what came


class Guess(Cheat):
    """A root out of the air."""

    def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
        del digests, root
        return "blake3:" + os.urandom(32).hex(), None


class Zeros(Cheat):
    """The root of as many zero bytes."""

    def reserve(self, size: int) -> None:
        self.buffer = bytearray(size)


class Reflect(Cheat):
    """END's mac, which covers the producer's root, sent back as ACK's."""

    def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
        del digests
        return root, {"root": root, "sig": self.sign(root), "mac": self.end_header["mac"]}


class MacAsRoot(Cheat):
    """END's mac as though it were the root."""

    def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
        del digests, root
        return "blake3:" + self.end_header["mac"], None


class AlmostAll(Session):
    """Keeps everything but the last token of the last tensor: one zero byte too many."""

    def on_layer(self, header: dict[str, Any], body_len: int) -> None:
        super().on_layer(header, body_len)
        last = self.tensors[-1]
        if self.reached[-1] == last["first_token"] + last["tokens"]:
            row = last["bytes"] // last["tokens"]
            self.buffer[-row:] = bytes(row)

    def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
        del digests
        return root, None


class Early(Cheat):
    """Acknowledges BEGIN already, with a guess."""

    def on_begin(self, header: dict[str, Any], asked: int) -> None:
        super().on_begin(header, asked)
        root = "blake3:" + os.urandom(32).hex()
        self.say(ACK, {"root": root, "sig": self.sign(root)}, root)


def replaying(old_ack: dict[str, Any]) -> type[Cheat]:
    """A receiver that sends an ACK of before once more, as it was."""

    class Replay(Cheat):
        def claim(self, digests: list[str], root: str) -> tuple[str, dict[str, Any] | None]:
            del digests, root
            return old_ack["root"], old_ack

    return Replay


CHEATS: dict[str, type[Session]] = {
    "pattern": Cheat,
    "guess": Guess,
    "zeros": Zeros,
    "reflect": Reflect,
    "mac-as-root": MacAsRoot,
    "almost-all": AlmostAll,
    "early": Early,
}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--cheat", choices=sorted(CHEATS))
    options = parser.parse_args(arguments)
    session = CHEATS[options.cheat] if options.cheat else Session
    with Receiver(Lane.load(options.config), port=options.port, session=session) as receiver:
        print(json.dumps({"port": receiver.port}), flush=True)
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
