"""Verification of what is derived: the node table and the projections hold what the entries give, and nothing more."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from typing import Final

from ledger import merkle
from ledger.entry import Entry
from ledger.findings import Findings
from ledger.projections import rows_of
from ledger.views import PROJECTIONS

_NODES: Final = 'SELECT "index", hash FROM node WHERE level = ? AND "index" >= ? ORDER BY "index" LIMIT ?'
# One statement reads one state of the file: an entry and what is derived of it are committed together.
_NODES_AHEAD: Final = """SELECT level, "index", count(*) FROM node
WHERE (("index" + 1) << level) > max(?, (SELECT coalesce(max(seq) + 1, 0) FROM entry))"""
_SEQ_COLUMNS: Final[Mapping[str, str]] = {table: sql.split("(", 1)[1].split()[0] for table, sql in PROJECTIONS.items()}
"""The first column of each projection, which is the number of its entry."""


class StoredNodes:
    """The node table, read level by level in step with the pass; differences are counted, the first is named."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._ahead: dict[int, list[tuple[int, str]]] = {}
        self._different = 0
        self._first: tuple[merkle.NodeKey, str, str | None] | None = None

    def compare(self, key: merkle.NodeKey, expected: str) -> None:
        found = self._take(*key)
        if found != expected:
            self._different += 1
            self._first = self._first or (key, expected, found)

    def finish(self, findings: Findings, size: int) -> None:
        if self._first is not None:
            (level, index), expected, found = self._first
            findings.fault(
                f"table node, level {level} index {index}",
                f"{self._different} nodes are not what the entries give; soakledger ledger reproject rebuilds them",
                expected=expected,
                found=found or "nothing",
            )
        query = 'SELECT count(*) FROM node WHERE (("index" + 1) << level) <= ?'
        (stored,) = self._connection.execute(query, (size,)).fetchone()
        expected_count = size - size.bit_count()
        if stored > expected_count:
            findings.fault("table node", "holds nodes that no tree has", expected=expected_count, found=stored)

    def _take(self, level: int, index: int) -> str | None:
        ahead = self._ahead.setdefault(level, [])
        if not ahead or ahead[-1][0] > index:
            # Kept in reverse, so that the next one is popped from the end.
            found = self._connection.execute(_NODES, (level, index, 1024)).fetchall()
            ahead[:] = [row for row in found[::-1] if isinstance(row[0], int)]
        if ahead and ahead[-1][0] == index:
            return str(ahead.pop()[1])
        return None


class Projected:
    """Number and sum of hashes of the rows that the entries project to, a table; order does not matter.

    Python's hash of text is keyed anew in each process, so nobody can prepare rows that add up.
    """

    def __init__(self) -> None:
        self._columns: dict[str, tuple[str, ...]] = {}
        self._complete = True
        self._sums = {table: (0, 0) for table in PROJECTIONS if table != "measurement"}

    def add(self, entry: Entry) -> None:
        for row in rows_of(entry):
            self._columns.setdefault(row.table, tuple(row.values))
            count, total = self._sums[row.table]
            self._sums[row.table] = (count + 1, total + hash(tuple(row.values.values())))

    def give_up(self) -> None:
        """An entry cannot be projected: the tables cannot be compared with a part of the entries."""
        self._complete = False

    def compare(self, connection: sqlite3.Connection, findings: Findings, size: int) -> None:
        if not self._complete:
            findings.not_checked.append("the projections, because an entry that they come from was changed")
            return
        for table, expected in self._sums.items():
            columns = self._columns.get(table)
            chosen = ", ".join(columns) if columns else "*"
            try:
                found = _sum(connection.execute(f"SELECT {chosen} FROM {table}"), size, columns)
            except sqlite3.Error as error:
                findings.fault(f"table {table}", f"cannot be read: {error}")
                continue
            if found != expected:
                findings.fault(
                    f"table {table}",
                    "its rows are not what the entries say; soakledger ledger reproject rebuilds them",
                    expected=f"{expected[0]} rows",
                    found=f"{found[0]} rows" if found[0] != expected[0] else "other values",
                )
        findings.not_checked.append("the figures in table measurement, which soakledger ledger reproject derives anew")


def _sum(cursor: sqlite3.Cursor, size: int, columns: tuple[str, ...] | None) -> tuple[int, int]:
    # Rows of later entries are left to ``name_what_is_ahead``; a number that is none was not written by us.
    count = total = 0
    for row in cursor:
        if not isinstance(row[0], int) or row[0] < size:
            count, total = count + 1, total + (hash(row) if columns else 0)
    return count, total


def name_what_is_ahead(connection: sqlite3.Connection, findings: Findings, size: int) -> None:
    """Faults for nodes and rows of entries that there are not.

    The pass skips what lies behind the ``size`` entries that it read, since more may have come in meanwhile; those
    are there by now, and what has no entry now was put there by somebody else.
    """
    level, index, count = connection.execute(_NODES_AHEAD, (size,)).fetchone()
    if count:
        findings.fault(
            f"table node, level {level} index {index}",
            f"{count} nodes stand over entries that there are not: no append can pass them; "
            "soakledger ledger reproject takes them away",
        )
    for table, column in _SEQ_COLUMNS.items():
        ahead = f"""SELECT min({column}), count(*) FROM {table}
WHERE {column} >= ? AND NOT EXISTS (SELECT 1 FROM entry WHERE entry.seq = {table}.{column})"""
        try:
            first, count = connection.execute(ahead, (size,)).fetchone()
        except sqlite3.Error as error:
            findings.fault(f"table {table}", f"cannot be read: {error}")
            continue
        if count:
            findings.fault(
                f"table {table}",
                f"{count} rows are of entries that there are not, the first of entry {first}; "
                "soakledger ledger reproject takes them away",
            )
