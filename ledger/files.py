"""The file that a ledger is made of, before it has a history."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path

from ledger import schema
from ledger.connection import Database, translated
from receipts.errors import EvidenceError, HomeError
from receipts.store import sync_folder


class LedgerExistsError(HomeError):
    """A ledger cannot be begun here: there is one, perhaps since a moment ago. Status 2."""


def stored_version(path: Path) -> int:
    """The schema version of a ledger file. Raises HomeError (none here) or EvidenceError (empty, not a ledger)."""
    if not path.exists():
        raise HomeError(
            "there is no ledger here",
            where=str(path),
            next_step="name its home with --home; `soakledger campaign register` or `lane enroll` makes a new one",
        )
    if not path.is_file():
        raise HomeError(
            "is not a file: no ledger can be here", where=str(path), next_step="name another home with --home"
        )
    if path.stat().st_size == 0:
        raise EvidenceError("the ledger file is empty", where=str(path), next_step="restore it from a copy")
    database = Database(path, "read")
    try:
        with database.transaction() as connection:
            (application,) = connection.exec_driver_sql("PRAGMA application_id").one()
            (version,) = connection.exec_driver_sql("PRAGMA user_version").one()
    finally:
        database.close()
    if application != schema.APPLICATION_ID or version < 1:
        raise EvidenceError("this file is not a soakledger ledger", where=str(path))
    return int(version)


def make_file(path: Path) -> None:
    """An empty ledger: tables, indexes, triggers and views, and no entry."""
    with translated(path), contextlib.closing(sqlite3.connect(path, isolation_level=None)) as connection:
        connection.execute("PRAGMA encoding = 'UTF-8'")
        connection.execute("PRAGMA journal_mode = DELETE")
        connection.execute("PRAGMA synchronous = EXTRA")
        connection.execute("BEGIN EXCLUSIVE")
        schema.create(connection)
        connection.execute("COMMIT")


def publish(temporary: Path, final: Path) -> None:
    """Give a complete ledger its name. Raises HomeError; LedgerExistsError when there is one already."""
    try:
        os.link(temporary, final)
        sync_folder(final.parent)
    except FileExistsError:
        raise LedgerExistsError("there is a ledger here already", where=str(final)) from None
    except OSError as error:
        raise HomeError(f"the ledger cannot be made: {error.strerror}", where=str(final)) from None
