"""Verification of the entries: bytes, hashes, chain, columns and tree, and what is derived of them, in one pass.

It trusts nothing that is stored. Where a body was changed but its ``leaf_hash`` was not, the tree goes on with
the ``leaf_hash``: the changed entry is named once, and the faults behind it are not drowned by its consequences.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ledger import merkle
from ledger.audit_derived import Projected, StoredNodes, name_what_is_ahead
from ledger.entry import DOCUMENT_KINDS, LEAF_VERSION, NO_PREV, Entry, Head, Ref, parse_leaf
from ledger.findings import Findings
from ledger.projections import blobs_named
from ledger.tables import entry_of
from receipts import canonical
from receipts.errors import EvidenceError, InputError
from receipts.shapes import fault_of

PAGE_ENTRIES: Final = 2048
_PAGE: Final = """SELECT seq, kind, subject, recorded_at, CAST(body AS BLOB), leaf_hash, prev_hash
FROM entry WHERE seq >= ? AND seq < ? ORDER BY seq LIMIT ?"""


@dataclass(frozen=True)
class NamedFile:
    """A file that an entry answers for."""

    entry: int
    ref: Ref


@dataclass
class EntriesSeen:
    """What the pass learned of the entries."""

    head: Head
    roots: dict[int, str]
    """Root (``sha256:<hex>``) by tree size, for the sizes that were asked for."""
    files: list[NamedFile] = field(default_factory=list)
    blobs: dict[str, int] = field(default_factory=dict)
    """First entry that names a blob, by digest."""


@dataclass(frozen=True)
class Start:
    """Where the pass begins: behind ``frontier.size`` entries, the last of which has ``last_leaf``."""

    frontier: merkle.Frontier
    last_leaf: str


def from_the_beginning() -> Start:
    return Start(merkle.Frontier(), NO_PREV)


class EntryPass:
    """One pass over the entries ``start … size − 1``; ``origin`` None skips the comparison of origins."""

    def __init__(
        self,
        connection: sqlite3.Connection,
        findings: Findings,
        *,
        size: int,
        origin: str | None,
        start: Start,
        wanted_sizes: Collection[int],
    ) -> None:
        self._connection = connection
        self._findings = findings
        self._size = size
        self._origin = origin
        self._first = start.frontier.size
        self._frontier: merkle.Frontier | None = start.frontier
        self._expected_seq = start.frontier.size
        self._last_leaf = start.last_leaf
        self._wanted = frozenset(wanted_sizes)
        self._nodes = StoredNodes(connection)
        self._projected = Projected()
        self.seen = EntriesSeen(Head(size, ""), {})

    def run(self) -> EntriesSeen:
        self._note_root()
        for row in self._rows():
            self._check(entry_of(row))
        if self._expected_seq < self._size:
            self._gap(self._size)
        self._finish()
        return self.seen

    def _rows(self) -> Iterator[Any]:
        position = self._first
        while page := self._connection.execute(_PAGE, (position, self._size, PAGE_ENTRIES)).fetchall():
            yield from page
            position = page[-1][0] + 1

    def _check(self, entry: Entry) -> None:
        self._findings.count("entries")
        if entry.seq != self._expected_seq:
            self._gap(entry.seq)
        elif entry.prev_hash != self._last_leaf:
            self._findings.fault(
                f"entry {entry.seq}",
                "does not name the hash of the entry before it: one of the two was changed",
                entry=entry.seq,
                expected=self._last_leaf,
                found=entry.prev_hash,
            )
        intact = self._check_hash(entry)
        self._grow(entry)
        self._check_body(entry, intact)
        self._expected_seq = entry.seq + 1
        self._last_leaf = entry.leaf_hash

    def _check_hash(self, entry: Entry) -> bool:
        found = merkle.leaf_hash(entry.body).hex()
        if found != entry.leaf_hash:
            self._findings.fault(
                f"entry {entry.seq}",
                "the body was changed: it does not hash to leaf_hash",
                entry=entry.seq,
                expected=entry.leaf_hash,
                found=found,
            )
        return found == entry.leaf_hash

    def _grow(self, entry: Entry) -> None:
        if self._frontier is None:
            return
        try:
            leaf = bytes.fromhex(entry.leaf_hash)
        except (TypeError, ValueError):
            leaf = b""
        if len(leaf) != merkle.HASH_BYTES:
            # That it is not the hash of its body was said already; a tree over it would be a tree over nothing.
            self._findings.not_checked.append(f"the tree behind entry {entry.seq}: its leaf_hash is no hash")
            self._frontier = None
            return
        for key, node in self._frontier.append(leaf):
            self._nodes.compare(key, node.hex())
        self._note_root()

    def _note_root(self) -> None:
        if self._frontier is not None and self._frontier.size in self._wanted:
            self.seen.roots[self._frontier.size] = "sha256:" + self._frontier.root().hex()

    def _check_body(self, entry: Entry, intact: bool) -> None:
        where = f"entry {entry.seq}"
        try:
            leaf = parse_leaf(entry.body, entry.seq)
            ref = Ref.read(leaf["ref"])
        except EvidenceError as error:
            self._findings.fault(where, error.what, entry=entry.seq)
            self._projected.give_up()
            return
        if leaf["v"] != LEAF_VERSION:
            self._findings.fault(where, "the leaf has a version that this release does not know", entry=entry.seq)
        if self._origin is not None and leaf["origin"] != self._origin:
            self._findings.fault(
                where,
                "the leaf is of another ledger",
                entry=entry.seq,
                expected=self._origin,
                found=leaf["origin"],
            )
        columns = entry.columns()
        for name in (name for name in columns if leaf[name] != columns[name]):
            self._findings.fault(
                where,
                f"column {'prev_hash' if name == 'prev' else name} differs from the body",
                entry=entry.seq,
                expected=leaf[name],
                found=columns[name],
            )
        # A changed entry still says which files exist; what else it says is no measure for anything.
        self._note_files(entry, leaf["data"], ref)
        if not intact or any(leaf[name] != columns[name] for name in columns):
            self._projected.give_up()
            return
        entry.__dict__["leaf"] = leaf  # parsed and compared above; the property would do both again
        if entry.kind in DOCUMENT_KINDS:
            self._check_document(entry, ref)
        misfit = fault_of(entry.kind, leaf["data"])
        if misfit is not None:
            self._findings.fault(where, f"this {entry.kind} has not the shape of its kind: {misfit}", entry=entry.seq)
        try:
            self._projected.add(entry)
        except InputError as error:
            self._projected.give_up()
            if misfit is None:
                self._findings.fault(where, error.what, entry=entry.seq)

    def _note_files(self, entry: Entry, data: Any, ref: Ref | None) -> None:
        if ref is not None:
            self.seen.files.append(NamedFile(entry.seq, ref))
        if b"_blob" in entry.body:
            for _, digest in blobs_named(data):
                self.seen.blobs.setdefault(digest, entry.seq)

    def _check_document(self, entry: Entry, ref: Ref | None) -> None:
        if ref is None:
            self._findings.fault(
                f"entry {entry.seq}", f"a {entry.kind} that names no file for its document", entry=entry.seq
            )
            return
        expected = Ref.of(ref.path, canonical.file_bytes(entry.leaf["data"]))
        if expected != ref:
            self._findings.fault(
                f"entry {entry.seq}",
                "its ref is not that of the document in its data",
                entry=entry.seq,
                expected=expected.sha256,
                found=ref.sha256,
            )

    def _gap(self, found: int) -> None:
        last = found - 1
        named = f"entry {self._expected_seq}" + (f" … {last}" if last > self._expected_seq else "")
        self._findings.fault(named, "missing", entry=self._expected_seq)
        # Without a leaf there is no tree behind it.
        self._frontier = None
        self._findings.not_checked.append(f"the tree from entry {self._expected_seq} on, because of the missing entry")

    def _finish(self) -> None:
        root = "sha256:" + self._frontier.root().hex() if self._frontier else ""
        self.seen.head = Head(self._size, root)
        if self._frontier is not None:
            self._nodes.finish(self._findings, self._size)
        if self._first == 0:
            self._projected.compare(self._connection, self._findings, self._size)
        name_what_is_ahead(self._connection, self._findings, self._size)
