"""Rows that somebody put behind the last entry, for status to show and for the next append to stumble over."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable

import pytest
from ledger_samples import record_receipt
from test_audit import told

from ledger.audit import verify
from ledger.audit_derived import name_what_is_ahead
from ledger.findings import Findings
from ledger.home import EvidenceHome
from ledger.projections import reproject
from ledger.store import Ledger
from ledger.views import PROJECTIONS
from receipts.errors import EvidenceError

NUMBERED = {
    "campaign": "({0}, 'c', 'f', 't', 's', 'r', NULL, NULL)",
    "attempt": "({0}, 'c', 9, 'f', 0, 1, 'l', 'i', 'c', 't', 'h', 'b', 1, '1')",
    "attempt_end": "({0}, 'c', 9, 'complete', 't')",
    "verdict": "({0}, 'c', 9, 'PASS', 'complete', 'j', 's', 1, 't', NULL)",
    "measurement": "({0}, 'handoff.acknowledged', '1', '1')",
}


@pytest.fixture(autouse=True)
def soaked(ledger: Ledger) -> None:
    """Entries 0 … 3: the tree has nodes (1, 0), (1, 1) and (2, 0)."""
    for n in (1, 2, 3):
        record_receipt(ledger, n)
    ledger.checkpoint()


@pytest.mark.parametrize("ahead", [4, 9_000_000_000])
@pytest.mark.parametrize("table", NUMBERED)
@pytest.mark.parametrize("quick", [False, True])
def test_a_row_of_an_entry_that_there_is_not_is_named(
    home: EvidenceHome, sql: Callable[..., None], table: str, ahead: int, quick: bool
) -> None:
    assert table in PROJECTIONS
    sql(f"INSERT INTO {table} VALUES {NUMBERED[table].format(ahead)}")
    assert told(verify(home, all=not quick)) == (
        f"table {table}: 1 rows are of entries that there are not, the first of entry {ahead}; "
        "soakledger ledger reproject takes them away"
    )
    reproject(home)
    assert verify(home).ok


@pytest.mark.parametrize(("level", "index"), [(1, 2), (3, 0), (1, 17), (2, 1), (40, 3)])
def test_a_node_over_entries_that_there_are_not_is_named(
    home: EvidenceHome, sql: Callable[..., None], level: int, index: int
) -> None:
    sql(f"INSERT INTO node VALUES ({level}, {index}, '{'f' * 64}')")
    assert told(verify(home)).startswith(f"table node, level {level} index {index}: 1 nodes stand over entries that")
    reproject(home)
    assert verify(home).ok


@pytest.mark.parametrize("row", [f"node VALUES (1, 2, '{'f' * 64}')", "receipt SELECT 5, campaign, attempt, stage,"
    " case_name, run, rep, n, kind, outcome, lane, host, recorded_at, path FROM receipt WHERE seq = 3"])  # fmt: skip
def test_an_append_that_meets_one_says_what_is_there_and_keeps_nothing(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None], row: str
) -> None:
    record_receipt(ledger, 4)
    sql(f"INSERT INTO {row}")
    with pytest.raises(EvidenceError, match="what only entry 5 can bring stands there before it") as caught:
        record_receipt(ledger, 5)
    assert "soakledger ledger reproject" in str(caught.value.next_step)
    assert ledger.size() == 5
    reproject(home)
    record_receipt(ledger, 5)
    assert verify(home).ok


def test_entries_that_come_in_while_it_is_verified_are_nobodys_fault(home: EvidenceHome, ledger: Ledger) -> None:
    for n in range(4, 9):
        record_receipt(ledger, n)
    findings = Findings()
    connection = sqlite3.connect(home.ledger_db)
    name_what_is_ahead(connection, findings, 4)  # of a pass that read the first four
    connection.close()
    assert findings.faults == []
