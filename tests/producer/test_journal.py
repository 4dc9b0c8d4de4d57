"""The journal: one chain, one file a record, whoever writes."""

from __future__ import annotations

import hashlib
import multiprocessing
from datetime import UTC, datetime
from pathlib import Path

import pytest

from producer.journal import GENESIS, Journal
from receipts.clock import HostClock
from receipts.errors import EvidenceError
from receipts.events import DeathEvent, FailedStartEvent, HandoffEvent, RitualEvent, StopEvent
from receipts.kinds import Instance

VECTOR = (
    b'{"at_ns":"5","body":{"moved":[],"removed":[]},"boot_id":"b","clock":"boottime","host":"here","kind":"ritual",'
    b'"lane":"loopback","n":1,"prev":"sha256:' + 64 * b"0" + b'","recorded_at":"2026-11-30T20:41:07.512Z","v":1}\n'
)
NOTHING = RitualEvent(moved=(), removed=())
STOP = StopEvent(
    instance=Instance(host="here", boot_id="b", pid=7, start_ticks="9"), why="a test", observed_by="runner"
)


def still() -> HostClock:
    moment = datetime(2026, 11, 30, 20, 41, 7, 512000, tzinfo=UTC)
    return HostClock("here", boot_id="b", clock="boottime", stamp=lambda: 5, awake=lambda: 5, wall=lambda: moment)


@pytest.fixture
def journal(tmp_path: Path) -> Journal:
    return Journal(tmp_path, "loopback", still())


def test_the_first_record_is_the_bytes_of_the_format_page(journal: Journal) -> None:
    journal.append(NOTHING)
    assert journal.path(1).read_bytes() == VECTOR
    page = (Path(__file__).parents[2] / "docs/formats/journal.md").read_text()
    assert VECTOR.decode().strip() in page
    assert hashlib.sha256(VECTOR).hexdigest() in page


def test_each_record_names_the_digest_of_the_file_before_it(journal: Journal) -> None:
    journal.append(NOTHING)
    second = journal.append(STOP)
    assert (second.n, second.prev) == (2, "sha256:" + hashlib.sha256(VECTOR).hexdigest())
    assert [record.kind for record, _ in journal.read()] == ["ritual", "stop"]
    assert [record.n for record, _ in journal.read(2)] == [2]


def test_an_empty_journal_has_a_head_of_zeros(journal: Journal) -> None:
    assert (journal.head().n, journal.head().head) == (0, GENESIS)
    assert list(journal.read()) == []


def test_records_are_never_writable(journal: Journal) -> None:
    journal.append(NOTHING)
    assert journal.path(1).stat().st_mode & 0o777 == 0o444


def test_a_changed_record_breaks_the_chain_at_the_next_one(journal: Journal) -> None:
    for _ in range(3):
        journal.append(NOTHING)
    journal.path(1).chmod(0o644)
    journal.path(1).write_bytes(VECTOR.replace(b'"5"', b'"6"'))
    with pytest.raises(EvidenceError, match="record 2 does not continue the chain"):
        list(journal.read())


def test_the_way_back_ends_at_the_first_record_and_at_a_changed_one(journal: Journal) -> None:
    for _ in range(3):
        journal.append(NOTHING)
    assert [record.n for record in journal.backwards()] == [3, 2, 1]
    journal.path(1).chmod(0o644)
    journal.path(1).write_bytes(VECTOR.replace(b'"5"', b'"6"'))
    way_back = journal.backwards()
    assert [next(way_back).n, next(way_back).n] == [3, 2]
    with pytest.raises(EvidenceError, match="record 1 is not the one that record 2 continues"):
        next(way_back)


def append_ten(folder: Path) -> None:
    journal = Journal(folder, "loopback", still())
    for _ in range(10):
        journal.append(NOTHING)


def test_writers_of_four_processes_make_one_chain(tmp_path: Path) -> None:
    context = multiprocessing.get_context("spawn")
    writers = [context.Process(target=append_ten, args=(tmp_path,)) for _ in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [record.n for record, _ in Journal(tmp_path, "loopback", still()).read()] == list(range(1, 41))


@pytest.mark.parametrize("text", ["x" * 100_000, "\x01" * 100_000, "\u2028" * 100_000])
def test_no_text_makes_a_record_that_a_ledgers_entry_cannot_hold(journal: Journal, text: str) -> None:
    """An entry holds a document of 48 KiB; a record past it would be a broken journal for good."""
    sha, mine = "sha256:" + 64 * "0", STOP.instance
    for event in (
        StopEvent(instance=mine, why=text, observed_by="runner"),
        FailedStartEvent(instance=mine, status=1, signal=None, reason=text, observed_by="keeper"),
        DeathEvent(
            instance=mine, site="exit", status=1, signal=None, reason=text, uptime_ns=None, last_handoff_id=None,
            died_ns="5", observed_by="keeper",
        ),
        HandoffEvent(
            instance=mine, handoff_id=32 * "0", outcome="acknowledged", prompt_sha256=sha, payload_root=None,
            payload_bytes=None, handoffs_before=0, used_by=text,
        ),
    ):  # fmt: skip
        record = journal.append(event)
        assert journal.path(record.n).stat().st_size < 48 * 1024 - 1024
