"""The verdict of an attempt: a pure function of the ledger's entries up to one of them (DESIGN section 10).

Its document holds no prose; reports word it. Nothing here knows the lane, the files or the time.
"""

from __future__ import annotations

import base64
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from campaigns import criteria
from campaigns.criteria import RepClass, Sample
from campaigns.spec import Criterion, criteria_of
from campaigns.statistics import failure_rate_upper
from receipts import canonical, metrics
from receipts.metrics import METRICS, Metric, Observation

EVALUATOR: Final = "soakledger/judge/1"
ACK_LABEL: Final = b"soakledger/ack/1\n"
CONTROL: Final = "control"
_CUT_SHORT: Final = frozenset({"interrupted"})


@dataclass(frozen=True)
class EntryView:
    """What the judge sees of an entry."""

    seq: int
    kind: str
    subject: str
    data: Mapping[str, Any]


@dataclass(frozen=True)
class Slot:
    """One expected rep of a stage and what was recorded of it; None where nothing was."""

    case: str | None
    run: int
    rep: int
    handoff: Mapping[str, Any] | None
    acknowledged: bool
    prompt_sha256: str

    @property
    def ended_ns(self) -> int | None:
        return None if self.handoff is None else int(self.handoff["runner"]["ended_ns"])

    @property
    def started_ns(self) -> int | None:
        return None if self.handoff is None else int(self.handoff["runner"]["started_ns"])

    @property
    def rep_class(self) -> RepClass:
        if self.handoff is None or self.handoff["outcome"] in _CUT_SHORT:
            return "missing"
        if not self.acknowledged:
            return "errored"
        # An acknowledged handoff of another prompt says nothing of the rep that was registered.
        return "measured" if self.handoff["prompt_sha256"] == self.prompt_sha256 else "missing"


@dataclass(frozen=True)
class Death:
    """A death that belongs to the attempt, and the rep whose span it fell into."""

    run: int
    rep: int
    site: str
    status: int | None
    injected: bool


@dataclass(frozen=True)
class Evidence:
    """An attempt's entries, sorted by what they are."""

    opened: EntryView
    registration: EntryView
    ending: Mapping[str, Any]
    receipts: tuple[Mapping[str, Any], ...]
    events: tuple[Mapping[str, Any], ...]
    enrollments: Mapping[int, Mapping[str, Any]]
    deviations: int
    first_seq: int
    next_open_ns: int | None
    """When the lane's next attempt was opened on this host and boot: by then this one was over."""


def judge(
    entries: Sequence[EntryView], campaign: str, attempt: int, *, evaluator_sha256: str, tree_root: str
) -> dict[str, Any]:
    """The verdict document over ``entries``; the last of them is ``receipts.to_seq``."""
    evidence = _evidence(entries, campaign, attempt)
    resolved = evidence.registration.data["resolved"]
    judged = [_criterion(evidence, resolved, criterion) for criterion in criteria_of(resolved)]
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
        "failure_rate_upper_95": _failure_rate(evidence, resolved),
        "receipts": {"from_seq": evidence.first_seq, "to_seq": entries[-1].seq, "tree_root": tree_root},
        "earlier_in_family": _earlier(entries, evidence.opened),
    }


def check_numbers(entries: Sequence[EntryView], attempt: int) -> list[str]:
    """Gaps in the running numbers of each stage, and numbers that ``attempt_close`` knows and no receipt has."""
    seen: dict[str, list[int]] = {}
    faults = []
    for entry in entries:
        if entry.kind == "receipt" and entry.data["attempt"] == attempt:
            seen.setdefault(entry.data["stage"], []).append(entry.data["n"])
    last: dict[str, int] = {}
    for entry in entries:
        if entry.kind == "attempt_close" and entry.data["attempt"] == attempt:
            last.update({stage["stage"]: stage["last_n"] for stage in entry.data["stages"]})
    for stage in sorted(seen.keys() | last.keys()):
        numbers = seen.get(stage, [])
        expected = range(1, max([*numbers, last.get(stage, 0)], default=0) + 1)
        faults += [f"stage {stage}: receipt {n} is missing" for n in expected if n not in set(numbers)]
        faults += [f"stage {stage}: receipt {n} stands twice" for n in sorted(set(numbers)) if numbers.count(n) > 1]
    return faults


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
    endings = [
        entry.data
        for kind in ("attempt_close", "attempt_abandoned")
        for entry in by_kind.get(kind, [])
        if entry.subject == subject
    ]
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
        deviations=sum(entry.subject == subject for entry in by_kind.get("deviation", [])),
        first_seq=opened.seq + 1,
        next_open_ns=_next_open_ns(by_kind["attempt_open"], opened),
    )


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
            found.setdefault((item["case"], item["run"], item["rep"], item["kind"]), item["body"])
    slots = []
    for case, run, rep, prompt in _places(stage):
        handoff = found.get((case, run, rep, "handoff"))
        admission = found.get((case, run, rep, "admission"))
        acknowledged = handoff is not None and _is_acknowledged(evidence, handoff, admission)
        slots.append(Slot(case, run, rep, handoff, acknowledged, prompt))
    return slots


def _places(stage: Mapping[str, Any]) -> Iterator[tuple[str | None, int, int, str]]:
    for run in range(1, stage["runs"] + 1):
        if stage["control"]:
            yield CONTROL, run, 1, stage["control"]["prompt_sha256"]
        for rep in range(1, stage["reps"] + 1):
            yield None, run, rep, stage["prompt"]["prompt_sha256"]
        if stage["control"]:
            yield CONTROL, run, 2, stage["control"]["prompt_sha256"]


def _is_acknowledged(evidence: Evidence, handoff: Mapping[str, Any], admission: Mapping[str, Any] | None) -> bool:
    """Outcome acknowledged, the admission receipt there, its digest as named, both roots equal, the signature good."""
    receiver = handoff["receiver"]
    if handoff["outcome"] != "acknowledged" or admission is None or receiver is None or handoff["producer"] is None:
        return False
    if canonical.sha256(canonical.file_bytes(dict(admission))) != receiver["admission"]:
        return False
    if admission["handoff_id"] != handoff["handoff_id"] or admission["root"] != receiver["root"]:
        return False
    if handoff["payload_root"] != receiver["root"] or admission["prompt_sha256"] != handoff["prompt_sha256"]:
        return False
    enrollment = evidence.enrollments.get(receiver["enrollment_seq"])
    if enrollment is None or receiver["enrollment_seq"] != evidence.opened.data["enrollment_seq"]:
        return False
    return _signature_holds(enrollment, handoff, admission)


def _signature_holds(enrollment: Mapping[str, Any], handoff: Mapping[str, Any], admission: Mapping[str, Any]) -> bool:
    """The receiver's Ed25519 signature over what it admitted (DESIGN section 9), with the enrolled public key."""
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    producer = handoff["producer"]
    statement = {
        "lane": enrollment["lane"],
        "receiver": enrollment["receiver"],
        "identity": producer["identity"],
        "cache_identity": producer["cache_identity"],
        "mode": producer["mode"],
        "handoff_id": handoff["handoff_id"],
        "prompt_sha256": handoff["prompt_sha256"],
        "root": handoff["payload_root"],
        "total_bytes": handoff["payload_bytes"],
        "nonce_p": admission["nonces"]["p"],
        "nonce_r": admission["nonces"]["r"],
    }
    try:
        key = Ed25519PublicKey.from_public_bytes(_raw(enrollment["receiver_public_key"]))
        key.verify(_raw(admission["sig"]), ACK_LABEL + canonical.dumps(statement))
    except (InvalidSignature, ValueError):
        return False
    return True


def _raw(text: str) -> bytes:
    prefix, _, encoded = text.partition(":")
    if prefix != "ed25519":
        raise ValueError("not an ed25519 key or signature")
    return base64.b64decode(encoded, validate=True)


# Samples


def _criterion(evidence: Evidence, resolved: Mapping[str, Any], criterion: Criterion) -> dict[str, Any]:
    stage = next(item for item in resolved["stage"] if item["name"] == criterion.stage)
    metric = METRICS[criterion.metric]
    slots = _slots(evidence, stage)
    deaths = _deaths(evidence, stage, slots) if metric.kind == "deaths" else None
    samples = _samples(criterion, metric, slots, deaths)
    judgement = criteria.evaluate(criterion, metric, samples)
    document = criteria.document(criterion, judgement, metric, samples)
    if deaths is not None and deaths.found:
        document["deaths"] = [
            {"rep": item.rep, "site": item.site, "status": item.status, "injected": item.injected}
            for item in deaths.found
        ]
    return document


def _samples(criterion: Criterion, metric: Metric, slots: Sequence[Slot], deaths: _Deaths | None) -> list[Sample]:
    if metric.scope == "run":
        return _run_samples(slots)
    chosen = [slot for slot in slots if slot.case is None or criterion.include_control]
    return [_rep_sample(criterion, metric, slot, deaths) for slot in chosen]


def _rep_sample(criterion: Criterion, metric: Metric, slot: Slot, deaths: _Deaths | None) -> Sample:
    group = _group(criterion, slot)
    if deaths is not None:
        count = deaths.of(slot)
        # Deaths are read from events: a rep without its own receipts is missing only where no event speaks for it.
        rep_class: RepClass = "missing" if count is None else "errored" if slot.rep_class == "errored" else "measured"
        return Sample(slot.case, slot.run, slot.rep, rep_class, count, group)
    if slot.rep_class != "measured" or slot.handoff is None:
        return Sample(slot.case, slot.run, slot.rep, slot.rep_class, None, group)
    if metric.name == metrics.ACKNOWLEDGED:
        return Sample(slot.case, slot.run, slot.rep, "measured", Fraction(1), group)
    observation = _observe(metric, slot.handoff)
    if observation.value is None:
        return Sample(slot.case, slot.run, slot.rep, "untrusted" if observation.untrusted else "missing", None, group)
    return Sample(slot.case, slot.run, slot.rep, "measured", observation.value, group)


def _observe(metric: Metric, handoff: Mapping[str, Any]) -> Observation:
    assert metric.of_body is not None, metric.name
    return metric.of_body(handoff)


def _group(criterion: Criterion, slot: Slot) -> str | None:
    if criterion.by is None:
        return ""
    if criterion.by == "run":
        return str(slot.run)
    if criterion.by == "case":
        return slot.case or ""
    if criterion.by == "prompt_sha256":
        return slot.prompt_sha256  # registered, so known also of a rep that never was
    value: Any = slot.handoff
    for name in criterion.by.split("."):  # producer.identity, receiver.host
        value = None if value is None else value[name]
    return None if value is None else str(value)


def _run_samples(slots: Sequence[Slot]) -> list[Sample]:
    """The burst ratio of each run: errored as soon as one of its reps is, else missing or untrusted with them."""
    samples = []
    burst = METRICS[metrics.BURST]
    for run in sorted({slot.run for slot in slots}):
        reps = [slot for slot in slots if slot.run == run and slot.case is None]
        classes = {slot.rep_class for slot in reps}
        seen = [_observe(burst, slot.handoff) for slot in reps if slot.rep_class == "measured" and slot.handoff]
        values = [item.value for item in seen if isinstance(item.value, Fraction)]
        if "errored" in classes:
            samples.append(Sample(None, run, None, "errored", None))
        elif any(item.untrusted for item in seen):
            samples.append(Sample(None, run, None, "untrusted", None))
        elif len(values) < len(reps) or (ratio := metrics.burst_ratio(values)) is None:
            samples.append(Sample(None, run, None, "missing", None))
        else:
            samples.append(Sample(None, run, None, "measured", ratio))
    return samples


# Deaths


@dataclass(frozen=True)
class _Deaths:
    """Deaths by rep; a rep that is not a key is one over whose span nothing is known."""

    known: Mapping[tuple[int, int], int]
    found: tuple[Death, ...]

    def of(self, slot: Slot) -> Fraction | None:
        count = self.known.get((slot.run, slot.rep)) if slot.case is None else None
        return None if count is None else Fraction(count)


def _deaths(evidence: Evidence, stage: Mapping[str, Any], slots: Sequence[Slot]) -> _Deaths:
    """Natural deaths in each rep's span; nothing is known without a gapless journal on the runner's own clock."""
    if not _is_gapless(evidence, stage["name"]) or not _is_one_clock(evidence, slots):
        return _Deaths({}, ())
    deaths = _deaths_here(evidence)
    known: dict[tuple[int, int], int] = {}
    found: list[Death] = []
    for run, rep, start, end in _spans(evidence, stage, slots):
        inside = [(body, injected) for died_ns, body, injected in deaths if start < died_ns <= end]
        known[run, rep] = sum(not injected for _, injected in inside)
        found += [Death(run, rep, body["site"], body["status"], injected) for body, injected in inside]
    for slot in slots:
        # A run that ended before its first rep: what died in it died on the way to that rep.
        if slot.case is None and slot.handoff is None and known.get((slot.run, slot.rep)) == 0:
            del known[slot.run, slot.rep]
    return _Deaths(known, tuple(found))


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


_FOREVER: Final = 1 << 62


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


def _deaths_here(evidence: Evidence) -> list[tuple[int, Mapping[str, Any], bool]]:
    """(died_ns, body, injected) of each death on the runner's host and boot; an instance dies once, as first said."""
    opened = evidence.opened.data
    seen: set[str] = set()
    found = []
    for event in sorted(evidence.events, key=_journal_n):
        record = event["record"]
        if record["kind"] != "death" or record["boot_id"] != opened["boot_id"] or record["host"] != opened["host"]:
            continue
        body = record["body"]
        name = metrics.instance_text(body["instance"])
        if name not in seen:
            seen.add(name)
            found.append((int(body["died_ns"]), body, bool(event["injected"])))
    return found


def _journal_n(event: Mapping[str, Any]) -> int:
    return int(event["record"]["n"])


def _is_gapless(evidence: Evidence, stage: str) -> bool:
    """Whether the taken-in journal is one chain that covers what the stage's handoffs saw of it."""
    records = sorted(evidence.events, key=_journal_n)
    if not records:
        return False
    for earlier, later in itertools.pairwise(records):
        if _journal_n(later) != _journal_n(earlier) + 1 or later["record"]["prev"] != earlier["record_sha256"]:
            return False
    needed = [
        item["body"]["producer"]["journal"]["n"]
        for item in evidence.receipts
        if item["stage"] == stage
        and item["kind"] == "handoff"
        and item["body"]["producer"]
        and item["body"]["producer"]["journal"]
    ]
    return _journal_n(records[0]) == 1 and _journal_n(records[-1]) >= max(needed, default=0)


# The verdict


def _verdict(evidence: Evidence, judged: Sequence[Mapping[str, Any]]) -> str:
    outcomes = {item["outcome"] for item in judged}
    if "not_met" in outcomes:
        return "FAIL"
    to_the_end = all(stage["reached_end"] for stage in evidence.ending.get("stages", ()))
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


def _failure_rate(evidence: Evidence, resolved: Mapping[str, Any]) -> dict[str, Any] | None:
    """Failures among the registered reps that were observed, and among their runs, with 95 % upper bounds."""
    failures = trials = runs = runs_failed = 0
    for stage in resolved["stage"]:
        if stage["kind"] != "soak":
            continue
        slots = [slot for slot in _slots(evidence, stage) if slot.case is None]
        for run in range(1, stage["runs"] + 1):
            seen = [slot for slot in slots if slot.run == run and slot.rep_class in {"measured", "errored"}]
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
