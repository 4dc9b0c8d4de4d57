"""Taking a journal in: what is whole is kept, and what is wrong with the rest is a deviation that names the lane."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest

from campaigns.intake import Intake
from ledger.home import EvidenceHome
from ledger.store import Ledger
from producer.journal import Journal
from receipts.clock import HostClock
from receipts.events import RitualEvent

MOMENT = datetime(2026, 11, 30, tzinfo=UTC)


@pytest.fixture
def clock() -> HostClock:
    return HostClock("here", boot_id="b", clock="boottime", stamp=lambda: 5, awake=lambda: 5, wall=lambda: MOMENT)


@pytest.fixture
def ledger(tmp_path: Path, clock: HostClock) -> Ledger:
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "cfg"), "XDG_STATE_HOME": str(tmp_path / "state")}
    tool = {"version": "0", "commit": None}
    return Ledger.create(EvidenceHome(tmp_path / "home"), clock=clock, tool=tool, environ=environ)


@pytest.fixture
def journal(tmp_path: Path, clock: HostClock) -> Journal:
    journal = Journal(tmp_path / "work", "loopback", clock)
    record(journal, 5)
    return journal


def record(journal: Journal, count: int) -> None:
    for _ in range(count):
        journal.append(RitualEvent(moved=(), removed=()))


def taken(ledger: Ledger) -> list[str]:
    return [entry.subject for entry in ledger.entries(kinds={"process_event"})]


def deviations(ledger: Ledger) -> list[tuple[str, str, str]]:
    """(what, lane, text) of each."""
    found = ledger.entries(kinds={"deviation"})
    return [(entry.data["what"], entry.data["evidence"]["lane"], entry.data["text"]) for entry in found]


def test_each_record_is_taken_once(ledger: Ledger, journal: Journal) -> None:
    intake = Intake(ledger, journal)
    assert [item.n for item in intake.take()] == [1, 2, 3, 4, 5]
    record(journal, 1)
    assert [item.n for item in intake.take()] == [6]
    assert Intake(ledger, journal).take() == []
    assert taken(ledger) == [f"loopback/{n}" for n in range(1, 7)]
    assert deviations(ledger) == []


def test_a_gap_is_a_deviation_and_what_stands_before_it_is_kept(
    ledger: Ledger, journal: Journal, clock: HostClock
) -> None:
    journal.path(3).unlink()
    assert [item.n for item in Intake(ledger, Journal(journal.work_dir, "loopback", clock)).take()] == [1, 2]
    assert deviations(ledger) == [
        ("journal-broken", "loopback", "record 3 of the journal is missing; its last is 5"),
    ]


def test_a_record_that_is_no_json_is_a_deviation_and_no_crash(ledger: Ledger, journal: Journal) -> None:
    journal.path(4).chmod(0o600)
    journal.path(4).write_bytes(b"{")
    assert [item.n for item in Intake(ledger, journal).take()] == [1, 2, 3]
    assert [what for what, _, _ in deviations(ledger)] == ["journal-broken"]


def test_a_journal_that_was_cut_or_forked_is_a_deviation_at_the_next_look(ledger: Ledger, journal: Journal) -> None:
    intake = Intake(ledger, journal, "soak-n12", 1)
    intake.take()
    for n in (4, 5):
        journal.path(n).unlink()
    assert intake.take() == []
    other = Journal(journal.work_dir, "loopback", HostClock("here", boot_id="b", clock="boottime", stamp=lambda: 6))
    record(other, 3)
    assert intake.take() == []
    texts = [text for _, _, text in deviations(ledger)]
    assert "the journal ends before record 5, which this ledger holds" in texts[0]
    assert "record 5 of the journal is not the one that this ledger holds: a fork" in texts[1]
    assert len(taken(ledger)) == 5
    # Looking again says nothing new.
    intake.take()
    assert len(deviations(ledger)) == 2


def test_a_death_that_does_not_say_whose_it_is_is_a_deviation_and_no_crash(ledger: Ledger, journal: Journal) -> None:
    path = journal.path(4)
    path.chmod(0o600)
    path.write_bytes(path.read_bytes().replace(b'"kind":"ritual"', b'"kind":"death"'))
    assert [item.n for item in Intake(ledger, journal).take()] == [1, 2, 3]
    assert [what for what, _, _ in deviations(ledger)] == ["journal-broken"]
