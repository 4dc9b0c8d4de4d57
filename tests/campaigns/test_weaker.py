from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from metric_double import METRICS

from campaigns.refusals import read_spec
from campaigns.spec import resolve
from campaigns.weaker import weaker_than

TEXT = (Path(__file__).parents[2] / "campaigns/specs/soak-n12.toml").read_text("utf-8")


def fields(old: str, new: str, *, back: bool = False) -> list[str]:
    assert old in TEXT
    before = resolve(read_spec(TEXT.encode(), "a", METRICS))
    after = resolve(read_spec(TEXT.replace(old, new, 1).encode(), "b", METRICS))
    return [item.field for item in (weaker_than(after, before) if back else weaker_than(before, after))]


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("value = 3.0", "value = 2.9", "criterion.burst-floor.value"),
        ("value = 120\n", "value = 121\n", "criterion.rep-time.value"),
        ("reps = 12\nrep_deadline_s = 120", "reps = 12\nrep_deadline_s = 121", "stage.soak.rep_deadline_s"),
        ("tokens = 2048", "tokens = 2047", "stage.soak.prompt.tokens"),
        ("value = 3.0\n", "value = 3.0\ndeviate_to = 2\n", "criterion.burst-floor.deviate_to"),
        ('metric = "handoff.total_s"', 'metric = "handoff.burst_gbps"', "criterion.rep-time.metric"),
        ("seed = 20260823", "seed = 20260824", "stage.soak.prompt.seed"),
    ],
)
def test_less_is_promised_is_named_by_field(old: str, new: str, field: str) -> None:
    assert fields(old, new) == [field]


@pytest.mark.parametrize(
    ("old", "new"),
    [("value = 3.0", "value = 3.1"), ("tokens = 2048", "tokens = 4096"), ("deviate_to = 0.0\n", ""),
     ('title = "Twelve', 'title = "Dozen: twelve'), ('why = "covers', 'why = "it covers')],
)  # fmt: skip
def test_stricter_or_cosmetic_is_not_weaker(old: str, new: str) -> None:
    assert fields(old, new) == []


def test_a_dropped_criterion_is_weaker_and_an_added_one_is_not() -> None:
    burst = TEXT[TEXT.index('[[criterion]]\nname = "rep-time"') :]
    assert fields(burst, "") == ["criterion.rep-time"]
    assert fields(burst, "", back=True) == []


def test_stages_in_another_order_are_weaker_and_one_added_between_them_is_not() -> None:
    before = resolve(read_spec(TEXT.encode(), "a", METRICS))
    names = [stage["name"] for stage in before["stage"]]
    turned = {**before, "stage": before["stage"][::-1]}
    (found,) = weaker_than(before, turned)
    assert (found.field, found.old, found.new) == ("stage order", names, names[::-1])
    added = {**before["stage"][0], "name": "another"}
    more = {**before, "stage": [before["stage"][0], added, *before["stage"][1:]]}
    assert weaker_than(before, more) == ()


def test_fewer_reps_are_weaker_with_the_bound_that_went_with_them() -> None:
    fewer = TEXT.replace("reps = 12", "reps = 8").replace("value = 12\n", "value = 8\n")
    found = weaker_than(*(resolve(read_spec(text.encode(), "x", METRICS)) for text in (TEXT, fewer)))
    assert [item.document() for item in found] == [
        {"field": "stage.soak.reps", "old": 12, "new": 8},
        {"field": "criterion.twelve-acknowledged.value", "old": "== 12", "new": "== 8"},
    ]


def criterion_fields(
    samples: tuple[int, int], old: str, new: str, *, metric: str = "handoff.acknowledged"
) -> list[str]:
    """Fields in which ``new`` over more or fewer reps is weaker than ``old``; each as ``aggregate op value``."""

    def resolved(reps: int, criterion: str) -> dict[str, Any]:
        aggregate, op, value, *second = criterion.split()
        table = {
            "name": "c", "stage": "soak", "metric": metric, "aggregate": aggregate, "by": None, "op": op,
            "value": value, "include_control": False, "deviate_to": second[0] if second else None,
        }  # fmt: skip
        stage = {"name": "soak", "kind": "soak", "runs": 1, "reps": reps, "control": None}
        return {"family": "f", "stage": [stage], "criterion": [table]}

    found = weaker_than(resolved(samples[0], old), resolved(samples[1], new))
    return [item.field.removeprefix("criterion.c.") for item in found]


@pytest.mark.parametrize(("old", "new"), [("sum >= 12", "sum >= 12"), ("sum >= 12", "sum >= 23"),
    ("sum > 11", "sum > 12"), ("sum == 12", "sum == 12"), ("sum >= 12", "sum == 23")])  # fmt: skip
def test_a_sum_over_more_reps_that_does_not_grow_with_them_lets_more_of_them_fail(old: str, new: str) -> None:
    assert criterion_fields((12, 24), old, new) == ["value"]


@pytest.mark.parametrize(("old", "new"), [("sum >= 12", "sum >= 24"), ("sum > 11", "sum > 22"),
    ("sum == 12", "sum == 24"), ("sum >= 12", "sum == 24"), ("min == 1", "min == 1"),
    ("mean >= 0.5", "mean >= 0.5")])  # fmt: skip
def test_a_bound_that_grew_with_the_reps_or_speaks_of_all_of_them_is_not_weaker(old: str, new: str) -> None:
    assert criterion_fields((12, 24), old, new) == []


def test_a_sum_that_may_not_be_passed_is_stricter_over_more_reps() -> None:
    assert criterion_fields((12, 24), "sum <= 600", "sum <= 600", metric="handoff.total_s") == []
    assert criterion_fields((12, 24), "sum == 0", "sum == 0", metric="producer.deaths") == []


def test_the_looser_second_bound_grows_with_the_reps_too() -> None:
    assert criterion_fields((12, 24), "sum >= 12 6", "sum >= 24 11", metric="handoff.total_s") == ["deviate_to"]
    assert criterion_fields((12, 24), "sum >= 12 6", "sum >= 24 12", metric="handoff.total_s") == []


@pytest.mark.parametrize("bound", ["max >= 5", "max > 5", "min <= 5", "min < 5", "distinct >= 2", "distinct == 2"])
def test_a_bound_that_one_sample_can_meet_is_easier_over_more_of_them(bound: str) -> None:
    assert criterion_fields((12, 24), bound, bound, metric="handoff.total_s") == ["samples"]


@pytest.mark.parametrize("bound", ["max <= 5", "min >= 5", "distinct == 1", "distinct <= 2", "max == 0", "p50 <= 5"])
def test_a_bound_that_every_sample_must_meet_is_not(bound: str) -> None:
    assert criterion_fields((12, 24), bound, bound, metric="handoff.total_s") == []


def test_the_two_numbers_of_samples_stand_with_the_bound() -> None:
    more = TEXT.replace("reps = 12", "reps = 24")
    found = weaker_than(*(resolve(read_spec(text.encode(), "x", METRICS)) for text in (TEXT, more)))
    assert [item.document() for item in found] == [
        {
            "field": "criterion.twelve-acknowledged.value",
            "old": "== 12 over 12 samples",
            "new": "== 12 over 24 samples",
        },
        {"field": "criterion.control-differs.samples", "old": 14, "new": 26},
    ]
