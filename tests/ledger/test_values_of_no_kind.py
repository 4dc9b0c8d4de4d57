"""Values of any type in any column, as a table that was made anew holds them: named faults, and never a traceback."""

from __future__ import annotations

import contextlib
import itertools
import sqlite3
from collections.abc import Iterator

import pytest
from ledger_samples import OPENED, record_receipt
from test_audit import told

from campaigns import cli
from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.store import Ledger

RECORD = {
    "entry": ("seq", "kind", "subject", "recorded_at", "body", "leaf_hash", "prev_hash"),
    "checkpoint": ("tree_size", "key_id", "root", "note"),
    "node": ("level", '"index"', "hash"),
    "attempt": ("open_seq", "campaign", "attempt", "opened_at", "pid"),
}
VALUES = ("NULL", "-1", "3.5", "'sha256:'", "x'ff'", "9223372036854775807", "CAST(x'ff' AS TEXT)", "1e400")
COMMANDS = (["ledger", "verify"], ["campaign", "status"], ["ledger", "log"], ["campaign", "rejudge", "soak-n12/1"])


@pytest.fixture(autouse=True)
def soaked(ledger: Ledger) -> None:
    ledger.append("attempt_open", "soak-n12/1", OPENED | {"checkpoint_note_sha256": ledger.checkpoint().note_sha256})
    for n in range(1, 6):
        record_receipt(ledger, n)
    ledger.checkpoint()
    ledger.close()


@contextlib.contextmanager
def opened(home: EvidenceHome) -> Iterator[sqlite3.Connection]:
    with contextlib.closing(sqlite3.connect(home.ledger_db, isolation_level=None)) as connection:
        yield connection


def remake(home: EvidenceHome, table: str, column: str, value: str, where: str) -> None:
    """Make a table anew without types and guards, and put ``value`` where ``where`` says."""
    with opened(home) as connection:
        for kind, name in connection.execute(
            "SELECT type, name FROM sqlite_master WHERE type IN ('trigger', 'view')"
        ).fetchall():
            connection.execute(f"DROP {kind} {name}")
        connection.execute(f"CREATE TABLE held AS SELECT * FROM {table}")
        names = [row[1] for row in connection.execute(f"PRAGMA table_info({table})")]
        connection.execute(f"DROP TABLE {table}")
        connection.execute(f"CREATE TABLE {table} ({', '.join(f'{chr(34)}{name}{chr(34)}' for name in names)})")
        connection.execute(f"INSERT INTO {table} SELECT * FROM held")
        connection.execute("DROP TABLE held")
        connection.execute(f"UPDATE {table} SET {column} = {value} WHERE {where}")


def statuses(home: EvidenceHome) -> list[int]:
    return [cli.run([*command, "--home", str(home.path)]) for command in COMMANDS]


@pytest.mark.parametrize("table", RECORD)
@pytest.mark.parametrize("where", ["1", "rowid = 2"])
def test_any_value_in_any_column_is_a_fault_and_no_command_falls_over_it(
    home: EvidenceHome, table: str, where: str
) -> None:
    before = home.ledger_db.read_bytes()
    for column, value in itertools.product(RECORD[table], VALUES):
        home.ledger_db.write_bytes(before)
        remake(home, table, column, value, where)
        report = verify(home)
        assert not report.ok
        assert statuses(home)[0] == 5, (column, value)


def test_what_is_no_number_of_an_entry_is_counted_and_the_rest_is_read(home: EvidenceHome) -> None:
    with opened(home) as connection:
        for name in ("entry_in_order", "entry_chained"):
            connection.execute(f"DROP TRIGGER {name}")
        row = f"9223372036854775807, kind, subject, recorded_at, body, '{'a' * 64}', '{'b' * 64}'"
        connection.execute(f"INSERT INTO entry SELECT {row} FROM entry WHERE seq = 0")
    report = verify(home)
    assert "table entry: 1 rows have a number that no entry can have" in told(report)
    assert report.entries_checked == 7
    assert all(status in (0, 5) for status in statuses(home))


def test_a_column_that_is_no_utf_8_is_named_with_its_entry_and_the_rest_is_read(home: EvidenceHome) -> None:
    with opened(home) as connection:
        connection.execute("DROP TRIGGER entry_no_update")
        connection.execute("UPDATE entry SET kind = CAST(x'ff' AS TEXT) WHERE seq = 3")
    report = verify(home)
    assert "entry 3: column kind differs from the body (expected receipt" in told(report)
    assert report.entries_checked == 7
    assert all(status in (0, 5) for status in statuses(home))


@pytest.mark.parametrize("change", ["name = x'ff'", "name = NULL", "type = NULL", "tbl_name = 'node'", "sql = x'00ff'"])
def test_a_schema_that_sqlite_itself_cannot_read_is_a_fault(home: EvidenceHome, change: str) -> None:
    with opened(home) as connection:
        connection.execute("PRAGMA writable_schema = ON")
        connection.execute(f"UPDATE sqlite_schema SET {change} WHERE name = 'entry_no_update'")
    assert not verify(home).ok
    assert statuses(home) == [5, 5, 5, 5]
