"""The end of the ledger: what the next entry is put to, and how it is found again under the write lock."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import sqlalchemy as sa

from ledger import merkle
from ledger.entry import NO_PREV, Entry, Head
from ledger.reader import LedgerReader
from ledger.tables import ENTRY
from receipts.errors import EvidenceError


@dataclass
class Edge:
    """The end of the ledger that the next entry is put to."""

    frontier: merkle.Frontier
    last_leaf: str

    @property
    def head(self) -> Head:
        """The tree over everything up to here."""
        return Head(self.frontier.size, "sha256:" + self.frontier.root().hex())

    def copy(self) -> Edge:
        return Edge(self.frontier.copy(), self.last_leaf)


def edge_now(reader: LedgerReader, connection: sa.Connection, known: Edge | None) -> Edge:
    """The end of the ledger under the write lock. What this process knows of it must still stand there."""
    last = connection.exec_driver_sql("SELECT seq, leaf_hash FROM entry ORDER BY seq DESC LIMIT 1").first()
    if last is None and known is None:
        return Edge(merkle.Frontier(), NO_PREV)
    size, last_leaf = (0, "") if last is None else (last[0] + 1, str(last[1]))
    if known is not None and (known.frontier.size, known.last_leaf) == (size, last_leaf):
        return known.copy()

    def leaf_at(seq: int) -> str:
        rows = connection.execute(sa.select(ENTRY.c.leaf_hash).where(ENTRY.c.seq == seq)).all()
        return str(rows[0][0]) if rows else ""

    if known is not None and leaf_at(known.frontier.size - 1) != known.last_leaf:
        raise EvidenceError(f"entry {known.frontier.size - 1} is not the one that this process wrote or read before")
    return Edge(reader.frontier(size), last_leaf)


@contextlib.contextmanager
def nothing_ahead(entry: Entry, where: Path) -> Iterator[None]:
    """While what is derived of ``entry`` is put beside it. Raises EvidenceError when its place is taken already."""
    try:
        yield
    except sa.exc.IntegrityError as error:
        raise EvidenceError(
            f"what only entry {entry.seq} can bring stands there before it: somebody else put it there ({error.orig})",
            where=str(where),
            next_step="soakledger ledger verify names it; soakledger ledger reproject takes it away",
        ) from error
