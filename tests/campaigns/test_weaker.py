from __future__ import annotations

from pathlib import Path

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


def test_fewer_reps_are_weaker_with_the_bound_that_went_with_them() -> None:
    fewer = TEXT.replace("reps = 12", "reps = 8").replace("value = 12\n", "value = 8\n")
    found = weaker_than(*(resolve(read_spec(text.encode(), "x", METRICS)) for text in (TEXT, fewer)))
    assert [item.document() for item in found] == [
        {"field": "stage.soak.reps", "old": 12, "new": 8},
        {"field": "criterion.twelve-acknowledged.value", "old": "== 12", "new": "== 8"},
    ]
