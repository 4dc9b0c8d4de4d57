"""A death that nobody wrote down is written by the next one who looks, and never twice or of a living producer."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from producer.host import linux
from producer.journal import Journal
from producer.unseen import write_unseen_deaths
from receipts.clock import HostClock, boot_id
from receipts.events import DeathEvent, FailedStartEvent, HandoffEvent, RitualEvent, StartEvent, StopEvent
from receipts.kinds import Document, Instance

SHA = "sha256:" + 64 * "0"
NOTHING = RitualEvent(moved=(), removed=())
GONE = Instance(host="here", boot_id=boot_id(), pid=7, start_ticks="999999999999")
EARLIER = Instance(host="here", boot_id=boot_id(), pid=6, start_ticks="999999999999")
OTHER_BOOT = Instance(host="here", boot_id="0" * 32, pid=7, start_ticks="9")


def start(instance: Instance) -> StartEvent:
    return StartEvent(instance=instance, startup_receipt_sha256=SHA, identity=SHA, cache_identity=SHA, mode="native")


def handoff(instance: Instance, digit: str) -> HandoffEvent:
    return HandoffEvent(
        instance=instance, handoff_id=32 * digit, outcome="acknowledged", prompt_sha256=SHA, payload_root=None,
        payload_bytes=None, handoffs_before=0, used_by=None,
    )  # fmt: skip


def death(instance: Instance) -> DeathEvent:
    return DeathEvent(
        instance=instance, site="exit", status=1, signal=None, reason="r", uptime_ns=None, last_handoff_id=None,
        died_ns="5", observed_by="keeper",
    )  # fmt: skip


def journalled(folder: Path, *events: Document) -> Journal:
    """A journal of these events, at 100, 200 … on its clock, which stands at the next hundred from then on."""
    stamps = [100 * (place + 1) for place in range(len(events) + 1)]
    clock = HostClock("here", stamp=lambda: stamps.pop(0) if len(stamps) > 1 else stamps[0])
    journal = Journal(folder, "loopback", clock)
    for event in events:
        journal.append(event)
    return journal


def written(journal: Journal, observer: str = "ritual") -> list[dict[str, object]]:
    before = journal.head().n
    write_unseen_deaths(journal, observer, settles_s=0)  # type: ignore[arg-type]
    return [{"kind": record.kind, **record.body} for record, _ in journal.read(before + 1)]


@pytest.mark.parametrize("observer", ["ritual", "runner"])
def test_a_producer_that_is_gone_without_a_word_is_dead_by_the_moment_at_which_it_was_looked_for(
    tmp_path: Path, observer: str
) -> None:
    journal = journalled(tmp_path, NOTHING, start(GONE), handoff(GONE, "1"), handoff(GONE, "2"))
    (found,) = written(journal, observer)
    assert found == {
        "kind": "death", "instance": GONE.document(), "site": "not_known", "status": None, "signal": None,
        "reason": "the producer is gone, and nobody wrote how it ended", "uptime_ns": None,
        "last_handoff_id": 32 * "2", "died_ns": "500", "observed_by": observer,
    }  # fmt: skip
    assert written(journal, observer) == []


def test_one_of_an_earlier_boot_was_gone_when_this_one_began(tmp_path: Path) -> None:
    (found,) = written(journalled(tmp_path, NOTHING, start(OTHER_BOOT)))
    assert (found["died_ns"], found["instance"]) == ("0", OTHER_BOOT.document())
    assert str(found["reason"]).startswith("its host was started anew")


@pytest.mark.parametrize(
    "end",
    [
        death(GONE),
        StopEvent(instance=GONE, why="a test", observed_by="runner"),
        FailedStartEvent(instance=GONE, status=1, signal=None, reason="r", observed_by="keeper"),
    ],
)
def test_an_end_that_is_on_record_is_not_written_again(tmp_path: Path, end: Document) -> None:
    assert written(journalled(tmp_path, NOTHING, start(GONE), end, NOTHING)) == []


def test_a_living_producer_and_one_of_another_host_are_left_alone(tmp_path: Path) -> None:
    me = linux.instance_of(os.getpid(), "here")
    there = GONE.model_copy(update={"host": "there"})
    assert written(journalled(tmp_path, NOTHING, start(me), start(there))) == []


def test_every_start_since_the_ritual_counts_and_failed_rituals_behind_it_hide_none(tmp_path: Path) -> None:
    journal = journalled(
        tmp_path, NOTHING, start(EARLIER), start(GONE), death(GONE), NOTHING,
        FailedStartEvent(instance=OTHER_BOOT, status=1, signal=None, reason="r", observed_by="keeper"), NOTHING,
    )  # fmt: skip
    (found,) = written(journal)
    assert found["instance"] == EARLIER.document()


def test_nothing_is_added_behind_a_journal_that_cannot_be_read(tmp_path: Path) -> None:
    journal = journalled(tmp_path, NOTHING, start(GONE), NOTHING)
    journal.path(2).chmod(0o644)
    journal.path(2).write_bytes(journal.path(1).read_bytes())
    assert write_unseen_deaths(journal, "ritual", settles_s=0) == []
    assert journal.head().n == 3


def test_a_folder_without_a_journal_stays_without_one(tmp_path: Path) -> None:
    assert write_unseen_deaths(Journal(tmp_path, "loopback", HostClock("here")), "runner") == []
    assert list(tmp_path.iterdir()) == []
