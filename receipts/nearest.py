"""The nearest valid name to one that was mistyped. Pure; deterministic."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher
from typing import Final

SAME_WORD: Final = 0.6
"""Likeness from which a mistyped key is taken for another."""
LIKE_VALUE: Final = 0.5
"""Likeness from which a value is offered for a mistyped one."""


def nearest(word: str, candidates: Iterable[str], likeness: float = SAME_WORD) -> str | None:
    """The candidate most like ``word``, or None where none reaches ``likeness`` (0–1); ties by order given."""
    scored = [(_likeness(word.lower(), item.lower()), item) for item in candidates]
    best = max(scored, key=lambda score: score[0], default=None)
    return best[1] if best is not None and best[0] >= likeness else None


def _likeness(a: str, b: str) -> float:
    if not a or not b or max(len(a), len(b)) > 200:
        return 0.0
    if a != b and sorted(a) == sorted(b):
        return 0.99  # the same letters in another order: => for >=
    edits = 1 - _edit_distance(a, b) / max(len(a), len(b))
    return max(edits, SequenceMatcher(None, a, b, autojunk=False).ratio())


def _edit_distance(a: str, b: str) -> int:
    """Insertions, deletions, replacements and swaps of neighbours (optimal string alignment)."""
    before: list[int] = []
    previous = list(range(len(b) + 1))
    for i, left in enumerate(a, 1):
        current = [i]
        for j, right in enumerate(b, 1):
            cost = min(previous[j] + 1, current[j - 1] + 1, previous[j - 1] + (left != right))
            if i > 1 and j > 1 and left == b[j - 2] and a[i - 2] == right:
                cost = min(cost, before[j - 2] + 1)
            current.append(cost)
        before, previous = previous, current
    return previous[-1]
