"""Frames of the handoff wire, version 2: a 20-byte prefix, a canonical JSON header, a body on LAYER only.

Pure. Every limit is checked on the prefix, before anything of that size is allocated; a header must be
byte-equal to its own RFC 8785 form, with exactly the fields of its type (docs/formats/wire.md).
"""

from __future__ import annotations

import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final

from producer.handoff.ack import SIGNATURE
from producer.handoff.errors import FrameError
from receipts import canonical
from receipts.errors import CanonicalError, NotCanonicalError

MAGIC: Final = b"KVH2"
VERSION: Final = 2
PREFIX: Final = struct.Struct("<4sHHIQ")
"""magic, version, type, header_len, body_len: 20 bytes, little-endian."""

SMALL_HEADER_BYTES: Final = 64 * 1024
LARGE_HEADER_BYTES: Final = 4 * 1024 * 1024
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
MAX_REASON_CHARS: Final = 2000


class FrameType(IntEnum):
    """The twelve types and their numbers on the wire."""

    HELLO = 1
    HELLO_ACK = 2
    OPEN = 3
    OPENED = 4
    BEGIN = 5
    LAYER = 6
    END = 7
    ACK = 8
    NACK = 9
    ABORT = 10
    PING = 11
    PONG = 12


# Every LAYER header that is right looks like this, save one with a number past 10¹⁵, which goes the long way.
_LAYER_HEADER: Final = re.compile(
    rb'\{"count":([1-9][0-9]{0,14}),"first_token":(0|[1-9][0-9]{0,14}),"tensor":(0|[1-9][0-9]{0,14})\}'
)
LARGE_HEADER_TYPES: Final = (FrameType.BEGIN, FrameType.NACK)
_TYPES: Final[Mapping[int, FrameType]] = {int(kind): kind for kind in FrameType}


@dataclass(frozen=True)
class Prefix:
    """The 20 bytes before a header, read and found within limits. ``raw`` is them as sent."""

    type: FrameType
    header_len: int
    body_len: int
    raw: bytes


@dataclass(frozen=True)
class Frame:
    """One frame without its body: the header as a document, and prefix and header as the bytes on the wire."""

    prefix: Prefix
    header: Mapping[str, Any]
    header_bytes: bytes

    @property
    def type(self) -> FrameType:
        return self.prefix.type

    @property
    def body_len(self) -> int:
        return self.prefix.body_len

    @property
    def wire(self) -> bytes:
        """Prefix and header, as sent."""
        return self.prefix.raw + self.header_bytes


def header_limit(kind: FrameType) -> int:
    """Largest header of a type, in bytes."""
    return LARGE_HEADER_BYTES if kind in LARGE_HEADER_TYPES else SMALL_HEADER_BYTES


def parse_prefix(raw: bytes) -> Prefix:
    """Read 20 bytes. Raises FrameError of the first check that fails, in this order:

    bad_magic, bad_version, unknown_type, header_too_large, body_not_allowed, body_too_large.
    """
    magic, version, number, header_len, body_len = PREFIX.unpack(raw)
    if magic != MAGIC:
        raise FrameError("bad_magic", f"the frame begins with {magic!r}, not {MAGIC!r}")
    if version != VERSION:
        raise FrameError("bad_version", f"version {version} is not {VERSION}")
    kind = _TYPES.get(number)
    if kind is None:
        raise FrameError("unknown_type", f"type {number} is not known")
    if header_len > header_limit(kind):
        raise FrameError("header_too_large", f"{kind.name} header of {header_len} bytes, at most {header_limit(kind)}")
    if body_len and kind is not FrameType.LAYER:
        raise FrameError("body_not_allowed", f"{kind.name} has no body, {body_len} bytes announced")
    if body_len > MAX_BODY_BYTES:
        raise FrameError("body_too_large", f"body of {body_len} bytes, at most {MAX_BODY_BYTES}")
    return Prefix(kind, header_len, body_len, bytes(raw))


def parse_frame(prefix: Prefix, header_bytes: bytes) -> Frame:
    """The frame of a prefix and its header bytes. Raises FrameError with the name of the field."""
    if prefix.type is FrameType.LAYER and (layer := _LAYER_HEADER.fullmatch(header_bytes)):
        count, first_token, tensor = map(int, layer.groups())
        return Frame(prefix, {"count": count, "first_token": first_token, "tensor": tensor}, header_bytes)
    try:
        header = canonical.parse_canonical(header_bytes)
    except NotCanonicalError:
        if not isinstance(canonical.parse(header_bytes), dict):
            raise FrameError("bad_header", f"{prefix.type.name} header is not an object") from None
        raise FrameError("not_canonical", f"{prefix.type.name} header is not in RFC 8785 form") from None
    except CanonicalError as error:
        raise FrameError("bad_header", f"{prefix.type.name} header: {error.what}", where=error.where) from None
    if not isinstance(header, dict):
        raise FrameError("bad_header", f"{prefix.type.name} header is not an object")
    check_header(prefix.type, header)
    return Frame(prefix, header, header_bytes)


def build(kind: FrameType, header: Mapping[str, Any], body_len: int = 0) -> Frame:
    """A frame to send. Raises FrameError when the header or a size is not what the type allows."""
    check_header(kind, header)
    header_bytes = canonical.dumps(header)
    prefix = parse_prefix(PREFIX.pack(MAGIC, VERSION, kind, len(header_bytes), body_len))
    return Frame(prefix, dict(header), header_bytes)


def check_header(kind: FrameType, header: Mapping[str, Any]) -> None:
    """Exactly the fields of ``kind``, each of its form. Raises FrameError unknown_field, missing_field, bad_field.

    BEGIN's own fields come first, then its descriptions, one after the other.
    """
    _check_fields(kind.name, _fields_of(kind, header), header)
    if kind is FrameType.BEGIN:
        for index, tensor in enumerate(header["tensors"]):
            _check_fields(f"BEGIN.tensors[{index}]", _TENSOR, tensor)


Check = Callable[[Any], bool]


def _fields_of(kind: FrameType, header: Mapping[str, Any]) -> Mapping[str, Check]:
    """The fields that a header of ``kind`` must have: a NACK has ``digests`` exactly when it says bytes_differ."""
    if kind is FrameType.NACK and header.get("code") == "bytes_differ":
        return _BYTES_DIFFER
    return _FIELDS[kind]


def _check_fields(where: str, fields: Mapping[str, Check], found: Mapping[str, Any]) -> None:
    for name in found:
        if name not in fields:
            raise FrameError("unknown_field", f"{where} has no field {name[:64]!r}")
    for name in fields:
        if name not in found:
            raise FrameError("missing_field", f"{where} needs the field {name!r}")
    for name, value in found.items():
        if not fields[name](value):
            raise FrameError("bad_field", f"{where}.{name} has the wrong type, form or range")


def _text(pattern: str) -> Check:
    compiled = re.compile(pattern)
    return lambda value: isinstance(value, str) and compiled.fullmatch(value) is not None


def _integer(low: int) -> Check:
    return lambda value: type(value) is int and low <= value <= canonical.MAX_SAFE_INTEGER


def _array(item: Check) -> Check:
    return lambda value: isinstance(value, list) and len(value) > 0 and all(item(entry) for entry in value)


def _object(value: Any) -> bool:
    return isinstance(value, dict)


IDENTIFIER: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
_IDENTIFIER = _text(IDENTIFIER)
_SHA256 = _text(r"sha256:[0-9a-f]{64}")
_BLAKE3 = _text(r"blake3:[0-9a-f]{64}")
_HEX32 = _text(r"[0-9a-f]{64}")
_HEX16 = _text(r"[0-9a-f]{32}")
_SIGNATURE = _text(SIGNATURE)
_MODE = _text(r"native|exact")
_COUNT = _integer(1)
_INDEX = _integer(0)


def _reason(value: Any) -> bool:
    return isinstance(value, str) and len(value) <= MAX_REASON_CHARS


_TENSOR: Final[Mapping[str, Check]] = {
    "layer": _INDEX,
    "part": _text(r"k|v|latent|state|scale"),
    "dtype": _IDENTIFIER,
    "order": _text(r"[a-z0-9_]+(,[a-z0-9_]+){0,7}"),
    "shape": lambda value: _array(_COUNT)(value) and len(value) <= 8,
    "first_token": _INDEX,
    "tokens": _COUNT,
    "bytes": _COUNT,
}

_FIELDS: Final[Mapping[FrameType, Mapping[str, Check]]] = {
    FrameType.HELLO: {
        "lane": _IDENTIFIER,
        "identity": _SHA256,
        "cache_identity": _SHA256,
        "mode": _MODE,
        "nonce": _HEX32,
        "bytes": _COUNT,
    },
    FrameType.HELLO_ACK: {"receiver": _IDENTIFIER, "nonce": _HEX32, "mac": _HEX32},
    FrameType.OPEN: {"mac": _HEX32},
    FrameType.OPENED: {"reserved": _COUNT},
    FrameType.BEGIN: {
        "handoff_id": _HEX16,
        "prompt_sha256": _SHA256,
        "n_tokens": _COUNT,
        "tensors": _array(_object),
        "total_bytes": _COUNT,
    },
    FrameType.LAYER: {"tensor": _INDEX, "first_token": _INDEX, "count": _COUNT},
    FrameType.END: {"mac": _HEX32},
    FrameType.ACK: {"root": _BLAKE3, "mac": _HEX32, "sig": _SIGNATURE},
    FrameType.NACK: {"code": _IDENTIFIER, "reason": _reason},
    FrameType.ABORT: {"code": _IDENTIFIER, "reason": _reason},
    FrameType.PING: {},
    FrameType.PONG: {},
}

_BYTES_DIFFER: Final[Mapping[str, Check]] = {**_FIELDS[FrameType.NACK], "digests": _array(_BLAKE3)}
