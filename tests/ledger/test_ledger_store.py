"""Create, open, append, sign: what the ledger takes, what it refuses, and how it is found again."""

from __future__ import annotations

import hashlib
import json
import multiprocessing
import shutil
import sqlite3
import stat
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from ledger_samples import BOOT, TOOL, receipt, record_receipt, still_clock

from ledger import seen
from ledger.audit import verify
from ledger.entry import MAX_LEAF_BYTES, Ref
from ledger.home import EvidenceHome
from ledger.keys import key_path
from ledger.store import Draft, Ledger, LedgerReader
from receipts import canonical
from receipts.errors import EvidenceError, HomeError, InputError, SoakledgerError


def test_a_new_ledger_holds_genesis_with_its_origin_and_public_key_and_a_checkpoint(
    ledger: Ledger, home: EvidenceHome
) -> None:
    genesis = ledger.entry(0)
    assert (genesis.kind, genesis.subject, genesis.prev_hash) == ("genesis", "", "0" * 64)
    assert genesis.data["origin"] == ledger.origin
    assert ledger.origin.startswith("soakledger.invalid/") and len(ledger.origin) == 51
    assert genesis.data["public_key"] == ledger.verify_key().text
    assert (home.checkpoints / "1.checkpoint").read_bytes() == ledger.checkpoint().note


def test_a_leaf_has_exactly_the_members_of_the_format_and_hashes_as_rfc_6962_says(ledger: Ledger) -> None:
    entry = ledger.append("noted", "soak-n12/1", {"text": "two\nlines \u2028 \x85"})
    assert b"\n" not in entry.body
    assert json.loads(entry.body) == {
        "v": 1,
        "origin": ledger.origin,
        "seq": 1,
        "prev": ledger.entry(0).leaf_hash,
        "kind": "noted",
        "subject": "soak-n12/1",
        "recorded_at": "2026-11-30T20:41:07.512Z",
        "host": "here",
        "boot_id": BOOT,
        "tool": TOOL,
        "ref": None,
        "data": {"text": "two\nlines \u2028 \x85"},
    }
    assert entry.leaf_hash == hashlib.sha256(b"\x00" + entry.body).hexdigest()
    assert ledger.entry(1) == entry


def test_the_head_of_two_entries_is_the_hash_of_their_two_leaves(ledger: Ledger) -> None:
    second = ledger.append("noted", "", {})
    leaves = bytes.fromhex(ledger.entry(0).leaf_hash) + bytes.fromhex(second.leaf_hash)
    assert ledger.head().document() == {"size": 2, "root": "sha256:" + hashlib.sha256(b"\x01" + leaves).hexdigest()}


def test_the_largest_leaf_is_65535_bytes_and_one_more_is_refused_without_a_trace(ledger: Ledger) -> None:
    spare = MAX_LEAF_BYTES - len(ledger.append("noted", "", {"text": ""}).body)
    entry = ledger.append("noted", "", {"text": "x" * spare})
    assert len(entry.body) == 65_535
    with pytest.raises(InputError, match="65536 bytes"):
        ledger.append("noted", "", {"text": "x" * (spare + 1)})
    assert ledger.size() == 3


@pytest.mark.parametrize("subject", ["é", "a\nb", "x" * 201, "\x7f"])
def test_a_subject_is_printable_ascii_of_at_most_200_letters(ledger: Ledger, subject: str) -> None:
    with pytest.raises(InputError):
        ledger.append("noted", subject, {})


@pytest.mark.parametrize("data", [{"x": float("nan")}, {"x": 2**53}, {"x": "\ud800"}, {"x": {1: 2}}])
def test_what_strict_json_refuses_never_becomes_an_entry(ledger: Ledger, data: Any) -> None:
    with pytest.raises(InputError):
        ledger.append("noted", "", data)
    assert ledger.size() == 1


def test_stamps_of_a_host_that_is_up_for_200_days_are_recorded_as_they_are(ledger: Ledger) -> None:
    stamp = str(200 * 86_400 * 10**9)
    assert ledger.append("noted", "", {"at_ns": stamp}).data == {"at_ns": "17280000000000000"}


def test_a_receipt_is_a_read_only_file_and_an_entry_whose_ref_is_that_file(ledger: Ledger, home: EvidenceHome) -> None:
    record_receipt(ledger, 1)
    entry = ledger.latest("receipt")
    assert entry is not None and entry.ref is not None
    path = home.path / entry.ref.path
    data = path.read_bytes()
    assert json.loads(data) == receipt(1) == entry.data and data.endswith(b"}\n")
    assert entry.ref == Ref(
        "receipts/soak-n12/attempt-0001/soak/000001-handoff.json",
        "sha256:" + hashlib.sha256(data).hexdigest(),
        len(data),
    )
    assert stat.S_IMODE(path.stat().st_mode) == 0o444
    with pytest.raises(EvidenceError, match="never rewritten"):
        record_receipt(ledger, 1)


def test_a_ref_that_is_not_of_the_document_is_refused(ledger: Ledger) -> None:
    with pytest.raises(InputError, match="the ref says"):
        ledger.append("receipt", "x", receipt(1), Ref("receipts/x.json", "sha256:" + "0" * 64, 3))


def test_a_receipt_without_what_every_reader_needs_is_refused_with_the_member(ledger: Ledger) -> None:
    broken = receipt(1) | {"attempt": "one"}
    with pytest.raises(InputError, match=r"data\.attempt is not an integer"):
        ledger.append("receipt", "x", broken, Ref.of("receipts/x.json", canonical.file_bytes(broken)))
    assert ledger.size() == 1


@pytest.mark.parametrize("kind", ["receipt", "verdict"])
def test_a_document_without_a_file_is_refused_at_every_door(ledger: Ledger, kind: str) -> None:
    doors: list[Callable[[], object]] = [
        lambda: ledger.append(kind, "x", receipt(1)),
        lambda: ledger.append_many([(kind, "x", receipt(1))]),
        lambda: ledger.append_built(kind, lambda _: ("x", receipt(1), None)),
    ]
    for door in doors:
        with pytest.raises(InputError, match=f"a {kind} entry names the file of its document"):
            door()
    assert ledger.size() == 1


def test_a_document_whose_entry_is_refused_leaves_no_file_and_its_number_is_free(
    ledger: Ledger, home: EvidenceHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise HomeError("the ledger cannot be written: database or disk is full")

    with monkeypatch.context() as patch, pytest.raises(HomeError, match="disk is full"):
        patch.setattr(Ledger, "_insert", full)
        record_receipt(ledger, 1)
    assert verify(home).orphans == ()
    record_receipt(ledger, 1)
    report = verify(home)
    assert report.ok and (report.files_checked, report.orphans) == (1, ())


def test_a_document_whose_entry_came_through_after_all_keeps_its_file(
    ledger: Ledger, home: EvidenceHome, monkeypatch: pytest.MonkeyPatch
) -> None:
    def torn(*_: object) -> None:
        raise HomeError("the last-seen mark cannot be told")

    with monkeypatch.context() as patch, pytest.raises(HomeError):
        patch.setattr(Ledger, "_remember", torn)
        record_receipt(ledger, 1)
    report = verify(home)
    assert report.ok and report.files_checked == 1


def test_several_entries_are_appended_all_or_none(ledger: Ledger) -> None:
    with pytest.raises(InputError):
        ledger.append_many([Draft("noted", "", {}), ("noted", "", {"x": float("inf")})])
    assert ledger.size() == 1
    assert [entry.seq for entry in ledger.append_many([("noted", "a", {}), ("noted", "b", {})])] == [1, 2]


def test_an_entry_of_a_kind_nobody_knows_is_kept_and_verifies(ledger: Ledger, home: EvidenceHome) -> None:
    ledger.append("prophecy", "", {"anything": [1, None]})
    assert verify(home).ok


def test_entries_are_found_by_range_kind_subject_and_prefix_across_pages(ledger: Ledger) -> None:
    ledger.append_many([("noted", f"lane/{number}", {}) for number in range(1, 1200)])
    assert [entry.seq for entry in ledger.entries()] == list(range(1200))
    assert [entry.seq for entry in ledger.entries(500, 700)] == list(range(500, 701))
    assert len(list(ledger.entries(subject_prefix="lane/11"))) == 1 + 10 + 100
    assert [entry.seq for entry in ledger.entries(subject="lane/7")] == [7]
    assert [entry.seq for entry in ledger.entries(kinds={"genesis"})] == [0]
    latest = ledger.latest("noted", "lane/3")
    assert latest is not None and latest.seq == 3
    assert ledger.latest("verdict") is None


def test_no_transaction_is_held_between_pages(ledger: Ledger, home: EvidenceHome) -> None:
    ledger.append_many([("noted", "", {}) for _ in range(1100)])
    reading = ledger.entries()
    next(reading)
    other = sqlite3.connect(home.ledger_db, timeout=0)
    other.execute("BEGIN EXCLUSIVE")
    other.close()
    assert sum(1 for _ in reading) == 1100


def _number(reader: LedgerReader) -> tuple[str, Any, None]:
    before = sum(1 for _ in reader.entries(kinds={"noted"}))
    return f"n/{before + 1}", {"number": before + 1}, None


def _append_one(path: Path) -> None:
    with Ledger.open(EvidenceHome(path), clock=still_clock(), tool=TOOL, read_only=False) as own:
        own.append_built("noted", _number)


@pytest.mark.slow
def test_twenty_threads_and_twenty_processes_give_forty_entries_numbered_without_a_gap(
    ledger: Ledger, home: EvidenceHome
) -> None:
    with ThreadPoolExecutor(20) as pool:
        list(pool.map(lambda _: ledger.append_built("noted", _number), range(20)))
    with multiprocessing.get_context("spawn").Pool(4) as processes:
        processes.map(_append_one, [home.path] * 20, chunksize=1)
    ledger.append_built("noted", _number)
    assert [entry.data["number"] for entry in ledger.entries(1)] == list(range(1, 42))
    report = verify(home)
    assert (report.ok, report.entries_checked) == (True, 42)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entry SET kind = 'x'",
        "DELETE FROM entry",
        "DELETE FROM node",
        "DROP TABLE node",
        "DROP TRIGGER entry_no_update",
        "ALTER TABLE entry ADD COLUMN x",
        "ATTACH ':memory:' AS other",
        "CREATE TEMP TABLE x (y)",
        "PRAGMA writable_schema = ON",
        "PRAGMA journal_mode = WAL",
        "PRAGMA recursive_triggers = OFF",
        "INSERT INTO sqlite_master VALUES ('table', 'x', 'x', 0, 'x')",
        "SELECT load_extension('x')",
    ],
)
def test_our_own_connections_may_only_add(ledger: Ledger, statement: str) -> None:
    with pytest.raises(SoakledgerError), ledger._database.transaction(write=True) as connection:
        connection.exec_driver_sql(statement)


@pytest.mark.parametrize("recursive_triggers", [True, False])
@pytest.mark.parametrize(
    "statement",
    [
        "INSERT OR REPLACE INTO entry SELECT 0, 'x', subject, recorded_at, body, {other}, prev_hash FROM entry LIMIT 1",
        "REPLACE INTO entry SELECT 1, kind, subject, recorded_at, body, leaf_hash, leaf_hash FROM entry LIMIT 1",
        "INSERT INTO entry SELECT 7, kind, subject, recorded_at, body, {other}, leaf_hash FROM entry LIMIT 1",
        "INSERT OR REPLACE INTO checkpoint SELECT tree_size, key_id, root, 'x' FROM checkpoint",
        "INSERT INTO entry SELECT * FROM entry WHERE true ON CONFLICT DO UPDATE SET kind = 'x'",
        "UPDATE entry SET subject = 'x'",
        "UPDATE OR REPLACE entry SET seq = 5",
        "DELETE FROM entry",
        "DELETE FROM checkpoint",
        "UPDATE checkpoint SET note = 'x'",
    ],
)
def test_the_triggers_stop_an_outsider_whatever_his_settings(
    ledger: Ledger, home: EvidenceHome, sql: Callable[..., None], statement: str, recursive_triggers: bool
) -> None:
    with pytest.raises(sqlite3.IntegrityError):
        sql(statement.format(other="'" + "0" * 64 + "'"), recursive_triggers=recursive_triggers)
    assert ledger.size() == 1
    assert verify(home).ok


@pytest.mark.usefixtures("ledger")
def test_a_reader_cannot_append_and_is_told_so(reopen: Callable[..., Ledger]) -> None:
    with reopen(read_only=True) as reader, pytest.raises(InputError, match="reading only"):
        reader.append("noted", "", {})


@pytest.mark.usefixtures("ledger")
def test_a_ledger_of_a_newer_schema_opens_for_reading_only(
    reopen: Callable[..., Ledger], sql: Callable[..., None]
) -> None:
    sql("PRAGMA user_version = 2")
    with reopen() as newer:
        assert newer.read_only and newer.size() == 1
        with pytest.raises(InputError, match="schema 2"):
            newer.append("noted", "", {})


@pytest.mark.usefixtures("ledger")
def test_a_second_ledger_in_the_same_home_is_refused(home: EvidenceHome) -> None:
    with pytest.raises(HomeError, match="already"):
        Ledger.create(home, clock=still_clock(), tool=TOOL)


def test_the_signing_key_is_outside_the_home_and_its_loss_is_named(
    ledger: Ledger, home: EvidenceHome, tmp_path: Path
) -> None:
    path = key_path(ledger.origin, {"XDG_CONFIG_HOME": str(tmp_path / "config")})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert home.path not in path.parents
    path.chmod(0o644)
    with pytest.raises(HomeError, match="read by others"):
        ledger.checkpoint()
    path.unlink()
    with pytest.raises(HomeError, match="not on this machine"):
        ledger.checkpoint()
    assert verify(home).ok


def test_a_ledger_rolled_back_to_an_older_copy_is_refused_and_the_mark_stays(
    ledger: Ledger, home: EvidenceHome, reopen: Callable[..., Ledger], tmp_path: Path
) -> None:
    old = tmp_path / "old.db"
    shutil.copy(home.ledger_db, old)
    ledger.append("noted", "", {})
    mark = seen.read_mark(ledger.origin, {"XDG_STATE_HOME": str(tmp_path / "state")})
    ledger.close()
    shutil.copy(old, home.ledger_db)
    for read_only in (True, False):
        with pytest.raises(EvidenceError, match="tail was cut: it has 1 entries, and 2"):
            reopen(read_only=read_only)
    assert any("tail was cut" in fault.what for fault in verify(home).faults)
    assert mark == seen.read_mark(ledger.origin, {"XDG_STATE_HOME": str(tmp_path / "state")})


def test_two_histories_from_one_copy_cannot_both_be_opened(
    ledger: Ledger, home: EvidenceHome, reopen: Callable[..., Ledger], tmp_path: Path
) -> None:
    old = tmp_path / "old.db"
    shutil.copy(home.ledger_db, old)
    ledger.append("noted", "", {"branch": 1})
    ledger.close()
    mark = tmp_path / "state/soakledger/seen" / (hashlib.sha256(ledger.origin.encode()).hexdigest() + ".json")
    first = mark.read_bytes()
    mark.unlink()
    shutil.copy(old, home.ledger_db)
    with reopen() as other:
        other.append("noted", "", {"branch": 2})
    mark.write_bytes(first)
    with pytest.raises(EvidenceError, match="not those that this machine saw"):
        reopen()


def test_a_file_that_is_exchanged_under_an_open_ledger_takes_no_entry(ledger: Ledger, home: EvidenceHome) -> None:
    ledger.append("noted", "", {})
    copy = home.path / "copy.db"
    shutil.copy(home.ledger_db, copy)
    copy.rename(home.ledger_db)
    with pytest.raises(EvidenceError, match="replaced by another file"):
        ledger.append("noted", "", {})


def test_every_setting_is_as_the_design_has_it(ledger: Ledger) -> None:
    with ledger._database.transaction() as connection:
        values = {
            name: connection.execute(sa.text(f"PRAGMA {name}")).scalar_one()
            for name in ("journal_mode", "synchronous", "foreign_keys", "recursive_triggers", "cell_size_check",
                         "trusted_schema", "busy_timeout")
        }  # fmt: skip
    assert values == {
        "journal_mode": "delete",
        "synchronous": 3,
        "foreign_keys": 1,
        "recursive_triggers": 1,
        "cell_size_check": 1,
        "trusted_schema": 0,
        "busy_timeout": 30_000,
    }


def test_a_mark_is_read_where_its_lock_is_missing_and_its_folder_cannot_be_written(
    ledger: Ledger, tmp_path: Path
) -> None:
    folder = tmp_path / "state/soakledger/seen"
    (lock,) = folder.glob("*.lock")
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    expected = seen.read_mark(ledger.origin, environ)
    assert expected is not None
    assert expected.size == ledger.size()
    lock.unlink()
    folder.chmod(0o500)
    try:
        assert seen.read_mark(ledger.origin, environ) == expected
    finally:
        folder.chmod(0o700)


def test_a_mark_that_grows_by_a_digit_is_whole_and_one_that_is_further_on_stays(ledger: Ledger, tmp_path: Path) -> None:
    environ = {"XDG_STATE_HOME": str(tmp_path / "state")}
    for size in (9, 10, 99_999, 100_000):
        mark = seen.Mark(ledger.origin, size, "sha256:" + f"{size:064x}")
        seen.advance(mark, environ, create=False)
        assert seen.read_mark(ledger.origin, environ) == mark
    seen.advance(seen.Mark(ledger.origin, 50_000, "sha256:" + "0" * 64), environ, create=False)
    assert seen.read_mark(ledger.origin, environ) == mark


def test_a_document_that_no_entry_can_hold_is_refused_before_its_file_is_written(
    home: EvidenceHome, ledger: Ledger
) -> None:
    size = ledger.size()
    with pytest.raises(InputError, match="the most that an entry takes is 49152"):
        ledger.record(
            "receipt", "x/attempt-0001/soak/000001-handoff", "receipts/x.json", receipt(1) | {"more": "y" * 49152}
        )
    assert ledger.size() == size
    assert not (home.path / "receipts" / "x.json").exists()
