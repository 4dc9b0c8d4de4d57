"""What a launch settles first: whose attempts are lost, and which verdicts a late death overtakes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest
from judged import Attempt, criterion
from judged_ledger import clean_attempt, new_ledger, put, refs, still_clock, verdicts

from campaigns import judging, runner
from campaigns.lost import abandon_lost, judge_late_deaths, started_producer
from ledger.audit import verify
from ledger.store import Ledger
from producer.host import linux
from producer.journal import Journal
from receipts.clock import HostClock
from receipts.events import RitualEvent, StartEvent
from receipts.kinds import Instance
from receipts.store import write_exclusive


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def kinds(ledger: Ledger) -> list[str]:
    return [entry.kind for entry in ledger.entries(kinds={"attempt_abandoned", "verdict"})]


def myself() -> dict[str, Any]:
    """Members of an ``attempt_open`` of this very process."""
    me = linux.instance_of(os.getpid(), "here")
    return {"pid": me.pid, "start_ticks": me.start_ticks, "boot_id": me.boot_id}


# Lost attempts


def test_an_attempt_whose_process_is_gone_is_abandoned_and_judged_once(ledger: Ledger) -> None:
    put(ledger, clean_attempt(closed=False))
    for _ in range(2):
        abandon_lost(ledger, still_clock(), "loopback", "soak-n12")
        assert kinds(ledger) == ["attempt_abandoned", "verdict"]
    (verdict,) = verdicts(ledger)
    assert (verdict.data["ended"], verdict.data["verdict"]) == ("abandoned", "INCONCLUSIVE")


def test_a_receipts_file_that_was_killed_before_its_entry_is_an_orphan_and_bars_nothing(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attempt is abandoned and its number never given again, so no later receipt wants that name."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "cfg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    put(ledger, clean_attempt(closed=False))
    orphan = "receipts/soak-n12/attempt-0001/soak/000030-handoff.json"
    write_exclusive(ledger.home.path / orphan, b"{}\n")
    abandon_lost(ledger, still_clock(), "loopback", "soak-n12")
    assert judging.rejudge(ledger, "soak-n12", 1).document["verdict"] == "INCONCLUSIVE"
    report = verify(ledger.home)
    assert (report.ok, report.orphans) == (True, (orphan,))


def test_an_attempt_that_was_closed_and_not_judged_gets_its_verdict(ledger: Ledger) -> None:
    put(ledger, clean_attempt())
    abandon_lost(ledger, still_clock(), "loopback", "soak-n12")
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["PASS"]


@pytest.mark.parametrize("closed", [True, False])
def test_an_attempt_whose_process_still_runs_is_left_to_it(ledger: Ledger, closed: bool) -> None:
    put(ledger, clean_attempt(closed=closed), **myself())
    abandon_lost(ledger, still_clock(), "loopback", "soak-n12")
    assert kinds(ledger) == []


@pytest.mark.parametrize("closed", [True, False])
def test_an_attempt_of_another_lane_is_left_to_that_lanes_launch(ledger: Ledger, closed: bool) -> None:
    """Its journal was not taken in: a death in it would count as none."""
    put(ledger, clean_attempt(closed=closed))
    abandon_lost(ledger, still_clock(), "elsewhere", "soak-n12")
    assert kinds(ledger) == []


@pytest.mark.parametrize("closed", [True, False])
def test_an_attempt_of_another_host_is_left_alone(ledger: Ledger, closed: bool) -> None:
    put(ledger, clean_attempt(closed=closed))
    abandon_lost(ledger, still_clock("there"), "loopback", "soak-n12")
    assert kinds(ledger) == []


# Late deaths


def judged_attempt(ledger: Ledger) -> Attempt:
    """Closed and judged PASS; its clock is put back by two seconds, into the attempt's time."""
    attempt = clean_attempt()
    put(ledger, attempt)
    assert judging.store_verdict(ledger, "soak-n12", 1).document["verdict"] == "PASS"
    attempt.at -= 2 * 10**9
    return attempt


def take_in(ledger: Ledger, attempt: Attempt, lane: str = "loopback") -> None:
    """Append the last hand-written record the way intake does."""
    data = attempt.entries[-1].data
    record = data["record"] | {"lane": lane}
    ledger.append("process_event", f"{lane}/{record['n']}", data | {"record": record, "merged_n": []})


def test_a_death_that_came_in_after_the_verdict_causes_a_further_one(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    attempt.death(site="not_known", status=None)
    take_in(ledger, attempt)
    further = judge_late_deaths(ledger, "loopback")
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.json", "SOAK_VERDICT.2.json"]
    assert further == verdicts(ledger)[1:]
    first, second = (entry.data for entry in verdicts(ledger))
    assert (first["verdict"], second["verdict"]) == ("PASS", "FAIL")
    assert criterion(second, "no-producer-death")["deaths"] == [
        {"rep": 12, "site": "not_known", "status": None, "injected": False}
    ]
    # The first stays what it was, the second is what judging again gives, and it is final.
    assert judging.rejudge(ledger, "soak-n12", 1).document == second
    assert judge_late_deaths(ledger, "loopback") == []


def test_a_further_record_of_a_death_that_was_judged_is_no_news(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    for site in ("watchdog", "not_known"):
        attempt.death(site=site)
        take_in(ledger, attempt)
        judge_late_deaths(ledger, "loopback")
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["PASS", "FAIL"]


def test_a_death_before_the_attempt_or_behind_its_close_is_no_part_of_it(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    closed_ns = attempt.at + 2 * 10**9
    for pid, at in ((1, attempt.started - 10**9), (2, closed_ns)):
        attempt.at = at
        attempt.death(pid=pid)  # a tenth of a second from then
        take_in(ledger, attempt)
    assert judge_late_deaths(ledger, "loopback") == []


def test_a_death_of_another_lane_or_host_is_no_part_of_it(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    attempt.death(host="there")
    take_in(ledger, attempt)
    attempt.death()
    take_in(ledger, attempt, "elsewhere")
    for lane in ("loopback", "elsewhere"):
        assert judge_late_deaths(ledger, lane) == []


def test_an_abandoned_attempt_reaches_to_the_lanes_next_one(ledger: Ledger) -> None:
    attempt = clean_attempt(closed=False)
    put(ledger, attempt)
    abandon_lost(ledger, still_clock(), "loopback", "soak-n12")
    attempt.at += 10**9
    opened = next(entry for entry in ledger.entries(kinds={"attempt_open"}))
    next_ns = attempt.at + 10**9
    ledger.append("attempt_open", "soak-n12/2", opened.data | {"attempt": 2, "at_ns": str(next_ns)})
    for pid, at, further in ((1, next_ns, 0), (2, next_ns - 2 * 10**8, 1)):
        attempt.at = at
        attempt.death(pid=pid)
        take_in(ledger, attempt)
        assert len(judge_late_deaths(ledger, "loopback")) == further
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["INCONCLUSIVE", "FAIL"]


# In a launch


class Opened(Exception):
    """The launch got as far as opening its attempt."""


def test_a_launch_takes_the_journal_in_then_settles_and_only_then_opens_its_attempt(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    done: list[str] = []
    verdict = SimpleNamespace(subject="soak-n12/1", data={"verdict": "FAIL"})

    def opened(*_: object) -> None:
        raise Opened

    def step(name: str, result: object = None) -> Callable[..., object]:
        return lambda *_: (done.append(name), result)[1]

    for name in (
        "current_enrollment",
        "stage_tables",
        "_require_free",
        "Journal",
    ):
        monkeypatch.setattr(runner, name, lambda *_: MagicMock())
    monkeypatch.setattr(runner, "check_against_model", lambda *_: ())
    monkeypatch.setattr(runner.preflight, "require_disk", lambda _: None)
    monkeypatch.setattr(runner, "lane_held", lambda *_: nullcontext())
    monkeypatch.setattr(runner, "Enrollment", MagicMock())
    monkeypatch.setattr(runner, "HostClock", MagicMock())
    monkeypatch.setattr(runner, "Intake", lambda *_: SimpleNamespace(take=step("take")))
    monkeypatch.setattr(runner, "abandon_lost", step("abandon"))
    monkeypatch.setattr(runner, "judge_late_deaths", step("late", [verdict]))
    monkeypatch.setattr(runner, "_open", opened)
    progress = SimpleNamespace(say=done.append)
    with pytest.raises(Opened):
        runner.launch(MagicMock(), MagicMock(), MagicMock(), {}, progress)  # type: ignore[arg-type]
    assert done == ["take", "abandon", "late", "a death came in late: soak-n12/1 is judged again, FAIL"]


# Producers of lost attempts


class TickingClock:
    def __init__(self) -> None:
        self.now = 100

    def __call__(self) -> int:
        self.now += 10
        return self.now


OURS = Instance(host="here", boot_id="b", pid=7, start_ticks="70")
ANOTHER = Instance(host="here", boot_id="b", pid=8, start_ticks="80")


DIGEST = "sha256:" + "a" * 64


def standing(instance: Instance) -> StartEvent:
    return StartEvent(
        instance=instance, startup_receipt_sha256=DIGEST, identity=DIGEST, cache_identity=DIGEST, mode="native"
    )


def killed_while_loading(lane: str = "loopback", at_ns: int = 105) -> Any:
    """Entries of an abandoned attempt that got as far as the intent to start its producer."""
    intent = {"action": "ritual", "at_ns": str(at_ns), "clock": {"host": "here", "boot_id": "b", "clock": "boottime"}}
    rows = {
        "attempt_abandoned": [SimpleNamespace(data={"campaign": "soak-n12", "attempt": 1})],
        "receipt": [SimpleNamespace(data={"lane": lane, "kind": "intent", "body": intent})],
    }
    return SimpleNamespace(entries=lambda *, kinds, subject_prefix="": rows[next(iter(kinds))])  # noqa: ARG005


def journal_of(tmp_path: Path, *events: Any) -> Journal:
    clock = HostClock("here", boot_id="b", clock="boottime", stamp=TickingClock(), awake=lambda: 5)
    journal = Journal(tmp_path / "work", "loopback", clock)
    for event in events:
        journal.append(event)
    return journal


RITUAL = RitualEvent(moved=(), removed=())


def test_a_producer_that_an_orchestrator_killed_in_its_load_started_is_ours_to_stop(tmp_path: Path) -> None:
    journal = journal_of(tmp_path, RITUAL, standing(OURS))
    assert started_producer(killed_while_loading(), journal, OURS)


@pytest.mark.parametrize("why", ["another lane", "before the intent", "a later ritual", "another instance"])
def test_a_producer_that_somebody_else_started_is_not(tmp_path: Path, why: str) -> None:
    if why == "a later ritual":
        journal = journal_of(tmp_path, RITUAL, RITUAL, standing(OURS))
    else:
        journal = journal_of(tmp_path, RITUAL, standing(ANOTHER if why == "another instance" else OURS))
    entries = killed_while_loading(
        lane="elsewhere" if why == "another lane" else "loopback", at_ns=10**9 if why == "before the intent" else 105
    )
    assert not started_producer(entries, journal, OURS)
