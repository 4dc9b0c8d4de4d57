"""One criterion over its samples: met, deviation, not_met, or invalid because unknown values could change it.

Pure. Extremes stand in for what is not known: an errored rep takes the end that hurts, a missing or untrusted one may
be anything in its metric's range. Infinite ends are floats, which compare exactly with fractions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import inf
from statistics import median
from typing import Any, Final, Literal

from campaigns.spec import Criterion, percentile_rank
from campaigns.statistics import nearest_rank, theil_sen
from receipts.metrics import Metric, Value, exact_text, shown_text

RepClass = Literal["measured", "errored", "untrusted", "missing"]
CriterionOutcome = Literal["met", "deviation", "not_met", "invalid"]
Number = Fraction | float

CLASSES: Final[tuple[RepClass, ...]] = ("measured", "errored", "untrusted", "missing")
_MORE_IS_BETTER: Final = frozenset({">", ">="})
_VALUE_ONLY: Final = frozenset({"distinct", "first", "last", "trend"})
"""Aggregates for which an errored rep is an unknown value, like a missing one."""


@dataclass(frozen=True)
class Sample:
    """What one expected sample came to; ``group`` is its value of the criterion's ``by``, None where not observed."""

    case: str | None
    run: int
    rep: int | None
    rep_class: RepClass
    value: Value | None
    group: str | None = None


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
    return low, high


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
    """How one value of the aggregate stands to the bound and to the looser one."""
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


def _stand_in(
    criterion: Criterion, metric: Metric, sample: Sample, end: Fraction | None, beyond: float
) -> tuple[int, Number]:
    """A sample's number when what is unknown is at one end: (rep, value)."""
    rep = sample.rep or 0
    if isinstance(sample.value, Fraction):  # deaths have their value whatever became of the rep
        return rep, sample.value
    if sample.rep_class == "errored" and criterion.aggregate not in _VALUE_ONLY:
        if metric.kind == "acknowledgement":
            return rep, Fraction(0)
        return rep, -inf if criterion.op in _MORE_IS_BETTER else inf
    return rep, beyond if end is None else end


def _aggregate(criterion: Criterion, points: Sequence[tuple[int, Number]]) -> Number:
    values = [value for _, value in points]
    name = criterion.aggregate
    if name == "sum":
        return sum(values, Fraction(0))
    if name == "mean":
        return sum(values, Fraction(0)) / len(values)
    if name in {"min", "max"}:
        return min(values) if name == "min" else max(values)
    if name == "median":
        middle: Number = median(values)  # type: ignore[type-var]
        return middle
    if name == "first":
        return values[0]
    if name == "last":
        return values[-1]
    if name == "trend":
        known = [(rep, value) for rep, value in points if isinstance(value, Fraction)]
        return theil_sen(known) or Fraction(0)
    rank = percentile_rank(name, len(values))
    assert rank is not None, name
    return nearest_rank(values, rank)


def _observed(criterion: Criterion, metric: Metric, samples: Sequence[Sample]) -> Value | None:
    """The aggregate of what was observed; None where an errored rep stands in its way with no value of its own."""
    errored = [item for item in samples if item.rep_class == "errored"]
    if errored and metric.kind not in {"acknowledgement", "deaths"} and criterion.aggregate not in _VALUE_ONLY:
        return None
    points: list[tuple[int, Number]] = []
    for item in samples:
        if item.rep_class == "measured" and isinstance(item.value, Fraction):
            points.append((item.rep or 0, item.value))
        elif item.rep_class == "errored" and metric.kind in {"acknowledgement", "deaths"}:
            points.append((item.rep or 0, item.value if isinstance(item.value, Fraction) else Fraction(0)))
    ends = {"first": samples[:1], "last": samples[-1:]}.get(criterion.aggregate)
    if not points or (ends and ends[0].rep_class != "measured"):
        return None
    if criterion.aggregate.startswith("p") and percentile_rank(criterion.aggregate, len(points)) is None:
        return None
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
