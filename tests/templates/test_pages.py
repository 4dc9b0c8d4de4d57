"""Pages of hand-written attempts: the verdict first, nothing hidden, nothing that free text could break."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from told import Attempt, HandWritten, identity, spec
from told_attempts import ATTEMPTS, criterion, deviating, empty, failing, lost, passing

from receipts.errors import EvidenceError, InputError
from receipts.metrics import measure_receipt
from templates.explain import because, deviation_sentences
from templates.facts import unobserved
from templates.render import markdown, render_story
from templates.rows import bound_text, deaths_of, last_words
from templates.story import Life, Story, story
from templates.terminal import verdict_lines

EVIL = "a|b `c` <script>alert(1)</script> \x1b[31m\u2028\u0085\n\n# end"
WORDS = {
    "passing": "PASS",
    "failing": "FAIL",
    "interrupted": "INCONCLUSIVE",
    "empty": "INCONCLUSIVE",
    "deviating": "DEVIATION",
    "lost": "NO VERDICT",
}


def told(attempt: Attempt) -> Story:
    return story(attempt.ledger, "soak-n12", attempt.number)


def every_form(view: Story) -> dict[str, str]:
    """The same story in all the forms that people read."""
    return {
        "terminal": "\n".join(verdict_lines(view, 200)),
        "md": render_story(view, fmt="md"),
        "html": render_story(view, fmt="html"),
    }


class Words(HTMLParser):
    """The visible words of a page, in order; fails on whatever refers to something outside of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        assert not names & {"src", "href", "srcset", "action", "data"}, f"{tag} refers to something outside"
        assert tag not in {"script", "link", "iframe", "object", "img"}, tag
        self._hidden += tag in {"style", "title", "desc"}

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in {"style", "title", "desc"}

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words += data.split()


def words_of(page: str) -> list[str]:
    parser = Words()
    parser.feed(page)
    return parser.words


@pytest.mark.parametrize("name", WORDS)
def test_the_first_visible_words_are_the_verdict_and_what_was_promised(name: str) -> None:
    view = told(ATTEMPTS[name]())
    shown = " ".join(words_of(render_story(view, fmt="html")))
    assert shown.startswith(
        f"{WORDS[name]} Twelve consecutive handoffs of 2,048 tokens Promised before the run: 12 handoffs"
    )
    assert render_story(view, fmt="md").startswith(f"# {WORDS[name]}: Twelve consecutive handoffs")
    assert verdict_lines(view, 80)[:2] == [WORDS[name], "Twelve consecutive handoffs of 2,048 tokens"]


def test_the_uncertainty_stands_before_the_table_of_criteria() -> None:
    shown = " ".join(words_of(render_story(told(passing()), fmt="html")))
    assert "7 of 7 criteria met. 0 of 12 handoffs failed: up to 22.1 % of handoffs may fail" in shown
    assert shown.index("22.1 %") < shown.index("Measured against bound")
    assert "if handoffs were independent; a soak tests exactly where they may not be" in shown
    assert "0 of 1 runs failed: up to 95.0 % of runs may." in shown


def test_the_failures_are_told_with_how_far_they_are_past_the_bound() -> None:
    for form, page in every_form(told(failing())).items():
        plain = page.replace("\\", "").replace("&gt;", ">")
        assert "twelve-acknowledged is not met: observed 8, bound == 12, 4 short" in plain, form
        assert "no-producer-death is not met: observed 1, bound == 0, 1 over" in plain, form
        assert "burst-floor is not met: bound >= 3 Gbit/s; rep 9 of run 1 (errored) lies beyond" in plain, form
        assert "2 criteria of 7 cannot be judged" in plain, form
        assert "died on handoff 9 of 12: watchdog, exit status 75" in plain, form


def test_a_margin_is_rounded_toward_failing() -> None:
    # 0.8 − 19/30 = 1/6: what is lacking is rounded up. 6.291456 − 3 is exact.
    rows = {row.name: row.margin for row in told(deviating()).criteria}
    assert rows["burst-drift"] == "0.166666667 short"
    assert rows["burst-floor"] == "3.291456 to spare"
    # 196608/21875 − 3 = 5.987794285…: what is to spare is rounded down.
    assert {row.name: row.margin for row in told(passing()).criteria}["burst-floor"] == "5.98779428 to spare"


@pytest.mark.parametrize(
    ("document", "shown"),
    [(">= 4/5", ">= 0.8"), ("== 12", "== 12"), ("<= 1/3", "<= 1/3"), (">= 1/100", ">= 0.01"), ("== x", "== x")],
)
def test_a_bound_is_a_decimal_only_where_that_is_the_same_number(document: str, shown: str) -> None:
    assert bound_text(document) == shown


def test_every_figure_of_the_verdict_is_the_same_in_terminal_json_markdown_and_html() -> None:
    for make in (passing, failing, deviating):
        attempt = make()
        view = told(attempt)
        document = attempt.ledger.rows[-1].data
        assert json.loads(json.dumps(view.document()))["verdict"] == document
        for form, page in every_form(view).items():
            for item in document["criteria"]:
                assert f"{item['samples']} of {item['expected_samples']}" in page, form
                if item["observed"] is not None:
                    assert item["observed"]["shown"] in page, (form, item["name"])
            assert f"{document['failure_rate_upper_95']['per_rep']} %" in page, form


def test_a_figure_of_a_rep_is_cut_from_what_metrics_gives_and_never_rounded() -> None:
    attempt = passing()
    view = told(attempt)
    handoffs = [row.data for row in attempt.ledger.rows if row.kind == "receipt" and row.data["kind"] == "handoff"]
    fifth = next(item for item in handoffs if item["rep"] == 5)
    shown = {name: text for name, _, text in measure_receipt(fifth)}["handoff.burst_gbps"]
    assert shown == "8.98779428"
    row = next(row for row in view.reps if row.rep == 5)
    assert (row.burst_gbps, row.total_s, row.prefill_s, row.payload_mb) == ("8.987", "5.06", "5", "47.2")
    for page in every_form(view).values():
        assert "8.987" in page
        assert "8.988" not in page


def test_a_value_that_is_missing_is_a_dash_and_zero_is_zero() -> None:
    died = told(failing()).reps[-1]
    assert (died.burst_gbps, died.payload_mb, died.root, died.prefill_s) == ("—", "—", "—", "—")
    assert next(row for row in told(passing()).criteria if row.name == "no-producer-death").observed == "0"
    rows = told(empty()).criteria
    assert [row.observed for row in rows] == ["—"] * 7
    page = render_story(told(empty()), fmt="md")
    assert "No registered handoff was observed to its end: nothing can be said of the failure rate." in page
    assert "22.1 %" not in page


def test_reps_that_were_never_observed_are_named() -> None:
    for form, page in every_form(told(failing())).items():
        assert "run 1: reps 10 to 12" in page, form
    assert told(passing()).unobserved == ()


def test_of_two_soaks_each_names_its_own_reps() -> None:
    spec = {"stage": [{"kind": "soak", "name": name, "runs": 1, "reps": 3} for name in ("first", "second")]}
    seen = [{"kind": "handoff", "stage": "first", "case": None, "run": 1, "rep": rep} for rep in (1, 2, 3)]
    seen.append({"kind": "handoff", "stage": "second", "case": None, "run": 1, "rep": 2})
    assert unobserved(spec, seen) == ("stage second, run 1: reps 1, 3",)


def test_an_outcome_and_its_error_are_two_words_also_where_they_stand_in_one_line() -> None:
    page = render_story(told(failing()), fmt="html")
    assert re.search(r"<td class=\"bad word\">died\s+<span class=\"sub error\">", page)


def test_a_verdict_that_lists_as_many_deaths_as_it_can_says_so() -> None:
    view = told(failing())
    assert not view.deaths_are_cut
    assert "lists the first 64 deaths" not in render_story(view, fmt="html")
    row = next(item for item in view.criteria if item.deaths)
    many = dataclasses.replace(row, deaths=row.deaths * 64)
    view = dataclasses.replace(view, criteria=(many,))
    for fmt in ("html", "md"):
        assert "lists the first 64 deaths" in render_story(view, fmt=fmt)


def test_earlier_attempts_without_a_pass_stand_before_the_criteria() -> None:
    for form, page in every_form(told(failing())).items():
        begin = page.index("Measured against bound") if form != "terminal" else page.index("\nCriteria\n")
        assert "4, without a pass: " in page, form
        assert page.index("soak-n12/2") < begin, form
        assert page.index("soak-n12/3") < begin, form
        assert "without a verdict" in page, form


def test_before_there_is_a_verdict_the_earlier_attempts_come_from_the_ledger() -> None:
    ledger = passing().ledger
    second = Attempt(ledger=ledger, number=3)
    view = told(second)
    assert [(item.campaign, item.attempt, item.verdict) for item in view.earlier] == [("soak-n12", 2, "PASS")]


def test_the_verdict_that_is_told_is_the_latest_and_says_that_there_was_another() -> None:
    attempt = passing()
    first = attempt.ledger.rows[-1].data
    attempt.death()
    attempt.verdict("FAIL", "complete", first["criteria"], first["failure_rate_upper_95"])
    view = told(attempt)
    assert view.word == "FAIL"
    assert view.earlier_verdicts == ("PASS",)
    for form, page in every_form(view).items():
        assert re.search(r"[Jj]udged before: PASS\.", page), form


def test_a_registration_says_that_it_came_first_and_that_it_is_not_anchored() -> None:
    for form, page in every_form(told(passing())).items():
        assert "Pre-registered" in page, form
        assert "not anchored: proof only to whoever trusts the holder of the key" in page, form


def test_a_registration_behind_the_opening_is_not_called_pre_registered() -> None:
    attempt = passing()
    rows = attempt.ledger.rows
    # A forged order: the registration stands at the end of the ledger, and the opening names it there.
    late = attempt.ledger.add("registration", "soak-n12", attempt.registered.data)
    rows[attempt.opened.seq].data["registration_seq"] = late.seq
    for form, page in every_form(told(attempt)).items():
        assert re.search("not pre-registered", page, re.IGNORECASE), form


def test_what_is_weaker_is_shown_with_its_old_and_its_new_value() -> None:
    view = told(deviating())
    assert "| entry 1 | criterion.burst-floor.value | 6 | 3 |" in render_story(view, fmt="md")
    shown = " ".join(words_of(render_story(view, fmt="html")))
    assert "entry 1 criterion.burst-floor.value 6 3" in shown
    assert "It amends entry 1" in shown
    assert "weaker than entry 1: criterion.burst-floor.value: 6 → 3" in "\n".join(verdict_lines(view, 200))


def test_over_loopback_each_throughput_says_so_and_over_a_cable_none_does() -> None:
    local = render_story(told(passing()), fmt="md")
    assert "8.98779428 Gbit/s (loopback)" in local
    assert "burst Gbit/s (loopback)" in local
    attempt = Attempt()
    attempt.rep(1, 40, peer="10.77.0.2:47900")
    for form, page in every_form(told(attempt)).items():
        assert "Gbit/s" in page, form
        assert not re.search(r"Gbit/s \(loopback\)|over loopback", page), form


@pytest.mark.parametrize("peer", ["127.0.0.1:47900", "127.8.9.1:5", "[::1]:47900", "[::ffff:127.0.0.1]:47900"])
def test_every_address_of_the_loopback_is_known_as_one(peer: str) -> None:
    attempt = Attempt()
    attempt.rep(1, 40, peer=peer)
    assert told(attempt).loopback


def test_emulated_arithmetic_is_said_on_a_cpu_and_not_of_another_kernel() -> None:
    assert "NVFP4 arithmetic is emulated on this CPU" in render_story(told(passing()), fmt="md")
    attempt = passing()
    attempt.ledger.rows[0].data["identity"]["numerics"]["linear_kernels"] = {"UnquantizedLinearMethod": 120}
    assert "emulated" not in render_story(told(attempt), fmt="md")


def test_an_identity_of_another_release_with_members_missing_still_renders() -> None:
    attempt = passing()
    attempt.ledger.rows[0].data["identity"] = {"mode": "native"}
    for page in every_form(told(attempt)).values():
        assert "PASS" in page
    full = identity()
    for name in full:
        attempt.ledger.rows[0].data["identity"] = {key: value for key, value in full.items() if key != name}
        render_story(told(attempt), fmt="html")


def test_a_lost_attempt_says_when_it_was_last_seen_and_what_to_ask() -> None:
    page = render_story(told(ATTEMPTS["lost"]()), fmt="md")
    assert "Last sign of life 2026-11-30 20:41:08.512 UTC" in page
    assert "soakledger campaign status" in page
    assert "not judged" in page


def test_an_abandoned_attempt_says_what_was_found() -> None:
    attempt = ATTEMPTS["lost"]()
    attempt.abandon()
    assert "its process is gone" in render_story(told(attempt), fmt="md")


def test_deviations_and_a_failed_cleanup_are_explained() -> None:
    for form, page in every_form(told(deviating())).items():
        plain = page.replace("\\", "")
        assert "record 30 of the journal is missing" in plain, form
        assert "Not put back: producer stopped (pid 4711 is still there)" in plain, form


def test_a_death_in_the_journal_is_shown_with_its_signal() -> None:
    attempt = ATTEMPTS["lost"]()
    attempt.death(site="signal", status=None, signal=9)
    for form, page in every_form(told(attempt)).items():
        assert re.search(r"record 31.*pid 4711, killed by SIGKILL", page), form


@pytest.mark.parametrize(("life", "says", "step"), [
    ("running", "It is still running", "Wait for its end"),
    ("lost", "It was never closed: its orchestrator is gone", "soakledger campaign launch closes it"),
    (None, "It was never closed: it is running, or its orchestrator is lost", "campaign status says whether"),
])  # fmt: skip
def test_an_attempt_without_an_end_says_what_is_known_of_its_orchestrator(
    life: Life | None, says: str, step: str
) -> None:
    attempt = lost()
    view = story(attempt.ledger, "soak-n12", attempt.number, life=life)
    for form, page in every_form(view).items():
        plain = " ".join(page.split())
        assert says in plain, form
        assert step in plain, form
    ended = passing()
    assert story(ended.ledger, "soak-n12", ended.number, life=life).life is None


def test_what_deviates_is_listed_and_a_weaker_registration_is_one_of_it() -> None:
    view = told(deviating())
    (sentence, *_) = [line for line in deviation_sentences(view) if line.startswith("burst-drift deviates")]
    for form, page in every_form(view).items():
        if form != "json":
            assert sentence.partition(":")[0] in page.replace("\\", ""), form
    weak = dataclasses.replace(
        told(passing()),
        verdict={**(told(passing()).verdict or {}), "verdict": "DEVIATION"},
        weaker=({"than_seq": 2, "field": "criterion.burst-floor.value", "old": ">= 3", "new": ">= 1"},),
    )
    assert because(weak) == ", with a weaker registration"
    assert because(told(passing())) == ""
    page = render_story(weak, fmt="md").partition("## Deaths and deviations")[2].partition("##")[0]
    assert "The registration is weaker than entry 2" in page


def test_what_a_keeper_found_in_a_log_is_not_given_out_as_the_reason() -> None:
    body = {"reason": "Using None for EOS token", "observed_by": "keeper"}
    assert last_words(body) == "its log ends: Using None for EOS token"
    assert last_words({"reason": "no ack", "observed_by": "self"}) == "no ack"


def test_a_judgement_of_an_attempt_that_still_runs_is_never_headed_by_its_word_alone() -> None:
    attempt = passing()
    document = attempt.ledger.rows[-1].data
    unclosed = lost()
    for life, head in (("running", "RUNNING: PASS so far"), ("lost", "LOST: PASS so far")):
        view = story(unclosed.ledger, "soak-n12", unclosed.number, verdict=document, life=life)  # type: ignore[arg-type]
        assert verdict_lines(view, 80)[0] == head
    assert verdict_lines(told(attempt), 80)[0] == "PASS"


def test_a_stage_that_ended_with_its_producer_says_that_reps_were_not_reached() -> None:
    early = "not every rep was reached, for a run is over when its producer is gone"
    for make, is_said in ((failing, True), (passing, False)):
        for form, page in every_form(told(make())).items():
            assert (early in " ".join(page.split())) == is_said, form


def test_deaths_that_two_criteria_list_count_once_and_equal_ones_of_one_criterion_twice() -> None:
    death = {"rep": 9, "site": "watchdog", "status": 75, "injected": False}
    row = told(passing()).criteria[0]
    twice = type(row)(**{**vars(row), "deaths": (death, death)})
    once = type(row)(**{**vars(row), "deaths": (death,)})
    assert list(deaths_of([once, once])) == [death]
    assert list(deaths_of([twice, once])) == [death, death]


@pytest.mark.parametrize("name", WORDS)
def test_what_is_not_a_pass_says_the_next_step_and_what_is_no_way_out(name: str) -> None:
    for form, page in every_form(told(ATTEMPTS[name]())).items():
        assert ("Not a way out: launching until one attempt passes" in page) == (name != "passing"), form
        assert ("Next:" in page) == (name != "passing"), form


def test_free_text_cannot_break_a_page() -> None:
    resolved = spec()
    resolved.update(title=EVIL, question=EVIL, not_covered=[EVIL])
    resolved["criterion"][0]["why"] = EVIL
    attempt = Attempt(resolved=resolved)
    attempt.rep(1, None, outcome="nack", error=("bad-bytes", EVIL))
    attempt.deviation("journal-gap", EVIL)
    attempt.death()
    attempt.close("aborted", reason=EVIL, cleanup=((EVIL, False, EVIL),))
    pages = every_form(told(attempt))
    for form, page in pages.items():
        assert not set("\x1b\u2028\u0085") & set(page), form
    assert "<script>" not in pages["html"]
    words_of(pages["html"])
    assert all(line.isprintable() for line in pages["terminal"].split("\n"))
    assert "\n# end" not in pages["md"]
    for row in (line for line in pages["md"].split("\n") if line.startswith("| 1 |")):
        assert len(re.findall(r"(?<!\\)\|", row)) == 12, row


@pytest.mark.parametrize(
    ("text", "escaped"),
    [
        ("a|b_c*", r"a\|b\_c\*"),
        ("<b>&amp;", r"\<b\>\&amp;"),
        ("- a", r"\- a"),
        ("--- ", r"\--- "),
        ("1. one", r"1\. one"),
        ("3.11.7", "3.11.7"),
        ("-5 to 3", "-5 to 3"),
        ("# no", r"\# no"),
        ("see http://x.y", r"see http\://x.y"),
        ("www.x.y", r"www\.x.y"),
        ("a\nb", r"a\\x0ab"),
    ],
)
def test_markdown_shows_exactly_the_text(text: str, escaped: str) -> None:
    assert markdown(text) == escaped


def test_an_attempt_that_is_not_there_is_the_users_mistake() -> None:
    with pytest.raises(InputError, match="there is no attempt soak-n12/9"):
        story(passing().ledger, "soak-n12", 9)
    with pytest.raises(InputError):
        story(HandWritten(), "soak-n12", 1)


def test_a_registration_that_is_not_where_the_attempt_says_is_a_fault_of_the_evidence() -> None:
    attempt = passing()
    attempt.ledger.rows[attempt.opened.seq].data["registration_seq"] = 0
    with pytest.raises(EvidenceError, match="entry 0 is no registration"):
        told(attempt)


def test_a_document_given_by_a_rejudge_replaces_the_stored_one() -> None:
    attempt = passing()
    document: dict[str, Any] = {**attempt.ledger.rows[-1].data, "verdict": "FAIL"}
    document["criteria"] = [criterion("twelve-acknowledged", "not_met", "== 12", ("11/1", "11"), (12, 12), (11, 1, 0))]
    view = story(attempt.ledger, "soak-n12", attempt.number, verdict=document)
    assert view.word == "FAIL"
    assert view.criteria[0].margin == "1 short"
    assert view.criteria[1].word == "not judged"
