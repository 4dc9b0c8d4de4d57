"""How text from outside is shown: what a terminal or a page would obey is made visible, never passed on. Pure.

Two rules. ``one_line`` is for a value inside a message: one line, whatever it holds. ``on_terminal`` is the last door
before a terminal, for whole output that has lines of its own.
"""

from __future__ import annotations

import re
import unicodedata
from typing import Final

_UNSAFE_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
_OBEYED: Final = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)
"""Controls but newline and tab, line separators, marks that turn the direction of writing, surrogates."""


def one_line(text: str, limit: int = 80) -> str:
    """``text`` on one line of a terminal: controls, line separators, bidi marks and surrogates as escapes.

    Longer than ``limit`` characters is cut and ends in ``…``.
    """
    shown = "".join(_visible(character) for character in text[: limit + 1])
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def quoted(text: str, limit: int = 80) -> str:
    """``one_line`` between single quotes."""
    return f"'{one_line(text, limit)}'"


def on_terminal(text: str) -> str:
    """``text`` with its lines and tabs kept, and an escape in place of everything else that a terminal obeys."""
    return _OBEYED.sub(lambda found: _escape(found.group()), text)


def _visible(character: str) -> str:
    return _escape(character) if unicodedata.category(character) in _UNSAFE_CATEGORIES else character


def _escape(character: str) -> str:
    code = ord(character)
    return f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
