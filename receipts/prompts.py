"""The prompts of a campaign as token ids, and their digest (DESIGN section 7). Pure."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Sequence
from typing import Final

PROMPT_DOMAIN: Final = b"soakledger/prompt/1\n"
SEEDED_DOMAIN: Final = "soakledger/seeded-prompt/1\n"


def seeded_token_ids(seed: int, tokens: int, low: int, high: int) -> tuple[int, ...]:
    """Token ids in ``low <= id < high``, the same everywhere; a longer prompt of one seed begins with the shorter."""
    if not 0 <= low < high:
        raise ValueError(f"id range [{low}, {high}) is empty or negative")
    span = high - low
    prefix = f"{SEEDED_DOMAIN}{seed}\n"
    return tuple(
        low + int.from_bytes(hashlib.sha256(f"{prefix}{index}".encode("ascii")).digest()[:8], "little") % span
        for index in range(tokens)
    )


def prompt_sha256(token_ids: Sequence[int]) -> str:
    """``sha256:<hex>`` over the domain and the ids as u32 little-endian."""
    packed = struct.pack(f"<{len(token_ids)}I", *token_ids)
    return "sha256:" + hashlib.sha256(PROMPT_DOMAIN + packed).hexdigest()
