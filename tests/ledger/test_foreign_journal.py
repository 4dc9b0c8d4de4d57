"""A journal beside the ledger that SQLite would obey: it may undo what a killed writer began, and delete nothing."""

from __future__ import annotations

import os
import sqlite3
import struct
from collections.abc import Callable
from pathlib import Path

import pytest
from test_audit import told

from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.keys import key_path
from ledger.projections import reproject
from ledger.seen import mark_path
from ledger.store import Ledger
from receipts.errors import EvidenceError

MAGIC = bytes.fromhex("d9d505f920a163d7")
FOREIGN = "this journal was put here by somebody else"


def plant(database: Path, victim: Path) -> Path:
    """A hot journal without a page, whose tail names ``victim`` as its super-journal (SQLite's file format, 4.4)."""
    data = database.read_bytes()
    page = int.from_bytes(data[16:18], "big")
    header = (MAGIC + struct.pack(">IIIII", 0, 0, len(data) // page, 512, page)).ljust(512, b"\0")
    name = os.fsencode(victim)
    tail = struct.pack(">I", 0x40000000 // page + 1) + name + struct.pack(">II", len(name), sum(name)) + MAGIC
    journal = database.with_name(database.name + "-journal")
    journal.write_bytes(header + tail)
    return journal


@pytest.fixture(params=["mark", "key"])
def victim(request: pytest.FixtureRequest, ledger: Ledger) -> Path:
    ledger.append("noted", "", {"n": 1})
    return (mark_path if request.param == "mark" else key_path)(ledger.origin, os.environ)


def test_no_opening_obeys_a_journal_that_names_another_file(
    home: EvidenceHome, reopen: Callable[..., Ledger], victim: Path
) -> None:
    journal = plant(home.ledger_db, victim)
    before = {path: path.read_bytes() for path in (journal, victim, home.ledger_db)}
    assert told(verify(home)).startswith(f"{journal}: {FOREIGN}")
    for opening in (lambda: reopen(read_only=True), lambda: reopen(), lambda: reproject(home)):
        with pytest.raises(EvidenceError, match=FOREIGN) as caught:
            opening()
        assert caught.value.where == str(journal)
    assert before == {path: path.read_bytes() for path in before}


@pytest.mark.parametrize("access", ["read", "append"])
def test_an_open_ledger_does_not_obey_one_that_appears_later(
    home: EvidenceHome, victim: Path, reopen: Callable[..., Ledger], access: str
) -> None:
    with reopen(read_only=access == "read") as again:
        plant(home.ledger_db, victim)
        with pytest.raises(EvidenceError, match=FOREIGN):
            _ = again.size() if access == "read" else again.append("noted", "", {"n": 2})
    assert victim.exists()


def test_one_beside_the_file_that_a_link_leads_to_is_seen(
    home: EvidenceHome, reopen: Callable[..., Ledger], victim: Path, tmp_path: Path
) -> None:
    home.ledger_db.rename(tmp_path / "real.db")
    home.ledger_db.symlink_to(tmp_path / "real.db")
    journal = plant(tmp_path / "real.db", victim)
    assert told(verify(home)).startswith(f"{journal}: {FOREIGN}")
    with pytest.raises(EvidenceError, match=FOREIGN):
        reopen(read_only=True)
    assert victim.exists()


def test_the_journal_of_a_killed_writer_is_still_rolled_back(home: EvidenceHome, ledger: Ledger) -> None:
    ledger.append_many([("noted", "", {"text": "x" * 5000})] * 20)
    head, journal = ledger.head(), home.ledger_db.with_name("ledger.db-journal")
    ledger.close()
    writer = sqlite3.connect(home.ledger_db, isolation_level=None)
    for statement in ("PRAGMA cache_size = 2", "BEGIN IMMEDIATE", "DROP TRIGGER entry_no_delete", "DELETE FROM entry"):
        writer.execute(statement)
    left = {path: path.read_bytes() for path in (home.ledger_db, journal)}  # as a kill would leave them
    writer.rollback()
    writer.close()
    for path, data in left.items():
        path.write_bytes(data)
    report = verify(home)
    assert (report.ok, report.head, journal.exists()) == (True, head, False)
