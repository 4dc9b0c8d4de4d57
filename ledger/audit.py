"""Verification of a whole evidence home: every fault at once, and exactly what was and was not looked at.

It opens the database by itself, reading only, needs no private key, creates nothing, and goes on past damage
wherever something behind it can still be checked.
"""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from ledger import merkle, note, schema, seen
from ledger.audit_checkpoints import CheckpointAudit, CheckpointRow
from ledger.audit_entries import EntriesSeen, EntryPass, NamedFile, Start, from_the_beginning
from ledger.audit_files import check_blobs, check_files, listed_files, orphans, strays
from ledger.audit_schema import check_schema
from ledger.entry import Head, Ref, parse_leaf
from ledger.files import require_file
from ledger.findings import UNREADABLE, AuditReport, Fault, Findings
from ledger.home import EvidenceHome
from ledger.keys import VerifyKey, key_path
from ledger.projections import blobs_named
from receipts.canonical import MAX_SAFE_INTEGER
from receipts.errors import EvidenceError, SoakledgerError

__all__ = ["AuditReport", "Fault", "verify"]

_ENTRY_TAIL: Final = "SELECT CAST(body AS BLOB), seq FROM entry WHERE seq >= ? ORDER BY seq"

_NUMBERED: Final = f"typeof(seq) = 'integer' AND seq BETWEEN 0 AND {MAX_SAFE_INTEGER}"


@dataclass
class _Audit:
    """One verification: the home, what it may use, and what it has found so far."""

    home: EvidenceHome
    environ: Mapping[str, str]
    findings: Findings
    origin: str | None = None
    key: VerifyKey | None = None
    head: Head | None = None
    has_outsiders: bool = False


def verify(
    home: EvidenceHome, *, all: bool = True, files: bool = True, environ: Mapping[str, str] | None = None
) -> AuditReport:
    """Verify the ledger of ``home`` and its evidence.

    ``all`` False re-reads only the entries behind the last checkpoint that verifies, ``files`` False leaves the
    receipt files and blobs unread; the report says so. Raises nothing for what is wrong with the evidence.
    A clean verification moves this machine's last-seen mark forward where there is one, but not over entries that
    came past the machine that signs.
    """
    audit = _Audit(home, os.environ if environ is None else environ, Findings())
    if _is_there(audit):
        # Listed before the head is read: a receipt's file is there before its entry.
        listed = listed_files(home) if files else []
        try:
            with contextlib.closing(_connect(home)) as connection:
                _verify_database(audit, connection, all=all, files=files, listed=listed)
        except (sqlite3.Error, SoakledgerError, *UNREADABLE) as error:
            audit.findings.fault(str(home.ledger_db), f"the database cannot be read: {error}")
    report = audit.findings.report(str(home.path), audit.origin, audit.head)
    if report.ok and audit.origin and audit.head and not audit.has_outsiders:
        with contextlib.suppress(SoakledgerError):
            seen.advance(seen.Mark(audit.origin, audit.head.size, audit.head.root), audit.environ, create=False)
    return report


def _is_there(audit: _Audit) -> bool:
    try:
        require_file(audit.home.ledger_db)
    except SoakledgerError as error:
        audit.findings.fault(str(error.where), error.what)
        return False
    return True


def _connect(home: EvidenceHome) -> sqlite3.Connection:
    from ledger.connection import connect  # imported late: brings SQLAlchemy

    return connect(home.ledger_db, "read")


def _verify_database(
    audit: _Audit, connection: sqlite3.Connection, *, all: bool, files: bool, listed: list[str]
) -> None:
    # Whatever bytes stand in a column are read, to be named; bytes that are no UTF-8 equal no text of ours.
    connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
    reading, database = audit.findings.reading, str(audit.home.ledger_db)
    with reading(database):
        _check_file(audit, connection)
    with reading("entry 0"):
        _read_genesis(audit, connection)
    checkpoints = CheckpointAudit.read(audit.home, connection, audit.findings, audit.key)
    mark = _mark(audit)
    size, start = 0, from_the_beginning()
    with reading("table entry"):
        # Read last: what the marks and checkpoints speak of was there before.
        size = _size(audit, connection)
        start = start if all else _start_at_checkpoint(audit, connection, checkpoints.rows, size)
    entries = EntryPass(
        connection,
        audit.findings,
        size=size,
        origin=audit.origin,
        start=start,
        wanted_sizes=checkpoints.sizes | ({mark.size} if mark else set()),
    )
    with reading("table entry"):
        entries.run()
    found = entries.seen
    audit.head = found.head
    if size == 0:
        audit.findings.fault(database, "the ledger is empty: it has no entries")
    with reading("table checkpoint"):
        checkpoints.check(connection, found, start.frontier.size)
    with reading(database):
        check_schema(connection, audit.findings, database, covered=checkpoints.covered)
    _check_mark(audit, mark, found, start.frontier.size)
    _say_what_came_past(audit, max(checkpoints.covered, mark.size if mark else 0))
    with reading(str(audit.home.path)):
        _check_evidence(audit, connection, found, files=files, all=all, listed=listed)
    _say_what_is_outside(audit)


def _size(audit: _Audit, connection: sqlite3.Connection) -> int:
    """The number of entries, by their numbers; rows whose number can be none are named and left out."""
    (last,) = connection.execute("SELECT max(seq) FROM entry").fetchone()
    (first,) = connection.execute("SELECT min(seq) FROM entry").fetchone()
    if last is None:
        return 0
    if not (isinstance(first, int) and isinstance(last, int) and 0 <= first <= last <= MAX_SAFE_INTEGER):
        (last,) = connection.execute(f"SELECT max(seq) FROM entry WHERE {_NUMBERED}").fetchone()
        (rest,) = connection.execute(f"SELECT count(*) FROM entry WHERE NOT ({_NUMBERED})").fetchone()
        audit.findings.fault("table entry", f"{rest} rows have a number that no entry can have")
    return 0 if last is None else int(last) + 1


def _check_file(audit: _Audit, connection: sqlite3.Connection) -> None:
    """The database as a file: that it is ours, and that every index holds what its table holds.

    What the judge, a registration and every question read goes through indexes, and this verification does not: one
    that was made to leave out a row would hide it from all of them.
    """
    (application,) = connection.execute("PRAGMA application_id").fetchone()
    if application != schema.APPLICATION_ID:
        audit.findings.fault(
            str(audit.home.ledger_db),
            "the file does not say that it is a soakledger ledger: its application_id was changed",
            expected=str(schema.APPLICATION_ID),
            found=str(application),
        )
    for (message,) in connection.execute("PRAGMA integrity_check"):
        if message != "ok":
            audit.findings.fault(str(audit.home.ledger_db), f"the database is damaged: {message}")


def _read_genesis(audit: _Audit, connection: sqlite3.Connection) -> None:
    row = connection.execute("SELECT CAST(body AS BLOB) FROM entry WHERE seq = 0").fetchone()
    if row is None:
        return
    try:
        leaf = parse_leaf(bytes(row[0]), 0)
        data = leaf["data"]
        if leaf["kind"] != "genesis" or leaf["origin"] != data["origin"]:
            raise EvidenceError("the first entry is no genesis of this origin")
        audit.origin = str(data["origin"])
        audit.key = VerifyKey.from_text(audit.origin, str(data["public_key"]))
    except (EvidenceError, KeyError, TypeError) as error:
        audit.findings.fault("entry 0", f"gives no origin and public key: {error}", entry=0)


def _mark(audit: _Audit) -> seen.Mark | None:
    if audit.origin is None:
        return None
    try:
        return seen.read_mark(audit.origin, audit.environ)
    except EvidenceError as error:
        audit.findings.fault(str(error.where), error.what)
        return None


def _check_mark(audit: _Audit, mark: seen.Mark | None, found: EntriesSeen, first: int) -> None:
    if mark is None:
        audit.findings.not_checked.append("a rollback since an earlier visit: this machine has no last-seen mark")
    elif mark.size > found.head.size:
        audit.findings.fault(
            str(audit.home.ledger_db),
            "the ledger's tail was cut: this machine has seen more entries than there are",
            expected=f"{mark.size} entries",
            found=f"{found.head.size} entries",
        )
    elif mark.size in found.roots:
        if found.roots[mark.size] != mark.root:
            audit.findings.fault(
                str(audit.home.ledger_db),
                f"the first {mark.size} entries are not those that this machine has seen",
                expected=mark.root,
                found=found.roots[mark.size],
            )
        else:
            audit.findings.anchored_to.append(f"this machine's last-seen mark over {mark.size} entries")
    elif mark.size < first:
        audit.findings.not_checked.append("the last-seen mark, which lies before the entries that were read")


def _say_what_came_past(audit: _Audit, known: int) -> None:
    if audit.origin is None or audit.head is None or audit.head.size <= known:
        return
    with contextlib.suppress(EvidenceError):  # a damaged mark was named
        audit.has_outsiders = seen.is_outside(audit.origin, audit.head.size, known, audit.environ)
        if audit.has_outsiders:
            audit.findings.not_checked.insert(0, seen.outside_words(known, audit.head.size))


def _start_at_checkpoint(audit: _Audit, connection: sqlite3.Connection, rows: list[CheckpointRow], size: int) -> Start:
    """Behind the newest checkpoint whose signature and stored nodes agree, else at the beginning."""
    for row in reversed([row for row in rows if 0 < row.size <= size]):
        try:
            checkpoint = note.verify_checkpoint(row.note, audit.key) if audit.key else None
            start = _stored_start(connection, row.size)
        except (EvidenceError, *UNREADABLE):
            continue
        if checkpoint and checkpoint.size == row.size and checkpoint.root == "sha256:" + start.frontier.root().hex():
            audit.findings.not_checked.append(f"entries 0 … {row.size - 1}, which the checkpoint over them stands for")
            return start
    return from_the_beginning()


def _stored_start(connection: sqlite3.Connection, size: int) -> Start:
    hashes: list[bytes] = []
    (last_leaf,) = connection.execute("SELECT leaf_hash FROM entry WHERE seq = ?", (size - 1,)).fetchone()
    for level, index in merkle.frontier_keys(size):
        query = 'SELECT hash FROM node WHERE level = ? AND "index" = ?'
        row = connection.execute(query, (level, index)).fetchone() if level else (last_leaf,)
        hashes.append(bytes.fromhex(row[0]))
    return Start(merkle.Frontier(size, hashes), last_leaf)


def _check_evidence(
    audit: _Audit, connection: sqlite3.Connection, found: EntriesSeen, *, files: bool, all: bool, listed: list[str]
) -> None:
    if not files:
        audit.findings.not_checked.append("receipt files, verdict files and blobs")
        return
    check_files(audit.home, found.files, audit.findings)
    check_blobs(audit.home, found.blobs, audit.findings)
    if not all:
        audit.findings.not_checked.append("files that no entry names")
        return
    later = list(_named_since(connection, found.head.size))
    named = found.files + [item for item, _ in later if item]
    blobs = dict(found.blobs) | {digest: seq for _, digests in later for digest, seq in digests.items()}
    audit.findings.orphans += orphans(listed, named, blobs) + strays(audit.home)


def _named_since(connection: sqlite3.Connection, size: int) -> Iterator[tuple[NamedFile | None, dict[str, int]]]:
    """Files and blobs that entries name which came in while this verification ran: they are no orphans."""
    for body, seq in connection.execute(_ENTRY_TAIL, (size,)):
        with contextlib.suppress(EvidenceError):
            leaf = parse_leaf(bytes(body), seq)
            ref = Ref.read(leaf["ref"])
            yield NamedFile(seq, ref) if ref else None, {digest: seq for _, digest in blobs_named(leaf["data"])}


def _say_what_is_outside(audit: _Audit) -> None:
    audit.findings.not_checked.append("whether anyone outside this machine has seen this head: export and keep it")
    if audit.origin and not key_path(audit.origin, audit.environ).exists():
        audit.findings.not_checked.append(
            "the signing key, which is not on this machine: no new checkpoint can be made"
        )
    audit.findings.not_checked.append("whether what the receipts say is true of the machines that wrote them")
