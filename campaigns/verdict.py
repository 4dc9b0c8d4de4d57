"""The verdict of an attempt: a pure function of the ledger's entries up to one of them (DESIGN section 10).

Its document holds no prose; reports word it. Nothing here knows the lane, the files or the time. Whatever shapes the
document is in the six files of ``campaigns/evaluator.py``: a verdict is reproduced byte for byte under their digest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from campaigns import criteria
from campaigns.criteria import Slot
from campaigns.spec import Criterion, criteria_of
from campaigns.statistics import failure_rate_upper
from receipts import metrics
from receipts.metrics import METRICS

EVALUATOR: Final = "soakledger/judge/1"
CONTROL: Final = "control"
_FOREVER: Final = 1 << 62
JOURNAL_BROKEN: Final = "journal-broken"
"""The deviation that intake writes when the lane's journal is not what it was, or has a gap."""


@dataclass(frozen=True)
class EntryView:
    """What the judge sees of an entry."""

    seq: int
    kind: str
    subject: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Evidence:
    """An attempt's entries, sorted by what they are."""

    opened: EntryView
    registration: EntryView
    ending: Mapping[str, Any]
    receipts: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    enrollments: Mapping[int, Mapping[str, Any]]
    repeated: frozenset[tuple[str, int]]
    """(stage, n) of handoff receipts whose handoff id was on record before: nothing new was observed there."""
    deviations: int
    is_journal_broken: bool
    """Whether the last look at the lane's journal found it broken."""
    first_seq: int
    next_open_ns: int | None
    """When the lane's next attempt was opened on this host and boot: by then this one was over."""

    @property
    def handoffs(self) -> Iterator[Mapping[str, Any]]:
        """The bodies of the attempt's handoffs, in the order in which they were recorded."""
        return (item["body"] for item in self.receipts if item["kind"] == "handoff")


def judge(
    entries: Sequence[EntryView], campaign: str, attempt: int, *, evaluator_sha256: str, tree_root: str
) -> dict[str, Any]:
    """The verdict document over ``entries``; the last of them is ``receipts.to_seq``."""
    evidence = _evidence(entries, campaign, attempt)
    resolved = evidence.registration.data["resolved"]
    stages = {stage["name"]: stage for stage in resolved["stage"] if stage["kind"] == "soak"}
    slots = {name: _slots(evidence, stage) for name, stage in stages.items()}
    judged = [
        _criterion(evidence, stages[criterion.stage], slots[criterion.stage], criterion)
        for criterion in criteria_of(resolved)
    ]
    opened = evidence.opened.data
    ended = evidence.ending["ended"]
    return {
        "v": 1,
        "campaign": campaign,
        "family": opened["family"],
        "attempt": attempt,
        "lane": opened["lane"],
        "identity": opened["identity"],
        "registration": _registration(entries, evidence),
        "evaluator": {"name": EVALUATOR, "source_sha256": evaluator_sha256},
        "ended": ended,
        "verdict": _verdict(evidence, judged),
        "criteria": judged,
        "failure_rate_upper_95": _failure_rate(stages, slots),
        "receipts": {"from_seq": evidence.first_seq, "to_seq": entries[-1].seq, "tree_root": tree_root},
        "earlier_in_family": _earlier(entries, evidence.opened),
    }


# What belongs to the attempt


def _evidence(entries: Sequence[EntryView], campaign: str, attempt: int) -> Evidence:
    subject = f"{campaign}/{attempt}"
    by_kind = {kind: [entry for entry in entries if entry.kind == kind] for kind in {entry.kind for entry in entries}}
    opened = next(entry for entry in by_kind["attempt_open"] if entry.subject == subject)
    registration = next(e for e in by_kind["registration"] if e.seq == opened.data["registration_seq"])
    mine = [
        entry
        for entry in by_kind.get("receipt", [])
        if entry.data["campaign"] == campaign and entry.data["attempt"] == attempt
    ]
    closing = [*by_kind.get("attempt_close", []), *by_kind.get("attempt_abandoned", [])]
    # The first stands, of either kind: an attempt that was given up is completed by nobody later.
    endings = [entry.data for entry in sorted(closing, key=lambda entry: entry.seq) if entry.subject == subject]
    return Evidence(
        opened=opened,
        registration=registration,
        ending=endings[0] if endings else {"ended": "abandoned"},
        receipts=tuple(entry.data for entry in mine),
        events=tuple(
            entry.data
            for entry in by_kind.get("process_event", [])
            if entry.data["record"]["lane"] == opened.data["lane"]
        ),
        enrollments={entry.seq: entry.data for entry in by_kind.get("enrollment", [])},
        repeated=_repeated(by_kind.get("receipt", []), campaign, attempt),
        deviations=sum(entry.subject == subject for entry in by_kind.get("deviation", [])),
        is_journal_broken=_is_journal_broken(by_kind, opened),
        first_seq=opened.seq + 1,
        next_open_ns=_next_open_ns(by_kind["attempt_open"], opened),
    )


def _repeated(receipts: Sequence[EntryView], campaign: str, attempt: int) -> frozenset[tuple[str, int]]:
    """The attempt's handoffs whose id an earlier receipt of the ledger has: an old receipt, or an old admission."""
    seen: set[str] = set()
    found = set()
    for entry in receipts:
        if entry.data["kind"] != "handoff":
            continue
        handoff_id = entry.data["body"]["handoff_id"]
        if handoff_id in seen and entry.data["campaign"] == campaign and entry.data["attempt"] == attempt:
            found.add((entry.data["stage"], entry.data["n"]))
        seen.add(handoff_id)
    return frozenset(found)


def _is_journal_broken(by_kind: Mapping[str, Sequence[EntryView]], opened: EntryView) -> bool:
    """Whether, between this attempt's opening and the lane's next one, the journal was last found broken.

    A record that was taken in behind the deviation says that it was whole again.
    """
    lane = opened.data["lane"]
    later = [e.seq for e in by_kind["attempt_open"] if e.seq > opened.seq and e.data["lane"] == lane]
    end = min(later, default=None)
    broken = [
        entry.seq
        for entry in by_kind.get("deviation", [])
        if entry.data.get("what") == JOURNAL_BROKEN
        and (entry.subject == opened.subject or entry.data["evidence"].get("lane") == lane)
        and entry.seq > opened.seq
        and (end is None or entry.seq < end)
    ]
    taken = [e.seq for e in by_kind.get("process_event", []) if e.data["record"]["lane"] == lane]
    return bool(broken) and max(broken) > max((seq for seq in taken if end is None or seq < end), default=-1)


def _next_open_ns(attempts: Sequence[EntryView], opened: EntryView) -> int | None:
    for entry in attempts:
        same = all(entry.data[key] == opened.data[key] for key in ("lane", "host", "boot_id"))
        if same and entry.seq > opened.seq:
            return int(entry.data["at_ns"])
    return None


def _slots(evidence: Evidence, stage: Mapping[str, Any]) -> list[Slot]:
    """Every rep that the stage was registered for, in order, a control where one was."""
    found: dict[tuple[str | None, int, int, str], Mapping[str, Any]] = {}
    for item in evidence.receipts:
        if item["stage"] == stage["name"] and item["kind"] in {"handoff", "admission"}:
            # The first of a place stands: a rep that was done again is no amnesty for the first.
            found.setdefault((item["case"], item["run"], item["rep"], item["kind"]), item)
    return [_slot(evidence, found, *place) for place in _places(stage)]


def _slot(
    evidence: Evidence,
    found: Mapping[tuple[str | None, int, int, str], Mapping[str, Any]],
    case: str | None,
    run: int,
    rep: int,
    prompt_sha256: str,
) -> Slot:
    handoff, admission = (found.get((case, run, rep, kind)) for kind in ("handoff", "admission"))
    if handoff is None:
        return Slot(case, run, rep, None, False, prompt_sha256)
    opened = evidence.opened.data
    acknowledged = (handoff["stage"], handoff["n"]) not in evidence.repeated and metrics.is_acknowledged(
        handoff["body"],
        None if admission is None else admission["body"],
        opened,
        evidence.enrollments.get(opened["enrollment_seq"]),
    )
    return Slot(case, run, rep, handoff["body"], acknowledged, prompt_sha256)


def _places(stage: Mapping[str, Any]) -> Iterator[tuple[str | None, int, int, str]]:
    for run in range(1, stage["runs"] + 1):
        if stage["control"]:
            yield CONTROL, run, 1, stage["control"]["prompt_sha256"]
        for rep in range(1, stage["reps"] + 1):
            yield None, run, rep, stage["prompt"]["prompt_sha256"]
        if stage["control"]:
            yield CONTROL, run, 2, stage["control"]["prompt_sha256"]


def _criterion(
    evidence: Evidence, stage: Mapping[str, Any], slots: Sequence[Slot], criterion: Criterion
) -> dict[str, Any]:
    metric = METRICS[criterion.metric]
    deaths = _deaths(evidence, stage, slots) if metric.kind == "deaths" else None
    samples = criteria.samples_of(criterion, metric, slots, deaths.known if deaths else None)
    judgement = criteria.evaluate(criterion, metric, samples)
    document = criteria.document(criterion, judgement, metric, samples)
    if deaths is not None and deaths.found:
        document["deaths"] = list(deaths.found[: metrics.MOST_DEATHS])
    return document


# Deaths


@dataclass(frozen=True)
class _Deaths:
    """Deaths by rep; a rep that is not a key is one over whose span nothing is known."""

    known: Mapping[tuple[int, int], int]
    found: tuple[dict[str, Any], ...]
    """As the verdict lists them: rep, site, status, injected."""


def _deaths(evidence: Evidence, stage: Mapping[str, Any], slots: Sequence[Slot]) -> _Deaths:
    """Natural deaths in each rep's span; nothing is known without a gapless journal on the runner's own clock."""
    heads = [handoff["producer"]["journal"] for handoff in evidence.handoffs if handoff["producer"]]
    is_whole = metrics.is_gapless(evidence.events, [head for head in heads if head])
    if evidence.is_journal_broken or not is_whole or not _is_one_clock(evidence, slots):
        return _Deaths({}, ())
    deaths = metrics.deaths_on(evidence.events, evidence.opened.data["host"], evidence.opened.data["boot_id"])
    if _served_after_its_death(evidence, deaths):
        return _Deaths({}, ())
    known: dict[tuple[int, int], int] = {}
    found: list[dict[str, Any]] = []
    for run, rep, start, end in _spans(evidence, stage, slots):
        inside = [(body, injected) for died_ns, body, injected in deaths if start < died_ns <= end]
        known[run, rep] = sum(not injected for _, injected in inside)
        found += [
            {"rep": rep, "site": body["site"], "status": body["status"], "injected": injected}
            for body, injected in inside
        ]
    for slot in slots:
        # A run that ended before its first rep: what died in it died on the way to that rep.
        if slot.case is None and slot.handoff is None and known.get((slot.run, slot.rep)) == 0:
            del known[slot.run, slot.rep]
    return _Deaths(known, tuple(found))


def _served_after_its_death(evidence: Evidence, deaths: Sequence[tuple[int, Mapping[str, Any], bool]]) -> bool:
    """Whether an instance took a request after it was recorded as dead: then nobody knows when it died."""
    died = {metrics.instance_text(body["instance"]): died_ns for died_ns, body, _ in deaths}
    for handoff in evidence.handoffs:
        producer = handoff["producer"]
        if producer is not None and producer["request_ns"] is not None:
            died_ns = died.get(metrics.instance_text(producer))
            if died_ns is not None and died_ns < int(producer["request_ns"]):
                return True
    return False


def _spans(evidence: Evidence, stage: Mapping[str, Any], slots: Sequence[Slot]) -> Iterator[tuple[int, int, int, int]]:
    """(run, rep, start, end]: from the end of the rep before (or the run's start) to the rep's own end.

    The first run starts with its stage. The last rep that was observed in a run reaches to the next run's start, or to
    the stage's close.
    """
    starts = _run_starts(evidence, stage)
    for run in range(1, stage["runs"] + 1):
        if run not in starts:
            continue
        reps = [slot for slot in slots if slot.run == run and slot.case is None]
        observed = [slot for slot in reps if slot.handoff is not None]
        close = starts.get(run + 1, _stage_close(evidence, stage["name"]))
        start = starts[run]
        for slot in observed or reps[:1]:
            last = not observed or slot is observed[-1]
            end = close if last or slot.ended_ns is None else slot.ended_ns
            yield run, slot.rep, start, end
            start = end


def _run_starts(evidence: Evidence, stage: Mapping[str, Any]) -> dict[int, int]:
    """When each run began: its first intent."""
    starts: dict[int, int] = {}
    for item in evidence.receipts:
        if item["stage"] == stage["name"] and item["kind"] == "intent" and item["run"] is not None:
            at = int(item["body"]["at_ns"])
            starts[item["run"]] = min(starts.get(item["run"], at), at)
    started = _stage_time(evidence, stage["name"], "started_ns")
    if 1 in starts and started is not None:
        starts[1] = min(starts[1], started)
    return starts


def _stage_close(evidence: Evidence, name: str) -> int:
    """When the stage closed; of an abandoned one it is known that it was over when the lane's next attempt opened."""
    closed = _stage_time(evidence, name, "closed_ns")
    if closed is not None:
        return closed
    return _FOREVER if evidence.next_open_ns is None else evidence.next_open_ns


def _stage_time(evidence: Evidence, name: str, key: str) -> int | None:
    for stage in evidence.ending.get("stages", ()):
        if stage["stage"] == name and stage[key] is not None:
            return int(stage[key])
    return None


def _is_one_clock(evidence: Evidence, slots: Sequence[Slot]) -> bool:
    """Whether every producer that was seen stamps with the runner's host and boot: else no death can be placed."""
    opened = evidence.opened.data
    producers = [slot.handoff["producer"] for slot in slots if slot.handoff is not None]
    return all(
        block["host"] == opened["host"] and block["boot_id"] == opened["boot_id"]
        for block in producers
        if block is not None
    )


# The verdict


def _verdict(evidence: Evidence, judged: Sequence[Mapping[str, Any]]) -> str:
    outcomes = {item["outcome"] for item in judged}
    if "not_met" in outcomes:
        return "FAIL"
    closed = {stage["stage"]: stage["reached_end"] for stage in evidence.ending.get("stages", ())}
    to_the_end = all(closed.get(stage["name"]) for stage in evidence.registration.data["resolved"]["stage"])
    if "invalid" in outcomes or evidence.ending["ended"] != "complete" or not to_the_end:
        return "INCONCLUSIVE"
    cleanup_failed = any(not item["ok"] for item in evidence.ending.get("cleanup", ()))
    weaker = bool(evidence.registration.data["weaker"])
    if "deviation" in outcomes or evidence.deviations or cleanup_failed or weaker:
        return "DEVIATION"
    return "PASS"


def _registration(entries: Sequence[EntryView], evidence: Evidence) -> dict[str, Any]:
    opened = evidence.opened
    anchored = any(
        entry.kind == "anchor" and entry.seq < opened.seq and entry.data.get("tree_size", 0) > evidence.registration.seq
        for entry in entries
    )
    weaker = evidence.registration.data["weaker"]
    return {
        "spec_sha256": opened.data["spec_sha256"],
        "seq": evidence.registration.seq,
        "attempt_open_seq": opened.seq,
        "checkpoint_note_sha256": opened.data["checkpoint_note_sha256"],
        "anchored": anchored,
        "weaker_than": [dict(item) for item in weaker] or None,
    }


def _failure_rate(
    stages: Mapping[str, Mapping[str, Any]], slots: Mapping[str, Sequence[Slot]]
) -> dict[str, Any] | None:
    """Failures among the registered reps that were observed, and among their runs, with 95 % upper bounds."""
    failures = trials = runs = runs_failed = 0
    for name, stage in stages.items():
        reps = [slot for slot in slots[name] if slot.case is None and slot.rep_class in {"measured", "errored"}]
        for run in range(1, stage["runs"] + 1):
            seen = [slot for slot in reps if slot.run == run]
            failed = sum(slot.rep_class == "errored" for slot in seen)
            failures, trials = failures + failed, trials + len(seen)
            # A run that was cut short without a failure says nothing about whole runs.
            if failed or len(seen) == stage["reps"]:
                runs, runs_failed = runs + 1, runs_failed + bool(failed)
    if trials == 0:
        return None
    return {
        "failures": failures,
        "of": trials,
        "per_rep": failure_rate_upper(failures, trials),
        "runs_failed": runs_failed,
        "runs": runs,
        "per_run": failure_rate_upper(runs_failed, runs),
    }


def _earlier(entries: Sequence[EntryView], opened: EntryView) -> list[dict[str, Any]]:
    """Every attempt of the family before this one, with the latest verdict on it, null where none stands."""
    verdicts = {entry.subject: entry.data["verdict"] for entry in entries if entry.kind == "verdict"}
    return [
        {
            "campaign": entry.data["campaign"],
            "attempt": entry.data["attempt"],
            "verdict": verdicts.get(entry.subject),
        }
        for entry in entries
        if entry.kind == "attempt_open" and entry.seq < opened.seq and entry.data["family"] == opened.data["family"]
    ]
