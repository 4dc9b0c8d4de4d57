"""What a launch settles first: attempts whose orchestrator is gone, and records that came in after the verdict.

Of its own lane and host only: of another lane's attempts neither the journal was taken in nor the lock is held.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from campaigns import judging
from ledger.entry import Entry
from ledger.reading import readable
from ledger.store import Ledger
from producer.host import linux
from producer.journal import Journal
from receipts import metrics
from receipts.clock import HostClock
from receipts.kinds import Instance, attempt_folder
from receipts.leaves import AttemptAbandoned, AttemptOpen


def is_running(opened: AttemptOpen) -> bool:
    """Whether exactly the process that opened the attempt still runs here."""
    return linux.is_alive(
        Instance(host=opened.host, boot_id=opened.boot_id, pid=opened.pid, start_ticks=opened.start_ticks)
    )


def abandon_lost(ledger: Ledger, clock: HostClock, lane: str) -> list[Entry]:
    """Abandon the attempts on this lane whose orchestrator is gone, of any campaign; judge each without a verdict.

    Returns the verdicts' entries.
    """
    verdicts = []
    for entry in ledger.entries(kinds={"attempt_open"}):
        opened = AttemptOpen.read(entry.data)
        # Whoever still runs may be closing it at this moment; on another host nobody can say.
        if opened.lane != lane or opened.host != clock.host or is_running(opened):
            continue
        if not any(ledger.latest(kind, entry.subject) for kind in ("attempt_close", "attempt_abandoned")):
            found = "another boot" if opened.boot_id != clock.boot_id else "its process is gone"
            ledger.append("attempt_abandoned", entry.subject, _abandoned(opened, found).document())
        if ledger.latest("verdict", entry.subject) is None:
            judged = judging.store_verdict(ledger, opened.campaign, opened.attempt)
            if judged.entry is not None:
                verdicts.append(judged.entry)
    return verdicts


def _abandoned(opened: AttemptOpen, found: str) -> AttemptAbandoned:
    return AttemptAbandoned(
        campaign=opened.campaign,
        attempt=opened.attempt,
        ended="abandoned",
        found=found,
        pid=opened.pid,
        start_ticks=opened.start_ticks,
        boot_id=opened.boot_id,
    )


def started_producer(ledger: Ledger, journal: Journal, instance: Instance) -> bool:
    """Whether an abandoned attempt of the journal's lane started this producer.

    Its ritual receipt says so; an orchestrator that was killed while the producer loaded left only the intent, and
    then the journal does: the first ritual after the intent, and the first start after that.
    """
    with readable(ledger):
        return _started_producer(ledger, journal, instance)


def _started_producer(ledger: Ledger, journal: Journal, instance: Instance) -> bool:
    for entry in ledger.entries(kinds={"attempt_abandoned"}):
        prefix = attempt_folder(entry.data["campaign"], entry.data["attempt"]) + "/"
        intent: dict[str, Any] | None = None
        for receipt in ledger.entries(kinds={"receipt"}, subject_prefix=prefix):
            kind, body = receipt.data["kind"], receipt.data["body"]
            if receipt.data["lane"] != journal.lane:
                break
            if kind == "ritual":
                intent = None
                if body["instance"] == instance.document():
                    return True
            elif kind == "intent" and body["action"] == "ritual":
                intent = body
        if intent is not None and _first_start_after(journal, intent) == instance.document():
            return True
    return False


def _first_start_after(journal: Journal, intent: dict[str, Any]) -> dict[str, Any] | None:
    """The instance of the first start behind the first ritual after ``intent``; None if a second ritual came first."""
    later = []
    for record in journal.backwards():
        if record.boot_id != intent["clock"]["boot_id"] or int(record.at_ns) <= int(intent["at_ns"]):
            break
        later.append(record)
    rituals = 0
    for record in reversed(later):
        rituals += record.kind == "ritual"
        if rituals > 1:
            return None
        if rituals and record.kind == "start":
            return dict(record.body["instance"])
    return None


# Records that came in late


def judge_late_records(ledger: Ledger, lane: str) -> list[Entry]:
    """A further verdict on each judged attempt of the lane to which a record belongs that its last verdict lacks.

    A death always causes one; any other record only where the judge now says something else, as it does when a journal
    that could not be read is whole again. Rests on the entries alone, so that a run that was killed between intake and
    here is made good by the next one. Returns the new verdicts' entries.
    """
    records = list(ledger.entries(kinds={"process_event"}, subject_prefix=f"{lane}/"))
    further = []
    for judged in list(_judged(ledger, lane)):
        if _has_late_death(judged, records) or (_has_late_record(judged, records) and _is_overtaken(ledger, judged)):
            verdict = judging.store_verdict(ledger, judged.opened.campaign, judged.opened.attempt).entry
            assert verdict is not None
            further.append(verdict)
    return further


@dataclass(frozen=True)
class _JudgedAttempt:
    """An attempt with a verdict: what that saw, and the time that the attempt took on its own clock."""

    opened: AttemptOpen
    verdict: dict[str, Any]
    end_ns: int | None
    """None while nothing says when it was over."""

    @property
    def to_seq(self) -> int:
        return int(self.verdict["receipts"]["to_seq"])

    def spans(self, at_ns: int) -> bool:
        return int(self.opened.at_ns) < at_ns and (self.end_ns is None or at_ns <= self.end_ns)


def _judged(ledger: Ledger, lane: str) -> Iterator[_JudgedAttempt]:
    attempts = [
        (entry.subject, opened)
        for entry in ledger.entries(kinds={"attempt_open"})
        if (opened := AttemptOpen.read(entry.data)).lane == lane
    ]
    for place, (subject, opened) in enumerate(attempts):
        verdict = ledger.latest("verdict", subject)
        if verdict is None:
            continue
        close = ledger.latest("attempt_close", subject)
        # One that nobody closed was over when the lane's next one opened.
        later = (
            item for _, item in attempts[place + 1 :] if (item.host, item.boot_id) == (opened.host, opened.boot_id)
        )
        following = next(later, None)
        end = close.data["at_ns"] if close is not None else following.at_ns if following is not None else None
        yield _JudgedAttempt(opened, verdict.data, None if end is None else int(end))


def _has_late_death(judged: _JudgedAttempt, records: Sequence[Entry]) -> bool:
    opened = judged.opened

    def inside(known: Sequence[Entry]) -> list[dict[str, Any]]:
        found = metrics.deaths_on([entry.data for entry in known], opened.host, opened.boot_id)
        return [dict(body) for died_ns, body, _ in found if judged.spans(died_ns)]

    # A second record of a death that was known then is no news.
    return inside(records) != inside([entry for entry in records if entry.seq <= judged.to_seq])


def _has_late_record(judged: _JudgedAttempt, records: Sequence[Entry]) -> bool:
    opened = judged.opened
    return any(
        entry.seq > judged.to_seq
        and (record := entry.data["record"])["host"] == opened.host
        and record["boot_id"] == opened.boot_id
        and judged.spans(int(record["at_ns"]))
        for entry in records
    )


_OF_ITS_MOMENT: Final = ("receipts", "earlier_in_family", "evaluator")
"""Members of a verdict that say when it was made and by whom, and nothing of the attempt."""


def _is_overtaken(ledger: Ledger, judged: _JudgedAttempt) -> bool:
    """Whether the judge says something else of the attempt over all that is there now."""
    now = judging.compute(ledger, judged.opened.campaign, judged.opened.attempt, ledger.size() - 1)
    return any(now[name] != judged.verdict[name] for name in now if name not in _OF_ITS_MOMENT)
