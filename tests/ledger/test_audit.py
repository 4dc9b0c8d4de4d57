"""Verification names what was done to a ledger, all of it at once, and says what it did not look at."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_samples import receipt, record_receipt

from ledger.audit import AuditReport, verify
from ledger.home import EvidenceHome
from ledger.schema import RECORD_TRIGGERS
from ledger.store import Draft, Ledger
from receipts.store import BlobStore, write_exclusive

UNGUARD = tuple(f"DROP TRIGGER {name}" for name in RECORD_TRIGGERS)
FIRST = "receipts/soak-n12/attempt-0001/soak/000001-handoff.json"
SECOND = "receipts/soak-n12/attempt-0001/soak/000002-handoff.json"


@pytest.fixture(autouse=True)
def soaked(ledger: Ledger) -> None:
    """Genesis, three receipts (entries 1 … 3), a checkpoint over all."""
    for n in (1, 2, 3):
        record_receipt(ledger, n)
    ledger.checkpoint()


def told(report: AuditReport) -> str:
    return "\n".join(map(str, report.faults))


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o644)
    path.write_bytes(data)


def test_an_untouched_home_verifies_and_the_report_states_its_scope(home: EvidenceHome, ledger: Ledger) -> None:
    report = verify(home)
    assert report.ok and not report.orphans
    assert (report.entries_checked, report.files_checked, report.checkpoints_checked) == (4, 3, 2)
    assert report.head == ledger.head()
    assert "the last over 4 entries" in report.anchored_to[0]
    assert "last-seen mark over 4 entries" in report.anchored_to[1]
    assert any("outside this machine" in line for line in report.not_checked)


def test_verification_changes_no_byte_of_the_home(home: EvidenceHome) -> None:
    before = {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}
    verify(home)
    assert before == {path: path.read_bytes() for path in home.path.rglob("*") if path.is_file()}


def test_dropped_triggers_and_one_changed_byte_are_both_named_with_the_entry(
    home: EvidenceHome, sql: Callable[..., None]
) -> None:
    sql(*UNGUARD, "UPDATE entry SET body = replace(body, 'acknowledged', 'acknowledgeD') WHERE seq = 2")
    report = verify(home)
    assert [fault.entry for fault in report.faults if "body was changed" in fault.what] == [2]
    for name in RECORD_TRIGGERS:
        assert f"trigger {name}: is missing" in told(report)
    assert len(report.faults) == len(RECORD_TRIGGERS) + 1


def test_a_byte_that_is_not_utf_8_any_more_is_named_too(home: EvidenceHome, sql: Callable[..., None]) -> None:
    sql(*UNGUARD, "UPDATE entry SET body = CAST(x'ff' || substr(CAST(body AS BLOB), 2) AS TEXT) WHERE seq = 2")
    assert "entry 2: the body was changed" in told(verify(home))


def test_reading_a_changed_entry_is_refused(ledger: Ledger, sql: Callable[..., None]) -> None:
    sql(*UNGUARD, "UPDATE entry SET body = replace(body, 'acknowledged', 'acknowledgeD') WHERE seq = 2")
    with pytest.raises(Exception, match="entry 2: the stored body does not hash"):
        list(ledger.entries())


@pytest.mark.parametrize(
    ("column", "value"), [("kind", "noted"), ("subject", "other"), ("recorded_at", "2020-01-01T00:00:00.000Z")]
)
def test_a_changed_column_over_an_intact_body_is_named(
    home: EvidenceHome, sql: Callable[..., None], column: str, value: str
) -> None:
    sql("DROP TRIGGER entry_no_update", f"UPDATE entry SET {column} = '{value}' WHERE seq = 2")
    assert f"entry 2: column {column} differs from the body" in told(verify(home))


def test_an_entry_rewritten_with_its_hash_breaks_the_chain_the_tree_and_the_signature(
    home: EvidenceHome, sql: Callable[..., None]
) -> None:
    from ledger.merkle import leaf_hash

    connection = sqlite3.connect(home.ledger_db)
    (body,) = connection.execute("SELECT body FROM entry WHERE seq = 2").fetchone()
    connection.close()
    changed = body.replace("acknowledged", "acknowledgeD")
    sql(
        *UNGUARD,
        f"UPDATE entry SET body = '{changed}', leaf_hash = '{leaf_hash(changed.encode()).hex()}' WHERE seq = 2",
    )
    words = told(verify(home))
    assert "entry 3: does not name the hash of the entry before it" in words
    assert "the first 4 entries are not those that were signed" in words
    assert "the first 4 entries are not those that this machine has seen" in words
    assert "table node" in words
    assert "entry 2: its ref is not that of the document" in words


@pytest.mark.parametrize("kind", ["receipt", "verdict"])
def test_a_document_whose_entry_names_no_file_is_a_fault(home: EvidenceHome, ledger: Ledger, kind: str) -> None:
    verdict = {"campaign": "soak-n12", "attempt": 1, "verdict": "PASS", "criteria": []}
    bare = Draft(kind, "soak-n12/1", receipt(4) if kind == "receipt" else verdict)
    (entry,) = ledger._append(lambda _: [bare])  # the door refuses it; somebody else's release may not
    assert told(verify(home)) == f"entry {entry.seq}: a {kind} that names no file for its document"


def test_a_cut_tail_is_named_by_the_checkpoint_file_and_the_mark(home: EvidenceHome, sql: Callable[..., None]) -> None:
    sql(*UNGUARD, "DELETE FROM entry WHERE seq = 3", "DELETE FROM checkpoint WHERE tree_size = 4")
    words = told(verify(home))
    assert "checkpoints/4.checkpoint: the ledger's tail was cut" in words
    assert "this machine has seen more entries than there are (expected 4 entries, found 3 entries)" in words


def test_a_removed_entry_in_the_middle_is_named(home: EvidenceHome, sql: Callable[..., None]) -> None:
    sql(*UNGUARD, "DELETE FROM entry WHERE seq = 2")
    assert "entry 2: missing" in told(verify(home))


def test_a_ledger_without_entries_and_an_empty_file_are_told_apart(
    home: EvidenceHome, sql: Callable[..., None]
) -> None:
    sql(*UNGUARD, "DELETE FROM entry")
    assert "the ledger is empty: it has no entries" in told(verify(home))
    rewrite(home.ledger_db, b"")
    assert told(verify(home)).endswith("the ledger file is empty: 0 bytes")
    rewrite(home.ledger_db, b"not a database at all" * 100)
    assert "the database cannot be read" in told(verify(home))


def test_every_fault_of_the_files_is_named_at_once(home: EvidenceHome, ledger: Ledger, tmp_path: Path) -> None:
    record_receipt(ledger, 4)
    record_receipt(ledger, 5)
    digest = BlobStore(home.blobs).put_bytes(b"log lines")
    ledger.append("noted", "", {"log_blob": digest})
    files = [home.path / FIRST.replace("000001", f"{n:06d}") for n in range(6)]
    rewrite(files[1], files[1].read_bytes().replace(b"loopback", b"loopbacK"))
    rewrite(files[2], files[2].read_bytes() + b"\n")
    files[3].unlink()
    files[4].rename(tmp_path / "moved")
    files[4].symlink_to(tmp_path / "moved")
    rewrite(BlobStore(home.blobs).path(digest), b"other lines")
    words = told(report := verify(home))
    assert f"{FIRST} (entry 1): the file is different from what its entry says" in words
    assert f"{SECOND} (entry 2): the file is longer than what its entry says" in words
    assert "000003-handoff.json (entry 3): the file is missing" in words
    assert "000004-handoff.json (entry 4): is a symbolic link" in words
    assert "(entry 6): the blob was changed" in words
    assert len(report.faults) == 5


def test_two_swapped_receipt_files_are_each_named_with_the_other(home: EvidenceHome) -> None:
    first, second = home.path / FIRST, home.path / SECOND
    one, two = first.read_bytes(), second.read_bytes()
    rewrite(first, two)
    rewrite(second, one)
    words = told(verify(home))
    assert f"{FIRST} (entry 1): the file is different from what its entry says: it holds the file of entry 2" in words
    assert f"{SECOND} (entry 2): the file is different from what its entry says: it holds the file of entry 1" in words


def test_a_folder_exchanged_for_a_link_is_no_evidence(home: EvidenceHome, tmp_path: Path) -> None:
    folder = (home.path / FIRST).parent
    folder.rename(tmp_path / "elsewhere")
    folder.symlink_to(tmp_path / "elsewhere")
    report = verify(home)
    assert len(report.faults) == 3 and "behind a symbolic link" in told(report)


def test_a_file_that_no_entry_names_is_listed_and_is_no_fault(home: EvidenceHome) -> None:
    stray = "receipts/soak-n12/attempt-0001/soak/000004-handoff.json"
    write_exclusive(home.path / stray, b"{}\n")
    report = verify(home)
    assert report.ok and report.orphans == (stray,)


def test_edited_nodes_projections_and_checkpoints_are_named(home: EvidenceHome, sql: Callable[..., None]) -> None:
    sql(
        "UPDATE node SET hash = replace(hash, substr(hash, 1, 1), 'f') WHERE level = 1",
        "UPDATE receipt SET outcome = 'refused' WHERE seq = 2",
        "DROP TRIGGER checkpoint_no_update",
        "UPDATE checkpoint SET note = replace(note, char(10) || '4' || char(10), char(10) || '3' || char(10))",
        "CREATE VIEW liar AS SELECT 1",
    )
    words = told(verify(home))
    assert "table receipt: its rows are not what the entries say" in words
    assert "table checkpoint, size 4: the checkpoint has no valid signature" in words
    assert "checkpoints/4.checkpoint: the file is not the checkpoint that the ledger holds" in words
    assert "view liar: is in the database and not of this schema" in words


def test_a_missing_or_edited_checkpoint_file_is_named(home: EvidenceHome) -> None:
    (home.checkpoints / "1.checkpoint").unlink()
    rewrite(home.checkpoints / "4.checkpoint", b"x")
    words = told(verify(home))
    assert "checkpoints/1.checkpoint: the file is missing" in words
    assert "checkpoints/4.checkpoint: the signed note has no empty line" in words


def test_a_trigger_that_was_replaced_by_a_harmless_one_is_named(home: EvidenceHome, sql: Callable[..., None]) -> None:
    sql(
        "DROP TRIGGER entry_no_delete",
        "CREATE TRIGGER entry_no_delete BEFORE DELETE ON entry BEGIN SELECT 1; END",
    )
    assert "trigger entry_no_delete: was replaced" in told(verify(home))


def test_a_quick_verification_says_what_it_left_out_and_still_sees_the_rest(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None]
) -> None:
    record_receipt(ledger, 4)
    report = verify(home, all=False)
    assert (report.ok, report.entries_checked) == (True, 1)
    assert any("entries 0 … 3" in line for line in report.not_checked)
    sql("DROP TRIGGER entry_no_update", "UPDATE entry SET subject = 'x' WHERE seq = 4")
    assert not verify(home, all=False).ok


def test_files_left_unread_are_said_to_be(home: EvidenceHome) -> None:
    (home.path / FIRST).unlink()
    report = verify(home, files=False)
    assert report.ok and "receipt files, verdict files and blobs" in report.not_checked
