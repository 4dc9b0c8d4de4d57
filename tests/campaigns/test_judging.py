"""Judging from a real ledger: the same bytes again, whatever was appended behind what was judged."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from judged import Attempt

from campaigns import judging
from ledger.home import EvidenceHome
from ledger.store import Ledger
from receipts.clock import HostClock


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    moment = datetime(2026, 11, 30, tzinfo=UTC)
    clock = HostClock("here", boot_id="b", clock="boottime", stamp=lambda: 5, awake=lambda: 5, wall=lambda: moment)
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "cfg"), "XDG_STATE_HOME": str(tmp_path / "state")}
    tool = {"version": "0", "commit": None}
    return Ledger.create(EvidenceHome(tmp_path / "home"), clock=clock, tool=tool, environ=environ)


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
