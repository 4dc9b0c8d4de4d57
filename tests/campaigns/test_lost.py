"""What a launch settles first: whose attempts are lost, and which verdicts a late death overtakes."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from judged import Attempt, criterion
from judged_ledger import DIGEST, clean_attempt, new_ledger, put, refs, still_clock, verdicts

from campaigns import judging, runner
from campaigns.lost import abandon_lost, judge_late_records, started_producer
from campaigns.progress import PlainProgress
from campaigns.registration import Registered
from ledger.audit import verify
from ledger.store import Ledger
from producer import identity as identities
from producer.host import linux
from producer.journal import Journal
from producer.lane import Lane, LaneConfig
from receipts import canonical
from receipts.clock import HostClock
from receipts.events import DeathEvent, RitualEvent, StartEvent
from receipts.kinds import Document, Instance
from receipts.leaves import Registration
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
        abandon_lost(ledger, still_clock(), "loopback")
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
    abandon_lost(ledger, still_clock(), "loopback")
    assert judging.rejudge(ledger, "soak-n12", 1).document["verdict"] == "INCONCLUSIVE"
    report = verify(ledger.home)
    assert (report.ok, report.orphans) == (True, (orphan,))


def test_an_attempt_that_was_closed_and_not_judged_gets_its_verdict(ledger: Ledger) -> None:
    put(ledger, clean_attempt())
    abandon_lost(ledger, still_clock(), "loopback")
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["PASS"]


@pytest.mark.parametrize("closed", [True, False])
def test_an_attempt_whose_process_still_runs_is_left_to_it(ledger: Ledger, closed: bool) -> None:
    put(ledger, clean_attempt(closed=closed), **myself())
    abandon_lost(ledger, still_clock(), "loopback")
    assert kinds(ledger) == []


@pytest.mark.parametrize("closed", [True, False])
def test_an_attempt_of_another_lane_is_left_to_that_lanes_launch(ledger: Ledger, closed: bool) -> None:
    """Its journal was not taken in: a death in it would count as none."""
    put(ledger, clean_attempt(closed=closed))
    abandon_lost(ledger, still_clock(), "elsewhere")
    assert kinds(ledger) == []


@pytest.mark.parametrize("closed", [True, False])
def test_an_attempt_of_another_host_is_left_alone(ledger: Ledger, closed: bool) -> None:
    put(ledger, clean_attempt(closed=closed))
    abandon_lost(ledger, still_clock("there"), "loopback")
    assert kinds(ledger) == []


def test_a_lost_attempt_is_closed_by_any_campaigns_launch_on_its_lane(ledger: Ledger) -> None:
    """``abandon_lost`` is not told which campaign is launched: the lane is held, and nobody else will."""
    put(ledger, clean_attempt(closed=False))
    (verdict,) = abandon_lost(ledger, still_clock(), "loopback")
    assert (verdict.subject, verdict.data["verdict"]) == ("soak-n12/1", "INCONCLUSIVE")
    assert abandon_lost(ledger, still_clock(), "loopback") == []


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
    record = data["record"] | {"lane": lane, "at_ns": str(attempt.at)}
    digest = canonical.sha256(canonical.file_bytes(record))
    attempt.entries[-1] = replace(attempt.entries[-1], data=data | {"record": record, "record_sha256": digest})
    ledger.append("process_event", f"{lane}/{record['n']}", attempt.entries[-1].data | {"merged_n": []})


def test_a_death_that_came_in_after_the_verdict_causes_a_further_one(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    attempt.death(site="not_known", status=None)
    take_in(ledger, attempt)
    further = judge_late_records(ledger, "loopback")
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.json", "SOAK_VERDICT.2.json"]
    assert further == verdicts(ledger)[1:]
    first, second = (entry.data for entry in verdicts(ledger))
    assert (first["verdict"], second["verdict"]) == ("PASS", "FAIL")
    assert criterion(second, "no-producer-death")["deaths"] == [
        {"rep": 12, "site": "not_known", "status": None, "injected": False}
    ]
    # The first stays what it was, the second is what judging again gives, and it is final.
    assert judging.rejudge(ledger, "soak-n12", 1).document == second
    assert judge_late_records(ledger, "loopback") == []


def test_a_further_record_of_a_death_that_was_judged_is_no_news(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    for site in ("watchdog", "not_known"):
        attempt.death(site=site)
        take_in(ledger, attempt)
        judge_late_records(ledger, "loopback")
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["PASS", "FAIL"]


def test_a_death_before_the_attempt_or_behind_its_close_is_no_part_of_it(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    closed_ns = attempt.at + 2 * 10**9
    for pid, at in ((1, attempt.started - 10**9), (2, closed_ns)):
        attempt.at = at
        attempt.death(pid=pid)  # a tenth of a second from then
        take_in(ledger, attempt)
    assert judge_late_records(ledger, "loopback") == []


def test_a_death_of_another_lane_or_host_is_no_part_of_it(ledger: Ledger) -> None:
    attempt = judged_attempt(ledger)
    attempt.death(host="there")
    take_in(ledger, attempt)
    attempt.death()
    take_in(ledger, attempt, "elsewhere")
    for lane in ("loopback", "elsewhere"):
        assert judge_late_records(ledger, lane) == []


def test_an_abandoned_attempt_reaches_to_the_lanes_next_one(ledger: Ledger) -> None:
    attempt = clean_attempt(closed=False)
    put(ledger, attempt)
    abandon_lost(ledger, still_clock(), "loopback")
    attempt.at += 10**9
    opened = next(entry for entry in ledger.entries(kinds={"attempt_open"}))
    next_ns = attempt.at + 10**9
    ledger.append("attempt_open", "soak-n12/2", opened.data | {"attempt": 2, "at_ns": str(next_ns)})
    for pid, at, further in ((1, next_ns, 0), (2, next_ns - 2 * 10**8, 1)):
        attempt.at = at
        attempt.death(pid=pid)
        take_in(ledger, attempt)
        assert len(judge_late_records(ledger, "loopback")) == further
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["INCONCLUSIVE", "FAIL"]


# Other records that came in late


def judged_over_a_broken_journal(ledger: Ledger) -> Attempt:
    """Closed and judged INCONCLUSIVE, because its last look found the journal broken."""
    attempt = clean_attempt()
    put(ledger, attempt)
    broken = {"campaign": "soak-n12", "attempt": 1, "what": "journal-broken", "text": "record 2 is missing"}
    ledger.append("deviation", "soak-n12/1", broken | {"evidence": {"lane": "loopback", "taken": 1}})
    assert judging.store_verdict(ledger, "soak-n12", 1).document["verdict"] == "INCONCLUSIVE"
    return attempt


def take_in_at(ledger: Ledger, attempt: Attempt, at_ns: int, **changed: str) -> None:
    """Append a record of a commanded stop that was journalled at ``at_ns``, as intake does."""
    attempt.event("stop", {})
    data = attempt.entries[-1].data
    record = data["record"] | {"at_ns": str(at_ns)} | changed
    digest = canonical.sha256(canonical.file_bytes(record))
    ledger.append(
        "process_event", f"loopback/{record['n']}", data | {"record": record, "record_sha256": digest, "merged_n": []}
    )


def test_a_record_of_the_attempts_time_that_makes_its_journal_whole_causes_a_further_verdict(ledger: Ledger) -> None:
    attempt = judged_over_a_broken_journal(ledger)
    take_in_at(ledger, attempt, attempt.at - 10**9)
    assert judge_late_records(ledger, "loopback") == verdicts(ledger)[1:]
    assert [entry.data["verdict"] for entry in verdicts(ledger)] == ["INCONCLUSIVE", "DEVIATION"]
    assert judging.rejudge(ledger, "soak-n12", 1).document["verdict"] == "DEVIATION"
    assert judge_late_records(ledger, "loopback") == []


@pytest.mark.parametrize("why", ["before it", "behind its close", "another host", "another boot"])
def test_a_record_that_is_not_of_the_attempts_time_causes_none(ledger: Ledger, why: str) -> None:
    attempt = judged_over_a_broken_journal(ledger)
    at = {"before it": attempt.started - 1, "behind its close": attempt.at + 1}.get(why, attempt.at - 1)
    changed = {"another host": {"host": "there"}, "another boot": {"boot_id": "c"}}.get(why, {})
    take_in_at(ledger, attempt, at, **changed)
    assert judge_late_records(ledger, "loopback") == []


def test_a_record_that_changes_nothing_of_what_is_said_causes_none(ledger: Ledger) -> None:
    attempt = clean_attempt()
    put(ledger, attempt)
    judging.store_verdict(ledger, "soak-n12", 1)
    take_in_at(ledger, attempt, attempt.at - 10**9)
    assert judge_late_records(ledger, "loopback") == []
    assert len(verdicts(ledger)) == 1


# In a launch


class Opened(Exception):
    """The launch got as far as opening its attempt."""


class UntilOpened(PlainProgress):
    """Ends the launch where it says that its attempt is open; keeps what was said."""

    def __init__(self) -> None:
        super().__init__(stream=io.StringIO())
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)
        if "opened as entry" in text:
            raise Opened


LANE = """\
schema = "soakledger/lane/1"
name = "loopback"
[host.here]
control = "local"
address = "127.0.0.1"
interface = "lo"
[producer]
host = "here"
runtime = "process"
key = "producer-handoff.key"
work_dir = "work"
checkpoint = "checkpoint"
identity = "identity.json"
lease = "gpu.lock"
kv_cache_memory_bytes = 1073741824
context_tokens = 8192
chunk_tokens = 1024
threads = 2
[receiver]
host = "here"
work_dir = "receiver-work"
memory_limit_bytes = 2147483648
enrolled = "enrolled/"
producer_mode = "native"
key = "handoff.key"
[orchestrator]
host = "here"
[ports]
handoff = 47900
probe = 47901
control = 47902
[path]
kind = "loopback"
transfer = "after"
"""


def enrolled_lane(ledger: Ledger, folder: Path) -> Lane:
    """A lane without a process, enrolled in this ledger."""
    identity = {"format": "soakledger/identity/1", "geometry": {"vocab_size": 50_000, "context_tokens": 8192}}
    (folder / "identity.json").write_bytes(canonical.file_bytes(identity))
    (folder / "lane.toml").write_text(LANE, "utf-8")
    (folder / "work").mkdir()
    first = next(iter(ledger.entries(kinds={"enrollment"})))
    digests = {"identity_sha256": identities.digest(identity), "cache_identity": DIGEST, "handoff_key_id": DIGEST}
    ledger.append("enrollment", "loopback", first.data | {"identity": identity, "template_sha256": {}} | digests)
    return LaneConfig.load(folder / "lane.toml")


def write_journal(lane: Lane, attempt: Attempt, *last: Document) -> None:
    """The journal on the producer's host: what the ledger has of it, and ``last``, else the death that it lacks."""
    folder = Journal(lane.producer.work_dir, "loopback", HostClock("here")).folder
    folder.mkdir(parents=True)
    records = [entry.data["record"] for entry in attempt.entries if entry.kind == "process_event"]
    for record in records[:-1]:
        (folder / f"{record['n']:08d}.json").write_bytes(canonical.file_bytes(record))
    clock = HostClock("here", boot_id="b", clock="boottime", stamp=lambda: attempt.at, awake=lambda: attempt.at)
    body = records[-1]["body"]
    death = DeathEvent(
        instance=Instance(**body["instance"]), site="watchdog", status=75, signal=None, reason="r", uptime_ns=None,
        last_handoff_id=None, died_ns=body["died_ns"], observed_by="keeper",
    )  # fmt: skip
    for event in last or (death,):
        Journal(lane.producer.work_dir, "loopback", clock).append(event)


@pytest.mark.parametrize("lost", [True, False], ids=["its attempt was lost", "its attempt was judged PASS"])
def test_a_death_that_the_journal_alone_knows_of_is_judged_before_the_next_attempt_opens(
    ledger: Ledger, tmp_path: Path, lost: bool
) -> None:
    """The launch takes the journal in, settles what went before, and only then opens its attempt."""
    if lost:
        attempt = clean_attempt(closed=False)
        put(ledger, attempt)
    else:
        attempt = judged_attempt(ledger)
    attempt.at -= 10**9 if lost else 0
    attempt.death()
    lane = enrolled_lane(ledger, tmp_path)
    write_journal(lane, attempt)
    registration = next(iter(ledger.entries(kinds={"registration"})))
    registered = Registered(registration, Registration.read(registration.data), False)
    before, progress = ledger.size(), UntilOpened()
    with pytest.raises(Opened):
        runner.launch(ledger, lane, registered, {}, progress)
    settled = [entry for entry in ledger.entries(before) if entry.kind != "deviation"]
    assert [entry.kind for entry in settled] == [
        "process_event", *(["attempt_abandoned"] if lost else []), "verdict", "attempt_open",
    ]  # fmt: skip
    judged, opened = settled[-2:]
    assert (judged.subject, opened.subject) == ("soak-n12/1", "soak-n12/2")
    # A death that was not taken in first would not count.
    assert (judged.data["verdict"], criterion(judged.data, "no-producer-death")["outcome"]) == ("FAIL", "not_met")
    if not lost:
        assert "what the journal told late belongs to an attempt: soak-n12/1 is judged again, FAIL" in progress.said


@pytest.mark.parametrize("closed", [False, True], ids=["its attempt was lost", "its attempt had closed"])
def test_a_producer_that_went_with_its_keeper_and_its_host_is_a_death_of_the_attempt_that_was_lost_with_it(
    ledger: Ledger, tmp_path: Path, closed: bool
) -> None:
    """The journal has its start and nothing more; the launch writes the death before it takes the journal in."""
    attempt = clean_attempt(closed=closed)
    put(ledger, attempt)
    lane = enrolled_lane(ledger, tmp_path)
    attempt.death()  # its record is left out below
    write_journal(lane, attempt, RITUAL, standing(Instance(host="here", boot_id="b", pid=4711, start_ticks="9")))
    registration = next(iter(ledger.entries(kinds={"registration"})))
    registered = Registered(registration, Registration.read(registration.data), False)
    progress = UntilOpened()
    with pytest.raises(Opened):
        runner.launch(ledger, lane, registered, {}, progress)
    (death,) = [item.data["record"] for item in ledger.entries(kinds={"process_event"}) if "died_ns" in str(item.data)]
    assert (death["body"]["site"], death["body"]["observed_by"]) == ("not_known", "runner")
    assert "producer pid 4711 is gone, and nobody had written its death; the journal has it now" in progress.said
    outcome = criterion(verdicts(ledger)[-1].data, "no-producer-death")["outcome"]
    assert (len(verdicts(ledger)), outcome) == (1, "met" if closed else "not_met")


# Producers of lost attempts


class TickingClock:
    def __init__(self) -> None:
        self.now = 100

    def __call__(self) -> int:
        self.now += 10
        return self.now


OURS = Instance(host="here", boot_id="b", pid=7, start_ticks="70")
ANOTHER = Instance(host="here", boot_id="b", pid=8, start_ticks="80")


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
