"""Judging in the hard cases, on hand-written receipts of soak-n12. Every figure here was worked out by hand."""

from __future__ import annotations

from fractions import Fraction

from judged import SOAK_N12, Attempt, criterion, outcomes


def test_twelve_clean_handoffs_with_their_controls_pass() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "PASS"
    assert set(outcomes(document).values()) == {"met"}
    assert criterion(document, "twelve-acknowledged")["observed"] == {"exact": "12/1", "shown": "12"}
    assert criterion(document, "control-differs")["expected_samples"] == 14
    assert document["failure_rate_upper_95"] == {
        "failures": 0, "of": 12, "per_rep": "22.1", "runs_failed": 0, "runs": 1, "per_run": "95.0",
    }  # fmt: skip


def test_a_death_at_nine_fails_and_the_count_says_eight() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 9):
        attempt.rep(rep)
    attempt.rep(9, outcome="died")
    attempt.death()
    attempt.close()
    document = attempt.judge()
    # The whole of examples/SOAK_VERDICT.json, criterion by criterion.
    assert document["verdict"] == "FAIL"
    assert document["ended"] == "complete"
    assert outcomes(document) == {
        "twelve-acknowledged": "not_met",
        "one-instance": "invalid",
        "no-producer-death": "not_met",
        "same-bytes": "invalid",
        "control-differs": "invalid",
        "burst-floor": "not_met",
        "burst-drift": "not_met",
        "rep-time": "not_met",
    }
    acknowledged = criterion(document, "twelve-acknowledged")
    assert acknowledged["observed"] == {"exact": "8/1", "shown": "8"}
    assert (acknowledged["samples"], acknowledged["expected_samples"]) == (9, 12)
    assert acknowledged["reps"] == {"measured": 8, "errored": 1, "untrusted": 0, "missing": 3}
    assert acknowledged["worst_of"] == {"case": None, "run": 1, "rep": 9, "class": "errored"}
    deaths = criterion(document, "no-producer-death")
    assert deaths["deaths"] == [{"rep": 9, "site": "watchdog", "status": 75, "injected": False}]
    assert (deaths["observed"], deaths["samples"]) == ({"exact": "1/1", "shown": "1"}, 9)
    assert criterion(document, "one-instance")["samples"] == 8
    differs = criterion(document, "control-differs")
    assert (differs["samples"], differs["reps"]["missing"]) == (9, 4)
    assert criterion(document, "burst-floor")["observed"] is None
    drift = criterion(document, "burst-drift")
    assert (drift["reps"], drift["observed"]) == ({"measured": 0, "errored": 1, "untrusted": 0, "missing": 0}, None)
    assert document["failure_rate_upper_95"] == {
        "failures": 1, "of": 9, "per_rep": "43.0", "runs_failed": 1, "runs": 1, "per_run": "100.0",
    }  # fmt: skip


def test_nothing_observed_is_inconclusive_and_nothing_is_met() -> None:
    attempt = Attempt()
    attempt.close("precondition")
    document = attempt.judge()
    assert document["verdict"] == "INCONCLUSIVE"
    assert set(outcomes(document).values()) == {"invalid"}
    assert document["failure_rate_upper_95"] is None


def test_four_clean_reps_and_an_interrupt_are_inconclusive() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 5):
        attempt.rep(rep)
    attempt.rep(5, outcome="interrupted")
    attempt.close("interrupted")
    document = attempt.judge()
    assert document["verdict"] == "INCONCLUSIVE"
    assert criterion(document, "twelve-acknowledged")["reps"]["missing"] == 8
    assert document["failure_rate_upper_95"]["of"] == 4
    assert document["failure_rate_upper_95"]["runs"] == 0


def test_one_receipt_of_twelve_missing_is_inconclusive() -> None:
    attempt = Attempt()
    attempt.clean(range(1, 12))
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "INCONCLUSIVE"
    assert outcomes(document)["twelve-acknowledged"] == "invalid"


def test_a_bad_rep_fails_even_when_the_orchestrator_was_killed_after_it() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    attempt.rep(1)
    attempt.rep(2, outcome="no_ack")
    document = attempt.judge()
    assert document["ended"] == "abandoned"
    assert document["verdict"] == "FAIL"


def test_an_abandoned_attempt_with_clean_reps_is_never_better_than_inconclusive() -> None:
    attempt = Attempt()
    attempt.clean()
    assert attempt.judge()["verdict"] == "INCONCLUSIVE"


def test_acknowledged_without_an_admission_receipt_fails() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, admitted=rep != 6)
    attempt.rep(2, case="control")
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "FAIL"
    assert criterion(document, "twelve-acknowledged")["observed"] == {"exact": "11/1", "shown": "11"}


def test_a_signature_over_another_mode_counts_as_no_acknowledgement() -> None:
    attempt = Attempt()
    attempt.clean(signed=False)
    attempt.close()
    document = attempt.judge()
    assert criterion(document, "twelve-acknowledged")["observed"] == {"exact": "0/1", "shown": "0"}
    assert document["verdict"] == "FAIL"


def test_a_figure_exactly_at_the_floor_is_met_and_one_part_in_a_thousand_million_below_is_not() -> None:
    def with_burst_of(extra_ns: int) -> dict[str, object]:
        # 47,185,920 bytes are 377,487,360 bits: at 3 Gbit/s exactly 125,829,120 ns.
        attempt = Attempt()
        attempt.clean(gbps=Fraction(377_487_360, 125_829_120 + extra_ns))
        attempt.close()
        return criterion(attempt.judge(), "burst-floor")

    assert with_burst_of(0)["outcome"] == "met"
    below = with_burst_of(1)
    assert below["outcome"] == "not_met"
    # 377487360 / 125829121 = 2.999999976…, cut toward failing at nine digits.
    assert below["observed"] == {"exact": "377487360/125829121", "shown": "2.99999997"}


def test_the_chapters_drift_is_a_deviation_and_no_pass() -> None:
    # The last three run at half the rate of the first three: ratio 1/2, under 0.80 and above deviate_to 0.0.
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, gbps=12 if rep <= 9 else 6)
    attempt.rep(2, case="control")
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "DEVIATION"
    assert criterion(document, "burst-drift")["outcome"] == "deviation"
    assert criterion(document, "burst-drift")["observed"] == {"exact": "1/2", "shown": "0.5"}


def test_other_bytes_for_the_same_prompt_fail() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, bytes_of="corrupted" if rep == 7 else None)
    attempt.rep(2, case="control")
    attempt.close()
    document = attempt.judge()
    assert outcomes(document)["same-bytes"] == "not_met"
    assert criterion(document, "same-bytes")["observed"] == {"exact": "2/1", "shown": "2"}


def test_a_frozen_buffer_that_gives_the_control_the_same_bytes_fails() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control", bytes_of="frozen")
    for rep in range(1, 13):
        attempt.rep(rep, bytes_of="frozen")
    attempt.rep(2, case="control", bytes_of="frozen")
    attempt.close()
    document = attempt.judge()
    assert outcomes(document)["control-differs"] == "not_met"


def test_a_second_instance_within_the_run_fails() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, pid=4711 if rep < 8 else 4712)
    attempt.rep(2, case="control")
    attempt.close()
    assert outcomes(attempt.judge())["one-instance"] == "not_met"


def test_a_host_that_slept_in_a_rep_makes_its_durations_untrusted_and_nothing_else() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, slept_s=2 if rep == 3 else 0)
    attempt.rep(2, case="control")
    attempt.close()
    document = attempt.judge()
    assert outcomes(document)["rep-time"] == "invalid"
    assert criterion(document, "rep-time")["reps"]["untrusted"] == 1
    assert outcomes(document)["twelve-acknowledged"] == "met"
    assert document["verdict"] == "INCONCLUSIVE"


def test_a_negative_duration_is_untrusted_and_never_a_figure() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, backwards=rep == 3)
    attempt.rep(2, case="control")
    attempt.close()
    floor = criterion(attempt.judge(), "burst-floor")
    assert floor["outcome"] == "invalid"
    assert floor["reps"]["untrusted"] == 1


def test_an_injected_death_is_listed_and_does_not_count() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.death(site="signal", status=None, injected=True)
    attempt.close()
    deaths = criterion(attempt.judge(), "no-producer-death")
    assert deaths["outcome"] == "met"
    assert deaths["deaths"] == [{"rep": 12, "site": "signal", "status": None, "injected": True}]


def test_a_death_after_the_last_rep_and_before_the_close_counts_against_the_last_rep() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.death(site="signal", status=None)
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "FAIL"
    assert criterion(document, "no-producer-death")["deaths"][0]["rep"] == 12


def test_a_death_in_the_first_control_fails_though_no_rep_was_reached() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control", outcome="died")
    attempt.death()
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "FAIL"
    assert outcomes(document)["no-producer-death"] == "not_met"


def test_a_gap_in_the_journal_makes_the_deaths_unknown() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.journal += 1  # a record that was never taken in
    attempt.event("handoff", {})
    attempt.close()
    document = attempt.judge()
    assert outcomes(document)["no-producer-death"] == "invalid"
    assert document["verdict"] == "INCONCLUSIVE"


def test_all_reps_failing_is_a_fail() -> None:
    attempt = Attempt()
    attempt.clean(outcome="refused")
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "FAIL"
    assert criterion(document, "twelve-acknowledged")["observed"] == {"exact": "0/1", "shown": "0"}
    assert outcomes(document)["no-producer-death"] == "met"  # nobody died: refusals are no deaths


def test_a_failed_cleanup_blocks_a_pass() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.close(cleanup=({"what": "producer stopped", "ok": False, "found": "it lives"},))
    assert attempt.judge()["verdict"] == "DEVIATION"


def test_a_weaker_registration_is_never_a_plain_pass_and_is_shown() -> None:
    item = {"field": "criterion.burst-floor.value", "old": "3", "new": "2", "than_seq": "2"}
    attempt = Attempt(weaker=[item])
    attempt.clean()
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "DEVIATION"
    assert document["registration"]["weaker_than"] == [item]


def test_earlier_attempts_of_the_family_are_all_listed_with_what_became_of_them() -> None:
    first = Attempt()
    first.clean()
    first.close()
    first.add("verdict", "soak-n12/1", {"verdict": "PASS"})
    second = Attempt(number=2, entries=first.entries, journal=first.journal)
    second.start_run()
    second.close("interrupted")
    third = Attempt(number=3, entries=second.entries, journal=second.journal)
    third.close("precondition")
    assert third.judge()["earlier_in_family"] == [
        {"campaign": "soak-n12", "attempt": 1, "verdict": "PASS"},
        {"campaign": "soak-n12", "attempt": 2, "verdict": None},
    ]


def test_a_zero_is_printed_as_zero_and_a_missing_value_as_null() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.close()
    document = attempt.judge()
    assert criterion(document, "no-producer-death")["observed"] == {"exact": "0/1", "shown": "0"}
    empty = Attempt()
    empty.close("precondition")
    assert criterion(empty.judge(), "no-producer-death")["observed"] is None


def test_every_criterion_stands_in_the_verdict_in_its_order_with_the_same_keys() -> None:
    attempt = Attempt()
    attempt.close("precondition")
    document = attempt.judge()
    names = [line.split('"')[1] for line in SOAK_N12.decode().splitlines() if line.startswith("name = ")][2:]
    assert [item["name"] for item in document["criteria"]] == names
    assert len({tuple(item) for item in document["criteria"]}) == 1
