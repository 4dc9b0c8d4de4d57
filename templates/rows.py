"""One line of a page: a handoff, a criterion, a death. Figures come from the verdict document or from metrics."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Final

from receipts.events import signal_name
from receipts.kinds import CONTROL
from receipts.metrics import METRICS, measure_receipt, shown_text
from templates import words
from templates.words import MISSING

_WITHOUT_UNIT: Final = frozenset({"1", "digest", "instance", "deaths"})
_ROOT_SHOWN: Final = 8
"""Hex digits of a root in a table: enough to see by eye that two differ."""


@dataclass(frozen=True)
class RepRow:
    """One handoff as a person reads it; a figure that was not observed is the missing sign."""

    label: str
    control: bool
    run: int
    case: str | None
    rep: int
    outcome: str
    total_s: str
    prefill_s: str
    burst_gbps: str
    payload_mb: str
    root: str
    pid: str
    error: str | None

    @property
    def acknowledged(self) -> bool:
        return self.outcome == "acknowledged"


@dataclass(frozen=True)
class CriterionRow:
    """One criterion: what was registered, and beside it what the judge wrote. ``deviate_to`` is the looser bound."""

    name: str
    why: str
    metric: str
    aggregate: str
    unit: str
    outcome: str
    bound: str
    deviate_to: str | None
    observed: str
    margin: str
    samples: str
    classes: str
    worst: str
    series: Mapping[str, str] | None
    deaths: tuple[Mapping[str, Any], ...]

    @property
    def word(self) -> str:
        """The outcome in words."""
        return words.OUTCOMES.get(self.outcome, words.NOT_JUDGED)

    @property
    def measured(self) -> str:
        """The observed figure with its unit; the missing sign alone where there is none."""
        return self.observed if self.observed == MISSING or not self.unit else f"{self.observed} {self.unit}"

    @property
    def bounded(self) -> str:
        """The bound with its unit: ``>= 3 Gbit/s``."""
        return f"{self.bound} {self.unit.removesuffix(f' ({words.LOOPBACK})')}".rstrip()


def rep_row(envelope: Mapping[str, Any]) -> RepRow:
    """One handoff's envelope as a row."""
    body = envelope["body"]
    figures = {name: shown for name, _, shown in measure_receipt(envelope)}
    control = envelope["case"] == CONTROL
    return RepRow(
        label=f"control {envelope['rep']}" if control else str(envelope["rep"]),
        control=control,
        run=envelope["run"],
        case=envelope["case"],
        rep=envelope["rep"],
        outcome=body["outcome"].replace("_", " "),
        total_s=_short(figures.get("handoff.total_s")),
        prefill_s=_short(figures.get("handoff.prefill_s")),
        burst_gbps=_short(figures.get("handoff.burst_gbps")),
        payload_mb=MISSING if body["payload_bytes"] is None else _megabytes(body["payload_bytes"]),
        root=MISSING if body["payload_root"] is None else body["payload_root"].partition(":")[2][:_ROOT_SHOWN],
        pid=MISSING if body["producer"] is None else str(body["producer"]["pid"]),
        error=None if body["error"] is None else f"{body['error']['code']}: {body['error']['text']}",
    )


def criterion_rows(
    spec: Mapping[str, Any], document: Mapping[str, Any] | None, *, loopback: bool
) -> tuple[CriterionRow, ...]:
    """Every registered criterion, in its order; not judged where there is no document."""
    judged = {item["name"]: item for item in document["criteria"]} if document else {}
    return tuple(_criterion(item, judged.get(item["name"]), loopback) for item in spec["criterion"])


def deaths_of(rows: Iterable[CriterionRow]) -> tuple[Mapping[str, Any], ...]:
    """Every death that the criteria list, once each: two criteria over one stage list the same deaths.

    Equal items of one criterion are two deaths, of two runs.
    """
    most: Counter[tuple[tuple[str, Any], ...]] = Counter()
    for row in rows:
        most |= Counter(tuple(sorted(item.items())) for item in row.deaths)
    return tuple(dict(item) for item in most.elements())


def how_it_ended(death: Mapping[str, Any]) -> str:
    """``killed by SIGKILL``, ``watchdog, exit status 75``, or that it is not known."""
    if death["signal"] is not None:
        return f"killed by {signal_name(death['signal'])}"
    site = words.SITES.get(death["site"], str(death["site"]))
    return site if death["status"] is None else f"{site}, exit status {death['status']}"


def last_words(body: Mapping[str, Any]) -> str:
    """The reason of a death; where its keeper wrote it, that is only how the log of the dead one ends."""
    return f"its log ends: {body['reason']}" if body.get("observed_by") == "keeper" else str(body["reason"])


def death_sentence(death: Mapping[str, Any], reps: int, signal: str | None = None) -> str:
    """``died on handoff 9 of 12: watchdog, exit status 75``; ``signal`` is the name of the one that killed it."""
    site = words.SITES.get(death["site"], str(death["site"]))
    if death["site"] == "signal" and signal is not None:
        site = f"killed by {signal}"
    status = "" if death["status"] is None else f", exit status {death['status']}"
    return f"died on handoff {death['rep']} of {reps}: {site}{status}" + (" (injected)" if death["injected"] else "")


def bound_text(bound: str) -> str:
    """A document's bound (``>= 4/5``) for people: as a decimal (``>= 0.8``) wherever that is the same number."""
    op, _, value = bound.rpartition(" ")
    try:
        exact = Fraction(value)
    except ValueError:
        return bound
    shown = shown_text(exact)
    return f"{op} {shown}" if Fraction(shown) == exact else bound


def _criterion(spec: Mapping[str, Any], judged: Mapping[str, Any] | None, loopback: bool) -> CriterionRow:
    observed = judged["observed"] if judged else None
    metric = METRICS.get(spec["metric"])
    unit = "" if metric is None or metric.unit in _WITHOUT_UNIT else metric.unit
    if loopback and metric is not None and metric.kind == "rate" and unit:
        unit = f"{unit} ({words.LOOPBACK})"
    return CriterionRow(
        name=spec["name"],
        why=spec.get("why") or "",
        metric=spec["metric"],
        aggregate=spec["aggregate"],
        unit=unit,
        outcome=judged["outcome"] if judged else "not_judged",
        bound=bound_text(judged["bound"] if judged else f"{spec['op']} {spec['value']}"),
        deviate_to=spec.get("deviate_to"),
        observed=MISSING if observed is None else observed["shown"],
        margin=_margin(judged) if judged else MISSING,
        samples=f"{judged['samples']} of {judged['expected_samples']}" if judged else MISSING,
        classes=_classes(judged["reps"]) if judged else MISSING,
        worst=_worst(judged["worst_of"]) if judged else MISSING,
        series=judged["series"] if judged else None,
        deaths=tuple((judged or {}).get("deaths") or ()),
    )


def _margin(judged: Mapping[str, Any]) -> str:
    """How far the observed figure lies from its bound, in words: the difference of two figures of the document.

    Rounded toward failing: what is to spare down, what is lacking up.
    """
    if judged["outcome"] == "invalid":
        return MISSING
    if judged["observed"] is None:
        return "beyond every bound"
    op, _, bound = judged["bound"].rpartition(" ")
    try:
        difference = Fraction(judged["observed"]["exact"]) - Fraction(bound)
    except ValueError:
        return MISSING
    if op == "==":
        return "exactly" if difference == 0 else _lacking(difference)
    if difference == 0 and op in {"<", ">"}:
        return "on the bound itself"
    spare = difference if op in {">", ">="} else -difference
    return f"{shown_text(spare)} to spare" if spare >= 0 else _lacking(difference)


def _lacking(difference: Fraction) -> str:
    return f"{shown_text(abs(difference), up=True)} {'over' if difference > 0 else 'short'}"


def _classes(reps: Mapping[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in reps.items() if count) or MISSING


def _worst(worst: Mapping[str, Any] | None) -> str:
    if worst is None:
        return MISSING
    control = "control " if worst["case"] == CONTROL else f"case {worst['case']} " if worst["case"] else ""
    place = f"run {worst['run']}" if worst["rep"] is None else f"{control}rep {worst['rep']} of run {worst['run']}"
    return place if worst["class"] == "measured" else f"{place} ({worst['class']})"


def _short(shown: str | None) -> str:
    """A shown figure cut, never rounded, to three places: a page must not say more than the document does."""
    if shown is None:
        return MISSING
    whole, dot, places = shown.partition(".")
    return f"{whole}.{places[:3]}" if dot else whole


def _megabytes(size_bytes: int) -> str:
    """10⁶ bytes with one place; under 0.1 MB all digits, so that a small payload does not read as none."""
    return f"{size_bytes / 1e6:.1f}" if size_bytes >= 10**5 else shown_text(Fraction(size_bytes, 10**6))
