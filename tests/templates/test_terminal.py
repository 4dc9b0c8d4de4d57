"""Terminal lines: as wide as it may be, no escape byte, foreign text on one line, no hint without its command."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from told import Attempt, HandWritten, spec
from told_attempts import ATTEMPTS, failing, passing

from templates import words
from templates.columns import columns, table_lines, wrapped
from templates.render import render_story
from templates.story import story
from templates.terminal import audit_lines, log_lines, rep_line, verdict_lines

HERE = Path(__file__).parent
ROOT = HERE.parents[1]


@pytest.mark.parametrize("width", [40, 60, 80, 120])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_no_line_is_wider_than_the_terminal_unless_it_is_one_word(name: str, width: int) -> None:
    attempt = ATTEMPTS[name]()
    for line in verdict_lines(story(attempt.ledger, "soak-n12", attempt.number), width):
        assert columns(line) <= width or len(line.split()) == 1, line
        assert line.isprintable(), line


def test_a_title_in_wide_characters_is_wrapped_by_its_columns() -> None:
    resolved = spec()
    resolved["title"] = " ".join(["測試十二次"] * 12)
    attempt = Attempt(resolved=resolved)
    for line in verdict_lines(story(attempt.ledger, "soak-n12", 1), 40):
        assert columns(line) <= 40, line


def test_columns_counts_wide_characters_twice_and_combining_ones_not_at_all() -> None:
    assert columns("ab") == 2
    assert columns("測試") == 4
    assert columns("e\u0301") == 1


def test_wrapping_keeps_runs_of_spaces_and_lets_only_one_word_pass_the_edge() -> None:
    assert wrapped("met     name: 12", 80) == ["met     name: 12"]
    assert wrapped("aaaa bbbb cccc dddd eeee", 20) == ["aaaa bbbb cccc dddd", "  eeee"]
    assert wrapped("is " + "x" * 30, 20) == ["is", "x" * 30]
    assert wrapped("", 80) == [""]


def test_the_handoffs_are_a_table_at_eighty_columns_and_sentences_at_forty() -> None:
    attempt = failing()
    view = story(attempt.ledger, "soak-n12", attempt.number)
    wide = verdict_lines(view, 80)
    assert "  rep        outcome       total s  prefill s  Gbit/s (loopback)    MB  root" in wide
    assert "  8          acknowledged     5.06          5              9.437  47.2  8c81d478" in wide
    assert "  9          died             80.1          —                  —     —  —" in wide
    narrow = verdict_lines(view, 40)
    assert "  run 1 rep 9: died, 80.1 s, — Gbit/s" in narrow


def test_a_rep_line_tells_place_outcome_and_figures() -> None:
    attempt = Attempt()
    attempt.rep(5, 40)
    envelope = attempt.ledger.rows[-1].data
    assert rep_line(envelope, 12) == "  rep 5 of 12   acknowledged 5.06 s  9.437 Gbit/s  47.2 MB  root 8c81d478"
    attempt.rep(6, None, outcome="died", error=("producer-died", "gone\x1b[31m\nnow"))
    line = rep_line(attempt.ledger.rows[-1].data, 12)
    assert line.startswith("  rep 6 of 12   died         5.06 s\n")
    assert "\x1b" not in line
    assert line.endswith("producer-died: gone\\x1b[31m\\x0anow")


def test_a_table_is_aligned_where_it_fits_and_wrapped_where_it_does_not() -> None:
    rows = [("soak-n12/1", "PASS"), ("soak-n12/10", "FAIL\x1b[0m")]
    assert table_lines(("attempt", "verdict"), rows, 40) == [
        "attempt      verdict",
        "soak-n12/1   PASS",
        "soak-n12/10  FAIL\\x1b[0m",
    ]
    # Where it is too narrow for a table, a header stands before each cell: nothing says else what a number is.
    assert table_lines(("attempt", "verdict"), rows, 20) == [
        "soak-n12/1  verdict",
        "  PASS",
        "soak-n12/10  verdict",
        "  FAIL\\x1b[0m",
    ]
    assert table_lines(("id", "title"), [("a", "one two three four five six"), ("b", "seven")], 25) == [
        "id  title",
        "a   one two three four",
        "      five six",
        "b   seven",
    ]
    assert table_lines(("attempt", "verdict"), [], 40) == ["attempt  verdict"]


def test_a_log_has_the_time_on_every_line_and_says_what_was_amended() -> None:
    ledger = HandWritten()
    ledger.add("genesis", "", {})
    ledger.add("registration", "soak-n12", {"parent_seq": None, "weaker": []})
    ledger.add("registration", "soak-n12", {"parent_seq": 1, "weaker": [{"field": "reps"}]})
    ledger.add("attempt_open", "soak-n12/1", {})
    assert log_lines(ledger.rows, 80) == [
        "seq  UTC       kind          subject",
        "2026-11-30",
        "0    20:41:00  genesis",
        "1    20:41:01  registration  soak-n12",
        "2    20:41:02  registration  soak-n12 (amended, weaker)",
        "3    20:41:03  attempt_open  soak-n12/1",
    ]
    assert log_lines(ledger.rows, 40) == [
        "2026-11-30",
        "0  20:41:00  genesis",
        "1  20:41:01  registration  soak-n12",
        "2  20:41:02  registration  soak-n12",
        "  (amended, weaker)",
        "3  20:41:03  attempt_open  soak-n12/1",
    ]
    assert log_lines([], 80) == []


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


def test_the_verdict_prints_under_lang_c() -> None:
    code = (
        "from told_attempts import failing; from templates.story import story; from templates.terminal import "
        "verdict_lines; a = failing(); print('\\n'.join(verdict_lines(story(a.ledger, 'soak-n12', 4), 40)))"
    )
    environment = {"PATH": os.environ["PATH"], "LANG": "C", "TERM": "dumb", "PYTHONPATH": f"{HERE}{os.pathsep}{ROOT}"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, check=False, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(b"FAIL\n")
    assert b"\x1b" not in done.stdout


def test_every_command_that_a_hint_names_exists() -> None:
    from campaigns.cli import root

    said = " ".join([*words.NEXT_STEP.values(), *words.CHECK_COMMANDS])
    for name in ATTEMPTS:
        attempt = ATTEMPTS[name]()
        said += " " + render_story(story(attempt.ledger, "soak-n12", attempt.number), fmt="md")
    # A digest's label is no command; what follows the two names is an argument or an option.
    named = set(re.findall(r"soakledger (campaign|ledger|report|lane|producer|receiver) ([a-z-]+)", said))
    assert ("campaign", "rejudge") in named
    assert ("ledger", "verify") in named
    for group_name, command_name in named:
        group = root.get_command(None, group_name)  # type: ignore[arg-type]
        assert command_name in group.commands, f"soakledger {group_name} {command_name}"  # type: ignore[union-attr]
    log = root.get_command(None, "ledger").commands["log"]  # type: ignore[arg-type,union-attr]
    assert {"--campaign", "--attempt", "--home"} <= {option for item in log.params for option in item.opts}


def test_a_pass_is_told_in_the_words_of_its_document() -> None:
    attempt = passing()
    lines = verdict_lines(story(attempt.ledger, "soak-n12", attempt.number), 110)
    assert "  met              rep-time: 5.2 s, bound <= 120 s, 114.8 to spare, 12 of 12 samples" in lines
    assert "7 of 7 criteria met." in lines
