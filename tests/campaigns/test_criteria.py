"""A criterion is decided only where nothing that is unknown could change it: worked out by hand, and by brute force."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from math import isnan, nan
from statistics import mean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaigns.criteria import RepClass, Sample, _extremes, document, evaluate, grade
from campaigns.spec import Criterion
from campaigns.statistics import theil_sen
from receipts.metrics import METRICS, Metric

ACKNOWLEDGED = METRICS["handoff.acknowledged"]
BURST = METRICS["handoff.burst_gbps"]
TOTAL = METRICS["handoff.total_s"]
ROOT = METRICS["handoff.payload_root"]
LADDER = replace(BURST, name="ladder", high=Fraction(4))
"""A rate that lies within 0 and 4, small enough to try every value of the unknown reps."""
RUNGS = [Fraction(rung) for rung in range(5)]


def rule(aggregate: str, op: str, value: str, **more: Any) -> Criterion:
    if more.get("deviate_to") is not None:
        more["deviate_to"] = Decimal(more["deviate_to"])
    numbers = {"value": Decimal(value), **more}
    return Criterion.model_validate(
        {"name": "c", "stage": "soak", "metric": "any", "aggregate": aggregate, "op": op, **numbers}
    )


def measured(*values: Any, group: str | None = "") -> list[Sample]:
    fractions = [value if isinstance(value, str) else Fraction(value) for value in values]
    return [Sample(None, 1, rep, "measured", value, group) for rep, value in enumerate(fractions, 1)]


def lost(rep: int, rep_class: RepClass, group: str | None = "") -> Sample:
    return Sample(None, 1, rep, rep_class, None, group)


def outcome(criterion: Criterion, metric: Metric, samples: Sequence[Sample]) -> str:
    return evaluate(criterion, metric, samples).outcome


def test_no_samples_are_invalid_and_never_met() -> None:
    for aggregate, op in (
        ("sum", "=="),
        ("max", "<="),
        ("min", ">="),
        ("mean", "<="),
        ("first", ">="),
        ("trend", ">="),
    ):
        assert outcome(rule(aggregate, op, "0"), TOTAL, [lost(1, "missing"), lost(2, "untrusted")]) == "invalid"


def test_a_missing_rep_leaves_a_count_open_until_it_can_no_longer_be_reached() -> None:
    assert outcome(rule("sum", "==", "3"), ACKNOWLEDGED, [*measured(1, 1), lost(3, "missing")]) == "invalid"
    assert (
        outcome(rule("sum", "==", "3"), ACKNOWLEDGED, [*measured(1), lost(2, "errored"), lost(3, "missing")])
        == "not_met"
    )


def test_a_figure_under_the_floor_decides_whatever_is_missing() -> None:
    assert outcome(rule("min", ">=", "3"), BURST, [*measured(2, 9), lost(3, "missing")]) == "not_met"
    assert outcome(rule("min", ">=", "3"), BURST, [*measured(8, 9), lost(3, "missing")]) == "invalid"


@pytest.mark.parametrize("aggregate", ["min", "max", "mean", "median", "p75", "sum"])
def test_an_errored_rep_counts_against_and_is_never_left_out(aggregate: str) -> None:
    samples = [*measured(1, 1), lost(3, "errored"), lost(4, "errored")]
    judged = evaluate(rule(aggregate, "<=", "1"), TOTAL, samples)
    expected = "met" if aggregate == "min" else "not_met"
    assert (judged.outcome, judged.samples, judged.observed) == (expected, 4, None)
    assert judged.worst is samples[2]


def test_an_errored_rep_lies_beyond_the_looser_bound_too() -> None:
    assert outcome(rule("min", ">=", "0.8", deviate_to="0"), BURST, [lost(1, "errored")]) == "not_met"
    assert outcome(rule("max", "<=", "5", deviate_to="900"), TOTAL, [lost(1, "errored")]) == "not_met"


@pytest.mark.parametrize("aggregate", ["sum", "mean", "median"])
@pytest.mark.parametrize(("op", "value", "deviate_to"), [(">=", "3", "0"), (">", "0", "0"), ("<=", "900", "901")])
def test_an_errored_rep_decides_over_one_that_may_be_any_number(
    aggregate: str, op: str, value: str, deviate_to: str
) -> None:
    """Minus infinity and plus infinity do not add up; a missing rep is some number, and takes nothing from it."""
    looser = None if op == ">" else deviate_to
    for unknown in ("missing", "untrusted"):
        samples = [lost(1, "errored"), lost(2, unknown)]
        criterion, metric = rule(aggregate, op, value, deviate_to=looser), TOTAL
        assert all(map(is_a_number, _extremes(criterion, metric, samples)))
        assert outcome(criterion, metric, samples) == "not_met"


def is_a_number(value: Fraction | float) -> bool:
    return not isnan(value)


def test_the_middle_of_four_is_decided_by_an_errored_rep_only_where_it_reaches_the_middle() -> None:
    floor = rule("median", ">=", "3")
    assert outcome(floor, BURST, [*measured(4, 4, 4), lost(4, "errored")]) == "met"
    assert outcome(floor, BURST, [*measured(4, 4), lost(3, "errored"), lost(4, "missing")]) == "invalid"
    assert (
        outcome(floor, BURST, [*measured(4), lost(2, "errored"), lost(3, "errored"), lost(4, "missing")]) == "not_met"
    )


def test_a_value_that_is_no_number_judges_nothing() -> None:
    with pytest.raises(ValueError, match="criterion c came to a value that is no number"):
        grade(rule("mean", ">=", "3"), nan)


@pytest.mark.parametrize(("aggregate", "gone"), [("first", 0), ("last", 2)])
def test_an_errored_end_is_unknown_and_a_measured_one_decides(aggregate: str, gone: int) -> None:
    samples = measured(5, 5, 5)
    assert outcome(rule(aggregate, ">=", "5"), BURST, samples) == "met"
    middle = [samples[0], lost(2, "errored"), samples[2]]
    assert outcome(rule(aggregate, ">=", "5"), BURST, middle) == "met"
    samples[gone] = lost(gone + 1, "errored")
    judged = evaluate(rule(aggregate, ">=", "5"), BURST, samples)
    assert (judged.outcome, judged.observed, judged.samples) == ("invalid", None, 2)


def test_a_trend_with_a_rep_missing_is_not_decided() -> None:
    assert outcome(rule("trend", ">=", "-1"), BURST, measured(3, 3, 3)) == "met"
    assert outcome(rule("trend", ">=", "-1"), BURST, [*measured(3, 3, 3), lost(4, "missing")]) == "invalid"


def test_the_trend_of_two_runs_is_that_within_each() -> None:
    # 1, 2, 3 and 101, 102, 103: every slope within a run is 1, and four of nine from run to run are 50 and more.
    rising = [
        Sample(None, run, rep, "measured", Fraction(100 * run + rep - 100), "") for run in (1, 2) for rep in (1, 2, 3)
    ]
    backwards = [*rising[3:], *rising[:3]]
    for samples in (rising, backwards):
        judged = evaluate(rule("trend", "<=", "0"), BURST, samples)
        assert (judged.outcome, judged.observed) == ("not_met", 1)


def test_a_trend_of_which_one_rep_was_seen_is_not_observed_and_no_zero() -> None:
    judged = evaluate(rule("trend", ">=", "-1"), BURST, [*measured(3), lost(2, "missing"), lost(3, "missing")])
    assert (judged.outcome, judged.observed) == ("invalid", None)


def test_a_percentile_of_fewer_than_carry_it_is_not_observed() -> None:
    # p75 of four is the third; of the three that were measured it would be their maximum.
    assert evaluate(rule("p75", "<=", "9"), TOTAL, measured(1, 2, 3, 4)).observed == 3
    judged = evaluate(rule("p75", "<=", "9"), TOTAL, [*measured(1, 2, 3), lost(4, "missing")])
    assert (judged.outcome, judged.observed) == ("met", None)  # whatever the fourth was, the third lies under 9


def test_the_two_bounds_give_three_outcomes() -> None:
    floor = rule("min", ">=", "3", deviate_to="2")
    assert [grade(floor, Fraction(value)) for value in (3, 2, 1)] == ["met", "deviation", "not_met"]


def test_between_the_bounds_whatever_is_missing_is_no_deviation_yet() -> None:
    floor = rule("min", ">=", "3", deviate_to="2")
    assert outcome(floor, BURST, measured(2, 9)) == "deviation"
    # The missing rep may still lie under the looser bound.
    assert outcome(floor, BURST, [*measured(2, 9), lost(3, "missing")]) == "invalid"


def test_distinct_counts_within_the_largest_group() -> None:
    two_runs = [*measured("x", "x", group="1"), *measured("y", "y", group="2")]
    assert evaluate(rule("distinct", "==", "1", by="run"), ROOT, two_runs).outcome == "met"
    assert evaluate(rule("distinct", "==", "1"), ROOT, measured("x", "y")).observed == 2


def test_one_more_value_than_promised_decides_whatever_is_missing() -> None:
    assert outcome(rule("distinct", "==", "1"), ROOT, [*measured("x", "y"), lost(3, "missing")]) == "not_met"
    assert outcome(rule("distinct", "==", "1"), ROOT, [*measured("x", "x"), lost(3, "missing")]) == "invalid"
    # A missing rep of another group stands there alone: it cannot be a second value.
    assert (
        outcome(rule("distinct", "==", "1", by="run"), ROOT, [*measured("x", group="1"), lost(2, "missing", "2")])
        == "met"
    )


def test_a_rep_of_an_unknown_group_may_belong_to_any() -> None:
    grouped = rule("distinct", "==", "1", by="producer.identity")
    assert outcome(grouped, ROOT, [*measured("x", group="1"), lost(2, "errored", None)]) == "invalid"
    assert (
        outcome(rule("distinct", "<=", "2", by="run"), ROOT, [*measured("x", group="1"), lost(2, "errored", None)])
        == "met"
    )


def test_an_untrusted_rep_that_leaves_it_open_is_named() -> None:
    samples = [*measured(4, 5), lost(3, "untrusted")]
    assert evaluate(rule("min", ">=", "3"), BURST, samples).worst is samples[2]
    # Where a measured figure decides, that figure is the worst.
    assert evaluate(rule("min", ">=", "5"), BURST, samples).worst is samples[0]


def test_figures_are_printed_toward_failing_in_the_series_too() -> None:
    third = Sample(None, 1, 1, "measured", Fraction(1, 3), "")
    at_most, at_least = rule("max", "<=", "1"), rule("min", ">=", "0.1")
    said = document(at_most, evaluate(at_most, TOTAL, [third]), TOTAL, [third])
    assert (said["observed"], said["series"]["max"]) == ({"exact": "1/3", "shown": "0.333333334"}, "0.333333334")
    said = document(at_least, evaluate(at_least, TOTAL, [third]), TOTAL, [third])
    assert (said["observed"]["shown"], said["series"]["min"]) == ("0.333333333", "0.333333333")


# By brute force: every value that an unknown rep could have had.

AGGREGATES = {
    "sum": sum, "min": min, "max": max, "mean": mean, "median": median,
    "first": lambda values: values[0], "last": lambda values: values[-1],
    "p50": lambda values: sorted(values)[-(-50 * len(values) // 100) - 1],
    "p90": lambda values: sorted(values)[-(-90 * len(values) // 100) - 1],
    "trend": lambda values: theil_sen([list(enumerate(values, 1))]),
}  # fmt: skip

CLASSES = st.sampled_from(["measured", "measured", "untrusted", "missing"])


@st.composite
def ladders(draw: st.DrawFn) -> list[Sample]:
    classes = draw(st.lists(CLASSES, min_size=2, max_size=5))
    return [
        Sample(None, 1, rep, name, draw(st.sampled_from(RUNGS)) if name == "measured" else None, "")
        for rep, name in enumerate(classes, 1)
    ]


def completions(samples: Sequence[Sample]) -> Iterator[list[Fraction]]:
    """Every way in which the unknown reps could have come out, on whole rungs."""
    choices = [RUNGS if item.value is None else [item.value] for item in samples]
    for values in itertools.product(*choices):
        yield list(values)  # type: ignore[arg-type]


@settings(max_examples=400, deadline=None)
@given(
    ladders(), st.sampled_from(sorted(AGGREGATES)), st.sampled_from([">=", "<=", ">", "<", "=="]), st.integers(0, 12)
)
def test_a_decision_is_what_every_completion_gives(samples: list[Sample], name: str, op: str, value: int) -> None:
    more = {} if op == "==" else {"deviate_to": str(value - 2 if op.startswith(">") else value + 2)}
    criterion = rule(name, op, str(value), **more)
    possible = {grade(criterion, Fraction(AGGREGATES[name](values))) for values in completions(samples)}
    said = outcome(criterion, LADDER, samples)
    if all(item.value is None for item in samples):
        assert said == "invalid"
    elif said != "invalid":
        assert possible == {said}
    elif op != "==" and name != "trend":
        # Nothing is left open that is closed. (== may be undecided between the rungs; a trend is never decided.)
        assert len(possible) > 1


@st.composite
def grouped(draw: st.DrawFn) -> list[Sample]:
    return [
        Sample(
            None, 1, rep, name, draw(st.sampled_from("xyz")) if name == "measured" else None,
            draw(st.sampled_from(["1", "2"] if name == "measured" else ["1", "2", None])),
        )
        for rep, name in enumerate(draw(st.lists(CLASSES, min_size=1, max_size=5)), 1)
    ]  # fmt: skip


def largest_counts(samples: Sequence[Sample]) -> set[int]:
    """Every number of distinct values that the largest group could have had; an unknown one may be known or new."""
    unknown = [index for index, item in enumerate(samples) if item.value is None]
    counts = set()
    for values in itertools.product(*(["x", "y", "z", f"new{index}"] for index in unknown)):
        for groups in itertools.product(
            *(["1", "2", "3"] if samples[i].group is None else [samples[i].group] for i in unknown)
        ):
            held: dict[Any, set[Any]] = {}
            for item in samples:
                if item.value is not None:
                    held.setdefault(item.group, set()).add(item.value)
            for value, group in zip(values, groups, strict=True):
                held.setdefault(group, set()).add(value)
            counts.add(max(len(found) for found in held.values()))
    return counts


@settings(max_examples=200, deadline=None)
@given(grouped(), st.sampled_from([">=", "<=", ">", "<", "=="]), st.integers(1, 5))
def test_distinct_is_decided_exactly_when_every_completion_agrees(samples: list[Sample], op: str, value: int) -> None:
    criterion = rule("distinct", op, str(value), by="run")
    said = outcome(criterion, ROOT, samples)
    if all(item.value is None for item in samples):
        assert said == "invalid"
        return
    possible = {grade(criterion, Fraction(count)) for count in largest_counts(samples)}
    assert said == (possible.pop() if len(possible) == 1 else "invalid")
