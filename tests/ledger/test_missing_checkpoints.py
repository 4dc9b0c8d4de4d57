"""A checkpoint stands at each moment that the format names; whichever is taken away, by half or whole, is missed."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable
from typing import Any

import pytest
from ledger_samples import receipt
from test_audit import told

from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.keys import key_path
from ledger.store import Ledger
from receipts.errors import HomeError

Sql = Callable[..., None]

REGISTRATION: dict[str, Any] = {
    "campaign": "soak-n12", "family": "soak-n12", "spec_sha256": "sha256:" + "1" * 64, "parent_seq": None,
    "resolved_sha256": "sha256:" + "2" * 64, "spec": "", "resolved": {}, "after_attempt": None, "reason": None,
    "weaker": [],
}  # fmt: skip
VERDICT_FILE = "receipts/soak-n12/attempt-0001/SOAK_VERDICT.json"
VERDICT: dict[str, Any] = {
    "v": 1, "campaign": "soak-n12", "attempt": 1, "verdict": "FAIL", "ended": "complete", "criteria": [],
    "evaluator": {"name": "soakledger", "version": "0.1.0", "source_sha256": "sha256:" + "3" * 64},
    "receipts": {"to_seq": 1},
}  # fmt: skip
MOMENTS = {1: "genesis", 3: "registration", 5: "verdict"}


@pytest.fixture
def signed(ledger: Ledger) -> Ledger:
    """Entry 0 genesis, 2 a registration, 4 a verdict, each with something behind it."""
    ledger.append("noted", "", {"n": 1})
    ledger.append("registration", "soak-n12", REGISTRATION)
    ledger.append("noted", "", {"n": 2})
    ledger.record("verdict", "soak-n12/1", VERDICT_FILE, VERDICT)
    ledger.append("noted", "", {"n": 3})
    return ledger


def take_row(home: EvidenceHome, sql: Sql, size: int | None) -> None:
    """Take a row, or all, past the guards, and put the guards back: the schema shows nothing."""
    connection = sqlite3.connect(home.ledger_db)
    query = "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name = 'checkpoint'"
    guards = connection.execute(query).fetchall()
    connection.close()
    chosen = "" if size is None else f" WHERE tree_size = {size}"
    dropped = [f"DROP TRIGGER {name}" for name, _ in guards]
    sql(*dropped, f"DELETE FROM checkpoint{chosen}", *(text for _, text in guards))


def faults(home: EvidenceHome) -> list[tuple[str, int | None, str]]:
    return [(fault.where, fault.entry, fault.what) for fault in verify(home).faults]


@pytest.mark.usefixtures("signed")
def test_a_checkpoint_is_signed_with_genesis_with_a_registration_and_with_a_verdict(home: EvidenceHome) -> None:
    report = verify(home)
    assert report.ok, told(report)
    assert report.checkpoints_checked == 3
    assert {path.name for path in home.checkpoints.iterdir()} == {f"{size}.checkpoint" for size in MOMENTS}


@pytest.mark.parametrize("size", MOMENTS)
@pytest.mark.usefixtures("signed")
def test_one_of_which_row_and_file_are_gone_is_named_with_its_entry(home: EvidenceHome, sql: Sql, size: int) -> None:
    take_row(home, sql, size)
    (home.checkpoints / f"{size}.checkpoint").unlink()
    what = f"the checkpoint that was signed with this {MOMENTS[size]} is missing"
    assert faults(home) == [("table checkpoint", size - 1, what)]


@pytest.mark.parametrize("size", MOMENTS)
@pytest.mark.usefixtures("signed")
def test_one_of_which_the_row_alone_is_gone_is_named(home: EvidenceHome, sql: Sql, size: int) -> None:
    take_row(home, sql, size)
    what = "its row is missing from table checkpoint, where it stood first"
    assert faults(home) == [(f"checkpoints/{size}.checkpoint", None, what)]


@pytest.mark.parametrize("size", MOMENTS)
@pytest.mark.usefixtures("signed")
def test_one_of_which_the_file_alone_is_gone_is_named(home: EvidenceHome, size: int) -> None:
    (home.checkpoints / f"{size}.checkpoint").unlink()
    assert faults(home) == [(f"checkpoints/{size}.checkpoint", None, "the file is missing")]


@pytest.mark.usefixtures("signed")
def test_a_ledger_without_any_is_missed_all_three(home: EvidenceHome, sql: Sql) -> None:
    take_row(home, sql, None)
    for path in home.checkpoints.iterdir():
        path.unlink()
    assert [entry for _, entry, _ in faults(home)] == [0, 2, 4]


@pytest.mark.parametrize("size", MOMENTS)
@pytest.mark.usefixtures("signed")
def test_what_a_killed_writer_owed_is_made_good_by_the_next_one(
    home: EvidenceHome, sql: Sql, reopen: Callable[..., Ledger], size: int
) -> None:
    path = home.checkpoints / f"{size}.checkpoint"
    data = path.read_bytes()
    path.unlink()
    reopen(read_only=True).close()
    assert not path.exists(), "a reader writes nothing"
    reopen().close()
    assert path.read_bytes() == data
    take_row(home, sql, size)
    reopen().close()
    assert verify(home).ok


def test_an_entry_that_cannot_be_signed_over_is_not_made_and_leaves_no_file(home: EvidenceHome, signed: Ledger) -> None:
    size = signed.size()
    key_path(signed.origin, os.environ).unlink()
    with pytest.raises(HomeError, match="not on this machine"):
        signed.append("registration", "soak-n12", REGISTRATION)
    with pytest.raises(HomeError, match="not on this machine"):
        signed.record("verdict", "soak-n12/1", VERDICT_FILE.replace(".json", ".2.json"), VERDICT)
    assert signed.size() == size
    report = verify(home)
    assert report.ok and not report.orphans


def test_a_name_in_its_place_that_is_something_else_does_not_stop_the_entry(home: EvidenceHome, signed: Ledger) -> None:
    size = signed.size() + 1
    (home.checkpoints / f"{size}.checkpoint").write_bytes(b"what is this\n")
    signed.append("registration", "soak-n13", REGISTRATION | {"campaign": "soak-n13"})
    where = f"checkpoints/{size}.checkpoint"
    assert {fault.where for fault in verify(home).faults} == {where}


@pytest.mark.parametrize("name", ["1.x.checkpoint", "007.checkpoint", "²².checkpoint", "notes.checkpoint", "9" * 99])
@pytest.mark.usefixtures("ledger")
def test_names_that_are_no_size_stop_nobody_and_are_listed(
    home: EvidenceHome, reopen: Callable[..., Ledger], name: str
) -> None:
    name = name if name.endswith(".checkpoint") else f"{name}.checkpoint"
    (home.checkpoints / name).write_bytes(b"what is this\n")
    with reopen() as again:
        again.append("noted", "", {"n": 1})
    report = verify(home)
    assert report.ok and report.orphans == (f"checkpoints/{name}",)


def test_a_receipt_is_not_signed_over(home: EvidenceHome, ledger: Ledger) -> None:
    stem = "soak-n12/attempt-0001/soak/000001-handoff"
    ledger.record("receipt", stem, f"receipts/{stem}.json", receipt(1))
    assert [path.name for path in home.checkpoints.iterdir()] == ["1.checkpoint"]


def test_who_opens_while_another_signs_is_not_told_of_a_tail_that_was_cut(
    ledger: Ledger, reopen: Callable[..., Ledger], monkeypatch: pytest.MonkeyPatch
) -> None:
    size, waiting = Ledger.size, [REGISTRATION]

    def and_then_another_signs(self: Ledger) -> int:
        found = size(self)
        while waiting:
            ledger.append("registration", "soak-n12", waiting.pop())
        return found

    monkeypatch.setattr(Ledger, "size", and_then_another_signs)
    with reopen() as opened:
        assert opened.size() == 2
