"""The file that a ledger is made of, before it has a history."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from pathlib import Path
from typing import Final

from ledger import schema
from ledger.connection import Database, translated
from ledger.rollback import beside, require_own_journal
from receipts.errors import EvidenceError, HomeError
from receipts.store import sync_folder

_OF_SQLITE: Final = ("-journal", "-wal", "-shm")


class LedgerExistsError(HomeError):
    """A ledger cannot be begun here: there is one, perhaps since a moment ago. Status 2."""


def require_file(path: Path) -> None:
    """Refuse what cannot be a ledger's file, or what lies where SQLite keeps its own, before SQLite opens it.

    Raises HomeError (none here, no file: a pipe would be waited for) or EvidenceError (empty, a foreign journal).
    """
    if path.parent.exists() and not path.parent.is_dir():
        raise HomeError(
            "is not a folder: no home can be here", where=str(path.parent), next_step="name another home with --home"
        )
    if path.is_symlink() and not path.exists():
        raise HomeError(
            "is a link to nothing: there is no ledger here",
            where=str(path),
            next_step="put back what it should lead to, or name another home with --home",
        )
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
        raise EvidenceError("the ledger file is empty: 0 bytes", where=str(path), next_step="restore it from a copy")
    for own in (own for suffix in _OF_SQLITE for own in beside(path, suffix)):
        if os.path.lexists(own) and not (own.is_file() and not own.is_symlink()):
            raise HomeError(
                "is in the place of SQLite's own file and is no file: the ledger cannot be opened",
                where=str(own),
                next_step="find out what put it there, and take it away",
            )
    require_own_journal(path)


def stored_version(path: Path) -> int:
    """The schema version of a ledger file. Raises HomeError (none here) or EvidenceError (empty, not a ledger)."""
    require_file(path)
    database = Database(path, "read")
    try:
        with database.transaction() as connection:
            (application,) = connection.exec_driver_sql("PRAGMA application_id").one()
            (version,) = connection.exec_driver_sql("PRAGMA user_version").one()
    finally:
        database.close()
    if application != schema.APPLICATION_ID:
        raise EvidenceError("this file is not a soakledger ledger", where=str(path))
    if version < 1:
        raise EvidenceError(
            f"the ledger does not say which schema it has: its user_version was changed to {version}",
            where=str(path),
            next_step="restore it from a copy; soakledger ledger verify names every fault",
        )
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


def is_of(final: Path, temporary: Path) -> bool:
    """Whether a ledger that was interrupted in the making had its name already: then its key must stay."""
    try:
        return final.samefile(temporary)
    except OSError:
        return False
