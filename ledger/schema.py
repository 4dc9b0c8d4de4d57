"""The SQL of the ledger, as text: it is created from here, and ``verify`` compares what is stored with it.

``entry`` and ``checkpoint`` are the record and are never migrated. ``node`` and the projections are
rebuildable from the entries alone; a schema change may only touch those. Hand-written, because the text
that another release of a library would generate is not the text that was stored.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ledger.views import INDEXES, PROJECTIONS, VIEWS

SCHEMA_VERSION: Final = 1
"""Stored as ``user_version``. A higher one in a file opens read-only."""

APPLICATION_ID: Final = 0x534F414B
"""``SOAK``: what file(1) and the open check go by."""

_HEX64: Final = "CHECK (length({0}) = 64 AND {0} NOT GLOB '*[^0-9a-f]*')"

RECORD_TABLES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "entry": f"""CREATE TABLE entry (
    seq INTEGER PRIMARY KEY NOT NULL CHECK (seq >= 0),
    kind TEXT NOT NULL,
    subject TEXT NOT NULL CHECK (length(subject) <= 200),
    recorded_at TEXT NOT NULL,
    body TEXT NOT NULL CHECK (length(CAST(body AS BLOB)) <= 65535),
    leaf_hash TEXT NOT NULL UNIQUE {_HEX64.format("leaf_hash")},
    prev_hash TEXT NOT NULL UNIQUE {_HEX64.format("prev_hash")}
) STRICT""",
        "checkpoint": f"""CREATE TABLE checkpoint (
    tree_size INTEGER NOT NULL CHECK (tree_size >= 0),
    key_id TEXT NOT NULL CHECK (length(key_id) = 8 AND key_id NOT GLOB '*[^0-9a-f]*'),
    root TEXT NOT NULL {_HEX64.format("root")},
    note TEXT NOT NULL,
    PRIMARY KEY (tree_size, key_id)
) STRICT""",
    }
)

NODE_TABLE: Final = f"""CREATE TABLE node (
    level INTEGER NOT NULL CHECK (level >= 1),
    "index" INTEGER NOT NULL CHECK ("index" >= 0),
    hash TEXT NOT NULL {_HEX64.format("hash")},
    PRIMARY KEY (level, "index")
) STRICT, WITHOUT ROWID"""

RECORD_INDEXES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "entry_by_kind": "CREATE INDEX entry_by_kind ON entry (kind, subject, seq)",
        "entry_by_subject": "CREATE INDEX entry_by_subject ON entry (subject, seq)",
    }
)


def _refusal(name: str, event: str, table: str, condition: str, words: str) -> str:
    when = f"\nWHEN {condition}" if condition else ""
    return f"CREATE TRIGGER {name} BEFORE {event} ON {table}{when}\nBEGIN\n    SELECT RAISE(ABORT, '{words}');\nEND"


# A replacing INSERT fires no DELETE trigger while recursive_triggers is off, which is SQLite's default
# (FACTS section 7); BEFORE INSERT fires whatever the setting and whatever the conflict clause.
RECORD_TRIGGERS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "entry_no_update": _refusal("entry_no_update", "UPDATE", "entry", "", "entries are never changed"),
        "entry_no_delete": _refusal("entry_no_delete", "DELETE", "entry", "", "entries are never removed"),
        "entry_in_order": _refusal(
            "entry_in_order",
            "INSERT",
            "entry",
            "NEW.seq IS NOT (SELECT coalesce(max(seq) + 1, 0) FROM entry)",
            "an entry is only ever added at the end",
        ),
        "entry_chained": _refusal(
            "entry_chained",
            "INSERT",
            "entry",
            f"NEW.prev_hash IS NOT coalesce((SELECT leaf_hash FROM entry ORDER BY seq DESC LIMIT 1), '{'0' * 64}')",
            "an entry names the hash of the one before it",
        ),
        "entry_no_replace": _refusal(
            "entry_no_replace",
            "INSERT",
            "entry",
            "EXISTS (SELECT 1 FROM entry "
            "WHERE seq = NEW.seq OR leaf_hash = NEW.leaf_hash OR prev_hash = NEW.prev_hash)",
            "entries are never replaced",
        ),
        "checkpoint_no_update": _refusal(
            "checkpoint_no_update", "UPDATE", "checkpoint", "", "checkpoints are never changed"
        ),
        "checkpoint_no_delete": _refusal(
            "checkpoint_no_delete", "DELETE", "checkpoint", "", "checkpoints are never removed"
        ),
        "checkpoint_no_replace": _refusal(
            "checkpoint_no_replace",
            "INSERT",
            "checkpoint",
            "EXISTS (SELECT 1 FROM checkpoint WHERE tree_size = NEW.tree_size AND key_id = NEW.key_id)",
            "checkpoints are never replaced",
        ),
    }
)

RECORD: Final = frozenset(RECORD_TABLES)
REBUILDABLE_TABLES: Final = ("node", *PROJECTIONS)
REBUILDABLE: Final = frozenset({*REBUILDABLE_TABLES, *INDEXES, *VIEWS})

RECORD_SQL: Final[tuple[str, ...]] = (
    *RECORD_TABLES.values(),
    *RECORD_INDEXES.values(),
    *RECORD_TRIGGERS.values(),
)
REBUILDABLE_SQL: Final[tuple[str, ...]] = (NODE_TABLE, *PROJECTIONS.values(), *INDEXES.values(), *VIEWS.values())


def create(connection: sqlite3.Connection) -> None:
    """Create everything in an empty database; the caller commits."""
    for statement in (*RECORD_SQL, *REBUILDABLE_SQL):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
    connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")


STORED_OBJECTS: Final = "SELECT type, name, coalesce(sql, '') FROM sqlite_schema ORDER BY type, name"


def expected_objects() -> dict[tuple[str, str], str]:
    """(type, name) → SQL of every object that this release would create, as SQLite stores it.

    SQLite's own automatic indexes are among them, with empty SQL.
    """
    connection = sqlite3.connect(":memory:")
    try:
        create(connection)
        return {(kind, name): sql for kind, name, sql in connection.execute(STORED_OBJECTS)}
    finally:
        connection.close()
