"""Entries of a known kind that say nothing of use: named with their number, by verify and by whoever goes by them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judged_ledger import clean_attempt, new_ledger, put, receipt_path, still_clock, verdicts

from campaigns import cli, judging
from campaigns.lost import abandon_lost, judge_late_records
from ledger.audit import verify
from ledger.entry import Ref
from ledger.store import Ledger
from receipts import canonical
from receipts.errors import EvidenceError

DEATH = {"v": 1, "n": 2, "prev": "sha256:" + "0" * 64, "lane": "loopback", "host": "here", "boot_id": "b",
         "clock": "boottime", "at_ns": "5", "recorded_at": "2026-11-30T20:41:07.512Z", "kind": "death"}  # fmt: skip
EVENT = {"record_sha256": "sha256:" + "6" * 64, "injected": False, "merged_n": []}

MALFORMED: dict[str, tuple[str, str, Any, str]] = {
    "a deviation without evidence": (
        "deviation", "soak-n12/1", {"campaign": None, "attempt": None, "what": "journal-broken", "text": ""},
        "data.evidence: Field required"),
    "a deviation that is a list": ("deviation", "soak-n12/1", [], "data: Input should be an object"),
    "a close that ended nowhere": (
        "attempt_close", "soak-n12/1", {"campaign": "soak-n12", "attempt": 1, "ended": "complete", "stages": []},
        "data.host: Field required"),
    "a close whose stages are none": (
        "attempt_close", "soak-n12/1", {"campaign": "soak-n12", "attempt": 1, "ended": "complete", "stages": [],
        "host": "here", "boot_id": "b", "clock": "boottime", "signal": None, "reason": None, "cleanup": [], "at_ns": 7},
        "data.at_ns: Input should be a valid string"),
    "an event without a record": (
        "process_event", "loopback/2", EVENT | {"record": {"lane": "loopback", "n": 2, "kind": "stop"}},
        "data.record.host: Field required"),
    "a death of nobody": (
        "process_event", "loopback/2", EVENT | {"record": DEATH | {"body": {"site": "exit"}}},
        "data.record.body.instance: Field required"),
    "an enrollment of nothing": ("enrollment", "loopback", {"lane": "loopback"}, "data.identity: Field required"),
    "an abandonment of nothing": (
        "attempt_abandoned", "soak-n12/1", {"campaign": "soak-n12", "attempt": 1}, "data.ended: Field required"),
}  # fmt: skip


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """An attempt that was closed, or was not, and is not judged yet."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "cfg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made = new_ledger(tmp_path)
    put(made, clean_attempt())
    return made


@pytest.mark.parametrize("case", MALFORMED)
def test_it_is_named_by_verify_by_rejudge_and_by_the_next_launch(
    ledger: Ledger, case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    kind, subject, data, words = MALFORMED[case]
    seq = ledger.append(kind, subject, data).seq
    said = f"this {kind} has not the shape of its kind: {words}"
    assert [fault.what for fault in verify(ledger.home).faults if fault.entry == seq] == [said]
    home = str(ledger.home.path)
    for command in (["campaign", "rejudge", "soak-n12/1"], ["report", "verdict", "soak-n12/1"]):
        status = cli.run([*command, "--home", home])
        told = capsys.readouterr().err
        if command[0] == "campaign":
            assert status == 5 and f"soakledger: entry {seq}: {said}" in told
    with pytest.raises(EvidenceError, match=f"this {kind} has not the shape") as caught:
        abandon_lost(ledger, still_clock(boot_id="another"), "loopback")
    assert caught.value.where == f"entry {seq}"
    assert cli.run(["ledger", "log", "--home", home]) == cli.run(["campaign", "status", "--home", home]) == 0


def test_a_late_record_that_is_none_is_named(ledger: Ledger) -> None:
    judging.store_verdict(ledger, "soak-n12", 1)
    seq = ledger.append("process_event", "loopback/2", EVENT | {"record": DEATH | {"body": {}}}).seq
    with pytest.raises(EvidenceError, match="this process_event has not the shape") as caught:
        judge_late_records(ledger, "loopback")
    assert caught.value.where == f"entry {seq}"
    assert cli.run(["campaign", "rejudge", "soak-n12/1", "--home", str(ledger.home.path)]) == 0  # it did not see it


@pytest.mark.parametrize("body", [{}, {"outcome": "acknowledged", "handoff_id": "a" * 32}, {"handoff_id": 7}])
def test_a_receipt_without_a_body_of_its_kind_is_named(
    ledger: Ledger, body: dict[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    last = list(ledger.entries(kinds={"receipt"}))[-1].data
    data = last | {"kind": "handoff", "n": last["n"] + 1, "run": 1, "rep": 12, "body": body}
    path = receipt_path(clean_attempt(), data)
    entry = ledger.record("receipt", path.removeprefix("receipts/").removesuffix(".json"), path, data)
    assert entry.ref == Ref.of(path, canonical.file_bytes(data))
    assert cli.run(["campaign", "rejudge", "soak-n12/1", "--home", str(ledger.home.path)]) == 5
    assert "this receipt has not the shape of its kind" in capsys.readouterr().err


def test_a_verdict_over_nothing_is_named(ledger: Ledger, capsys: pytest.CaptureFixture[str]) -> None:
    document = judging.compute(ledger, "soak-n12", 1, ledger.size() - 1) | {"receipts": {}}
    ledger.record("verdict", "soak-n12/1", "receipts/soak-n12/attempt-0001/SOAK_VERDICT.json", document)
    assert cli.run(["campaign", "rejudge", "soak-n12/1", "--home", str(ledger.home.path)]) == 5
    told = capsys.readouterr().err
    assert f"entry {verdicts(ledger)[0].seq}: this verdict does not say over which entries it was given" in told
