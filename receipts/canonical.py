"""Strict JSON in, RFC 8785 canonical JSON out, and the two digests.

Everything that is hashed, signed or kept passes through here, so that one value has one byte form.
Strict means: no duplicate keys (also after NFC), no non-finite numbers, no integer outside
±(2⁵³ − 1), no lone surrogate, nothing after the document. Errors name the path of the value.
"""

from __future__ import annotations

import base64
import hashlib
import json
import math
import unicodedata
from typing import Any, Final

import rfc8785

from receipts.errors import CanonicalError, NotCanonicalError

JsonValue = Any
"""None, bool, int, float, str, list[JsonValue] or dict[str, JsonValue]."""

MAX_SAFE_INTEGER: Final = 2**53 - 1
"""Largest integer that every JSON reader keeps exactly (RFC 8785 section 3.2.2.3, RFC 7493)."""

MAX_DEPTH: Final = 64
"""Arrays and objects inside one another, the outermost counted; deeper ones could exhaust a reader's stack."""


class _Pairs(list[tuple[str, Any]]):
    """An object as read, before its keys were checked for duplicates."""


class _Constant:
    """A literal such as NaN that JSON does not know; kept until its path is known."""

    def __init__(self, literal: str) -> None:
        self.literal = literal


def parse(data: bytes | str) -> JsonValue:
    """Read one strict JSON document. Raises CanonicalError with the path of the first bad value."""
    try:
        text = data.decode("utf-8") if isinstance(data, bytes) else data
    except UnicodeDecodeError as error:
        raise CanonicalError(f"not UTF-8: {error.reason} at byte {error.start}", where="$") from None
    try:
        raw = json.loads(
            text, object_pairs_hook=_Pairs, parse_constant=_Constant, parse_int=_integer, parse_float=_decimal
        )
    except json.JSONDecodeError as error:
        raise CanonicalError(f"not JSON: {error.msg} (line {error.lineno}, column {error.colno})", where="$") from None
    except RecursionError:
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels", where="$") from None
    return _checked(raw, "$", 0)


def parse_canonical(data: bytes) -> JsonValue:
    """Read bytes that must be exactly the RFC 8785 form of their value.

    Raises NotCanonicalError when they are strict JSON in another form, CanonicalError when they are not even that.
    Most of what is read back is plain (see ``_is_plain``), which is decided ten times sooner; whatever is not surely
    of that kind goes the long way.
    """
    value = _plainly_canonical(data)
    if value is not _UNDECIDED:
        return value
    value = parse(data)
    if dumps(value) != data:
        raise NotCanonicalError("not in the canonical form of RFC 8785", where="$")
    return value


def dumps(value: JsonValue) -> bytes:
    """RFC 8785 bytes of ``value``, without a trailing newline. Raises CanonicalError."""
    if _is_plain(value):
        return _plain_text(value).encode()
    try:
        return rfc8785.dumps(_checked(value, "$", 0))
    except rfc8785.CanonicalizationError as error:  # pragma: no cover - _checked refuses first
        raise CanonicalError(str(error), where="$") from None


def file_bytes(value: JsonValue) -> bytes:
    """The bytes of ``value`` as a file: canonical JSON and exactly one newline."""
    return dumps(value) + b"\n"


def sha256(data: bytes) -> str:
    """``sha256:<64 hex>`` of ``data``."""
    return "sha256:" + hashlib.sha256(data).hexdigest()


def from_base64(text: str) -> bytes:
    """The bytes of padded standard base64 in its one spelling. Raises ValueError.

    Python ignores the unused bits of the last letter: two texts of one signature or key would both be taken.
    """
    raw = base64.b64decode(text, validate=True)
    if base64.b64encode(raw).decode("ascii") != text:
        raise ValueError("not the one base64 of its bytes")
    return raw


def blake3_digest(data: bytes) -> str:
    """``blake3:<64 hex>`` of ``data``."""
    import blake3  # imported late: only the wire needs it, and start-up is measured

    return "blake3:" + blake3.blake3(data).hexdigest()


_UNDECIDED: Final = object()


def _is_plain(value: JsonValue) -> bool:
    """Whether ``value`` is surely valid: nothing but ASCII texts, safe integers, booleans, nulls, arrays, objects.

    Python's own encoder writes those as RFC 8785 does: code-point order is UTF-16 order there, both escape alike.
    Everything is timed that passes here, so this walks without recursion and never makes the path of a value.
    """
    waiting = [((value,), 0)]
    while waiting:
        items, depth = waiting.pop()
        for item in items:
            kind = type(item)
            if kind is str:
                if not item.isascii():
                    return False
            elif kind is int:
                if not -MAX_SAFE_INTEGER <= item <= MAX_SAFE_INTEGER:
                    return False
            elif kind is dict:
                if depth >= MAX_DEPTH or not all(type(key) is str and key.isascii() for key in item):
                    return False
                waiting.append((item.values(), depth + 1))
            elif kind is list or kind is tuple:
                if depth >= MAX_DEPTH:
                    return False
                waiting.append((item, depth + 1))
            elif item is not None and kind is not bool:
                return False
    return True


def _plain_text(value: JsonValue) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


class _NotPlain(Exception):
    """The document holds what the short way does not decide."""


def _not_plain(_literal: str) -> None:
    raise _NotPlain


def _plainly_canonical(data: bytes) -> JsonValue:
    """The value of ``data`` if it is surely canonical, else _UNDECIDED (which includes: surely not)."""
    if not data.isascii():
        return _UNDECIDED
    try:
        value = json.loads(data, parse_float=_not_plain, parse_constant=_not_plain)
    except (_NotPlain, ValueError, RecursionError):
        return _UNDECIDED
    return value if _is_plain(value) and _plain_text(value).encode() == data else _UNDECIDED


def _integer(literal: str) -> int | _Constant:
    # int() of a very long literal is quadratic and refused by Python itself past 4,300 digits.
    return _Constant(literal) if len(literal) > 32 else int(literal)


def _decimal(literal: str) -> float | _Constant:
    value = float(literal)
    return value if math.isfinite(value) else _Constant(literal)


def _checked(value: Any, path: str, depth: int) -> JsonValue:
    if depth >= MAX_DEPTH and isinstance(value, (list, tuple, dict)):
        raise CanonicalError(f"nested deeper than {MAX_DEPTH} levels", where=path)
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _checked_text(value, path)
    if isinstance(value, int):
        if abs(value) > MAX_SAFE_INTEGER:
            raise CanonicalError(f"integer {_short(str(value))} is outside ±(2^53 − 1)", where=path)
        return value
    if isinstance(value, float):
        return _checked_float(value, path)
    if isinstance(value, _Constant):
        raise CanonicalError(f"number {_short(value.literal)} is not finite or too large", where=path)
    if isinstance(value, _Pairs):
        return _checked_object(value, path, depth)
    if isinstance(value, dict):
        return _checked_object(list(value.items()), path, depth)
    if isinstance(value, (list, tuple)):
        return [_checked(item, f"{path}[{index}]", depth + 1) for index, item in enumerate(value)]
    raise CanonicalError(f"{type(value).__name__} has no JSON form", where=path)


def _checked_object(pairs: list[tuple[str, Any]], path: str, depth: int) -> dict[str, JsonValue]:
    seen: set[str] = set()
    result: dict[str, JsonValue] = {}
    for key, item in pairs:
        if not isinstance(key, str):
            raise CanonicalError(f"key {key!r} is not a string", where=path)
        here = f"{path}.{key}"
        normal = key if key.isascii() else unicodedata.normalize("NFC", _checked_text(key, here))
        if normal in seen:
            raise CanonicalError(f"duplicate key {_short(key)!r}", where=here)
        seen.add(normal)
        result[key] = _checked(item, here, depth + 1)
    return result


def _checked_text(text: str, path: str) -> str:
    if text.isascii():
        return text
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise CanonicalError("text holds a lone surrogate", where=path.encode("utf-8", "replace").decode()) from None
    return text


def _checked_float(value: float, path: str) -> float:
    if not math.isfinite(value):
        raise CanonicalError(f"number {value} is not finite", where=path)
    # 1e20 is written "100000000000000000000" by RFC 8785 and would come back as an unsafe integer.
    if abs(value) > MAX_SAFE_INTEGER:
        raise CanonicalError(f"number {value!r} is outside ±(2^53 − 1)", where=path)
    return value


def _short(text: str) -> str:
    return text if len(text) <= 40 else text[:37] + "..."
