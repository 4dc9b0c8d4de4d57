"""Each metric from a body whose figures were worked out by hand, and how a figure is printed."""

from __future__ import annotations

from decimal import Context, Decimal
from fractions import Fraction
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from receipts import metrics
from receipts.metrics import METRICS, Observation, burst_ratio, exact_text, measure_receipt, shown_text

NS = 10**9


def body(**changed: Any) -> dict[str, Any]:
    """A handoff of 47,185,920 bytes: prefill 4.2 s, burst 1/8 s, 5 s in all."""
    producer = {
        "host": "here", "boot_id": "b", "pid": 4711, "start_ticks": "9",
        "request_ns": "1000", "compute_start_ns": str(NS), "last_token_ns": str(NS + 4_200_000_000),
        "first_byte_ns": str(6 * NS), "ack_ns": str(6 * NS + 125_000_000),
        "awake_start_ns": "0", "awake_end_ns": str(6 * NS + 125_000_000),
        "free_blocks": 0, "rss_bytes": 2_147_483_648, "fds": 41, "threads": 9,
    }  # fmt: skip
    runner = {"started_ns": "7", "ended_ns": str(5 * NS + 7), "awake_start_ns": "3", "awake_end_ns": str(5 * NS + 3)}
    whole: dict[str, Any] = {
        "payload_bytes": 47_185_920, "payload_root": "blake3:" + "a" * 64, "tensors_root": "blake3:" + "b" * 64,
        "transfer": "after", "producer": producer, "runner": runner,
    }  # fmt: skip
    for path, value in changed.items():
        *folders, name = path.split("__")
        inner = whole
        for folder in folders:
            inner = inner[folder]
        inner[name] = value
    return whole


def observe(name: str, **changed: Any) -> Observation:
    of_body = METRICS[name].of_body
    assert of_body is not None
    return of_body(body(**changed))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # 47,185,920 bytes are 377,487,360 bits; over 1/8 s that is 3.01989888 · 10⁹ bit/s.
        ("handoff.burst_gbps", Fraction(301_989_888, 10**8)),
        ("handoff.total_s", Fraction(5)),
        ("handoff.prefill_s", Fraction(21, 5)),
        ("handoff.payload_bytes", Fraction(47_185_920)),
        ("handoff.payload_root", "blake3:" + "a" * 64),
        ("handoff.tensors_root", "blake3:" + "b" * 64),
        ("producer.instance", "here/b/4711/9"),
        ("producer.rss_bytes", Fraction(2_147_483_648)),
        ("producer.free_blocks", Fraction(0)),  # a zero is a value
        ("producer.fds", Fraction(41)),
        ("producer.threads", Fraction(9)),
    ],
)
def test_a_metric_is_exact(name: str, value: Fraction | str) -> None:
    assert observe(name) == Observation(value)


@pytest.mark.parametrize(
    "name", [name for name, metric in METRICS.items() if name.startswith("producer.") and metric.of_body]
)
def test_what_the_producer_did_not_say_is_not_observed(name: str) -> None:
    assert observe(name, producer=None) == Observation(None)


def test_a_burst_is_not_observed_where_bytes_left_before_the_last_token() -> None:
    assert observe("handoff.burst_gbps", transfer="streaming") == Observation(None)


def test_a_burst_without_its_acknowledgement_is_not_observed() -> None:
    assert observe("handoff.burst_gbps", producer__ack_ns=None) == Observation(None)


def test_a_burst_of_no_time_is_untrusted_and_no_infinite_rate() -> None:
    seen = observe("handoff.burst_gbps", producer__ack_ns=str(6 * NS))
    assert (seen.value, seen.untrusted) == (None, "the burst took no time at all")


def test_a_negative_duration_is_untrusted_and_says_by_how_much() -> None:
    seen = observe("handoff.total_s", runner__ended_ns="6")
    assert (seen.value, seen.untrusted) == (None, "negative duration of -1 ns")


@pytest.mark.parametrize(("slept_ns", "trusted"), [(50_000_000, True), (50_000_001, False)])
def test_a_host_is_said_to_have_slept_from_one_nanosecond_past_the_tolerance(slept_ns: int, trusted: bool) -> None:
    total = observe("handoff.total_s", runner__awake_end_ns=str(5 * NS + 3 - slept_ns))
    assert (total.untrusted is None) is trusted
    # The producer's pair: 6.125 s − 1,000 ns by the clock that counts sleep, slept_ns less by the one that stops.
    awake_ns = 6 * NS + 125_000_000 - 1000 - slept_ns
    burst = observe("handoff.burst_gbps", producer__awake_end_ns=str(awake_ns))
    assert (burst.untrusted is None) is trusted


def test_time_that_the_producer_spends_behind_its_acknowledgement_is_no_sleep() -> None:
    assert observe("handoff.prefill_s", producer__awake_end_ns=str(60 * NS)).untrusted is None


def test_the_drift_is_the_last_three_over_the_first_three() -> None:
    # The chapter's eight, as far as it gives them: from 6.87 down to 3.47.
    fall = [Fraction(text) for text in ("6.87", "6.5", "6.1", "5.5", "5", "4.5", "4", "3.47")]
    assert burst_ratio(fall) == Fraction(1197, 1947)  # (4.5 + 4 + 3.47) / (6.87 + 6.5 + 6.1)


def test_five_reps_have_no_drift() -> None:
    assert burst_ratio([Fraction(1)] * 5) is None
    assert burst_ratio([Fraction(1)] * 6) == 1


def test_every_metric_has_its_range_and_only_digests_and_identities_have_none() -> None:
    assert {metric.name for metric in METRICS.values() if metric.low is None} == {
        "handoff.payload_root",
        "handoff.tensors_root",
        "producer.instance",
    }
    assert {name: metric.high for name, metric in METRICS.items() if metric.high is not None} == {
        "handoff.acknowledged": 1
    }


def test_every_metric_names_a_mode_and_a_transfer_that_give_it() -> None:
    assert all(metric.modes == {"native"} for metric in METRICS.values())
    after_only = {"handoff.burst_gbps", "handoff.burst_last3_over_first3"}
    assert {name for name, metric in METRICS.items() if metric.transfers == {"after"}} == after_only
    assert {name for name, metric in METRICS.items() if metric.transfers == {"after", "streaming"}} | after_only == set(
        METRICS
    )


def test_rows_of_a_receipt_hold_what_one_body_gives_and_nothing_that_needs_more() -> None:
    rows = measure_receipt({"kind": "handoff", "body": body(transfer="streaming")})
    assert ("handoff.prefill_s", "21/5", "4.2") in rows
    names = {name for name, _, _ in rows}
    assert not names & {"handoff.acknowledged", "producer.deaths", "handoff.burst_gbps"}
    assert measure_receipt({"kind": "intent", "body": {}}) == []


@pytest.mark.parametrize(
    ("value", "down", "up"),
    [
        (Fraction(0), "0", "0"),
        (Fraction(12), "12", "12"),
        (Fraction(4, 5), "0.8", "0.8"),
        (Fraction(2, 3), "0.666666666", "0.666666667"),
        (Fraction(1, 3000), "0.000333333333", "0.000333333334"),
        (Fraction(2_999_999_997, 10**9), "2.99999999", "3"),  # 3 less one part in 10⁹: never printed as 3 when failing
        (Fraction(9_999_999_999), "9999999990", "10000000000"),
        (Fraction(-2, 3), "-0.666666667", "-0.666666666"),
    ],
)
def test_a_figure_is_printed_with_nine_digits_rounded_toward_failing(value: Fraction, down: str, up: str) -> None:
    assert (shown_text(value), shown_text(value, up=True)) == (down, up)


@given(st.fractions(max_denominator=10**12), st.booleans())
def test_what_is_printed_is_never_on_the_better_side_and_off_by_less_than_one_digit(value: Fraction, up: bool) -> None:
    printed = Fraction(shown_text(value, up=up))
    assert printed >= value if up else printed <= value
    assert abs(printed - value) * 10**8 <= abs(value)


def by_definition(value: Fraction, *, up: bool) -> str:
    """Nine digits by walking powers of ten, as the rule is told: slow, and independent of how it is computed."""
    if value == 0:
        return "0"
    size, exponent = abs(value), 0
    while size >= 10**9:
        size, exponent = size / 10, exponent + 1
    while size < 10**8:
        size, exponent = size * 10, exponent - 1
    away_from_zero = up == (value > 0)
    whole, rest = divmod(size.numerator, size.denominator)
    digits = whole + (1 if away_from_zero and rest else 0)
    text = format(Decimal(digits).scaleb(exponent, Context(prec=99)), "f")
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return f"-{text}" if value < 0 else text


TENS = st.integers(-40, 40).map(lambda power: Fraction(10) ** power)


@settings(max_examples=500, deadline=None)
@given(st.fractions(max_denominator=10**12), TENS, st.sampled_from([-1, 0, 1]), st.booleans())
def test_what_is_printed_is_what_the_definition_gives(value: Fraction, power: Fraction, step: int, up: bool) -> None:
    scaled = value * power
    assert shown_text(scaled, up=up) == by_definition(scaled, up=up)
    # Beside a power of ten, where a wrong guess of its length would show.
    near = power * (1 + Fraction(step, 10**15))
    assert shown_text(near, up=up) == by_definition(near, up=up)


def test_a_figure_of_ten_thousand_digits_is_printed_at_once() -> None:
    # Python refuses to turn an integer of more than 4,300 digits into text; walking its tens took 3 s.
    assert shown_text(Fraction(10**10_000 + 1)) == "1" + "0" * 10_000
    assert shown_text(Fraction(2 * 10**10_000, 3 * 10**10_001)) == "0.0666666666"


def test_exact_text_is_num_over_den_and_leaves_text_alone() -> None:
    assert exact_text(Fraction(8)) == "8/1"
    assert exact_text("here/b/1/2") == "here/b/1/2"


def test_what_nobody_observed_is_each_registered_rep_of_the_stage_without_a_handoff_receipt() -> None:
    def receipt(run: int, rep: int, *, kind: str = "handoff", stage: str = "soak", case: str | None = None) -> Any:
        return {"kind": kind, "stage": stage, "case": case, "run": run, "rep": rep, "body": {"outcome": "interrupted"}}

    receipts = [
        receipt(1, 1),
        receipt(1, 2, kind="intent"),
        receipt(1, 3, stage="other"),
        receipt(2, 1, case="control"),
        receipt(2, 2),
    ]
    stage = {"name": "soak", "runs": 2, "reps": 3}
    assert metrics.unobserved(stage, receipts) == [(1, 2), (1, 3), (2, 1), (2, 3)]
