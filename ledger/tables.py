"""The tables as SQLAlchemy Core sees them: names and columns only, the SQL that makes them is in schema.py."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa

from ledger.entry import Entry
from ledger.projections import ProjectedRow

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
    """The entry of a row of SELECT_ENTRY, nothing checked; no body at all reads as an empty one."""
    return Entry(row[0], row[1], row[2], row[3], bytes(row[4] or b""), row[5], row[6])


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


def insert(connection: sa.Connection, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Add rows that name the same columns. Names of tables and columns are ours, never a user's."""
    if rows:
        statement = insert_sql(name, tuple(rows[0]))
        connection.exec_driver_sql(statement, [tuple(row.values()) for row in rows])


def insert_projected(connection: sa.Connection, rows: Iterable[ProjectedRow]) -> None:
    """Add the rows of projections in their order, those that follow one another in one table in one statement."""
    for (table, _), group in itertools.groupby(rows, key=lambda row: (row.table, tuple(row.values))):
        insert(connection, table, [row.values for row in group])


def insert_nodes(connection: sa.Connection, nodes: Iterable[tuple[tuple[int, int], bytes]]) -> None:
    """Add nodes of the tree, given as ((level, index), hash)."""
    insert(connection, "node", [{"level": level, "index": index, "hash": node.hex()} for (level, index), node in nodes])
