"""A database file that lies: indexes that leave rows out, pages of zeros, hashes that are none, another application."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_samples import record_receipt
from test_audit import told

from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.store import Ledger
from receipts.errors import EvidenceError

UNCHECKED = "PRAGMA ignore_check_constraints = ON"


@pytest.fixture(autouse=True)
def soaked(ledger: Ledger) -> None:
    for n in range(1, 40):
        record_receipt(ledger, n)
    ledger.checkpoint()


def without_triggers(home: EvidenceHome, *statements: str) -> None:
    """Run SQL with every trigger of ``entry`` and ``node`` away, and put the triggers back as they were."""
    connection = sqlite3.connect(home.ledger_db, isolation_level=None)
    try:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        for statement in statements:
            connection.execute(statement)
        for _, text in triggers:
            connection.execute(text)
    finally:
        connection.close()


def poison(path: Path, index: str, condition: str) -> None:
    """Rebuild an index as a partial one and give it its old SQL back: its text says nothing of it."""
    connection = sqlite3.connect(path, isolation_level=None)
    (text,) = connection.execute("SELECT sql FROM sqlite_master WHERE name = ?", (index,)).fetchone()
    for now, reindex in ((f"{text} WHERE {condition}", True), (text, False)):
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute("UPDATE sqlite_master SET sql = ? WHERE name = ?", (now, index))
        connection.close()
        connection = sqlite3.connect(path, isolation_level=None)
        if reindex:
            connection.execute(f"REINDEX {index}")
    connection.close()


def test_an_index_that_hides_entries_from_every_question_is_named(home: EvidenceHome) -> None:
    poison(home.ledger_db, "entry_by_kind", "kind <> 'receipt'")
    assert "wrong # of entries in index entry_by_kind" in told(verify(home))


def test_a_leaf_hash_that_is_none_is_named_and_the_rest_is_still_read(home: EvidenceHome) -> None:
    without_triggers(home, UNCHECKED, "UPDATE entry SET leaf_hash = 'zz' WHERE seq = 10")
    report = verify(home)
    assert "entry 10: the body was changed: it does not hash to leaf_hash" in told(report)
    assert any("the tree behind entry 10" in line for line in report.not_checked)
    assert report.entries_checked == 40


def test_a_node_that_is_no_hash_is_named_and_no_reader_falls_over_it(home: EvidenceHome, ledger: Ledger) -> None:
    without_triggers(home, UNCHECKED, "UPDATE node SET hash = 'zz' WHERE level = 5")
    assert not verify(home).ok
    with pytest.raises(EvidenceError, match="a node that is no hash"):
        ledger.head()


@pytest.mark.parametrize("pragma", ["application_id = 5", "application_id = 0"])
def test_a_file_that_does_not_say_it_is_a_ledger_is_a_fault(
    home: EvidenceHome, sql: Callable[..., None], pragma: str
) -> None:
    sql(f"PRAGMA {pragma}")
    assert "application_id was changed" in told(verify(home))


@pytest.mark.slow
def test_any_page_of_zeros_is_a_fault_and_never_a_crash(home: EvidenceHome, tmp_path: Path) -> None:
    data = home.ledger_db.read_bytes()
    size = int.from_bytes(data[16:18], "big")
    copy = EvidenceHome(tmp_path / "copy")
    shutil.copytree(home.path, copy.path)
    kept = []
    for start in range(size, len(data), size):
        if not any(data[start : start + size]):
            continue  # a page of zeros as it is
        copy.ledger_db.write_bytes(data[:start] + bytes(size) + data[start + size :])
        if verify(copy).ok:
            kept.append(start // size + 1)
    assert kept == []
