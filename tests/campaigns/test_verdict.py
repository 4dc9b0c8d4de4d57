"""What the judge makes of evidence that contradicts itself or the spec, on hand-written receipts of soak-n12."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from judged import SECOND, SOAK_N12, Attempt, criterion, outcomes

from campaigns import evaluator
from campaigns.judging import check_numbers
from campaigns.verdict import EntryView
from receipts import canonical

Change = Callable[[dict[str, Any]], None]


def change(attempt: Attempt, fits: Callable[[EntryView], bool], act: Change) -> None:
    """Rewrite the data of every entry that fits."""
    for index, entry in enumerate(attempt.entries):
        if fits(entry):
            data = copy.deepcopy(dict(entry.data))
            act(data)
            attempt.entries[index] = EntryView(entry.seq, entry.kind, entry.subject, data)


def handoff_of(rep: int, case: str | None = None) -> Callable[[EntryView], bool]:
    return lambda entry: (
        entry.kind == "receipt"
        and entry.data["kind"] == "handoff"
        and (entry.data["case"], entry.data["rep"]) == (case, rep)
    )


def any_handoff(entry: EntryView) -> bool:
    return entry.kind == "receipt" and entry.data["kind"] == "handoff"


def clean(act: Change | None = None, fits: Callable[[EntryView], bool] = any_handoff) -> Attempt:
    attempt = Attempt()
    attempt.clean()
    if act is not None:
        change(attempt, fits, act)
    attempt.close()
    return attempt


def deaths(attempt: Attempt) -> dict[str, Any]:
    found: dict[str, Any] = criterion(attempt.judge(), "no-producer-death")
    return found


# Acknowledgements


def set_in(*path: str, to: Any) -> Change:
    def act(data: dict[str, Any]) -> None:
        inner = data["body"]
        for name in path[:-1]:
            inner = inner[name]
        inner[path[-1]] = to

    return act


@pytest.mark.parametrize(
    ("what", "act"),
    [
        ("another root at the receiver", set_in("receiver", "root", to="blake3:" + "0" * 64)),
        ("another admission's digest", set_in("receiver", "admission", to="sha256:" + "0" * 64)),
        ("an enrollment that is not the attempt's", set_in("receiver", "enrollment_seq", to=1)),
        ("another handoff id", set_in("handoff_id", to="f" * 32)),
        ("more bytes than were signed", set_in("payload_bytes", to=47_185_921)),
        ("an identity that was not signed", set_in("producer", "identity", to="sha256:" + "9" * 64)),
        ("no receiver", set_in("receiver", to=None)),
        ("no producer", set_in("producer", to=None)),
    ],
)
def test_acknowledged_needs_every_part_of_its_proof(what: str, act: Change) -> None:
    document = clean(act, handoff_of(5)).judge()
    acknowledged = criterion(document, "twelve-acknowledged")
    assert (acknowledged["observed"]["exact"], acknowledged["outcome"]) == ("11/1", "not_met"), what
    assert acknowledged["worst_of"] == {"case": None, "run": 1, "rep": 5, "class": "errored"}


def test_a_key_of_another_enrollment_proves_nothing() -> None:
    def other_key(data: dict[str, Any]) -> None:
        data["receiver_public_key"] = "ed25519:" + "A" * 43 + "="

    document = clean(other_key, lambda entry: entry.kind == "enrollment").judge()
    assert criterion(document, "twelve-acknowledged")["observed"]["exact"] == "0/1"


OTHER = "sha256:" + "9" * 64


@pytest.mark.parametrize("changed", [{"identity": OTHER}, {"cache_identity": OTHER}])
def test_a_handoff_of_another_identity_than_the_attempts_is_a_failed_rep_however_well_signed(
    changed: dict[str, str],
) -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, **changed if rep == 5 else {})  # signed by the enrolled key, over what it says
    attempt.rep(2, case="control")
    attempt.close()
    document = attempt.judge()
    acknowledged = criterion(document, "twelve-acknowledged")
    assert (document["verdict"], acknowledged["observed"]["exact"]) == ("FAIL", "11/1")
    assert acknowledged["worst_of"] == {"case": None, "run": 1, "rep": 5, "class": "errored"}
    # Its bytes and its times are no sample either.
    assert criterion(document, "same-bytes")["reps"] == {"measured": 11, "errored": 1, "untrusted": 0, "missing": 0}
    assert outcomes(document)["burst-floor"] == "not_met"


def test_an_old_receipt_put_forward_again_is_a_failed_rep() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 12):
        attempt.rep(rep)
    for kind in ("admission", "handoff"):
        old = next(
            e.data for e in attempt.entries if e.kind == "receipt" and (e.data["kind"], e.data["rep"]) == (kind, 3)
        )
        attempt.receipt(kind, (None, 1, 12), old["body"])
    attempt.rep(2, case="control")
    attempt.close()
    acknowledged = criterion(attempt.judge(), "twelve-acknowledged")
    assert (acknowledged["observed"]["exact"], acknowledged["worst_of"]["rep"]) == ("11/1", 12)


def test_an_old_receipt_of_an_earlier_attempt_is_a_failed_rep_and_stays_good_where_it_was_new() -> None:
    first = clean()
    taken = {
        entry.data["kind"]: entry.data["body"]
        for entry in first.entries
        if entry.kind == "receipt" and (entry.data["case"], entry.data["rep"]) == (None, 1)
    }
    second = Attempt(number=2, entries=first.entries, journal=first.journal, at=first.at)
    second.start_run()
    second.rep(1, case="control")
    for kind in ("admission", "handoff"):
        second.receipt(kind, (None, 1, 1), taken[kind])
    second.close("interrupted")
    assert criterion(second.judge(), "twelve-acknowledged")["reps"]["errored"] == 1
    assert first.judge()["verdict"] == "PASS"


def test_a_rep_that_was_done_again_is_no_amnesty_for_the_first() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        if rep == 5:
            attempt.rep(5, outcome="no_ack")
        attempt.rep(rep)
    attempt.rep(2, case="control")
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "FAIL"
    assert criterion(document, "twelve-acknowledged")["observed"]["exact"] == "11/1"


def test_an_acknowledged_handoff_of_another_prompt_is_not_the_registered_rep() -> None:
    attempt = Attempt()
    attempt.soak = copy.deepcopy(attempt.soak)
    attempt.soak["prompt"]["prompt_sha256"] = "sha256:" + "a" * 64
    attempt.clean()
    attempt.close()
    document = attempt.judge()
    assert document["verdict"] == "INCONCLUSIVE"
    assert criterion(document, "twelve-acknowledged")["reps"]["missing"] == 12


# Groups


@pytest.mark.parametrize("field", ["producer.identity", "producer.pid", "payload_root", "case", "run"])
def test_a_group_may_be_any_field_that_a_registration_accepts(field: str) -> None:
    attempt = Attempt(spec=SOAK_N12.replace(b'by = "run"', f'by = "{field}"'.encode()))
    attempt.clean()
    attempt.close()
    assert outcomes(attempt.judge())["one-instance"] == "met"


def test_the_group_of_a_rep_that_did_not_say_is_unknown_and_none_of_its_own() -> None:
    attempt = Attempt(spec=SOAK_N12.replace(b'by = "run"', b'by = "payload_root"'))
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, outcome="acknowledged" if rep != 3 else "no_ack")
    attempt.rep(2, case="control")
    attempt.close()
    # The errored rep's root was null: it may have been of the others' root and of another instance.
    assert outcomes(attempt.judge())["one-instance"] == "invalid"


# Deaths


def test_injected_and_natural_deaths_are_told_apart() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    attempt.rep(1)
    attempt.death(site="signal", status=None, injected=True)
    for rep in range(2, 9):
        attempt.rep(rep, pid=4712)
    attempt.rep(9, outcome="died", pid=4712)
    attempt.death(pid=4712)
    attempt.close()
    found = deaths(attempt)
    assert found["observed"]["exact"] == "1/1"
    assert found["deaths"] == [
        {"rep": 2, "site": "signal", "status": None, "injected": True},
        {"rep": 9, "site": "watchdog", "status": 75, "injected": False},
    ]


def test_an_instance_dies_once_however_many_saw_it() -> None:
    attempt = Attempt(spec=SOAK_N12.replace(b"runs = 1", b"runs = 2").replace(b"value = 12\n", b"value = 24\n", 1))
    attempt.start_run(1)
    attempt.rep(1, case="control")
    for rep in range(1, 10):
        attempt.rep(rep, outcome="acknowledged" if rep < 9 else "died")
    attempt.death()
    attempt.start_run(2)
    attempt.rep(1, case="control", run=2, pid=4712)
    attempt.death(site="not_known", status=None)  # the first run's producer, found dead by somebody later
    for rep in range(1, 13):
        attempt.rep(rep, run=2, pid=4712)
    attempt.rep(2, case="control", run=2, pid=4712)
    attempt.close()
    assert deaths(attempt)["deaths"] == [{"rep": 9, "site": "watchdog", "status": 75, "injected": False}]


def test_a_death_between_the_stages_start_and_the_first_intent_counts_against_the_first_rep() -> None:
    attempt = Attempt()
    attempt.death(pid=4000)
    attempt.clean()
    attempt.close()
    assert deaths(attempt)["deaths"][0]["rep"] == 1


def test_a_death_before_the_stage_is_not_the_stages() -> None:
    attempt = Attempt()
    attempt.death(pid=4000)
    attempt.started = attempt.at
    attempt.clean()
    attempt.close()
    assert deaths(attempt)["outcome"] == "met"


def test_deaths_on_a_host_whose_clock_is_not_the_runners_are_unknown_and_never_none() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.death(host="there")
    change(attempt, any_handoff, set_in("producer", "host", to="there"))
    attempt.close()
    found = deaths(attempt)
    assert (found["outcome"], found["reps"]["missing"]) == ("invalid", 12)


def test_two_records_of_one_number_make_the_deaths_unknown() -> None:
    attempt = clean()
    last = [entry for entry in attempt.entries if entry.kind == "process_event"][-1]
    data = copy.deepcopy(dict(last.data))
    data["record"]["kind"] = "handoff"
    attempt.add("process_event", last.subject, data)
    assert deaths(attempt)["outcome"] == "invalid"


def rechained(attempt: Attempt, seq: int, act: Change) -> None:
    """Rewrite one taken-in record and give it the digest that it then has."""

    def rewrite(data: dict[str, Any]) -> None:
        act(data["record"])
        data["record_sha256"] = canonical.sha256(canonical.file_bytes(data["record"]))

    change(attempt, lambda entry: entry.seq == seq, rewrite)


def test_a_broken_chain_makes_the_deaths_unknown() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.event("stop", {})
    attempt.close()
    stop = next(entry.seq for entry in attempt.entries if entry.subject == "loopback/2")
    rechained(attempt, stop, lambda record: record.update(kind="stop"))
    assert deaths(attempt)["outcome"] == "met"
    rechained(attempt, stop, lambda record: record.update(prev="sha256:" + "5" * 64))
    assert deaths(attempt)["outcome"] == "invalid"


def test_a_journal_whose_first_record_names_one_before_it_is_not_whole() -> None:
    attempt = Attempt()
    first = next(entry.seq for entry in attempt.entries if entry.kind == "process_event")
    rechained(attempt, first, lambda record: record.update(prev="sha256:" + "5" * 64))
    attempt.clean()
    attempt.close()
    assert deaths(attempt)["outcome"] == "invalid"


def test_a_record_that_is_not_the_one_of_its_digest_makes_the_deaths_unknown() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.event("handoff", {"outcome": "no_ack"})
    attempt.close()
    seq = next(entry.seq for entry in attempt.entries if entry.subject == "loopback/2")
    change(attempt, lambda entry: entry.seq == seq, lambda data: data["record"]["body"].update(outcome="acknowledged"))
    assert deaths(attempt)["outcome"] == "invalid"


def test_a_journal_that_ends_before_what_the_handoffs_saw_makes_the_deaths_unknown() -> None:
    attempt = clean(set_in("producer", "journal", "n", to=99), handoff_of(12))
    assert deaths(attempt)["outcome"] == "invalid"


def served(attempt: Attempt, reps: range) -> None:
    """Reps whose producer writes each handoff into the journal before it answers, as the real one does."""
    for rep in reps:
        attempt.event("handoff", {"rep": rep})
        attempt.rep(rep)


def test_a_journal_that_forked_between_two_reps_makes_the_deaths_unknown() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    served(attempt, range(1, 13))
    attempt.close()
    assert deaths(attempt)["outcome"] == "met"
    # Rep 7's producer had another record 8 than the one that was taken in: a death may stand in the other branch.
    change(attempt, handoff_of(7), set_in("producer", "journal", "head", to="sha256:" + "8" * 64))
    found = deaths(attempt)
    assert (found["outcome"], found["reps"]["missing"], found["observed"]) == ("invalid", 12, None)


def test_a_journal_that_was_cut_between_two_reps_makes_the_deaths_unknown() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    early = attempt.head()
    served(attempt, range(1, 12))
    attempt.rep(12)
    attempt.close()
    assert deaths(attempt)["outcome"] == "met"
    # Rep 12 sees the head from before rep 1: in the chain, and shorter than what rep 11 saw.
    change(attempt, handoff_of(12), set_in("producer", "journal", to=early))
    assert deaths(attempt)["outcome"] == "invalid"


def test_a_handoff_that_does_not_say_what_the_journal_was_leaves_the_others_to_say_it() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    served(attempt, range(1, 13))
    attempt.close()
    change(attempt, handoff_of(5), set_in("producer", "journal", to=None))
    assert deaths(attempt)["outcome"] == "met"


def broken(attempt: Attempt, subject: str = "soak-n12/1", lane: str = "loopback", what: str = "journal-broken") -> None:
    attempt.add("deviation", subject, {"what": what, "evidence": {"lane": lane, "taken": attempt.journal}})


def test_deaths_are_unknown_where_the_last_look_found_the_journal_broken() -> None:
    attempt = clean()
    broken(attempt)
    assert deaths(attempt)["outcome"] == "invalid"
    assert attempt.judge()["verdict"] == "INCONCLUSIVE"


def test_a_journal_that_was_whole_again_at_the_next_look_has_its_deaths() -> None:
    attempt = Attempt()
    attempt.clean()
    broken(attempt)
    attempt.event("stop", {})
    attempt.close()
    assert deaths(attempt)["outcome"] == "met"
    assert attempt.judge()["verdict"] == "DEVIATION"  # it was broken all the same


def test_a_lost_attempts_journal_is_broken_also_where_the_next_launch_found_it_so() -> None:
    attempt = clean()
    broken(attempt, subject="")
    assert deaths(attempt)["outcome"] == "invalid"


@pytest.mark.parametrize("how", [{"subject": "", "lane": "another"}, {"what": "something-else"}])
def test_a_deviation_of_another_lane_or_kind_says_nothing_of_this_journal(how: dict[str, str]) -> None:
    attempt = clean()
    broken(attempt, **how)
    assert deaths(attempt)["outcome"] == "met"


def test_a_journal_found_broken_by_the_next_attempt_is_the_next_ones_matter() -> None:
    first = clean()
    second = Attempt(number=2, entries=first.entries, journal=first.journal, at=first.at)
    broken(second, subject="soak-n12/2")
    second.close("precondition")
    assert deaths(first)["outcome"] == "met"


def test_an_abandoned_attempt_does_not_inherit_the_deaths_of_the_next() -> None:
    first = Attempt()
    first.start_run()
    first.rep(1, case="control")
    first.rep(1)
    second = Attempt(number=2, entries=first.entries, journal=first.journal, at=first.at + 1000 * SECOND)
    second.start_run()
    second.rep(1, case="control", outcome="died", pid=4712)
    second.death(pid=4712)
    second.close()
    assert first.judge()["verdict"] == "INCONCLUSIVE"
    assert second.judge()["verdict"] == "FAIL"


# The verdict


def test_an_attempt_that_calls_itself_complete_with_a_stage_cut_short_is_inconclusive() -> None:
    def cut(data: dict[str, Any]) -> None:
        data["stages"][0]["reached_end"] = False

    attempt = clean()
    change(attempt, lambda entry: entry.kind == "attempt_close", cut)
    assert attempt.judge()["verdict"] == "INCONCLUSIVE"


def test_a_stage_that_no_close_speaks_of_did_not_reach_its_end() -> None:
    for left in ([], ["soak"], ["preflight"]):
        attempt = clean()
        close = attempt.entries[-1]
        kept = [stage for stage in close.data["stages"] if stage["stage"] in left]
        attempt.entries[-1] = replace(close, data={**close.data, "stages": kept})
        assert attempt.judge()["verdict"] == "INCONCLUSIVE", left


def test_an_attempt_that_was_given_up_is_completed_by_no_later_close() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.add("attempt_abandoned", f"{attempt.campaign}/1", {"ended": "abandoned"})
    attempt.close()
    document = attempt.judge()
    assert (document["ended"], document["verdict"]) == ("abandoned", "INCONCLUSIVE")


def test_an_instance_that_served_after_its_recorded_death_makes_the_deaths_unknown() -> None:
    attempt = Attempt()
    early = {"host": "here", "boot_id": "b", "pid": 4711, "start_ticks": "9"}
    attempt.event("death", {"instance": early, "site": "not_known", "status": None, "died_ns": "5"})
    attempt.clean()
    attempt.death()
    attempt.close()
    document = attempt.judge()
    assert outcomes(document)["no-producer-death"] == "invalid"
    assert document["verdict"] == "INCONCLUSIVE"


def test_a_deviation_entry_of_the_attempt_is_no_pass_and_one_of_another_is_nothing() -> None:
    attempt = clean()
    attempt.add("deviation", "soak-n12/7", {})
    assert attempt.judge()["verdict"] == "PASS"
    attempt.add("deviation", "soak-n12/1", {})
    assert attempt.judge()["verdict"] == "DEVIATION"


def test_an_untrusted_rep_is_named_where_it_leaves_a_criterion_open() -> None:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 13):
        attempt.rep(rep, backwards=rep == 3)
    attempt.rep(2, case="control")
    attempt.close()
    floor = criterion(attempt.judge(), "burst-floor")
    assert floor["worst_of"] == {"case": None, "run": 1, "rep": 3, "class": "untrusted"}


def test_entries_of_other_campaigns_and_a_reader_that_looks_twice_change_nothing() -> None:
    attempt = clean()
    once = attempt.judge()
    assert attempt.judge() == once
    strangers = [EntryView(len(attempt.entries), "attempt_open", "other/1", {**_opened(attempt), "family": "other"})]
    attempt.entries += strangers
    again = attempt.judge()
    assert {**again, "receipts": None} == {**once, "receipts": None}


def _opened(attempt: Attempt) -> dict[str, Any]:
    entry = next(entry for entry in attempt.entries if entry.kind == "attempt_open")
    return {**entry.data, "at_ns": str(attempt.at)}


def test_everything_of_ours_that_the_judge_loads_is_in_its_digest_or_only_names_and_refuses() -> None:
    # A fresh process judges an attempt; a new module of ours in there would shape verdicts outside of the digest.
    code = (
        "import sys; from campaigns import verdict; loaded = set(sys.modules);"
        "print(*sorted(name for name in loaded if name.split('.')[0] in"
        " {'campaigns', 'ledger', 'producer', 'receipts', 'templates'} and '.' in name))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    covered = {name.removesuffix(".py").replace("/", ".") for name in evaluator.SOURCES}
    assert len(covered) == 6
    assert set(run.stdout.split()) - covered == {
        "receipts.errors",
        "receipts.names",
        "receipts.prompts",
        "receipts.visible",
    }


# Numbers


def test_every_number_up_to_the_last_one_that_the_close_knows_must_be_there() -> None:
    attempt = clean()
    assert check_numbers(attempt.entries, 1) == []
    last = attempt.numbers["soak"]
    gone = [entry for entry in attempt.entries if entry.kind != "receipt" or entry.data["n"] not in {4, last}]
    assert check_numbers(gone, 1) == ["stage soak: receipt 4 is missing", f"stage soak: receipt {last} is missing"]


def test_a_number_that_stands_twice_is_named() -> None:
    attempt = clean()
    attempt.numbers["soak"] = 6
    attempt.receipt("intent", (None, 1, 1), {"at_ns": "1"})
    assert check_numbers(attempt.entries, 1) == ["stage soak: receipt 7 stands twice"]
