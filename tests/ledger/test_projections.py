"""The projections answer questions, follow from the entries alone and can be rebuilt from nothing else."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from ledger_samples import OPENED, TOOL, record_receipt, still_clock

from campaigns.refusals import read_spec
from campaigns.registration import register
from campaigns.registry import LoadedSpec
from campaigns.spec import resolve
from ledger import query
from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.projections import blobs_named, reproject
from ledger.store import Ledger
from ledger.views import PROJECTIONS
from receipts.errors import EvidenceError, InputError

SHIPPED = Path(__file__).parents[2] / "campaigns/specs/soak-n12.toml"
REGISTRATION = {
    "campaign": "soak-n12",
    "family": "bounded-soak",
    "spec_sha256": "sha256:" + "3" * 64,
    "resolved_sha256": "sha256:" + "4" * 64,
    "spec": "id = 1",
    "resolved": {},
    "parent_seq": None,
    "after_attempt": None,
    "reason": None,
    "weaker": [],
}
CLOSED = {
    "campaign": "soak-n12", "attempt": 1, "ended": "complete", "signal": None, "reason": None, "cleanup": [],
    "stages": [{"stage": "soak", "last_n": 2, "reached_end": True, "started_ns": None, "closed_ns": None}],
    "host": "here", "boot_id": "b", "clock": "boottime", "at_ns": "9",
}  # fmt: skip
RECORD = {"v": 1, "n": 3, "prev": "sha256:" + "0" * 64, "lane": "loopback", "host": "here", "boot_id": "b",
          "clock": "boottime", "at_ns": "5", "recorded_at": "2026-11-30T20:41:07.512Z", "kind": "death",
          "body": {"instance": {"host": "here", "boot_id": "b", "pid": 4711, "start_ticks": "81231"},
                   "site": "watchdog", "status": 75, "signal": None, "reason": "no progress", "uptime_ns": None,
                   "last_handoff_id": None, "died_ns": "5", "observed_by": "self"}}  # fmt: skip
EVENT = {"record": RECORD, "record_sha256": "sha256:" + "6" * 64, "injected": False, "merged_n": []}
VERDICT = {
    "v": 1, "campaign": "soak-n12", "attempt": 1, "ended": "complete", "verdict": "FAIL",
    "evaluator": {"name": "soakledger/judge/1", "source_sha256": "sha256:" + "5" * 64},
    "receipts": {"from_seq": 3, "to_seq": 5},
    "criteria": [
        {"name": "burst-floor", "outcome": "not_met", "bound": ">= 3", "observed": None, "expected_samples": 12,
         "samples": 9},
        {"name": "one-instance", "outcome": "met", "bound": "== 1", "observed": {"exact": "1/1", "shown": "1"},
         "expected_samples": 12, "samples": 12},
    ],
}  # fmt: skip


@pytest.fixture(autouse=True)
def attempt(ledger: Ledger) -> None:
    ledger.append("registration", "soak-n12", REGISTRATION)
    ledger.append("attempt_open", "soak-n12/1", OPENED | {"checkpoint_note_sha256": ledger.checkpoint().note_sha256})
    record_receipt(ledger, 1)
    record_receipt(ledger, 2, outcome="died")
    ledger.append("process_event", "loopback/3", EVENT)
    ledger.append(
        "attempt_close",
        "soak-n12/1",
        CLOSED,
    )
    ledger.record("verdict", "soak-n12/1", "receipts/soak-n12/attempt-0001/SOAK_VERDICT.json", VERDICT)


def rows(home: EvidenceHome, statement: str) -> list[tuple[Any, ...]]:
    connection = sqlite3.connect(home.ledger_db)
    try:
        return connection.execute(statement).fetchall()
    finally:
        connection.close()


def everything(home: EvidenceHome) -> dict[str, list[tuple[Any, ...]]]:
    return {table: rows(home, f"SELECT * FROM {table} ORDER BY 1, 2") for table in ("node", *PROJECTIONS)}


def test_an_attempt_stands_beside_its_end_and_its_verdict(ledger: Ledger) -> None:
    (row,) = query.attempts(ledger, "soak-n12")
    assert (row.attempt, row.ended, row.verdict, row.open_seq, row.close_seq, row.verdict_seq) == (
        1, "complete", "FAIL", 2, 6, 7,
    )  # fmt: skip
    assert query.attempts(ledger, "other") == []
    assert [row.campaign for row in query.campaigns(ledger)] == ["soak-n12"]


def test_an_amendment_names_the_registration_that_it_amends(ledger: Ledger) -> None:
    """The document as it is registered: one that nobody writes would prove nothing."""
    raw = SHIPPED.read_bytes().replace(b'id = "soak-n12"', b'id = "mine"', 1)
    spec = read_spec(raw, "spec.toml")
    loaded = LoadedSpec(spec, raw, "spec.toml", None)
    first = register(ledger, loaded, resolve(spec), None).entry
    amended = replace(loaded, raw=loaded.raw + b"# a remark")
    second = register(ledger, amended, resolve(spec), "a remark").entry
    found = {row.registration_seq: row.parent for row in query.campaigns(ledger)}
    assert found[second.seq] == str(first.seq)


def test_a_later_verdict_of_the_attempt_is_the_one_that_is_shown(ledger: Ledger) -> None:
    path = "receipts/soak-n12/attempt-0001/SOAK_VERDICT.2.json"
    ledger.record("verdict", "soak-n12/1", path, VERDICT | {"verdict": "INCONCLUSIVE"})
    assert [row.verdict for row in query.attempts(ledger)] == ["INCONCLUSIVE"]


def test_deaths_reps_and_criteria_are_in_views_named_for_them(home: EvidenceHome) -> None:
    assert rows(home, "SELECT lane, pid, start_ticks, site, status FROM deaths") == [
        ("loopback", 4711, "81231", "watchdog", 75)
    ]
    assert rows(home, "SELECT rep, outcome FROM reps_of_attempt WHERE campaign = 'soak-n12' AND attempt = 1") == [
        (1, "acknowledged"),
        (2, "died"),
    ]
    assert rows(home, "SELECT position, name, outcome, observed_shown FROM criteria_of_attempt") == [
        (0, "burst-floor", "not_met", None),
        (1, "one-instance", "met", "1"),
    ]
    assert rows(home, "SELECT stage, last_n FROM stage_end") == [("soak", 2)]


def test_reprojecting_destroyed_tables_gives_back_exactly_what_was_there(
    home: EvidenceHome, sql: Callable[..., None]
) -> None:
    before = everything(home)
    sql("DELETE FROM node", "DROP TABLE attempt", "UPDATE receipt SET outcome = 'acknowledged'", "DROP VIEW deaths")
    assert not verify(home).ok
    assert reproject(home) == 8
    assert everything(home) == before
    assert verify(home).ok


def test_figures_come_from_the_function_that_is_handed_in_and_from_nowhere_else(home: EvidenceHome) -> None:
    def measure(data: Mapping[str, Any]) -> list[tuple[str, str, str]]:
        count = str(int(data["body"]["outcome"] == "acknowledged"))
        return [("handoff.acknowledged", f"{count}/1", count)]

    assert rows(home, "SELECT * FROM measurement") == []
    reproject(home, measure=measure)
    assert rows(home, "SELECT rep, metric, value, shown FROM figures_of_attempt") == [
        (1, "handoff.acknowledged", "1/1", "1"),
        (2, "handoff.acknowledged", "0/1", "0"),
    ]
    with Ledger.open(home, clock=still_clock(), tool=TOOL, read_only=False, measure=measure) as ledger:
        record_receipt(ledger, 3)
    assert len(rows(home, "SELECT * FROM measurement")) == 3


def test_nothing_is_rebuilt_from_a_changed_entry_and_nothing_is_lost(
    home: EvidenceHome, sql: Callable[..., None]
) -> None:
    sql("DROP TRIGGER entry_no_update", "UPDATE entry SET body = replace(body, 'died', 'dieD') WHERE seq = 4")
    before = everything(home)
    with pytest.raises(EvidenceError, match="entry 4"):
        reproject(home)
    assert everything(home) == before


def test_the_log_is_filtered_by_kind_subject_campaign_and_attempt(ledger: Ledger) -> None:
    assert [entry.seq for entry in query.log(ledger, kind="receipt")] == [3, 4]
    assert [entry.seq for entry in query.log(ledger, campaign="soak-n12", attempt=1)] == [2, 3, 4, 5, 6, 7]
    # Entry 5 is an event of the attempt's lane, and names no campaign.
    assert [entry.seq for entry in query.log(ledger, campaign="soak-n12", kind="process_event")] == [5]
    assert [entry.seq for entry in query.log(ledger, campaign="another", kind="process_event")] == []
    assert [entry.seq for entry in query.log(ledger, subject="loopback/3")] == [5]
    assert [entry.seq for entry in query.log(ledger, first=2, limit=2)] == [2, 3]
    assert query.show(ledger, 7).data == VERDICT
    with pytest.raises(InputError, match="there is no entry 99"):
        query.show(ledger, 99)


def test_blobs_are_found_by_the_names_of_their_members() -> None:
    document = {"a": [{"manifest_blob": "sha256:1"}, {"log_blob": None}], "raw_blobs": {"x": "sha256:2"}, "blob": "no"}
    assert sorted(blobs_named(document)) == [("manifest_blob", "sha256:1"), ("raw_blobs", "sha256:2")]
