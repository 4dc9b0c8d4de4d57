"""Judging from a real ledger: the same bytes again, whatever was appended behind what was judged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NoReturn

import pytest
from judged import Attempt
from judged_ledger import clean_attempt, new_ledger, put, refs, verdicts

from campaigns import judging
from ledger.audit import verify
from ledger.store import Ledger

FOLDER = "receipts/soak-n12/attempt-0001"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "cfg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return new_ledger(tmp_path)


def test_the_tree_is_told_at_the_last_judged_entry_also_when_others_stand_behind_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    def judge(views: list[judging.EntryView], *_: object, tree_root: str, **__: object) -> dict[str, object]:
        seen.append((views[-1].seq, tree_root))
        return {"receipts": {"to_seq": views[-1].seq, "tree_root": tree_root}}

    monkeypatch.setattr(judging, "judge", judge)
    ledger.append("deviation", "", {"campaign": None, "attempt": None, "what": "x", "text": "y", "evidence": {}})
    ledger.append("schema", "", {"note": "an entry that no judge reads"})
    first = judging.compute(ledger, "c", 1, ledger.size() - 1)
    again = judging.compute(ledger, "c", 1, int(first["receipts"]["to_seq"]))
    assert json.dumps(first) == json.dumps(again)
    assert seen[0] == (1, ledger.root_at(2))


def test_gaps_and_doubles_in_a_stages_numbers_are_named() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.close()
    entries = [entry for entry in attempt.entries if not (entry.kind == "receipt" and entry.data["n"] == 7)]
    assert judging.check_numbers(entries, 1) == ["stage soak: receipt 7 is missing"]
    assert judging.check_numbers(attempt.entries, 1) == []


# A verdict that was begun and not finished


class Killed(BaseException):
    """The process ends here."""


def killed_at_the_entry(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a verdict and die when its file stands and its entry does not."""

    def die(_: object) -> NoReturn:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ledger, "_append", die)
        judging.store_verdict(ledger, "soak-n12", 1)


def test_the_file_of_a_verdict_that_was_killed_before_its_entry_is_taken_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ledger, clean_attempt())
    killed_at_the_entry(ledger, monkeypatch)
    assert verify(ledger.home).orphans == (f"{FOLDER}/SOAK_VERDICT.json",)
    judged = judging.store_verdict(ledger, "soak-n12", 1)
    assert judged.document["verdict"] == "PASS"
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.json"]
    report = verify(ledger.home)
    assert report.ok and not report.orphans
    assert judging.rejudge(ledger, "soak-n12", 1) == judged


def test_a_verdicts_file_that_says_something_else_stays_an_orphan_and_bars_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ledger, clean_attempt())
    killed_at_the_entry(ledger, monkeypatch)
    ledger.append("deviation", "soak-n12/1", {"what": "clock", "text": "", "evidence": {}})
    judging.store_verdict(ledger, "soak-n12", 1)
    killed_at_the_entry(ledger, monkeypatch)
    ledger.append("deviation", "soak-n12/1", {"what": "clock", "text": "", "evidence": {}})
    judging.store_verdict(ledger, "soak-n12", 1)
    # The names go on behind files as well as behind entries.
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.2.json", "SOAK_VERDICT.4.json"]
    report = verify(ledger.home)
    assert report.ok
    assert report.orphans == (f"{FOLDER}/SOAK_VERDICT.3.json", f"{FOLDER}/SOAK_VERDICT.json")


def test_a_link_in_a_verdicts_place_is_not_taken_for_its_file(ledger: Ledger, tmp_path: Path) -> None:
    put(ledger, clean_attempt())
    (ledger.home.path / FOLDER / "SOAK_VERDICT.json").symlink_to(tmp_path / "nowhere")
    judging.store_verdict(ledger, "soak-n12", 1)
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.2.json"]
