"""The ledger: created, opened, appended to, signed. Nothing in it is ever changed (DESIGN section 6)."""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from ledger import checkpoints, schema, seen
from ledger.connection import Database
from ledger.edge import Edge, edge_now, nothing_ahead
from ledger.entry import (
    LEAF_VERSION,
    SIGNED_KINDS,
    Entry,
    Head,
    Ref,
    build_entry,
    require_own_ref,
    require_small,
)
from ledger.files import LedgerExistsError, is_of, make_file, publish, stored_version
from ledger.findings import UNREADABLE
from ledger.history import History, require_history
from ledger.home import EvidenceHome
from ledger.keys import SigningKey, VerifyKey
from ledger.note import Checkpoint
from ledger.projections import Measure, rows_of
from ledger.reader import LedgerReader
from ledger.tables import entry_values, insert, insert_nodes, insert_projected
from receipts import canonical
from receipts.canonical import JsonValue
from receipts.clock import HostClock
from receipts.errors import EvidenceError, InputError, SoakledgerError
from receipts.store import make_folder, write_exclusive

__all__ = ["Draft", "Entry", "Head", "Ledger", "LedgerReader", "Ref"]

ORIGIN_DOMAIN: Final = "soakledger.invalid"
_VERIFY: Final = "soakledger ledger verify names every fault"
_LOG: Final = logging.getLogger("soakledger.ledger")


class Draft(NamedTuple):
    """What the caller says of an entry; the ledger adds the rest."""

    kind: str
    subject: str
    data: JsonValue
    ref: Ref | None = None


@dataclass(frozen=True)
class _Writer:
    """Who writes: every leaf says so."""

    clock: HostClock
    tool: Mapping[str, Any]


class Ledger(LedgerReader):
    """An open ledger. Threads may share one; a forked child opens its own."""

    def __init__(
        self,
        home: EvidenceHome,
        database: Database,
        *,
        writer: _Writer | None,
        environ: Mapping[str, str],
        measure: Measure | None = None,
        newer_schema: int | None = None,
    ) -> None:
        """Use ``create`` or ``open``."""
        super().__init__(database.read)
        self.home = home
        self._database = database
        self._writer = writer
        self._environ = environ
        self._measure = measure
        self._newer_schema = newer_schema
        self._lock = threading.Lock()
        self._edge: Edge | None = None

    @classmethod
    def create(
        cls,
        home: EvidenceHome,
        *,
        clock: HostClock,
        tool: Mapping[str, Any],
        environ: Mapping[str, str] | None = None,
        measure: Measure | None = None,
    ) -> Ledger:
        """Make a home with a new origin, key, ledger, genesis entry and first checkpoint.

        The file appears complete or not at all. Raises HomeError when it cannot be made, LedgerExistsError when there
        is one: whoever began it a moment earlier has made the only key and the only genesis.
        """
        environ = os.environ if environ is None else environ
        if home.ledger_db.exists():
            raise LedgerExistsError("there is a ledger here already", where=str(home.ledger_db))
        for folder in (home.path, home.receipts, home.blobs, home.checkpoints):
            make_folder(folder)
        key = SigningKey.generate(f"{ORIGIN_DOMAIN}/{secrets.token_hex(16)}")
        key_file = key.save(environ)
        temporary = home.path / f".ledger.{secrets.token_hex(8)}.tmp"
        try:
            make_file(temporary)
            _write_genesis(home, temporary, _Writer(clock, tool), key, environ)
            publish(temporary, home.ledger_db)
        except BaseException:
            if not is_of(home.ledger_db, temporary):
                key_file.unlink(missing_ok=True)  # of a ledger that there is not
            raise
        finally:
            temporary.unlink(missing_ok=True)
        return cls.open(home, clock=clock, tool=tool, read_only=False, environ=environ, measure=measure)

    @classmethod
    def open(
        cls,
        home: EvidenceHome,
        *,
        clock: HostClock | None = None,
        tool: Mapping[str, Any] | None = None,
        read_only: bool,
        environ: Mapping[str, str] | None = None,
        measure: Measure | None = None,
    ) -> Ledger:
        """Open an existing ledger; to write, ``clock`` and ``tool`` are needed. Creates nothing.

        Raises HomeError (no ledger here) or EvidenceError (not a ledger, empty, or shorter than or different
        from what this machine saw before).
        """
        environ = os.environ if environ is None else environ
        version = stored_version(home.ledger_db)
        newer = version if version > schema.SCHEMA_VERSION else None
        writer = None
        if not read_only and newer is None:
            if clock is None or tool is None:
                raise ValueError("a ledger that is written to needs a clock and the tool's version")
            writer = _Writer(clock, tool)
        database = Database(home.ledger_db, "append" if writer else "read")
        ledger = cls(home, database, writer=writer, environ=environ, measure=measure, newer_schema=newer)
        try:
            ledger._require_continuation()
            ledger._complete_checkpoints()
        except UNREADABLE as error:
            ledger.close()
            raise EvidenceError(
                f"what is stored cannot be read: {error}", where=str(home.ledger_db), next_step=_VERIFY
            ) from error
        except BaseException:
            ledger.close()
            raise
        return ledger

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Let the database go."""
        self._database.close()

    @property
    def read_only(self) -> bool:
        """Whether nothing can be appended, by wish or because a newer release made this ledger."""
        return self._writer is None

    # Appending

    def append(self, kind: str, subject: str, data: JsonValue, ref: Ref | None = None) -> Entry:
        """Add one entry, durably. Raises InputError (no ledger may hold it), HomeError, BusyError, EvidenceError."""
        require_own_ref(kind, data, ref)
        return self._append(lambda _: (Draft(kind, subject, data, ref),))[0]

    def append_many(self, drafts: Iterable[Draft | Sequence[Any]]) -> list[Entry]:
        """Add several entries in one transaction: all or none. Items are Draft or (kind, subject, data[, ref])."""
        listed = [Draft(*item) for item in drafts]
        for draft in listed:
            require_own_ref(draft.kind, draft.data, draft.ref)
        return self._append(lambda _: listed)

    def append_built(self, kind: str, build: Callable[[LedgerReader], tuple[str, JsonValue, Ref | None]]) -> Entry:
        """Add one entry whose (subject, data, ref) ``build`` makes from what it reads under the write lock."""

        def make(reader: LedgerReader) -> tuple[Draft]:
            draft = Draft(kind, *build(reader))
            require_own_ref(kind, draft.data, draft.ref)
            return (draft,)

        return self._append(make)[0]

    def record(self, kind: str, subject: str, path: str, document: JsonValue) -> Entry:
        """Keep a whole document: the file ``path`` (POSIX, relative to the home) first, then its entry.

        Raises what ``write_exclusive`` and ``append`` raise. A file whose entry was refused is taken away again, so
        that its name and number are free; one that a kill left is an orphan that ``verify`` lists.
        """
        data = canonical.file_bytes(document)
        self._require_writer()
        # Before the file: one whose entry is refused would be an orphan, and its observation lost.
        require_small(kind, subject, data)
        write_exclusive(self.home.path / path, data)
        try:
            return self._append(lambda _: (Draft(kind, subject, document, Ref.of(path, data)),))[0]
        except Exception:
            with contextlib.suppress(SoakledgerError, OSError):
                # A commit that failed in its last moment may have come through: only what no entry names may go.
                if not any(entry.ref and entry.ref.path == path for entry in self.entries(subject=subject)):
                    (self.home.path / path).unlink()
            raise

    def require_history(self, *, upto: int) -> History:
        """Hold the entries against all that was signed or seen of them; see ``history.require_history``."""
        return require_history(self, self.home, upto=upto, mark=seen.read_mark(self.origin, self._environ))

    # Signing

    def verify_key(self) -> VerifyKey:
        """The public key that genesis fixed. Raises EvidenceError."""
        return checkpoints.verify_key(self)

    def signing_key(self) -> SigningKey:
        """The private key of this ledger on this machine. Raises HomeError when it is lost or another's."""
        return checkpoints.signing_key(self, self._environ)

    def checkpoint(self) -> Checkpoint:
        """Sign the head as it is now; the same head signed again is the same checkpoint."""
        key = self.signing_key()
        self._require_writer()
        with self._lock, self._database.transaction(write=True) as connection:
            reader = LedgerReader(lambda statement: connection.execute(statement).all())
            head = reader.head()
            signed = checkpoints.sign(connection, head, key)
        checkpoints.write_file(self.home, signed.size, signed.note)
        return signed

    # Inside

    def _append(self, make: Callable[[LedgerReader], Iterable[Draft]]) -> list[Entry]:
        entries, signed, head = self._commit(make)
        for checkpoint in signed:
            self._keep_file(checkpoint)
        self._remember(head)
        return entries

    def _commit(
        self, make: Callable[[LedgerReader], Iterable[Draft]], key: SigningKey | None = None
    ) -> tuple[list[Entry], list[Checkpoint], Head]:
        """The entries and the rows of their checkpoints in one transaction; nothing outside the database yet."""
        writer = self._require_writer()
        signed: list[Checkpoint] = []
        with self._lock:
            known, self._edge = self._edge, None
            with self._database.transaction(write=True) as connection:
                reader = LedgerReader(lambda statement: connection.execute(statement).all())
                edge = edge_now(reader, connection, known)
                entries = []
                for draft in make(reader):
                    entries.append(self._insert(connection, edge, draft, writer))
                    if draft.kind in SIGNED_KINDS:
                        key = key or checkpoints.signing_key(reader, self._environ)
                        signed.append(checkpoints.sign(connection, edge.head, key))
            self._edge = edge
        return entries, signed, edge.head

    def _insert(self, connection: sa.Connection, edge: Edge, draft: Draft, writer: _Writer) -> Entry:
        # Genesis names its own origin: until it stands there is nothing to read one from.
        origin = draft.data["origin"] if edge.frontier.size == 0 else self.origin
        entry = build_entry(_leaf(draft, edge, origin, writer))
        insert(connection, "entry", [entry_values(entry)])
        with nothing_ahead(entry, self.home.ledger_db):
            insert_nodes(connection, edge.frontier.append(bytes.fromhex(entry.leaf_hash)))
            insert_projected(connection, rows_of(entry, self._measure))
        edge.last_leaf = entry.leaf_hash
        return entry

    def _require_writer(self) -> _Writer:
        if self._writer is not None:
            return self._writer
        if self._newer_schema is not None:
            raise InputError(
                f"the ledger has schema {self._newer_schema} and this release writes {schema.SCHEMA_VERSION}: "
                "it is open for reading only",
                where=str(self.home.ledger_db),
                next_step="use the release that wrote it, or a newer one",
            )
        raise InputError("the ledger is open for reading only", where=str(self.home.ledger_db))

    def _require_continuation(self) -> None:
        """Refuse a history that is shorter than, or different from, what is known of it; then remember it."""
        where = str(self.home.ledger_db)
        mark = seen.read_mark(self.origin, self._environ)
        spoken_of = checkpoints.sizes(self, self.home)
        size = self.size()  # read last: what mark and checkpoints speak of was there before
        signed = checkpoints.largest(spoken_of, self.home, self.verify_key, size)
        for known, what in ((mark.size if mark else 0, "this machine saw"), (signed, "were signed")):
            if size < known:
                raise EvidenceError(
                    f"the ledger's tail was cut: it has {size} entries, and {known} {what} before",
                    where=where,
                    next_step="restore the newest copy; soakledger ledger verify names what is missing",
                )
        if mark is not None and self.root_at(mark.size) != mark.root:
            raise EvidenceError(
                f"the ledger's first {mark.size} entries are not those that this machine saw before",
                where=where,
                next_step=_VERIFY,
            )
        known = max(signed, mark.size if mark else size)
        if size > known and seen.is_outside(self.origin, size, known, self._environ):
            if self.read_only:
                size = known  # looking at entries makes them nobody's: verify goes on telling of them
            else:
                _LOG.warning("%s: %s", where, seen.outside_words(known, size))
        with contextlib.suppress(SoakledgerError):
            seen.advance(seen.Mark(self.origin, size, self.root_at(size)), self._environ, create=not self.read_only)

    def _complete_checkpoints(self) -> None:
        """Make good what a killed writer owed. What cannot be made good stops nobody: ``verify`` names it."""
        if self.read_only:
            return
        with contextlib.suppress(SoakledgerError):
            key = self.verify_key()
            for size, data in checkpoints.owed_files(self, self.home, key):
                checkpoints.write_file(self.home, size, data)
            for signed in checkpoints.owed_rows(self, self.home, key):
                with self._lock, self._database.transaction(write=True) as connection:
                    checkpoints.insert_row(connection, signed, key.key_id.hex())

    def _keep_file(self, signed: Checkpoint) -> None:
        try:
            checkpoints.write_file(self.home, signed.size, signed.note)
        except SoakledgerError as error:
            # Entry and signature are durable in the database: to raise now would say that they are not.
            _LOG.warning("a checkpoint has no file yet: %s", error)

    def _remember(self, head: Head) -> None:
        try:
            seen.advance(seen.Mark(self.origin, head.size, head.root), self._environ, create=True)
        except SoakledgerError as error:
            # The entry is durable: to raise now would say that it is not. An older mark only sees less.
            _LOG.warning("the last-seen mark did not move: %s", error)


def _leaf(draft: Draft, edge: Edge, origin: str, writer: _Writer) -> dict[str, JsonValue]:
    return {
        "v": LEAF_VERSION,
        "origin": origin,
        "seq": edge.frontier.size,
        "prev": edge.last_leaf,
        "kind": draft.kind,
        "subject": draft.subject,
        "recorded_at": writer.clock.recorded_at(),
        "host": writer.clock.host,
        "boot_id": writer.clock.boot_id,
        "tool": dict(writer.tool),
        "ref": draft.ref.document() if draft.ref else None,
        "data": draft.data,
    }


def _write_genesis(
    home: EvidenceHome, path: Path, writer: _Writer, key: SigningKey, environ: Mapping[str, str]
) -> None:
    """Genesis and the checkpoint over it. No file and no mark yet: there may be another ledger here in a moment."""
    database = Database(path, "append")
    try:
        ledger = Ledger(home, database, writer=writer, environ=environ)
        data = {
            "origin": key.name,
            "public_key": key.verify_key.text,
            "key_id": key.key_id.hex(),
            "schema": schema.SCHEMA_VERSION,
        }
        ledger._commit(lambda _: (Draft("genesis", "", data),), key)
    finally:
        database.close()
