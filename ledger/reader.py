"""Reading the ledger: entries a page at a time, heads from the node table, no transaction held in between."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from ledger import merkle
from ledger.entry import Entry, Head
from ledger.tables import ENTRY, NODE, SELECT_ENTRY, entry_of
from receipts.errors import EvidenceError, InputError

Fetch = Callable[[sa.Executable], Sequence[Any]]
"""Runs one statement and returns all of its rows."""

PAGE_ENTRIES: Final = 512
# Subjects are printable ASCII, so this letter sorts behind each of them.
_AFTER_ASCII: Final = "\x7f"


class LedgerReader:
    """The read methods of a ledger. Every entry handed out was checked against its own hash."""

    def __init__(self, fetch: Fetch) -> None:
        self.fetch = fetch
        """Runs one statement that only reads; the transaction is over when its rows are there."""
        self._origin: str | None = None

    @property
    def origin(self) -> str:
        """The name of this ledger, fixed at genesis."""
        if self._origin is None:
            data = self.genesis().data
            if not isinstance(data, dict) or not isinstance(data.get("origin"), str):
                raise EvidenceError("genesis names no origin", where="entry 0")
            self._origin = data["origin"]
        return self._origin

    def genesis(self) -> Entry:
        """Entry 0. Raises EvidenceError when the ledger is empty or begins with something else."""
        rows = self.fetch(SELECT_ENTRY.where(ENTRY.c.seq == 0))
        if not rows:
            raise EvidenceError("the ledger is empty: it has no genesis entry")
        first = _checked(rows[0])
        if first.kind != "genesis":
            raise EvidenceError(f"the ledger begins with a {first.kind} entry and not with genesis", where="entry 0")
        return first

    def size(self) -> int:
        """Number of entries."""
        ((last,),) = self.fetch(sa.select(sa.func.max(ENTRY.c.seq)))
        if last is not None and not isinstance(last, int):
            raise EvidenceError(
                "the last entry has a number that is none",
                where="table entry",
                next_step="soakledger ledger verify names every fault",
            )
        return 0 if last is None else last + 1

    def head(self) -> Head:
        """Size and root now."""
        size = self.size()
        return Head(size, self.root_at(size))

    def root_at(self, size: int) -> str:
        """The root (``sha256:<hex>``) of the first ``size`` entries, O(log n). Raises EvidenceError."""
        return "sha256:" + self.frontier(size).root().hex()

    def frontier(self, size: int) -> merkle.Frontier:
        """The edge of the tree of the first ``size`` entries, from the node table."""
        keys = merkle.frontier_keys(size)
        inner = [key for key in keys if key[0] > 0]
        known: dict[merkle.NodeKey, str] = {}
        if inner:
            query = sa.select(NODE.c.level, NODE.c.index, NODE.c.hash)
            rows = self.fetch(query.where(sa.tuple_(NODE.c.level, NODE.c.index).in_(inner)))
            known = {(row[0], row[1]): row[2] for row in rows}
        if size & 1:
            rows = self.fetch(sa.select(ENTRY.c.leaf_hash).where(ENTRY.c.seq == size - 1))
            if rows:
                known[0, size - 1] = rows[0][0]
        missing = [key for key in keys if key not in known]
        if missing:
            raise EvidenceError(
                f"the tree of {size} entries lacks node {missing[0]}",
                next_step="soakledger ledger verify; if only the node table is damaged, soakledger ledger reproject",
            )
        try:
            return merkle.Frontier(size, [bytes.fromhex(known[key]) for key in keys])
        except (TypeError, ValueError):
            raise EvidenceError(
                f"the tree of {size} entries has a node that is no hash",
                next_step="soakledger ledger verify; if only the node table is damaged, soakledger ledger reproject",
            ) from None

    def entries(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        kinds: Collection[str] | None = None,
        subject: str | None = None,
        subject_prefix: str | None = None,
    ) -> Iterator[Entry]:
        """Entries ``first … last`` (both included; ``last`` None: to the end as it is when each page is read).

        Raises EvidenceError on an entry that does not hash to its leaf_hash.
        """
        query = SELECT_ENTRY.order_by(ENTRY.c.seq).limit(PAGE_ENTRIES)
        if last is not None:
            query = query.where(ENTRY.c.seq <= last)
        if kinds is not None:
            query = query.where(ENTRY.c.kind.in_(sorted(kinds)))
        if subject is not None:
            query = query.where(ENTRY.c.subject == subject)
        if subject_prefix is not None:
            query = query.where(ENTRY.c.subject >= subject_prefix, ENTRY.c.subject < subject_prefix + _AFTER_ASCII)
        position = first
        while page := self.fetch(query.where(ENTRY.c.seq >= position)):
            yield from map(_checked, page)
            if len(page) < PAGE_ENTRIES:
                return
            position = page[-1][0] + 1

    def entry(self, seq: int) -> Entry:
        """One entry. Raises InputError when there is none of that number."""
        rows = self.fetch(SELECT_ENTRY.where(ENTRY.c.seq == seq))
        if not rows:
            raise InputError(f"there is no entry {seq}; the ledger has {self.size()}, counted from 0")
        return _checked(rows[0])

    def latest(self, kind: str, subject: str | None = None) -> Entry | None:
        """The last entry of a kind (and subject), None where there is none."""
        query = SELECT_ENTRY.where(ENTRY.c.kind == kind).order_by(ENTRY.c.seq.desc()).limit(1)
        if subject is not None:
            query = query.where(ENTRY.c.subject == subject)
        rows = self.fetch(query)
        return _checked(rows[0]) if rows else None


def _checked(row: Any) -> Entry:
    entry = entry_of(row)
    entry.require_hash()
    return entry
