"""The keeper: whoever starts it is told when it fails, and it writes down how its producer ended."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from producer.engine.deaths import note_lease_held
from producer.journal import Journal
from producer.runtime import process
from producer.runtime.process import Ended
from receipts.clock import HostClock
from receipts.errors import LaneError
from receipts.events import HandoffEvent, JournalRecord, RitualEvent, StartEvent, StopEvent
from receipts.kinds import Document, Instance

SHA = "sha256:" + 64 * "0"
OURS = Instance(host="here", boot_id="b", pid=7, start_ticks="9")
OTHER = Instance(host="here", boot_id="b", pid=6, start_ticks="8")
START = StartEvent(instance=OURS, startup_receipt_sha256=SHA, identity=SHA, cache_identity=SHA, mode="native")
STOP = StopEvent(instance=OURS, why="a test", observed_by="runner")
NOTHING = RitualEvent(moved=(), removed=())


def handoff(instance: Instance, digit: str) -> HandoffEvent:
    return HandoffEvent(
        instance=instance, handoff_id=32 * digit, outcome="acknowledged", prompt_sha256=SHA, payload_root=None,
        payload_bytes=None, handoffs_before=0, used_by=None,
    )  # fmt: skip


def journalled(folder: Path, *events: tuple[int, Document]) -> Journal:
    """A journal with each event written at its stamp; the last stamp is what its clock says from then on."""
    stamps = [stamp for stamp, _ in events]
    clock = HostClock("here", boot_id="b", stamp=lambda: stamps.pop(0) if len(stamps) > 1 else stamps[0])
    journal = Journal(folder / "work", "loopback", clock)
    for _, event in events:
        journal.append(event)
    return journal


def end_of(journal: Journal, ended: Ended) -> dict[str, Any]:
    """What the keeper writes of an end: kind and body, empty when it writes nothing."""
    before = journal.head().n
    process.journal_end(lane_of(journal.work_dir.parent), journal.clock, ended, journal.work_dir / "no.log")
    written = [record for record, _ in journal.read(before + 1)]
    assert len(written) <= 1
    return {"kind": written[0].kind, **written[0].body} if written else {}


def lane_of(folder: Path) -> Any:
    return SimpleNamespace(
        name="loopback",
        source=folder / "lane.toml",
        socket=folder / "work/producer.sock",
        producer=SimpleNamespace(host="here", work_dir=folder / "work"),
    )


def test_a_keeper_that_dies_before_it_names_a_producer_is_a_lane_error_with_status_and_last_words(
    tmp_path: Path,
) -> None:
    log = tmp_path / "logs/producer.log"
    with pytest.raises(LaneError) as caught:
        process.start(lane_of(tmp_path), log)
    assert "keeper ended with status 1" in caught.value.what
    assert "lane.toml" in str(caught.value.details)  # its own words: what could not be read
    assert caught.value.where == str(log)


def test_a_log_that_cannot_be_written_is_a_lane_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder is wanted")
    with pytest.raises(LaneError, match="log cannot be written"):
        process.start(lane_of(tmp_path), tmp_path / "logs/producer.log")


def test_a_death_has_the_moment_at_which_the_keeper_saw_it_and_the_last_handoff(tmp_path: Path) -> None:
    journal = journalled(
        tmp_path, (100, NOTHING), (200, START), (300, handoff(OURS, "1")), (400, handoff(OURS, "2")), (9000, NOTHING)
    )
    death = end_of(journal, Ended(OURS, born_ns=150, died_ns=500, status=-9))
    assert (death["kind"], death["site"], death["signal"], death["status"]) == ("death", "signal", 9, None)
    assert (death["died_ns"], death["uptime_ns"], death["last_handoff_id"]) == ("500", "300", 32 * "2")


def test_how_old_the_journal_is_does_not_matter_to_a_death(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    journal = journalled(tmp_path, (10, NOTHING), (20, handoff(OTHER, "1")), (200, START), (300, handoff(OURS, "2")))
    looked: list[int] = []
    monkeypatch.setattr(process, "Journal", Watched)
    monkeypatch.setattr(Watched, "looked", looked)
    assert end_of(journal, Ended(OURS, born_ns=150, died_ns=500, status=1))["kind"] == "death"
    assert looked == [4, 3]


def test_an_end_before_the_start_is_on_record_is_a_failed_start_and_nothing_older_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    journal = journalled(tmp_path, (10, NOTHING), (20, handoff(OTHER, "1")), (200, NOTHING))
    looked: list[int] = []
    monkeypatch.setattr(process, "Journal", Watched)
    monkeypatch.setattr(Watched, "looked", looked)
    failed = end_of(journal, Ended(OURS, born_ns=150, died_ns=500, status=1))
    assert (failed["kind"], failed["status"], failed["signal"]) == ("failed_start", 1, None)
    assert looked == [3, 2]


def test_a_start_that_found_the_lease_held_is_no_failed_start_and_nobody_elses_word_counts(tmp_path: Path) -> None:
    journal = journalled(tmp_path, (10, NOTHING))
    note_lease_held(journal.work_dir, OTHER)
    assert end_of(journal, Ended(OURS, born_ns=150, died_ns=500, status=1))["kind"] == "failed_start"
    note_lease_held(journal.work_dir, OURS)
    later = Ended(OURS.model_copy(update={"pid": 8}), born_ns=600, died_ns=700, status=1)
    assert end_of(journal, later)["kind"] == "failed_start"
    fresh = journalled(tmp_path / "fresh", (10, NOTHING))
    note_lease_held(fresh.work_dir, OURS)
    assert end_of(fresh, Ended(OURS, born_ns=150, died_ns=500, status=1)) == {}


def test_a_commanded_end_is_no_death(tmp_path: Path) -> None:
    journal = journalled(tmp_path, (200, START), (300, STOP))
    assert end_of(journal, Ended(OURS, born_ns=150, died_ns=500, status=-15)) == {}


class Watched(Journal):
    """A journal that notes which records were read on the way back."""

    looked: ClassVar[list[int]] = []

    def backwards(self) -> Iterator[JournalRecord]:
        for record in super().backwards():
            self.looked.append(record.n)
            yield record
