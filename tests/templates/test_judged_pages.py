"""What the judge itself writes can be told: pages over documents of ``campaigns.verdict``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "campaigns"))
import judged
from told import Entry, HandWritten

from templates.render import render_story
from templates.story import Story, story
from templates.terminal import verdict_lines

FILLED: dict[str, dict[str, Any]] = {
    "enrollment": {"identity": {"mode": "native"}},
    "registration": {
        "spec_sha256": "sha256:" + "5" * 64,
        "resolved_sha256": "sha256:" + "6" * 64,
        "parent_seq": None,
        "after_attempt": None,
        "reason": None,
    },
    "attempt_open": {"cache_identity": "sha256:" + "2" * 64, "rehearsal": False},
}
"""Members that the judge does not look at and a page does."""


def told(attempt: judged.Attempt) -> Story:
    ledger = HandWritten()
    for entry in attempt.entries:
        data = {**FILLED.get(entry.kind, {}), **entry.data}
        subject = entry.subject
        if entry.kind == "receipt":
            subject = f"{data['campaign']}/attempt-{data['attempt']:04d}/{subject}"
        if entry.kind == "process_event" and entry.data["record"]["kind"] == "death":
            record = {**entry.data["record"], "recorded_at": "2026-11-30T20:42:21.004Z"}
            record["body"] = {"signal": None, "reason": "no progress", **record["body"]}
            data = {**data, "record": record}
        ledger.rows.append(Entry(entry.seq, entry.kind, subject, "2026-11-30T20:41:07.512Z", data))
    return story(ledger, attempt.campaign, attempt.number, verdict=attempt.judge())


def passing() -> judged.Attempt:
    attempt = judged.Attempt()
    attempt.clean()
    attempt.close()
    return attempt


def failing() -> judged.Attempt:
    attempt = judged.Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 9):
        attempt.rep(rep)
    attempt.rep(9, outcome="died")
    attempt.death()
    attempt.close()
    return attempt


def interrupted() -> judged.Attempt:
    attempt = judged.Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    attempt.rep(1)
    attempt.rep(2, outcome="interrupted")
    attempt.close("interrupted")
    return attempt


KINDS = {"PASS": passing, "FAIL": failing, "INCONCLUSIVE": interrupted}


@pytest.mark.parametrize("word", KINDS)
def test_what_the_judge_says_is_told_first_and_with_its_figures(word: str) -> None:
    attempt = KINDS[word]()
    view = told(attempt)
    pages = ["\n".join(verdict_lines(view, 200)), render_story(view, fmt="md"), render_story(view, fmt="html")]
    assert pages[0].startswith(word)
    for item in attempt.judge()["criteria"]:
        for page in pages:
            assert item["observed"] is None or item["observed"]["shown"] in page, item["name"]


def test_a_death_that_the_judge_found_is_told_as_the_handoff_it_happened_on() -> None:
    assert "died on handoff 9 of 12: watchdog, exit status 75" in render_story(told(failing()), fmt="html")
