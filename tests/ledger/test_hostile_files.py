"""What lies where a ledger's own files should: pipes, folders, devices, files blown up with holes, names that lie."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from ledger_samples import OPENED, TOOL, forge, record_receipt, still_clock
from test_audit import told

from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.keys import key_path
from ledger.note import Checkpoint
from ledger.seen import mark_path
from ledger.store import Ledger
from receipts.errors import EvidenceError, HomeError, InputError, SoakledgerError
from receipts.store import BlobStore, read_bounded

REGISTER = """
import sys
from campaigns.commands.options import write_ledger
with write_ledger(sys.argv[1], create=True) as ledger:
    ledger.append("noted", "", {"n": int(sys.argv[2])})
    ledger.checkpoint()
"""


def opened_on(ledger: Ledger, checkpoint: Checkpoint) -> None:
    data = OPENED | {"checkpoint_note_sha256": checkpoint.note_sha256}
    ledger.append("attempt_open", "soak-n12/1", data)


def test_a_checkpoint_that_an_attempt_was_opened_on_is_missed(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None]
) -> None:
    ledger.append("noted", "", {"n": 1})
    opened_on(ledger, ledger.checkpoint())
    ledger.checkpoint()
    assert verify(home).ok
    triggers = [f"DROP TRIGGER {name}" for name in _triggers_of(home, "checkpoint")]
    sql(*triggers, "DELETE FROM checkpoint WHERE tree_size = 2")
    (home.checkpoints / "2.checkpoint").unlink()
    found = [fault for fault in verify(home).faults if fault.where == "table checkpoint"]
    assert [(fault.entry, fault.what) for fault in found] == [
        (2, "the checkpoint that was signed before this attempt was opened is missing")
    ]


def _triggers_of(home: EvidenceHome, table: str) -> list[str]:
    import sqlite3

    connection = sqlite3.connect(home.ledger_db)
    rows = connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger' AND tbl_name = ?", (table,))
    names = [name for (name,) in rows.fetchall()]
    connection.close()
    return names


@pytest.mark.parametrize("version", [-1, 0])
@pytest.mark.usefixtures("ledger")
def test_a_schema_version_that_is_none_is_named(home: EvidenceHome, sql: Callable[..., None], version: int) -> None:
    sql(f"PRAGMA user_version = {version}")
    assert "user_version was changed" in told(verify(home))


@pytest.mark.parametrize("version", [2, 99])
def test_a_schema_version_that_no_entry_speaks_of_is_named(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None], version: int
) -> None:
    sql(f"PRAGMA user_version = {version}", "CREATE TABLE hidden (x)")
    words = told(verify(home))
    assert f"user_version was changed (expected 1, found {version})" in words
    assert "table hidden: is in the database and not of this schema" in words
    sql("PRAGMA user_version = 1", "DROP TABLE hidden")
    ledger.append("schema", "", {"schema": version})
    sql(f"PRAGMA user_version = {version}")
    report = verify(home)
    assert report.ok and f"the ledger has schema {version}, this release knows 1" in str(report.not_checked)


def test_a_schema_entry_that_nobody_signed_for_turns_no_check_off(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None]
) -> None:
    ledger.append("noted", "", {"n": 1})
    forge(ledger, "schema", {"schema": 2})
    sql("PRAGMA user_version = 2", "DROP TRIGGER entry_no_update", "CREATE TABLE hidden (x)")
    words = told(verify(home))
    assert "entry 2: names schema 2, and no checkpoint by the ledger's own key covers it" in words
    assert "user_version was changed (expected 1, found 2)" in words
    assert "table hidden: is in the database and not of this schema" in words
    assert "trigger entry_no_update: is missing from the database" in words
    assert "the checkpoint that was signed with this schema is missing" in words
    assert any("entry_no_update" in fault.where for fault in verify(home, all=False).faults)


def test_a_schema_that_was_written_into_a_signed_entry_afterwards_does_not_count(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None]
) -> None:
    ledger.append("schema", "", {"schema": 1})
    changed = "UPDATE entry SET body = replace(body, '\"schema\":1', '\"schema\":2') WHERE seq = 1"
    sql("DROP TRIGGER entry_no_update", changed, "PRAGMA user_version = 2", "CREATE TABLE hidden (x)")
    words = told(verify(home))
    assert "table hidden" in words and "trigger entry_no_update" in words and "user_version was changed" in words


@pytest.mark.usefixtures("ledger")
def test_a_schema_version_that_is_none_is_not_taken_for_another_programs_file(
    reopen: Callable[..., Ledger], sql: Callable[..., None]
) -> None:
    sql("PRAGMA user_version = -1")
    with pytest.raises(EvidenceError, match="user_version was changed to -1"):
        reopen()


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "folder", "link"])
@pytest.mark.parametrize("suffix", ["-journal", "-wal", "-shm"])
@pytest.mark.usefixtures("ledger")
def test_what_lies_in_place_of_sqlites_own_files_is_told_at_once(
    home: EvidenceHome, reopen: Callable[..., Ledger], suffix: str, kind: str
) -> None:
    path = home.path / f"ledger.db{suffix}"
    make = {"pipe": os.mkfifo, "folder": os.mkdir, "link": lambda path: path.symlink_to("/dev/zero")}[kind]
    make(path)
    for read_only in (True, False):
        with pytest.raises(HomeError, match="is no file: the ledger cannot be opened") as caught:
            reopen(read_only=read_only)
        assert caught.value.where == str(path)
    assert [fault.where for fault in verify(home).faults] == [str(path)]


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda home: home.path.write_text("a file"), "evidence: is not a folder: no home can be here"),
        (lambda home: os.mkfifo(home.path), "evidence: is not a folder: no home can be here"),
        (lambda home: _put(home, None), "ledger.db: is a link to nothing: there is no ledger here"),
        (lambda home: _put(home, b""), "ledger.db: the ledger file is empty: 0 bytes"),
        (lambda home: _put(home, b"hello" * 999), "ledger.db: this file is not an SQLite database, and so no ledger"),
    ],
)
def test_what_is_no_ledger_is_called_what_it_is(
    home: EvidenceHome, reopen: Callable[..., Ledger], make: Callable[[EvidenceHome], None], words: str
) -> None:
    make(home)
    for read_only in (True, False):
        with pytest.raises(SoakledgerError) as caught:
            reopen(read_only=read_only)
        assert words in str(caught.value)
        assert isinstance(caught.value, EvidenceError) == home.ledger_db.is_file()
    assert not verify(home).ok


def _put(home: EvidenceHome, data: bytes | None) -> None:
    home.path.mkdir()
    if data is None:
        home.ledger_db.symlink_to("nowhere")
    else:
        home.ledger_db.write_bytes(data)


@pytest.mark.usefixtures("ledger")
def test_what_lies_in_the_home_and_is_nobodys_is_listed(home: EvidenceHome) -> None:
    for name in ("999.checkpoint", "notes.txt"):
        (home.path / name).write_bytes(b"junk")
    (home.path / "folder").mkdir()
    (home.path / "reports").mkdir()
    report = verify(home)
    assert report.ok and report.orphans == ("999.checkpoint", "folder", "notes.txt")


@pytest.mark.usefixtures("ledger")
def test_a_stray_checkpoint_name_stops_nobody_and_is_named(home: EvidenceHome, reopen: Callable[..., Ledger]) -> None:
    (home.checkpoints / "999.checkpoint").write_bytes(b"what is this\n")
    with reopen() as again:
        again.append("noted", "", {"n": 1})
    assert "checkpoints/999.checkpoint" in told(verify(home))


def test_a_signed_checkpoint_of_a_tail_that_was_cut_still_stops_everybody(
    home: EvidenceHome, ledger: Ledger, reopen: Callable[..., Ledger], tmp_path: Path
) -> None:
    before = home.ledger_db.read_bytes()
    ledger.append("noted", "", {"n": 1})
    ledger.checkpoint()
    ledger.close()
    home.ledger_db.write_bytes(before)
    for mark in (tmp_path / "state").rglob("*.json"):
        mark.unlink()
    with pytest.raises(Exception, match="the ledger's tail was cut: it has 1 entries, and 2 were signed before"):
        reopen()


def test_a_receipt_blown_up_with_holes_is_named_without_being_read(home: EvidenceHome, ledger: Ledger) -> None:
    record_receipt(ledger, 1)
    path = home.receipts / "soak-n12/attempt-0001/soak/000001-handoff.json"
    path.chmod(0o644)
    os.truncate(path, 1 << 40)
    (fault,) = verify(home).faults
    assert fault.what == "the file is longer than what its entry says"
    assert fault.found == f"{1 << 40} bytes (not read)"


def test_a_blob_blown_up_with_holes_is_named_without_being_read(home: EvidenceHome, ledger: Ledger) -> None:
    store = BlobStore(home.blobs)
    digest = store.put_bytes(b"what was seen")
    ledger.append("noted", "", {"log_blob": digest})
    assert verify(home).ok
    store.path(digest).chmod(0o644)
    os.truncate(store.path(digest), 1 << 40)
    (fault,) = verify(home).faults
    assert (fault.what, fault.found) == ("the blob was changed", f"{1 << 40} bytes (not read)")


@pytest.mark.timeout(30)
def test_a_pipe_in_place_of_the_marks_lock_is_no_reason_to_wait(home: EvidenceHome, ledger: Ledger) -> None:
    lock = mark_path(ledger.origin, os.environ).with_suffix(".lock")
    lock.unlink()
    os.mkfifo(lock, 0o600)
    ledger.append("noted", "", {"n": 1})
    assert verify(home).ok


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_signing_key_that_is_no_file_is_told_at_once(ledger: Ledger, kind: str) -> None:
    path = key_path(ledger.origin, os.environ)
    path.unlink()
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    else:
        path.mkdir()
    with pytest.raises(HomeError, match="the signing key is not a regular file"):
        ledger.checkpoint()


@pytest.mark.parametrize("kind", ["pipe", "folder"])
def test_a_ledger_that_is_no_file_is_told_at_once(home: EvidenceHome, reopen: Callable[..., Ledger], kind: str) -> None:
    home.path.mkdir()
    if kind == "pipe":
        os.mkfifo(home.ledger_db)
    else:
        home.ledger_db.mkdir()
    with pytest.raises(HomeError, match="is not a file"):
        reopen()
    assert "ledger.db: is not a file" in told(verify(home))


@pytest.mark.usefixtures("ledger")
def test_a_ledger_that_was_begun_a_moment_earlier_is_left_alone_and_no_key_is_left(
    home: EvidenceHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(type(home.ledger_db), "exists", lambda _: False)  # it came between the look and the making
    with pytest.raises(HomeError, match="there is a ledger here already"):
        Ledger.create(home, clock=still_clock(), tool=TOOL)
    assert len(list((tmp_path / "config" / "soakledger").iterdir())) == 1


@pytest.mark.slow
def test_first_entries_at_once_all_arrive_in_one_ledger_with_one_key(home: EvidenceHome, tmp_path: Path) -> None:
    command = [sys.executable, "-c", REGISTER, str(home.path)]
    writers = [subprocess.Popen([*command, str(n)], stderr=subprocess.PIPE, text=True) for n in range(8)]
    told_by = [writer.communicate()[1] for writer in writers]
    assert [writer.returncode for writer in writers] == [0] * 8, told_by
    with Ledger.open(home, read_only=True) as ledger:
        assert sorted(entry.data["n"] for entry in ledger.entries(kinds={"noted"})) == list(range(8))
    assert len(list((tmp_path / "config" / "soakledger").iterdir())) == 1
    assert verify(home).ok


def test_what_is_no_file_or_has_no_end_is_not_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero"), tmp_path):
        with pytest.raises(OSError, match=r"not a regular file|directory"):
            read_bounded(path, 10)
    (tmp_path / "eleven").write_bytes(bytes(11))
    with pytest.raises(OSError, match="larger than the 10 bytes"):
        read_bounded(tmp_path / "eleven", 10)
    (tmp_path / "link").symlink_to(tmp_path / "eleven")
    assert read_bounded(tmp_path / "link", 11) == bytes(11)


@pytest.mark.parametrize("kind", ["pipe", "device", "damaged"])
def test_an_identity_document_that_cannot_be_one_is_refused_by_name(tmp_path: Path, kind: str) -> None:
    from producer import identity

    path = tmp_path / "identity.json"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.write_bytes(b'{"format": ')
    with pytest.raises(InputError) as caught:
        identity.read(path)
    assert str(path) in str(caught.value)
