"""The tables as SQLAlchemy Core sees them: names and columns only, the SQL that makes them is in schema.py."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Final

import sqlalchemy as sa

from ledger.entry import Entry

ENTRY: Final = sa.table(
    "entry",
    sa.column("seq", sa.Integer),
    sa.column("kind", sa.String),
    sa.column("subject", sa.String),
    sa.column("recorded_at", sa.String),
    sa.column("body", sa.String),
    sa.column("leaf_hash", sa.String),
    sa.column("prev_hash", sa.String),
)
NODE: Final = sa.table(
    "node", sa.column("level", sa.Integer), sa.column("index", sa.Integer), sa.column("hash", sa.String)
)
CHECKPOINT: Final = sa.table(
    "checkpoint",
    sa.column("tree_size", sa.Integer),
    sa.column("key_id", sa.String),
    sa.column("root", sa.String),
    sa.column("note", sa.String),
)

# As bytes: what was tampered with need not be UTF-8 any more, and must still be readable to be named.
_BODY_BYTES: Final = sa.cast(ENTRY.c.body, sa.LargeBinary).label("body")

SELECT_ENTRY: Final = sa.select(
    ENTRY.c.seq, ENTRY.c.kind, ENTRY.c.subject, ENTRY.c.recorded_at, _BODY_BYTES, ENTRY.c.leaf_hash, ENTRY.c.prev_hash
)


def entry_of(row: Any) -> Entry:
    """The entry of a row of SELECT_ENTRY, nothing checked."""
    return Entry(row[0], row[1], row[2], row[3], bytes(row[4]), row[5], row[6])


def entry_values(entry: Entry) -> dict[str, Any]:
    """The row of an entry."""
    return {
        "seq": entry.seq,
        "kind": entry.kind,
        "subject": entry.subject,
        "recorded_at": entry.recorded_at,
        "body": entry.body.decode(),
        "leaf_hash": entry.leaf_hash,
        "prev_hash": entry.prev_hash,
    }


@functools.cache
def insert_sql(name: str, columns: tuple[str, ...]) -> str:
    """The INSERT of these columns, as SQL for the driver: an append is timed, and compiling costs more than running."""
    named = ", ".join(f'"{column}"' for column in columns)
    return f"INSERT INTO {name} ({named}) VALUES ({', '.join('?' * len(columns))})"


def insert(connection: sa.Connection, name: str, values: Mapping[str, Any]) -> None:
    """Add one row. Names of tables and columns are ours, never a user's."""
    connection.exec_driver_sql(insert_sql(name, tuple(values)), tuple(values.values()))
