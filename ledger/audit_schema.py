"""Verification of the database's own SQL: every table, index, trigger and view is that of the ledger's schema."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from typing import Final

from ledger import merkle, schema
from ledger.entry import parse_leaf
from ledger.findings import Findings
from receipts.errors import EvidenceError

_NAMING: Final = """SELECT seq, CAST(body AS BLOB), leaf_hash FROM entry
WHERE seq = 0 OR kind = 'schema' ORDER BY seq"""


def check_schema(connection: sqlite3.Connection, findings: Findings, where: str, *, covered: int) -> None:
    """Compare the stored SQL with this release's, unless the ledger was written by a newer one.

    A newer release says so in an entry, and an entry counts only below the first ``covered`` entries, which the
    ledger's own key has signed: else whoever can write to the file could turn this comparison off.
    """
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    said = _schema_of_entries(connection, findings, covered)
    if version < 1:
        findings.fault(
            where,
            "the file does not say which schema it has: its user_version was changed",
            expected=str(said),
            found=str(version),
        )
    elif version != said:
        findings.fault(
            where,
            "the file says another schema than its entries: its user_version was changed",
            expected=str(said),
            found=str(version),
        )
    if said > schema.SCHEMA_VERSION:
        findings.not_checked.append(
            f"the stored SQL: the ledger has schema {said}, this release knows {schema.SCHEMA_VERSION}"
        )
        return
    _compare(connection, findings)


def _schema_of_entries(connection: sqlite3.Connection, findings: Findings, covered: int) -> int:
    """What the last entry that counts says; a newer schema that nobody signed for is a fault."""
    said = schema.SCHEMA_VERSION
    for seq, named in _named(connection):
        if seq < covered or (seq == 0 and named <= schema.SCHEMA_VERSION):
            said = named
        elif named > schema.SCHEMA_VERSION:
            findings.fault(
                f"entry {seq}",
                f"names schema {named}, and no checkpoint by the ledger's own key covers it: it does not count",
                entry=seq,
            )
    return said


def _named(connection: sqlite3.Connection) -> Iterator[tuple[int, int]]:
    """(entry, schema) of genesis and of each ``schema`` entry whose body is intact; the others were named before."""
    for seq, body, leaf_hash in connection.execute(_NAMING):
        with contextlib.suppress(EvidenceError, KeyError, TypeError):
            leaf = parse_leaf(bytes(body), seq)
            named = leaf["data"]["schema"]
            is_intact = merkle.leaf_hash(bytes(body)).hex() == leaf_hash and leaf["seq"] == seq
            if is_intact and leaf["kind"] in ("genesis", "schema") and isinstance(named, int) and named >= 1:
                yield seq, named


def _compare(connection: sqlite3.Connection, findings: Findings) -> None:
    expected = schema.expected_objects()
    stored = {(kind, name): sql for kind, name, sql in connection.execute(schema.STORED_OBJECTS)}
    for kind, name in sorted(expected.keys() | stored.keys()):
        want, have = expected.get((kind, name)), stored.get((kind, name))
        if have is None:
            findings.fault(f"{kind} {name}", "is missing from the database")
        elif want is None:
            findings.fault(f"{kind} {name}", "is in the database and not of this schema", found=have)
        elif want != have:
            findings.fault(
                f"{kind} {name}", "was replaced: its SQL is not that of this schema", expected=want, found=have
            )
