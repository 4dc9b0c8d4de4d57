"""The lane's own chained record on the producer's host (DESIGN section 6, docs/formats/journal.md).

One O_EXCL file a record, never removed; ``prev`` is the SHA-256 of the previous file's bytes. Its writers
(resident, keeper, ritual, later supervisor and control) append under a flock on ``journal/lock``.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import EvidenceError, HomeError
from receipts.events import EVENTS, JournalRecord
from receipts.kinds import Document, JournalHead
from receipts.store import read_bounded, write_exclusive

GENESIS: Final = "sha256:" + 64 * "0"
MOST_RECORD_BYTES: Final = 1 << 20
"""More than any record has."""
_RECORD_NAME: Final = re.compile(r"[0-9]{8,15}\.json")


@dataclass
class Journal:
    """The journal below a producer's work folder."""

    work_dir: Path
    lane: str
    clock: HostClock
    _known: int = field(default=0, init=False)
    """A number that is surely there, so that finding the end never lists a folder of 100,000 files twice."""

    @property
    def folder(self) -> Path:
        return self.work_dir / "journal"

    def append(self, event: Document) -> JournalRecord:
        """Record one event durably and return its record. Raises HomeError when it cannot be written."""
        kind = next(name for name, model in EVENTS.items() if type(event) is model)
        with self._locked():
            last = self._last()
            record = JournalRecord(
                host=self.clock.host,
                boot_id=self.clock.boot_id,
                clock=self.clock.clock,
                n=last + 1,
                prev=self.digest(last) if last else GENESIS,
                lane=self.lane,
                at_ns=str(self.clock.stamp()),
                recorded_at=self.clock.recorded_at(),
                kind=kind,
                body=event.document(),
            )
            write_exclusive(self.path(last + 1), canonical.file_bytes(record.document()))
            self._known = last + 1
        return record

    def path(self, n: int) -> Path:
        return self.folder / f"{n:08d}.json"

    def digest(self, n: int) -> str:
        return canonical.sha256(self._data(n))

    def head(self) -> JournalHead:
        """Number and digest of the last record; 0 and zeros while there is none."""
        last = self._last()
        return JournalHead(n=last, head=self.digest(last) if last else GENESIS)

    def read(self, first: int = 1) -> Iterator[tuple[JournalRecord, str]]:
        """Records from ``first`` on, each with the digest of its file. Raises EvidenceError where the chain breaks."""
        prev = GENESIS if first <= 1 else self.digest(first - 1)
        n = max(1, first)
        while (path := self.path(n)).exists():
            data = self._data(n)
            record = JournalRecord.read(canonical.parse(data))
            if record.n != n or record.prev != prev:
                raise EvidenceError(f"record {n} does not continue the chain: prev is {record.prev}", where=str(path))
            prev = canonical.sha256(data)
            yield record, prev
            n += 1

    def backwards(self) -> Iterator[JournalRecord]:
        """Records from the last one back: what was written lately costs the same however old the journal is.

        Raises EvidenceError where the chain breaks.
        """
        n = self._last()
        digest: str | None = None
        while n > 0:
            data = self._data(n)
            record = JournalRecord.read(canonical.parse(data))
            if record.n != n or (digest is not None and digest != canonical.sha256(data)):
                raise EvidenceError(f"record {n} is not the one that record {n + 1} continues", where=str(self.path(n)))
            yield record
            digest = record.prev
            n -= 1

    def _data(self, n: int) -> bytes:
        """The bytes of a record. Raises OSError: not there, no regular file, or longer than any record is."""
        return read_bounded(self.path(n), MOST_RECORD_BYTES)

    def _last(self) -> int:
        if self._known == 0 and self.folder.is_dir():
            numbers = [int(path.stem) for path in self.folder.iterdir() if _RECORD_NAME.fullmatch(path.name)]
            self._known = max(numbers, default=0)
        while self.path(self._known + 1).exists():
            self._known += 1
        return self._known

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise HomeError(f"the journal cannot be written: {error.strerror}", where=str(self.folder)) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
