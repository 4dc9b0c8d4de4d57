"""Pages and terminal output of hand-written attempts: the verdict first, nothing wider, nothing hidden."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

sys.path.append(str(Path(__file__).parents[1] / "campaigns"))
from judged import Attempt

from templates.render import markdown, render_story
from templates.story import Story, story
from templates.terminal import audit_lines, verdict_lines

EVIL = "a|b `c` <script>alert(1)</script> \x1b[31m\u2028\u0085 end"


@dataclass(frozen=True)
class Entry:
    seq: int
    kind: str
    subject: str
    data: Any
    recorded_at: str = "2026-11-30T20:41:07.512Z"


class HandWritten:
    """A ledger's reading face over the entries of one hand-written attempt."""

    def __init__(self, attempt: Attempt) -> None:
        self._entries = [self._whole(entry) for entry in attempt.entries]

    @staticmethod
    def _whole(entry: Any) -> Entry:
        data, subject = dict(entry.data), entry.subject
        if entry.kind == "attempt_open":
            data["cache_identity"] = "sha256:" + "2" * 64
        if entry.kind == "enrollment":
            data["identity"] = {"mode": "native"}
        if entry.kind == "receipt":
            subject = f"{data['campaign']}/attempt-{data['attempt']:04d}/{subject}"
        return Entry(entry.seq, entry.kind, subject, data)

    def size(self) -> int:
        return len(self._entries)

    def entries(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        kinds: Collection[str] | None = None,
        subject: str | None = None,
        subject_prefix: str | None = None,
    ) -> Iterator[Entry]:
        for entry in self._entries[first : None if last is None else last + 1]:
            if kinds is not None and entry.kind not in kinds:
                continue
            if subject is not None and entry.subject != subject:
                continue
            if subject_prefix is None or entry.subject.startswith(subject_prefix):
                yield entry


def told(attempt: Attempt, *, judged: bool = True) -> Story:
    document = attempt.judge() if judged else None
    return story(HandWritten(attempt), attempt.campaign, attempt.number, verdict=document)


def passing() -> Attempt:
    attempt = Attempt()
    attempt.clean()
    attempt.close()
    return attempt


def failing() -> Attempt:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    for rep in range(1, 9):
        attempt.rep(rep)
    attempt.rep(9, outcome="died")
    attempt.death()
    attempt.close()
    return attempt


def interrupted() -> Attempt:
    attempt = Attempt()
    attempt.start_run()
    attempt.rep(1, case="control")
    attempt.rep(1)
    attempt.rep(2, outcome="interrupted")
    attempt.close("interrupted")
    return attempt


def empty() -> Attempt:
    attempt = Attempt()
    attempt.close("precondition")
    return attempt


KINDS = {"PASS": passing, "FAIL": failing, "INCONCLUSIVE": interrupted}


class Words(HTMLParser):
    """The visible words of a page, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []
        self._hidden = 0

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = {name for name, _ in attrs}
        assert not names & {"src", "href", "srcset"}, f"{tag} refers to something outside"
        self._hidden += tag in {"style", "title", "script"}

    def handle_endtag(self, tag: str) -> None:
        self._hidden -= tag in {"style", "title", "script"}

    def handle_data(self, data: str) -> None:
        if not self._hidden:
            self.words += data.split()


def words_of(page: str) -> list[str]:
    parser = Words()
    parser.feed(page)
    return parser.words


@pytest.mark.parametrize("word", KINDS)
def test_the_first_visible_word_of_a_page_is_the_verdict(word: str) -> None:
    view = told(KINDS[word]())
    assert words_of(render_story(view, fmt="html"))[0] == word
    assert render_story(view, fmt="md").startswith(f"# {word}: ")


def test_an_attempt_without_a_verdict_renders_and_says_so() -> None:
    view = told(interrupted(), judged=False)
    assert words_of(render_story(view, fmt="html"))[:2] == ["NO", "VERDICT"]
    assert "No verdict was computed" in render_story(view, fmt="md")


def test_an_empty_attempt_shows_missing_values_as_a_dash_and_never_as_zero() -> None:
    lines = verdict_lines(told(empty()), 80)
    assert any(line.strip().startswith("cannot be judged twelve-acknowledged: —") for line in lines)
    assert "  none" in lines


def test_a_death_is_told_as_the_handoff_it_happened_on() -> None:
    sentence = "died on handoff 9 of 12: watchdog, exit status 75"
    assert sentence in "\n".join(verdict_lines(told(failing()), 80))
    assert sentence in render_story(told(failing()), fmt="html")
    assert sentence in render_story(told(failing()), fmt="md")


def test_every_figure_of_a_criterion_is_the_same_in_terminal_markdown_and_html() -> None:
    attempt = passing()
    document = attempt.judge()
    view = told(attempt)
    pages = ["\n".join(verdict_lines(view, 200)), render_story(view, fmt="md"), render_story(view, fmt="html")]
    for item in document["criteria"]:
        for page in pages:
            assert item["observed"]["shown"] in page, item["name"]


def test_an_earlier_attempt_without_a_pass_stands_before_the_criteria() -> None:
    first = failing()
    first.add("verdict", "soak-n12/1", first.judge())
    second = Attempt(number=2, entries=first.entries, journal=first.journal)
    second.clean()
    second.close()
    view = told(second)
    for page in ("\n".join(verdict_lines(view, 80)), render_story(view, fmt="md"), render_story(view, fmt="html")):
        assert page.index("soak-n12/1") < page.index("Criteria"), page
    lines = verdict_lines(view, 80)
    assert "  soak-n12/1 FAIL" in lines


@pytest.mark.parametrize("word", KINDS)
def test_what_is_not_a_pass_says_the_next_step_and_what_would_be_theatre(word: str) -> None:
    text = " ".join(" ".join(verdict_lines(told(KINDS[word]()), 80)).split())
    assert ("Theatre would be" in text) == (word != "PASS")
    assert ("Next: " in text) == (word != "PASS")


@pytest.mark.parametrize("make", [passing, failing, interrupted, empty])
def test_at_forty_columns_no_line_is_wider_unless_it_is_one_word(make: Any) -> None:
    for line in verdict_lines(told(make()), 40):
        assert len(line) <= 40 or len(line.split()) == 1, line


def test_terminal_lines_hold_no_escape_byte_and_no_line_break() -> None:
    attempt = passing()
    attempt.resolved["title"] = EVIL
    for line in verdict_lines(told(attempt), 80):
        assert line.isprintable(), line


def test_free_text_cannot_break_a_page() -> None:
    attempt = passing()
    attempt.resolved["not_covered"] = [EVIL]
    page = render_story(told(attempt), fmt="html")
    assert "<script>" not in page
    assert "\x1b" not in page
    assert "\u2028" not in page
    text = render_story(told(attempt), fmt="md")
    assert "<script>" not in text.replace("\\<script\\>", "")
    assert "\x1b" not in text


def test_markdown_shows_exactly_the_text() -> None:
    assert markdown("a|b_c*") == r"a\|b\_c\*"


def test_an_audit_names_each_fault_with_both_sides() -> None:
    report = {
        "faults": [{"where": "receipts/x.json", "entry": 7, "expected": "A", "found": None, "what": "is missing"}],
        "checked": {"entries": 9, "files": 3},
        "head": {"size": 9, "root": "sha256:ab"},
        "anchored_to": [],
        "orphans": [],
        "not_checked": ["the world"],
    }
    assert audit_lines(report, 80) == [
        "DOES NOT VERIFY: 1 fault(s)",
        "  entry 7 (receipts/x.json): is missing; expected A, found —",
        "checked: 9 entries, 3 files",
        "head: 9 entries, root sha256:ab",
        "not checked: the world",
    ]
