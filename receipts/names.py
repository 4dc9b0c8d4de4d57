"""What a name may look like: identifiers, cases, digests, and the one rule of free text (DESIGN section 5).

Identifiers are validated at the door. Free text may hold any Unicode that UTF-8 can carry; whoever shows it
escapes it, and ``one_line`` of ``receipts/visible.py`` is how a message does that.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Annotated, Final

from pydantic import AfterValidator, BeforeValidator, Strict, WithJsonSchema

from receipts.visible import one_line as one_line
from receipts.visible import quoted as quoted

IDENTIFIER_PATTERN: Final = r"[a-z0-9][a-z0-9._-]{0,63}"
CASE_PATTERN: Final = r"[a-z0-9][a-z0-9._=-]{0,63}"
ATTEMPT_PATTERN: Final = rf"{IDENTIFIER_PATTERN}/[1-9][0-9]{{0,8}}"
SHA256_PATTERN: Final = r"sha256:[0-9a-f]{64}"
BLAKE3_PATTERN: Final = r"blake3:[0-9a-f]{64}"

MAX_FREE_TEXT_CHARACTERS: Final = 16_384
MAX_TOLD_BYTES: Final = 4096
"""Longest free text of one field: a leaf must stay under 48 KiB (DESIGN section 6)."""


class UnknownWordError(ValueError):
    """A value is none of ``words``: a model's validator raises it, and whoever tells the fault offers the nearest."""

    def __init__(self, what: str, words: Sequence[str]) -> None:
        super().__init__(what)
        self.words = tuple(words)


def is_identifier(text: str) -> bool:
    """Whether ``text`` may name a lane, host, campaign, family, stage or criterion."""
    return re.fullmatch(IDENTIFIER_PATTERN, text) is not None


def is_case(text: str) -> bool:
    """Whether ``text`` may name a case of a stage, such as ``n=8`` or ``control``."""
    return re.fullmatch(CASE_PATTERN, text) is not None


def _matching(pattern: str, rule: str) -> Callable[[str], str]:
    compiled = re.compile(pattern)

    def check(text: str) -> str:
        if compiled.fullmatch(text) is None:
            raise ValueError(f"{quoted(text)} is not {rule}")
        return text

    return check


def _free_text(text: str) -> str:
    if len(text) > MAX_FREE_TEXT_CHARACTERS:
        raise ValueError(f"{len(text)} characters; at most {MAX_FREE_TEXT_CHARACTERS} are kept")
    if any(0xD800 <= ord(character) <= 0xDFFF for character in text):
        raise ValueError("holds a lone surrogate, which UTF-8 cannot carry")
    return text


def _said(text: str) -> str:
    if not text.strip():
        raise ValueError("is empty")
    return text


_IDENTIFIER_RULE: Final = "an identifier: a-z 0-9 . _ - only, at most 64, first a letter or digit"
_CASE_RULE: Final = "a case: a-z 0-9 . _ = - only, at most 64, first a letter or digit"

Identifier = Annotated[
    str,
    Strict(),
    AfterValidator(_matching(IDENTIFIER_PATTERN, _IDENTIFIER_RULE)),
    WithJsonSchema({"type": "string", "pattern": f"^{IDENTIFIER_PATTERN}$"}),
]
CaseName = Annotated[
    str,
    Strict(),
    AfterValidator(_matching(CASE_PATTERN, _CASE_RULE)),
    WithJsonSchema({"type": "string", "pattern": f"^{CASE_PATTERN}$"}),
]
AttemptName = Annotated[
    str,
    Strict(),
    AfterValidator(_matching(ATTEMPT_PATTERN, "an attempt, <campaign>/<number>")),
    WithJsonSchema({"type": "string", "pattern": f"^{ATTEMPT_PATTERN}$"}),
]
Sha256 = Annotated[
    str,
    Strict(),
    AfterValidator(_matching(SHA256_PATTERN, "a digest sha256:<64 lower-case hex>")),
    WithJsonSchema({"type": "string", "pattern": f"^{SHA256_PATTERN}$"}),
]
Blake3 = Annotated[
    str,
    Strict(),
    AfterValidator(_matching(BLAKE3_PATTERN, "a digest blake3:<64 lower-case hex>")),
    WithJsonSchema({"type": "string", "pattern": f"^{BLAKE3_PATTERN}$"}),
]
FreeText = Annotated[str, Strict(), AfterValidator(_free_text)]
"""Any Unicode without lone surrogates, at most MAX_FREE_TEXT_CHARACTERS."""
Told = Annotated[str, BeforeValidator(lambda text: told(text) if isinstance(text, str) else text)]
"""What a program said, kept to MAX_TOLD_BYTES: a traceback of a megabyte must not keep a receipt out of the ledger."""
Statement = Annotated[str, Strict(), AfterValidator(_free_text), AfterValidator(_said)]
"""Free text that says something: not empty and not only white space."""


def told(text: str) -> str:
    """``text``; what passes MAX_TOLD_BYTES of UTF-8 is replaced by how much that was, a lone surrogate by ``?``."""
    data = text.encode("utf-8", "replace")
    if len(data) <= MAX_TOLD_BYTES:
        return data.decode("utf-8")
    # Beginning and end: the first words say what happened, the last ones of a log why.
    half = MAX_TOLD_BYTES // 2 - 40
    first, last = data[:half].decode("utf-8", "ignore"), data[-half:].decode("utf-8", "ignore")
    return f"{first} … [{len(data) - 2 * half} bytes left out] … {last}"
