"""Connections to the ledger's database: settings that are read back, and an authorizer that lets little through.

Three ways to hold a connection: ``read`` (SELECT only), ``append`` (and INSERT into our own tables) and
``rebuild`` (and whatever remakes the projections, but no change of the record). Any error drops the connection:
after SQLITE_FULL it is no longer in the transaction that it believes to be in (FACTS section 7).
"""

from __future__ import annotations

import contextlib
import sqlite3
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final, Literal
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy import event
from sqlalchemy.pool import QueuePool

from ledger import schema
from ledger.rollback import require_own_journal
from receipts.errors import BusyError, EvidenceError, HomeError, SoakledgerError

Access = Literal["read", "append", "rebuild"]

BUSY_TIMEOUT_S: Final = 30.0

_SETTINGS: Final[Sequence[tuple[str, str, object]]] = (
    ("journal_mode", "DELETE", "delete"),  # WAL: FACTS section 7
    ("synchronous", "EXTRA", 3),
    ("foreign_keys", "ON", 1),
    ("recursive_triggers", "ON", 1),
    ("cell_size_check", "ON", 1),
    ("trusted_schema", "OFF", 0),
    ("encoding", "'UTF-8'", "UTF-8"),
    *((("fullfsync", "ON", 1),) if sys.platform == "darwin" else ()),  # not run on a Mac
)
_READING_PRAGMAS: Final = frozenset({"table_info", "table_xinfo", "index_list", "index_info", "foreign_key_list"})
_ALWAYS: Final = frozenset(
    {
        sqlite3.SQLITE_SELECT,
        sqlite3.SQLITE_READ,
        sqlite3.SQLITE_TRANSACTION,
        sqlite3.SQLITE_RECURSIVE,
    }
)
_REBUILDING: Final = frozenset(
    {
        sqlite3.SQLITE_INSERT,
        sqlite3.SQLITE_UPDATE,
        sqlite3.SQLITE_DELETE,
        sqlite3.SQLITE_CREATE_TABLE,
        sqlite3.SQLITE_CREATE_INDEX,
        sqlite3.SQLITE_CREATE_VIEW,
        sqlite3.SQLITE_DROP_TABLE,
        sqlite3.SQLITE_DROP_INDEX,
        sqlite3.SQLITE_DROP_VIEW,
        sqlite3.SQLITE_REINDEX,
    }
)
# SQLite keeps its own book of the schema in these; SQL of ours cannot write them while writable_schema is off,
# and the pragma that would turn it on is denied.
_SCHEMA_TABLES: Final = frozenset({"sqlite_master", "sqlite_schema"})

Authorizer = Callable[[int, str | None, str | None, str | None, str | None], int]


class Database:
    """One database file, opened for one kind of access; connections are pooled, each in autocommit until asked."""

    def __init__(self, path: Path, access: Access) -> None:
        self._path = path
        self._access: Access = access
        self._identity: tuple[int, int] | None = None
        self._engine = sa.create_engine("sqlite+pysqlite://", creator=self._connect, poolclass=QueuePool, pool_size=4)
        event.listen(self._engine, "begin", self._begin)

    def close(self) -> None:
        self._engine.dispose()

    def read(self, statement: sa.Executable) -> Sequence[Any]:
        """All rows of one statement; the read transaction is over when they are returned."""
        with self.transaction() as connection:
            return connection.execute(statement).all()

    @contextlib.contextmanager
    def transaction(self, *, write: bool = False) -> Iterator[sa.Connection]:
        """A transaction, committed at the end. ``write`` takes the write lock at once (BEGIN IMMEDIATE).

        Raises BusyError (locked for the whole timeout), HomeError (full, read-only) or EvidenceError (damaged).
        """
        with translated(self._path):
            require_own_journal(self._path)  # each transaction may find one
            if write:
                self._require_same_file()
            connection = self._engine.connect().execution_options(soakledger_write=write)
            try:
                with connection.begin():
                    yield connection
            except BaseException:
                connection.invalidate()
                raise
            finally:
                connection.close()

    def _connect(self) -> sqlite3.Connection:
        connection = connect(self._path, self._access)
        if self._identity is None:
            self._identity = self._file_identity()
        return connection

    def _begin(self, connection: sa.Connection) -> None:
        write = connection.get_execution_options().get("soakledger_write")
        connection.exec_driver_sql("BEGIN IMMEDIATE" if write else "BEGIN")

    def _require_same_file(self) -> None:
        # A file that was moved away under an open connection would take entries that nobody ever sees.
        if self._identity is not None and self._file_identity() != self._identity:
            raise EvidenceError("the ledger was replaced by another file while it was open", where=str(self._path))

    def _file_identity(self) -> tuple[int, int] | None:
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_dev, found.st_ino


def connect(path: Path, access: Access) -> sqlite3.Connection:
    """A connection with every setting made and read back and the authorizer in place. Never creates the file.

    Raises EvidenceError when it cannot be, or when a journal beside it would have SQLite delete another file.
    """
    require_own_journal(path)
    mode = "ro" if access == "read" else "rw"
    if access == "read":
        _recover(path)
    connection = sqlite3.connect(
        f"file:{quote(str(path))}?mode={mode}",
        uri=True,
        timeout=BUSY_TIMEOUT_S,
        isolation_level=None,
        check_same_thread=False,
    )
    try:
        _apply_settings(connection, path, writable=access != "read")
        connection.set_authorizer(authorizer(access))
    except BaseException:
        connection.close()
        raise
    return connection


def authorizer(access: Access) -> Authorizer:
    """What statements of ours may do; everything that is not listed is denied."""

    def decide(action: int, first: str | None, second: str | None, database: str | None, _trigger: str | None) -> int:
        if action in _ALWAYS:
            allowed = True
        elif action == sqlite3.SQLITE_FUNCTION:
            allowed = second not in ("load_extension", "writefile", "edit", "fts3_tokenizer")
        elif action == sqlite3.SQLITE_PRAGMA:
            allowed = second is None or first in _READING_PRAGMAS
        elif database not in ("main", None):
            allowed = False
        elif access == "append":
            allowed = action == sqlite3.SQLITE_INSERT and (first in schema.RECORD or first in schema.REBUILDABLE)
        elif access == "rebuild":
            allowed = action in _REBUILDING and (first in _SCHEMA_TABLES or _is_rebuildable(action, first, second))
        else:
            allowed = False
        return sqlite3.SQLITE_OK if allowed else sqlite3.SQLITE_DENY

    return decide


@contextlib.contextmanager
def translated(path: Path) -> Iterator[None]:
    """Turn what SQLite raises into our errors, with the file's name and the next step."""
    try:
        yield
    except SoakledgerError:
        raise
    except (sa.exc.DBAPIError, sqlite3.Error) as error:
        raise _our_error(error, path) from error
    except UnicodeDecodeError as error:  # of SQLite's own words, when the schema holds a name that is no text
        raise EvidenceError(
            f"the database is damaged: {error}",
            where=str(path),
            next_step="soakledger ledger verify names every fault",
        ) from error


def _recover(path: Path) -> None:
    """Let SQLite roll back what a killed writer left; a read-only connection cannot, and would refuse to read."""
    journal = path.with_name(path.name + "-journal")
    try:
        if journal.stat().st_size == 0:
            return
    except OSError:
        return
    with contextlib.suppress(sqlite3.Error):
        connection = sqlite3.connect(f"file:{quote(str(path))}?mode=rw", uri=True, timeout=BUSY_TIMEOUT_S)
        with contextlib.closing(connection):
            connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()


def _apply_settings(connection: sqlite3.Connection, path: Path, *, writable: bool) -> None:
    for name, value, expected in _SETTINGS:
        # The journal mode and the encoding are properties of the file: only a writer may ask for them.
        if writable or name not in ("journal_mode", "encoding"):
            connection.execute(f"PRAGMA {name} = {value}").fetchall()
        (found,) = connection.execute(f"PRAGMA {name}").fetchone()
        if found != expected:
            raise EvidenceError(f"SQLite keeps {name} at {found!r} and not at {expected!r}", where=str(path))
    if not writable:
        connection.execute("PRAGMA query_only = ON")


def _is_rebuildable(action: int, first: str | None, second: str | None) -> bool:
    # Automatic indexes belong to the table named second.
    named = {first} if not (first or "").startswith("sqlite_autoindex_") else {second}
    if action in (sqlite3.SQLITE_CREATE_INDEX, sqlite3.SQLITE_DROP_INDEX):
        named.add(second)
    return named <= schema.REBUILDABLE


def _our_error(error: Exception, path: Path) -> SoakledgerError:
    original = getattr(error, "orig", None) or error
    code = getattr(original, "sqlite_errorcode", 0) & 0xFF
    words = str(original)
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return BusyError(
            f"another process held the ledger for {BUSY_TIMEOUT_S:.0f} s",
            where=str(path),
            next_step="end the process that holds it, or try again later",
        )
    if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR, sqlite3.SQLITE_PERM):
        return HomeError(
            f"the ledger cannot be written: {words}",
            where=str(path),
            next_step="free space, or make the home writable; nothing of the entry was kept",
        )
    if code == sqlite3.SQLITE_CANTOPEN:
        return HomeError(f"the ledger cannot be opened: {words}", where=str(path))
    if code == sqlite3.SQLITE_NOTADB:
        return EvidenceError(
            "this file is not an SQLite database, and so no ledger", where=str(path), next_step="restore it from a copy"
        )
    return EvidenceError(
        f"the database refuses: {words}", where=str(path), next_step="soakledger ledger verify names every fault"
    )
