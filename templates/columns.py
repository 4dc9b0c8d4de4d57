"""Plain text in the columns of a terminal, where a Chinese character takes two: lines, and tables where they fit."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterable, Sequence
from typing import Final

from receipts.visible import one_line

NARROWEST: Final = 20
"""No text is wrapped narrower than this many columns."""
GAP: Final = "  "
_WORD: Final = re.compile(" *[^ ]+")


def columns(text: str) -> int:
    """How many columns of a terminal ``text`` takes: wide characters two, combining ones none."""
    return sum(
        0 if unicodedata.combining(character) else 2 if unicodedata.east_asian_width(character) in "WF" else 1
        for character in text
    )


def wrapped(text: str, width: int, indent: str = "") -> list[str]:
    """``text`` in lines of at most ``width`` columns; only a single word that is wider by itself passes them."""
    room = max(NARROWEST, width)
    lines: list[str] = []
    line = ""
    for word in _WORD.findall(text):
        longer = line + word if line else indent + word.lstrip()
        if not line or columns(longer) <= room:
            line = longer
            continue
        lines.append(line)
        further = f"{indent}  {word.lstrip()}"
        # An identifier that would not fit behind its indent stands alone at the margin.
        line = further if columns(further) <= room else word.lstrip()
    return [*lines, line]


def table_lines(headers: Sequence[str], rows: Iterable[Sequence[str]], width: int) -> list[str]:
    """Aligned columns where they fit into ``width``, the last one wrapped if need be; else each row as its own words,
    every cell but the first behind its header.

    Every cell is made one safe line. Without rows only the headers are left.
    """
    cells = [[one_line(cell, 400) for cell in row] for row in rows]
    sizes = [max(map(columns, column)) for column in zip(headers, *cells, strict=True)]
    room = width - sum(sizes[:-1]) - len(GAP) * (len(sizes) - 1)
    if sizes[-1] <= room:
        return [aligned(row, sizes) for row in [list(headers), *cells]]
    if room < NARROWEST:
        return [
            line
            for first, *others in cells
            for line in wrapped(
                GAP.join([first, *(f"{name} {cell}" for name, cell in zip(headers[1:], others, strict=True) if cell)]),
                width,
            )
        ]
    lines = [aligned(headers, sizes)]
    for *first, last in cells:
        for index, part in enumerate(wrapped(last, room)):
            lines.append(aligned([*([""] * len(first) if index else first), part], sizes))
    return lines


def aligned(row: Sequence[str], sizes: Sequence[int], right: Collection[str] = (), headers: Sequence[str] = ()) -> str:
    """Cells padded to their columns; those under a header in ``right`` stand at the right of theirs."""
    cells = []
    for index, (cell, size) in enumerate(zip(row, sizes, strict=True)):
        padding = " " * (size - columns(cell))
        cells.append(padding + cell if headers and headers[index] in right else cell + padding)
    return GAP.join(cells).rstrip()
