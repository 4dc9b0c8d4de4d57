"""Verification of the checkpoints: rows and files hold the same notes, they sign these entries, and none is gone."""

from __future__ import annotations

import contextlib
import os
import sqlite3
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ledger import note
from ledger.audit_entries import EntriesSeen
from ledger.checkpoints import size_in_name
from ledger.entry import SIGNED_KINDS, parse_leaf
from ledger.findings import Findings
from ledger.home import EvidenceHome
from ledger.keys import VerifyKey
from receipts import canonical
from receipts.errors import EvidenceError
from receipts.store import open_below

_ROWS: Final = "SELECT tree_size, key_id, root, CAST(note AS BLOB) FROM checkpoint ORDER BY tree_size, key_id"
_ATTEMPTS: Final = "SELECT CAST(body AS BLOB), seq FROM entry WHERE kind = 'attempt_open' ORDER BY seq"
_SIGNED: Final = (
    f"SELECT seq, kind FROM entry WHERE kind IN ({', '.join(map(repr, sorted(SIGNED_KINDS)))}) ORDER BY seq"
)
_FILE_SETTLES_S: Final = 2.0
"""How long a writer that runs now may take from a checkpoint's row to its file."""


@dataclass(frozen=True)
class CheckpointRow:
    """A row of table ``checkpoint`` as stored."""

    size: int
    key_id: str
    root: str
    note: bytes


@dataclass
class CheckpointAudit:
    """The checkpoints of a home and where what is wrong with them is put. ``sizes`` are the trees they speak of."""

    home: EvidenceHome
    findings: Findings
    key: VerifyKey | None
    rows: list[CheckpointRow]
    files: list[int]
    """The sizes that the files' names speak of."""
    covered: int = 0
    """Entries under a signature of the ledger's own key that was found to be over these very entries."""

    @classmethod
    def read(
        cls, home: EvidenceHome, connection: sqlite3.Connection, findings: Findings, key: VerifyKey | None
    ) -> CheckpointAudit:
        """List the files, then the rows: a row is there before its file."""
        names = sorted(path.name for path in home.checkpoints.iterdir()) if home.checkpoints.is_dir() else []
        sized = {name: size for name in names if (size := size_in_name(name)) is not None}
        findings.orphans += [f"checkpoints/{name}" for name in names if name not in sized]
        try:
            stored = connection.execute(_ROWS).fetchall()
        except sqlite3.Error as error:
            findings.fault("table checkpoint", f"cannot be read: {error}")
            stored = []
        rows = []
        for row in stored:  # a table that was made anew holds anything
            match row:
                case (int(size), str(key_id), str(root), bytes(data)):
                    rows.append(CheckpointRow(size, key_id, root, data))
                case _:
                    findings.fault("table checkpoint", "holds a row that is no checkpoint", found=row)
        return cls(home, findings, key, rows, sorted(sized.values()))

    @property
    def sizes(self) -> set[int]:
        return {row.size for row in self.rows} | set(self.files)

    def check(self, connection: sqlite3.Connection, found: EntriesSeen, first: int) -> None:
        """Compare all of them with the entries ``found``, which were read from entry ``first`` on."""
        for row in self.rows:
            self._check_row(row, found, first)
        alone = [signed for size in self._files() if (signed := self._check_file(size, found, first)) is not None]
        there = [(row.size, row.note) for row in self.rows] + [(signed.size, signed.note) for signed in alone]
        self._check_moments(connection, {size for size, _ in there}, found.head.size)
        self._check_named(connection, {canonical.sha256(data) for _, data in there})
        self._say_what_covers(found.head.size)

    def _check_row(self, row: CheckpointRow, found: EntriesSeen, first: int) -> None:
        where = f"table checkpoint, size {row.size}"
        checkpoint = self._verified(where, row.note)
        if checkpoint is None:
            return
        key_id = self.key.key_id.hex() if self.key else row.key_id
        columns = (row.size, row.key_id, "sha256:" + row.root)
        if columns != (checkpoint.size, key_id, checkpoint.root):
            self.findings.fault(where, "its columns differ from its note")
        self._check_root(where, checkpoint, found, first)

    def _files(self) -> Iterator[int]:
        """The sizes of the files that are there; each row that has none is named."""
        yield from self.files
        newest = max((row.size for row in self.rows), default=0)
        for size in sorted({row.size for row in self.rows} - set(self.files)):
            if self._appears(size, wait_s=_FILE_SETTLES_S if size == newest else 0.0):
                yield size
            else:
                self.findings.fault(f"checkpoints/{size}.checkpoint", "the file is missing")

    def _appears(self, size: int, wait_s: float) -> bool:
        end = time.monotonic() + wait_s
        while not os.path.lexists(self.home.checkpoints / f"{size}.checkpoint"):
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        return True

    def _check_file(self, size: int, found: EntriesSeen, first: int) -> note.Checkpoint | None:
        """What a file holds; the checkpoint if it is a good one that no row holds."""
        where, data = f"checkpoints/{size}.checkpoint", self._data_of(size)
        notes = {row.note for row in self.rows if row.size == size}
        if data is None or data in notes:
            return None  # its row was checked
        checkpoint = self._verified(where, data)
        if checkpoint is not None:
            self._check_root(where, checkpoint, found, first)
        if checkpoint is not None and checkpoint.size != size:
            self.findings.fault(where, "its name is not its size", expected=checkpoint.size, found=size)
        elif notes:
            self.findings.fault(where, "the file is not the checkpoint that the ledger holds")
        elif checkpoint is not None:
            self.findings.fault(where, "its row is missing from table checkpoint, where it stood first")
            return checkpoint
        return None

    def _data_of(self, size: int) -> bytes | None:
        name = f"checkpoints/{size}.checkpoint"
        try:
            with open_below(self.home.path, name) as file:
                return file.read(note.MAX_NOTE_BYTES + 1)
        except OSError as error:
            self.findings.fault(name, f"cannot be read as a regular file: {error.strerror}")
            return None

    def _check_moments(self, connection: sqlite3.Connection, there: set[int], size: int) -> None:
        """What is signed over in its own transaction (``SIGNED_KINDS``) has the checkpoint of it."""
        for seq, kind in connection.execute(_SIGNED):
            if seq < size and seq + 1 not in there:
                self.findings.fault(
                    "table checkpoint",
                    f"the checkpoint that was signed with this {kind} is missing",
                    entry=seq,
                    expected=f"one over {seq + 1} entries",
                )

    def _check_named(self, connection: sqlite3.Connection, there: set[str]) -> None:
        """Every checkpoint that an attempt was opened on must be there: its row was durable before the attempt was."""
        for body, seq in connection.execute(_ATTEMPTS):
            with contextlib.suppress(EvidenceError, KeyError, TypeError):  # a damaged body was reported
                named = parse_leaf(bytes(body), seq)["data"]["checkpoint_note_sha256"]
                if named not in there:
                    self.findings.fault(
                        "table checkpoint",
                        "the checkpoint that was signed before this attempt was opened is missing",
                        entry=seq,
                        expected=named,
                    )

    def _verified(self, where: str, data: bytes) -> note.Checkpoint | None:
        """The checkpoint in ``data`` if the ledger's own key signed it, else a fault."""
        try:
            if self.key is None:
                return note.parse_checkpoint(data)[0]
            return note.verify_checkpoint(data, self.key)
        except EvidenceError as error:
            self.findings.fault(where, error.what)
            return None

    def _check_root(self, where: str, checkpoint: note.Checkpoint, found: EntriesSeen, first: int) -> None:
        self.findings.count("checkpoints")
        if checkpoint.size > found.head.size:
            self.findings.fault(
                where,
                "the ledger's tail was cut: the checkpoint signs more entries than there are",
                expected=f"{checkpoint.size} entries",
                found=f"{found.head.size} entries",
            )
        elif checkpoint.size in found.roots:
            if found.roots[checkpoint.size] == checkpoint.root:
                self.covered = max(self.covered, checkpoint.size if self.key else 0)
            else:
                self.findings.fault(
                    where,
                    f"the first {checkpoint.size} entries are not those that were signed",
                    expected=checkpoint.root,
                    found=found.roots[checkpoint.size],
                )
        elif checkpoint.size < first:
            self.findings.not_checked.append(f"the root of {where}, which lies before the entries that were read")
        else:
            self.findings.fault(where, "its root cannot be compared, because entries before it are missing")

    def _say_what_covers(self, size: int) -> None:
        if self.rows and self.key:
            self.findings.anchored_to.append(
                f"{len(self.rows)} checkpoints by the ledger's own key {self.key.key_id.hex()}, "
                f"the last over {self.rows[-1].size} entries"
            )
            if self.rows[-1].size < size:
                self.findings.not_checked.append(
                    f"a signature over entries {self.rows[-1].size} … {size - 1}: no checkpoint covers them yet"
                )
        elif size:
            self.findings.not_checked.append("signatures: the ledger holds no checkpoint")
