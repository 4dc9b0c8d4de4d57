from __future__ import annotations

import hashlib
from fractions import Fraction
from pathlib import Path

import pytest
from metric_double import METRICS

from campaigns import spec
from campaigns.refusals import AGGREGATES, read_spec
from campaigns.terms import LaneTerms, check_against_lane
from receipts import metrics
from receipts.errors import FaultsError
from receipts.metrics import exact_text
from receipts.prompts import prompt_sha256, seeded_token_ids

SHIPPED = Path(__file__).parents[2] / "campaigns/specs/soak-n12.toml"
TEXT = SHIPPED.read_text("utf-8")


def read(text: str = TEXT) -> spec.CampaignSpec:
    return read_spec(text.encode(), "s.toml", METRICS)


def faults(old: str, new: str, count: int = 1) -> list[str]:
    assert old in TEXT
    with pytest.raises(FaultsError) as caught:
        read(TEXT.replace(old, new, count))
    return list(caught.value.faults)


def test_the_bounds_of_soak_n12_are_exact_fractions() -> None:
    assert [item.bound_text for item in read().criteria] == [
        "== 12", "== 1", "== 0", "== 1", "== 2", ">= 3", ">= 4/5", "<= 120",
    ]  # fmt: skip


def test_expected_samples_count_reps_controls_and_runs() -> None:
    loaded = read(TEXT.replace("runs = 1", "runs = 3"))
    by_name = {item.name: item for item in loaded.criteria}
    assert spec.expected_samples(loaded, by_name["twelve-acknowledged"], "rep") == 36
    assert spec.expected_samples(loaded, by_name["control-differs"], "rep") == 42
    assert spec.expected_samples(loaded, by_name["burst-drift"], "run") == 3


def test_a_seeded_token_is_the_one_that_design_section_7_writes_down() -> None:
    first = int.from_bytes(hashlib.sha256(b"soakledger/seeded-prompt/1\n7\n0").digest()[:8], "little")
    assert seeded_token_ids(7, 2, 1000, 40000)[0] == 1000 + first % 39000


def test_a_prompt_digest_covers_the_ids_as_little_endian_words() -> None:
    expected = hashlib.sha256(b"soakledger/prompt/1\n" + bytes([1, 0, 0, 0, 0, 1, 0, 0])).hexdigest()
    assert prompt_sha256([1, 256]) == "sha256:" + expected


def test_the_resolved_spec_writes_out_defaults_and_decimals_as_strings() -> None:
    resolved = spec.resolve(read(TEXT.replace("runs = 1\n", "").replace("fresh_start = true", "")))
    assert resolved["stage"][1]["runs"] == 1
    assert resolved["stage"][1]["fresh_start"] is True
    assert resolved["criterion"][6]["value"] == "0.8"
    assert resolved["criterion"][6]["deviate_to"] == "0"
    assert resolved["stage"][1]["prompt"]["prompt_sha256"] == prompt_sha256(
        seeded_token_ids(20260823, 2048, 1000, 40000)
    )


def test_the_same_meaning_resolves_to_the_same_digest() -> None:
    other = (
        TEXT.replace("value = 3.0", "value = 3.00").replace("value = 12\n", "value = 12.0\n").replace("# 0 or 1", "#")
    )
    assert spec.resolved_sha256(spec.resolve(read(other))) == spec.resolved_sha256(spec.resolve(read()))


def test_a_judge_gets_its_criteria_from_the_resolved_spec_alone() -> None:
    assert spec.criteria_of(spec.resolve(read())) == read().criteria


def test_three_planted_faults_give_three_lines_with_the_nearest_name() -> None:
    text = TEXT.replace("reps = 12", "rep = 12").replace("fresh_start", "fresh_strat").replace('">="', '"=>"', 1)
    with pytest.raises(FaultsError) as caught:
        read(text)
    line = {key: text[: text.index(key)].count("\n") + 1 for key in ("rep = 12", "fresh_strat")}
    line["op"] = text[: text.index('"=>"')].count("\n") + 1
    assert caught.value.faults == (
        f"s.toml:{line['fresh_strat']}: stage[1].fresh_strat: unknown key (did you mean 'fresh_start'?)",
        f"s.toml:{line['rep = 12']}: stage[1].rep: unknown key (did you mean 'reps'?)",
        f"s.toml:{line['op']}: criterion[5].op: '=>' is none of == | >= | <= | > | < (did you mean '>='?)",
    )


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ('"handoff.burst_gbps"', '"handoff.burst_gbsp"', "did you mean 'handoff.burst_gbps'?"),
        ('stage = "soak"', 'stage = "soka"', "did you mean 'soak'?"),
        ('name = "one-instance"', 'name = "twelve-acknowledged"', "is the name of an earlier criterion"),
        ("watchdog_s = 80", "watchdog_s = 120", "120 is not below rep_deadline_s 120"),
        ("reps = 12", "reps = 0", "must be at least 1, not 0"),
        ("reps = 12", "reps = true", "must be a whole number, not true"),
        ("tokens = 2048", "tokens = 0", "must be at least 1"),
        ("id_range = [1000, 40000]", "id_range = [5, 5]", "low < high"),
        ("value = 3.0", "value = nan", "must be finite"),
        ("value = 3.0", "value = 1e99999", "within 10^-18 and 10^18"),
        ("value = 3.0", "value = 0", "every value meets >= 0"),
        ("value = 12\n", "value = 13\n", "no value can meet == 13"),
        ("include_control = true\n", "", "include_control = true"),
        ('aggregate = "min"', 'aggregate = "p95"', "p95 of 12 samples is rank 12"),
        ('aggregate = "min"', 'aggregate = "sum"', "sum says nothing of a rate"),
        ('aggregate = "min"', 'aggregate = "min"\nby = "run"', 'only for aggregate = "distinct"'),
        ("deviate_to = 0.0", "deviate_to = 0.9", "not looser"),
        ("value = 3.0", 'value = "3.0"', "value: must be a number, not the string '3.0'"),
        ("value = 3.0", "value = true", "value: must be a number, not true"),
        ("value = 3.0", "value = [3]", "value: must be a number, not an array"),
        ("deviate_to = 0.0", 'deviate_to = "0"', "deviate_to: must be a number, not the string '0'"),
        ("reps = 12", "reps = 12.0", "reps: must be a whole number, not 12.0"),
        ("reps = 12", 'reps = "12"', "reps: must be a whole number, not '12'"),
        ("rep_deadline_s = 120", "rep_deadline_s = 1.2e2", "rep_deadline_s: must be a whole number"),
        ("fresh_start = true", "fresh_start = 1", "fresh_start: must be true or false, not 1"),
        ("value = 3.0", 'value = 3.0\ninclude_control = "no"', "include_control: must be true or false, not 'no'"),
        ("id_range = [1000, 40000]", "id_range = [1000, 4e4]", "id_range[1]: must be a whole number"),
        ("id_range = [1000, 40000]", "id_range = [true, 40000]", "id_range[0]: must be a whole number, not true"),
        ('aggregate = "min"', 'aggregate = "minimum"', "did you mean 'min'?"),
        ('aggregate = "sum"', 'aggregate = "summ"', "did you mean 'sum'?"),
        ('aggregate = "sum"', "aggregate = 7", "must be a string, not 7"),
        ('op = "=="\nvalue = 0\n', 'op = "=="\nvalue = 0\ndeviate_to = 1\n', "no second bound on deaths"),
        ('kind = "preflight"', 'kind = "kill_recovery"', "'kill_recovery' is not built yet"),
        ('kind = "preflight"', 'kind = "prefligth"', "is none of preflight | soak (did you mean 'preflight'?)"),
        # What is not built is never offered, however near it lies.
        ('kind = "preflight"', 'kind = "lather"', "'lather' is none of preflight | soak"),
        ('kind = "preflight"', 'kind = "factr"', "'factr' is none of preflight | soak"),
    ],
)
def test_a_spec_is_refused_with_one_line_that_says_why(old: str, new: str, told: str) -> None:
    lines = faults(old, new)
    assert len(lines) == 1, lines
    assert told in lines[0]


BARE = """\
schema = "soakledger/campaign/1"
id = "c"
family = "c"
title = "t"
question = "q"
not_covered = ["all"]
[[stage]]
name = "soak"
kind = "soak"
runs = {runs}
reps = {reps}
rep_deadline_s = 9
prompt = {{source = "seeded", seed = 1, tokens = 8, id_range = [3, 9]}}
control = {{source = "seeded", seed = 2, tokens = 8, id_range = [3, 9]}}
[[criterion]]
name = "looks-at-the-control"
stage = "soak"
metric = "handoff.tensors_root"
aggregate = "distinct"
op = "=="
value = 2
include_control = true
[[criterion]]
name = "c"
stage = "soak"
metric = "{metric}"
"""
"""Lines 1 to 26; what a test adds to the last criterion begins in line 27."""


def told(metric: str, added: str, *, runs: int = 1, reps: int = 12) -> list[str]:
    """Faults of a spec whose last criterion is about ``metric`` (of this release), as ``line: key.path: what``."""
    text = BARE.format(metric=metric, runs=runs, reps=reps) + added
    try:
        read_spec(text.encode(), "s")
    except FaultsError as error:
        return [fault.removeprefix("s:") for fault in error.faults]
    return []


@pytest.mark.parametrize(
    ("metric", "added", "fault"),
    [
        (
            "producer.deaths",
            'aggregate = "sum"\nop = "=="\nvalue = 0\ninclude_control = true',
            "30: criterion[1].include_control: producer.deaths counts every death from the stage's start to its close",
        ),
        (
            "handoff.burst_last3_over_first3",
            'aggregate = "min"\nop = ">="\nvalue = 1\ninclude_control = true',
            "30: criterion[1].include_control: handoff.burst_last3_over_first3 is one value a run",
        ),
        (
            "producer.rss_bytes",
            'aggregate = "trend"\nop = "<="\nvalue = 1\ninclude_control = true',
            "30: criterion[1].include_control: a control has no place among the reps",
        ),
        (
            "handoff.burst_last3_over_first3",
            'aggregate = "trend"\nop = ">="\nvalue = 1',
            "27: criterion[1].aggregate: trend is a slope per rep; handoff.burst_last3_over_first3 is one value a run",
        ),
        (
            "handoff.payload_root",
            'aggregate = "distinct"\nop = "=="\nvalue = 1\nby = "payload_root"',
            "30: criterion[1].by: every group of one payload_root has one handoff.payload_root",
        ),
        (
            "handoff.total_s",
            'aggregate = "max"\nop = "<="\nvalue = 1\nby = "run"',
            '30: criterion[1].by: is only for aggregate = "distinct"',
        ),
        (
            "handoff.tensors_root",
            'aggregate = "distinct"\nop = "<="\nvalue = 2\ndeviate_to = 3',
            "30: criterion[1].deviate_to: there is no second bound on digest",
        ),
        (
            "producer.instance",
            'aggregate = "distinct"\nop = "<="\nvalue = 2\ndeviate_to = 3',
            "30: criterion[1].deviate_to: there is no second bound on identity",
        ),
        (
            "handoff.acknowledged",
            'aggregate = "sum"\nop = ">="\nvalue = 12\ndeviate_to = 11',
            "30: criterion[1].deviate_to: there is no second bound on acknowledgement",
        ),
        (
            "producer.deaths",
            'aggregate = "sum"\nop = "<="\nvalue = 0\ndeviate_to = 1',
            "30: criterion[1].deviate_to: there is no second bound on deaths",
        ),
        (
            "producer.fds",
            'aggregate = "distinct"\nop = "<="\nvalue = 2\ndeviate_to = 3',
            "30: criterion[1].deviate_to: there is no second bound on count",
        ),
        (
            "handoff.total_s",
            'aggregate = "p95"\nop = "<="\nvalue = 1',
            "27: criterion[1].aggregate: p95 of 12 samples is rank 12, an end of them",
        ),
        (
            "handoff.total_s",
            'aggregate = "max"\nop = "=="\nvalue = 1',
            "28: criterion[1].op: == has no failing end on a duration",
        ),
        (
            "producer.instance",
            'aggregate = "distinct"\nop = "<="\nvalue = 12\nby = "run"',
            "29: criterion[1].value: every value meets <= 12",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_at_its_line_and_key(metric: str, added: str, fault: str) -> None:
    found = told(metric, added)
    assert len(found) == 1, found
    assert found[0].startswith(fault)


@pytest.mark.parametrize("metric", sorted(metrics.METRICS))
def test_every_aggregate_that_says_nothing_of_a_metric_is_refused(metric: str) -> None:
    meaningful = {
        "acknowledgement": {"sum", "min", "max", "mean", "first", "last"},
        "deaths": {"sum", "max", "mean"},
        "duration": {"sum", "min", "max", "mean", "median", "first", "last", "trend", "p50"},
        "rate": {"min", "max", "mean", "median", "first", "last", "trend", "p50"},
        "digest": {"distinct"},
        "identity": {"distinct"},
    }
    numbers = meaningful["duration"] | {"distinct"}
    kind = metrics.METRICS[metric].kind
    allowed = meaningful.get(kind, numbers) - ({"trend"} if metrics.METRICS[metric].scope == "run" else set())
    for aggregate in numbers:
        more_is_better = kind in {"acknowledgement", "rate"}
        op, value = (">=", "1") if more_is_better else ("<=", "1")
        found = told(metric, f'aggregate = "{aggregate}"\nop = "{op}"\nvalue = {value}', runs=3)
        about = [fault for fault in found if fault.startswith("27: criterion[1].aggregate")]
        assert bool(about) is (aggregate not in allowed), (aggregate, found)
        assert aggregate in allowed or f" {kind}" in about[0] or aggregate == "trend"


def test_every_kind_of_metric_has_its_aggregates() -> None:
    assert {metric.kind for metric in metrics.METRICS.values()} == set(AGGREGATES)


@pytest.mark.parametrize(
    ("by", "control", "most"),
    [("run", False, 12), ("run", True, 14), ("case", False, 36), ("case", True, 36), ("outcome", True, 42)],
)
def test_a_bound_on_distinct_values_is_held_against_the_largest_group(by: str, control: bool, most: int) -> None:
    # Three runs of twelve, each with two controls. Under what a group can hold a bound decides, from there on not.
    for value, refused in ((most - 1, False), (most, True)):
        added = f'aggregate = "distinct"\nop = "<="\nvalue = {value}\nby = "{by}"\n'
        found = told("producer.instance", added + f"include_control = {str(control).lower()}", runs=3)
        assert bool(found) is refused, (value, found)


def test_a_control_that_only_deaths_look_at_decides_nothing() -> None:
    found = told("producer.deaths", 'aggregate = "sum"\nop = "=="\nvalue = 0\ninclude_control = true')
    assert len(found) == 1
    text = BARE.format(metric="producer.deaths", runs=1, reps=12) + 'aggregate = "sum"\nop = "=="\nvalue = 0\n'
    with pytest.raises(FaultsError, match=r"stage\[0\].control: no criterion of this stage") as caught:
        read_spec(
            text.replace("value = 2\ninclude_control = true", "value = 2").encode() + b"include_control = true", "s"
        )
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize(("runs", "reps", "refused"), [(5, 2, True), (1, 3, False), (2, 3, False)])
def test_a_trend_needs_three_reps_of_one_run(runs: int, reps: int, refused: bool) -> None:
    found = told("producer.fds", 'aggregate = "trend"\nop = "<="\nvalue = 1', runs=runs, reps=reps)
    assert bool(found) is refused, found


@pytest.mark.parametrize(
    ("metric", "runs", "reps", "refused"),
    [
        ("handoff.burst_gbps", 1, 128, False),
        ("handoff.burst_gbps", 1, 129, True),
        ("handoff.burst_last3_over_first3", 21, 6, False),
        ("handoff.burst_last3_over_first3", 22, 6, True),
        ("handoff.total_s", 1, 100_000, False),
    ],
)
def test_a_mean_of_more_rates_than_print_exactly_is_refused(metric: str, runs: int, reps: int, refused: bool) -> None:
    op = "<=" if metric == "handoff.total_s" else ">="
    found = told(metric, f'aggregate = "mean"\nop = "{op}"\nvalue = 1', runs=runs, reps=reps)
    assert [fault.split(": ")[1] for fault in found] == (["criterion[1].aggregate"] if refused else [])


def test_the_longest_mean_of_rates_that_is_allowed_prints_exactly_whatever_the_stamps() -> None:
    # Spans of 30 digits that share no factor worth the name: the mean's lower number is their product.
    spans = [10**29 + 2 * step + 1 for step in range(128)]
    mean = sum((Fraction(377487360, span) for span in spans), Fraction(0)) / len(spans)
    assert len(exact_text(mean)) > 4300, "its two numbers are as long as it gets"
    assert Fraction(exact_text(mean)) == mean


@pytest.mark.parametrize(("runs", "reps", "refused"), [(100_000, 1, False), (2, 50_000, False), (2, 50_001, True)])
def test_runs_of_reps_are_bounded_together(runs: int, reps: int, refused: bool) -> None:
    found = told("producer.deaths", 'aggregate = "sum"\nop = "=="\nvalue = 0', runs=runs, reps=reps)
    assert any("at most 100000" in fault and "stage[0].runs" in fault for fault in found) is refused


def test_the_ratio_of_bursts_is_refused_under_six_reps() -> None:
    text = TEXT.replace("reps = 12", "reps = 5").replace("value = 12\n", "value = 5\n")
    with pytest.raises(FaultsError, match="needs at least 6 reps"):
        read(text)


def test_form_and_meaning_are_reported_together() -> None:
    text = TEXT.replace("question =", "qestion =").replace('"handoff.total_s"', '"handoff.totl_s"')
    with pytest.raises(FaultsError) as caught:
        read(text)
    assert len(caught.value.faults) == 2


@pytest.mark.parametrize(("aggregate", "n", "carried"), [("p95", 19, False), ("p95", 20, True), ("p50", 2, False),
                                                         ("p50", 3, True), ("p99", 99, False), ("p99", 100, True),
                                                         ("p5", 20, False), ("p5", 21, True)])  # fmt: skip
def test_a_percentile_needs_samples_on_both_sides(aggregate: str, n: int, carried: bool) -> None:
    assert spec.carries_percentile(aggregate, n) is carried


def test_a_streaming_lane_a_short_context_and_a_low_watchdog_are_named() -> None:
    told = check_against_lane(read(), LaneTerms("streaming", "native", 60, 2048), METRICS)
    assert [reason.split(":")[0] for reason in told] == [
        "criterion burst-floor", "criterion burst-drift", "stage soak", "stage soak", "stage soak",
    ]  # fmt: skip
    assert check_against_lane(read(), LaneTerms("after", "native", 900, 8192), METRICS) == ()


def test_an_exact_lane_is_refused_every_metric_because_exact_is_not_built() -> None:
    told = check_against_lane(read_spec(TEXT.encode(), "s"), LaneTerms("after", "exact", 900, 8192))
    assert len(told) == len(read().criteria)
    assert told[0] == "criterion twelve-acknowledged: handoff.acknowledged needs mode native; the lane has exact"


def test_the_json_schema_does_not_offer_kinds_that_are_not_built() -> None:
    assert "kill_recovery" not in str(spec.json_schema())
    assert "rep_deadline_s" in str(spec.json_schema())


def test_the_format_page_lists_exactly_the_metrics_that_there_are() -> None:
    page = (Path(__file__).parents[2] / "docs/formats/campaign-spec.md").read_text(encoding="utf-8")
    rows = [[cell.strip(" `") for cell in line.split("|")[1:5]] for line in page.splitlines() if line.startswith("| `")]
    listed = [tuple(row) for row in rows if row[0] in metrics.METRICS or row[0].startswith(("handoff.", "producer."))]
    assert listed == [(item.name, item.unit, item.kind, item.scope) for item in metrics.METRICS.values()]
