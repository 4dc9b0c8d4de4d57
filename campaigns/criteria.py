"""One criterion: what each expected rep comes to, and met, deviation, not_met, or invalid because unknown values could
change it.

Pure. Extremes stand in for what is not known: an errored rep lies beyond the end that hurts, a missing or untrusted one
may be any number in its metric's range. Infinite ends are floats, which compare exactly with fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf, isnan
from typing import Any, Final, Literal

from campaigns.spec import Criterion, carries_percentile, percentile_rank
from campaigns.statistics import nearest_rank, theil_sen
from receipts import metrics
from receipts.metrics import METRICS, Metric, Observation, Value, exact_text, shown_text

RepClass = Literal["measured", "errored", "untrusted", "missing"]
CriterionOutcome = Literal["met", "deviation", "not_met", "invalid"]
Number = Fraction | float

CLASSES: Final[tuple[RepClass, ...]] = ("measured", "errored", "untrusted", "missing")
_MORE_IS_BETTER: Final = frozenset({">", ">="})
_VALUE_ONLY: Final = frozenset({"distinct", "first", "last", "trend"})
"""Aggregates for which an errored rep is an unknown value, like a missing one."""
_CUT_SHORT: Final = frozenset({"interrupted"})


@dataclass(frozen=True)
class Slot:
    """One expected rep of a stage and what was recorded of it; None where nothing was."""

    case: str | None
    run: int
    rep: int
    handoff: Mapping[str, Any] | None
    acknowledged: bool
    prompt_sha256: str
    """The registered prompt's."""

    @property
    def ended_ns(self) -> int | None:
        return None if self.handoff is None else int(self.handoff["runner"]["ended_ns"])

    @property
    def rep_class(self) -> RepClass:
        if self.handoff is None or self.handoff["outcome"] in _CUT_SHORT:
            return "missing"
        if not self.acknowledged:
            return "errored"
        # An acknowledged handoff of another prompt says nothing of the rep that was registered.
        return "measured" if self.handoff["prompt_sha256"] == self.prompt_sha256 else "missing"


@dataclass(frozen=True)
class Sample:
    """What one expected sample came to; ``group`` is its value of the criterion's ``by``, None where not observed."""

    case: str | None
    run: int
    rep: int | None
    rep_class: RepClass
    value: Value | None
    group: str | None = None


# Samples: what each expected rep, or each run, comes to for one criterion


def samples_of(
    criterion: Criterion, metric: Metric, slots: Sequence[Slot], deaths: Mapping[tuple[int, int], int] | None
) -> list[Sample]:
    """Every expected sample, in order. ``deaths`` (of an event metric only): by (run, rep), no key where not known."""
    if metric.scope == "run":
        return _run_samples(slots)
    chosen = [slot for slot in slots if slot.case is None or criterion.include_control]
    return [_rep_sample(criterion, metric, slot, deaths) for slot in chosen]


def _rep_sample(
    criterion: Criterion, metric: Metric, slot: Slot, deaths: Mapping[tuple[int, int], int] | None
) -> Sample:
    group = _group(criterion, slot)
    if deaths is not None:
        count = deaths.get((slot.run, slot.rep)) if slot.case is None else None
        # Deaths are read from events: a rep without its own receipts is missing only where no event speaks for it.
        rep_class: RepClass = "missing" if count is None else "errored" if slot.rep_class == "errored" else "measured"
        return Sample(slot.case, slot.run, slot.rep, rep_class, None if count is None else Fraction(count), group)
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


# Judging them


@dataclass(frozen=True)
class Judgement:
    """A criterion's outcome; ``observed`` None where the aggregate rests on a value that nobody observed."""

    outcome: CriterionOutcome
    observed: Value | None
    samples: int
    worst: Sample | None


def evaluate(criterion: Criterion, metric: Metric, samples: Sequence[Sample]) -> Judgement:
    """Judge ``samples`` (every expected one, in order) by the criterion."""
    if criterion.aggregate == "distinct":
        return _distinct(criterion, samples)
    counted = [item for item in samples if _counts(criterion, item)]
    low, high = _extremes(criterion, metric, samples)
    outcome = _decided(criterion, low, high) if counted else "invalid"
    worst = _worst(criterion, metric, samples, outcome)
    return Judgement(outcome, _observed(criterion, metric, samples), len(counted), worst)


def _extremes(criterion: Criterion, metric: Metric, samples: Sequence[Sample]) -> tuple[Number, Number]:
    """The aggregate with every unknown value at the low end of its range, and with every one at the high end."""
    if criterion.aggregate == "trend" and any(item.rep_class != "measured" for item in samples):
        return -inf, inf  # an unknown value can turn a slope either way
    low = _aggregate(criterion, [_stand_in(criterion, metric, item, metric.low, -inf) for item in samples])
    high = _aggregate(criterion, [_stand_in(criterion, metric, item, metric.high, inf) for item in samples])
    return (-inf, inf) if low is None or high is None else (low, high)


def document(criterion: Criterion, judgement: Judgement, metric: Metric, samples: Sequence[Sample]) -> dict[str, Any]:
    """The criterion's place in a verdict: the same keys always, null where empty."""
    up = criterion.op in {"<", "<="}
    observed = judgement.observed
    shown = None if observed is None else {"exact": exact_text(observed), "shown": shown_text(observed, up=up)}
    worst = judgement.worst
    return {
        "name": criterion.name,
        "outcome": judgement.outcome,
        "bound": criterion.bound_text,
        "observed": shown,
        "expected_samples": len(samples),
        "samples": judgement.samples,
        "reps": {name: sum(item.rep_class == name for item in samples) for name in CLASSES},
        "worst_of": None
        if worst is None
        else {"case": worst.case, "run": worst.run, "rep": worst.rep, "class": worst.rep_class},
        "deaths": None,
        "series": _series(metric, samples, up=up),
    }


def grade(criterion: Criterion, value: Number) -> CriterionOutcome:
    """How one value of the aggregate stands to the bound and to the looser one; NaN would fail every bound."""
    if isinstance(value, float) and isnan(value):
        raise ValueError(f"criterion {criterion.name} came to a value that is no number")
    if _holds(criterion.op, value, criterion.value):
        return "met"
    if criterion.deviate_to is not None and _holds(criterion.op, value, criterion.deviate_to):
        return "deviation"
    return "not_met"


def _decided(criterion: Criterion, low: Number, high: Number) -> CriterionOutcome:
    """The outcome if every value between the two extremes gives it, else invalid. Aggregates are monotone."""
    if low == high:
        return grade(criterion, low)
    if criterion.op == "==":
        return "invalid" if low <= criterion.value <= high else "not_met"
    first, second = grade(criterion, low), grade(criterion, high)
    return first if first == second else "invalid"


def _holds(op: str, value: Number, bound: Fraction) -> bool:
    holds: dict[str, Callable[[Number, Fraction], bool]] = {
        "==": lambda a, b: a == b,
        ">=": lambda a, b: a >= b,
        "<=": lambda a, b: a <= b,
        ">": lambda a, b: a > b,
        "<": lambda a, b: a < b,
    }
    return holds[op](value, bound)


def _counts(criterion: Criterion, sample: Sample) -> bool:
    return sample.rep_class == "measured" or (sample.rep_class == "errored" and criterion.aggregate not in _VALUE_ONLY)


def _stand_in(criterion: Criterion, metric: Metric, sample: Sample, end: Fraction | None, beyond: float) -> _Point:
    """A sample's number when what is unknown is at one end."""
    if isinstance(sample.value, Fraction):  # deaths have their value whatever became of the rep
        return _Point(sample, sample.value)
    if sample.rep_class == "errored" and criterion.aggregate not in _VALUE_ONLY:
        if metric.kind == "acknowledgement":
            return _Point(sample, Fraction(0))
        return _Point(sample, -inf if criterion.op in _MORE_IS_BETTER else inf)
    return _Point(sample, beyond if end is None else end)


@dataclass(frozen=True)
class _Point:
    """A number for one sample: what was measured, or what stands in for it."""

    sample: Sample
    value: Number


def _aggregate(criterion: Criterion, points: Sequence[_Point]) -> Number | None:
    """The aggregate; None for a trend without two points in any run."""
    values = [point.value for point in points]
    name = criterion.aggregate
    if name == "sum":
        return _sum(criterion, values)
    if name == "mean":
        return _sum(criterion, values) / len(values)
    if name in {"min", "max"}:
        return min(values) if name == "min" else max(values)
    if name == "median":
        ordered, half = sorted(values), len(values) // 2
        middle = ordered[half : half + 1] if len(values) % 2 else ordered[half - 1 : half + 1]
        return _sum(criterion, middle) / len(middle)
    if name == "first":
        return values[0]
    if name == "last":
        return values[-1]
    if name == "trend":
        return theil_sen(_series_of_runs(points))
    rank = percentile_rank(name, len(values))
    assert rank is not None, name
    return nearest_rank(values, rank)


def _sum(criterion: Criterion, values: Sequence[Number]) -> Number:
    """The sum. An errored rep lies beyond every bound; what is merely not known is some number, however far out.

    So the errored one decides: minus and plus infinity do not add up to a value that is no number.
    """
    hurts = -inf if criterion.op in _MORE_IS_BETTER else inf
    return hurts if hurts in values else sum(values, Fraction(0))


def _series_of_runs(points: Sequence[_Point]) -> list[list[tuple[int, Fraction]]]:
    runs: dict[int, list[tuple[int, Fraction]]] = {}
    for point in points:
        if isinstance(point.value, Fraction):
            runs.setdefault(point.sample.run, []).append((point.sample.rep or 0, point.value))
    return list(runs.values())


def _observed(criterion: Criterion, metric: Metric, samples: Sequence[Sample]) -> Value | None:
    """The aggregate of what was observed; None where an errored rep stands in its way with no value of its own."""
    errored = [item for item in samples if item.rep_class == "errored"]
    if errored and metric.kind not in {"acknowledgement", "deaths"} and criterion.aggregate not in _VALUE_ONLY:
        return None
    points: list[_Point] = []
    for item in samples:
        if item.rep_class == "measured" and isinstance(item.value, Fraction):
            points.append(_Point(item, item.value))
        elif item.rep_class == "errored" and metric.kind in {"acknowledgement", "deaths"}:
            points.append(_Point(item, item.value if isinstance(item.value, Fraction) else Fraction(0)))
    ends = {"first": samples[:1], "last": samples[-1:]}.get(criterion.aggregate)
    if not points or (ends and ends[0].rep_class != "measured"):
        return None
    if not carries_percentile(criterion.aggregate, len(points)):
        return None  # of so few it would be their minimum or maximum under another name
    value = _aggregate(criterion, points)
    return value if isinstance(value, Fraction) else None


def _distinct(criterion: Criterion, samples: Sequence[Sample]) -> Judgement:
    """The largest number of distinct values in any group; unknown values may repeat what is known or be new."""
    known: dict[str | None, set[str]] = {}
    loose = 0
    room: dict[str | None, int] = {}
    measured = 0
    for item in samples:
        measured += item.rep_class == "measured"
        if criterion.by is not None and item.group is None:
            loose += 1  # it may belong to any group
        elif item.rep_class == "measured" and item.value is not None:
            known.setdefault(item.group, set()).add(exact_text(item.value))
        else:
            room[item.group] = room.get(item.group, 0) + 1
    groups = known.keys() | room.keys()
    low = max((len(values) for values in known.values()), default=0)
    high = max((len(known.get(group, ())) + room.get(group, 0) for group in groups), default=0) + loose
    outcome = _decided(criterion, Fraction(max(low, 1)), Fraction(max(high, 1))) if measured else "invalid"
    return Judgement(outcome, Fraction(low) if known else None, measured, None)


def _worst(criterion: Criterion, metric: Metric, samples: Sequence[Sample], outcome: CriterionOutcome) -> Sample | None:
    """The sample that hurts most: the first errored one, the untrusted one that leaves it open, else the extreme."""
    if metric.kind == "deaths":
        return None
    errored = next((item for item in samples if item.rep_class == "errored"), None)
    if errored is not None:
        return errored
    untrusted = next((item for item in samples if item.rep_class == "untrusted"), None)
    if untrusted is not None and outcome == "invalid":
        return untrusted
    measured = [item for item in samples if item.rep_class == "measured" and isinstance(item.value, Fraction)]
    if not measured or metric.kind == "acknowledgement":
        return next((item for item in measured if item.value == 0), None)
    more = criterion.op in _MORE_IS_BETTER
    return (min if more else max)(measured, key=_number_of)


def _number_of(sample: Sample) -> Fraction:
    assert isinstance(sample.value, Fraction)
    return sample.value


def _series(metric: Metric, samples: Sequence[Sample], *, up: bool) -> dict[str, str] | None:
    if metric.scope != "rep" or metric.kind in {"acknowledgement", "deaths", "digest", "identity"}:
        return None
    values = [item.value for item in samples if item.rep_class == "measured" and isinstance(item.value, Fraction)]
    if not values:
        return None
    return {
        "first": shown_text(values[0], up=up),
        "last": shown_text(values[-1], up=up),
        "min": shown_text(min(values), up=up),
        "max": shown_text(max(values), up=up),
    }
