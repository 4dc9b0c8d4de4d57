"""Rebuilding what is derived: the node table and the projections, from the entries alone."""

from __future__ import annotations

import sqlalchemy as sa

from ledger import merkle, schema
from ledger.connection import Database
from ledger.entry import NO_PREV, Entry
from ledger.files import stored_version
from ledger.home import EvidenceHome
from ledger.projections import Measure, rows_of
from ledger.reader import LedgerReader
from ledger.tables import insert_nodes, insert_projected
from ledger.views import VIEWS
from receipts.errors import EvidenceError, InputError


def rebuild(home: EvidenceHome, measure: Measure | None) -> int:
    """Drop and remake every rebuildable table, index and view; see ``projections.reproject``."""
    version = stored_version(home.ledger_db)
    if version > schema.SCHEMA_VERSION:
        raise InputError(
            f"the ledger has schema {version} and this release writes {schema.SCHEMA_VERSION}",
            where=str(home.ledger_db),
            next_step="use the release that wrote it, or a newer one",
        )
    database = Database(home.ledger_db, "rebuild")
    try:
        with database.transaction(write=True) as connection:
            _remake_tables(connection)
            return _project_all(connection, measure)
    finally:
        database.close()


def _remake_tables(connection: sa.Connection) -> None:
    for view in VIEWS:
        connection.exec_driver_sql(f"DROP VIEW IF EXISTS {view}")
    for table in schema.REBUILDABLE_TABLES:
        connection.exec_driver_sql(f"DROP TABLE IF EXISTS {table}")
    for statement in schema.REBUILDABLE_SQL:
        connection.exec_driver_sql(statement)


def _project_all(connection: sa.Connection, measure: Measure | None) -> int:
    frontier = merkle.Frontier()
    last_leaf = NO_PREV
    for entry in LedgerReader(lambda statement: connection.execute(statement).all()).entries():
        _require_next(entry, frontier.size, last_leaf)
        insert_nodes(connection, frontier.append(bytes.fromhex(entry.leaf_hash)))
        insert_projected(connection, rows_of(entry, measure))
        last_leaf = entry.leaf_hash
    return frontier.size


def _require_next(entry: Entry, seq: int, last_leaf: str) -> None:
    if entry.seq != seq or entry.prev_hash != last_leaf:
        raise EvidenceError(
            "the chain of entries is broken here, and nothing is rebuilt from it",
            where=f"entry {min(entry.seq, seq)}",
            next_step="soakledger ledger verify names every fault",
        )
