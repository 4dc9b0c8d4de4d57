"""The view of one attempt that every page and the terminal share, read from the ledger in one snapshot.

Computes nothing: figures are those of the verdict document, or come from ``receipts/metrics.py``.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from receipts.kinds import attempt_folder
from receipts.metrics import METRICS, measure_receipt
from templates.words import MISSING


class EntryLike(Protocol):
    """What is read of an entry."""

    @property
    def seq(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def recorded_at(self) -> str: ...
    @property
    def data(self) -> Any: ...


class Reader(Protocol):
    """What is asked of a ledger."""

    def entries(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        kinds: Collection[str] | None = None,
        subject: str | None = None,
        subject_prefix: str | None = None,
    ) -> Iterator[Any]: ...

    def size(self) -> int: ...


@dataclass(frozen=True)
class RepRow:
    """One handoff as a person reads it; a figure that was not observed is the missing sign."""

    label: str
    control: bool
    run: int
    rep: int
    outcome: str
    total_s: str
    prefill_s: str
    burst_gbps: str
    payload_mb: str
    root: str
    pid: str
    error: str | None


@dataclass(frozen=True)
class CriterionRow:
    name: str
    why: str
    metric: str
    aggregate: str
    unit: str
    outcome: str
    bound: str
    observed: str
    samples: str
    classes: str
    worst: str
    deaths: tuple[Mapping[str, Any], ...]


@dataclass(frozen=True)
class Story:
    """Everything that is told of one attempt. ``verdict`` is None while none was computed."""

    campaign: str
    attempt: int
    lane: str
    loopback: bool
    opened_at: str
    ended_at: str | None
    spec: Mapping[str, Any]
    reps_registered: int
    verdict: Mapping[str, Any] | None
    registration: Mapping[str, Any]
    weaker: tuple[Mapping[str, Any], ...]
    pre_registered: bool
    criteria: tuple[CriterionRow, ...]
    reps: tuple[RepRow, ...]
    ending: Mapping[str, Any] | None
    deviations: tuple[Mapping[str, Any], ...]
    checks: tuple[Mapping[str, Any], ...]
    environment: Mapping[str, Any] | None
    identity: Mapping[str, Any]
    identity_sha256: str
    cache_identity: str
    tree_size: int

    @property
    def word(self) -> str:
        """The verdict's word, or that there is none."""
        return str(self.verdict["verdict"]) if self.verdict else "NO VERDICT"

    @property
    def deaths(self) -> list[Mapping[str, Any]]:
        """Every death that a criterion lists, once."""
        found: list[Mapping[str, Any]] = []
        for row in self.criteria:
            found += [item for item in row.deaths if item not in found]
        return found

    @property
    def earlier_without_pass(self) -> list[Mapping[str, Any]]:
        earlier = self.verdict["earlier_in_family"] if self.verdict else []
        return [item for item in earlier if item["verdict"] != "PASS"]


def story(reader: Reader, campaign: str, attempt: int, verdict: Mapping[str, Any] | None = None) -> Story:
    """Read one attempt; ``verdict`` replaces the stored document (a rejudge tells what it has just computed)."""
    last = reader.size() - 1
    subject = f"{campaign}/{attempt}"
    opened = next(iter(reader.entries(0, last, kinds={"attempt_open"}, subject=subject)))
    registration = next(
        entry
        for entry in reader.entries(0, last, kinds={"registration"}, subject=campaign)
        if entry.seq == opened.data["registration_seq"]
    )
    enrollment = next(
        entry for entry in reader.entries(0, last, kinds={"enrollment"}) if entry.seq == opened.data["enrollment_seq"]
    )
    endings = list(reader.entries(opened.seq, last, kinds={"attempt_close", "attempt_abandoned"}, subject=subject))
    stored = list(reader.entries(opened.seq, last, kinds={"verdict"}, subject=subject))
    document = verdict if verdict is not None else stored[-1].data if stored else None
    prefix = attempt_folder(campaign, attempt) + "/"
    receipts = [entry.data for entry in reader.entries(opened.seq, last, kinds={"receipt"}, subject_prefix=prefix)]
    handoffs = [item for item in receipts if item["kind"] == "handoff"]
    spec = registration.data["resolved"]
    return Story(
        campaign=campaign,
        attempt=attempt,
        lane=opened.data["lane"],
        loopback=any(_over_loopback(item) for item in handoffs),
        opened_at=opened.recorded_at,
        ended_at=endings[0].recorded_at if endings else None,
        spec=spec,
        reps_registered=sum(stage["runs"] * stage["reps"] for stage in spec["stage"] if stage["kind"] == "soak"),
        verdict=document,
        registration=registration.data,
        weaker=tuple(registration.data["weaker"]),
        pre_registered=registration.seq < opened.seq,
        criteria=_criteria(spec, document),
        reps=tuple(_rep(item) for item in handoffs),
        ending=endings[0].data if endings else None,
        deviations=tuple(entry.data for entry in reader.entries(0, last, kinds={"deviation"}, subject=subject)),
        checks=tuple(check for item in receipts if item["kind"] == "preflight" for check in item["body"]["checks"]),
        environment=next((item["body"] for item in receipts if item["kind"] == "environment"), None),
        identity=enrollment.data["identity"],
        identity_sha256=opened.data["identity"],
        cache_identity=opened.data["cache_identity"],
        tree_size=last + 1,
    )


def rep_row(envelope: Mapping[str, Any]) -> RepRow:
    """One handoff's envelope as a row."""
    return _rep(envelope)


def _rep(envelope: Mapping[str, Any]) -> RepRow:
    body = envelope["body"]
    figures = {name: shown for name, _, shown in measure_receipt(envelope)}
    control = envelope["case"] == "control"
    return RepRow(
        label=f"control {envelope['rep']}" if control else str(envelope["rep"]),
        control=control,
        run=envelope["run"],
        rep=envelope["rep"],
        outcome=body["outcome"].replace("_", " "),
        total_s=_short(figures.get("handoff.total_s")),
        prefill_s=_short(figures.get("handoff.prefill_s")),
        burst_gbps=_short(figures.get("handoff.burst_gbps")),
        payload_mb=MISSING if body["payload_bytes"] is None else f"{body['payload_bytes'] / 1e6:.1f}",
        root=MISSING if body["payload_root"] is None else body["payload_root"].partition(":")[2][:8],
        pid=MISSING if body["producer"] is None else str(body["producer"]["pid"]),
        error=None if body["error"] is None else f"{body['error']['code']}: {body['error']['text']}",
    )


def _short(shown: str | None) -> str:
    """A shown figure cut, never rounded, to three places: a page must not say more than the document does."""
    if shown is None:
        return MISSING
    whole, dot, places = shown.partition(".")
    return f"{whole}.{places[:3]}" if dot else whole


def _criteria(spec: Mapping[str, Any], document: Mapping[str, Any] | None) -> tuple[CriterionRow, ...]:
    judged = {item["name"]: item for item in document["criteria"]} if document else {}
    return tuple(_criterion(item, judged.get(item["name"])) for item in spec["criterion"])


def _criterion(spec: Mapping[str, Any], judged: Mapping[str, Any] | None) -> CriterionRow:
    observed = judged["observed"] if judged else None
    bound = judged["bound"] if judged else f"{spec['op']} {spec['value']}"
    return CriterionRow(
        name=spec["name"],
        why=spec["why"],
        metric=spec["metric"],
        aggregate=spec["aggregate"],
        unit=METRICS[spec["metric"]].unit if spec["metric"] in METRICS else "",
        outcome=judged["outcome"] if judged else "invalid",
        bound=bound,
        observed=MISSING if observed is None else observed["shown"],
        samples=f"{judged['samples']} of {judged['expected_samples']}" if judged else MISSING,
        classes=_classes(judged["reps"]) if judged else MISSING,
        worst=_worst(judged["worst_of"]) if judged else MISSING,
        deaths=tuple((judged or {}).get("deaths") or ()),
    )


def _classes(reps: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in reps.items() if count) or MISSING


def _worst(worst: Mapping[str, Any] | None) -> str:
    if worst is None:
        return MISSING
    place = f"run {worst['run']}" if worst["rep"] is None else f"rep {worst['rep']}"
    return place if worst["class"] == "measured" else f"{place} ({worst['class']})"


def _over_loopback(envelope: Mapping[str, Any]) -> bool:
    producer = envelope["body"]["producer"]
    if not producer or not producer["socket"]:
        return False
    return str(producer["socket"]["peer"]).startswith(("127.", "[::1]"))
