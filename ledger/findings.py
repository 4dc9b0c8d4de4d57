"""What a verification found: faults, and the scope that they were looked for in."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ledger.entry import Head
from receipts.errors import SoakledgerError

UNREADABLE: Final = (TypeError, ValueError, LookupError, AttributeError, ArithmeticError)
"""What Python raises over a stored value that is not of the type that its column has."""


@dataclass(frozen=True)
class Fault:
    """One thing that does not verify: where, at which entry, what was expected and what was found."""

    where: str
    entry: int | None
    expected: str | None
    found: str | None
    what: str

    def __str__(self) -> str:
        place = (
            self.where
            if self.entry is None or self.where == f"entry {self.entry}"
            else (f"{self.where} (entry {self.entry})")
        )
        details = [f"{name} {value}" for name, value in (("expected", self.expected), ("found", self.found)) if value]
        return f"{place}: {self.what}" + (f" ({', '.join(details)})" if details else "")


@dataclass(frozen=True)
class AuditReport:
    """The outcome of a verification and exactly what it covered."""

    home: str
    origin: str | None
    head: Head | None
    entries_checked: int
    checkpoints_checked: int
    files_checked: int
    blobs_checked: int
    faults: tuple[Fault, ...]
    orphans: tuple[str, ...]
    """Files that no entry names, left of a run that ended between file and entry: listed, no fault, and no evidence."""
    anchored_to: tuple[str, ...]
    """What the head was compared with."""
    not_checked: tuple[str, ...]

    @property
    def ok(self) -> bool:
        """Whether nothing was found wrong with what was checked."""
        return not self.faults

    def document(self) -> dict[str, Any]:
        """The report as JSON members, for ``--json``."""
        return {
            "home": self.home,
            "origin": self.origin,
            "ok": self.ok,
            "head": self.head.document() if self.head else None,
            "checked": {
                "entries": self.entries_checked,
                "checkpoints": self.checkpoints_checked,
                "files": self.files_checked,
                "blobs": self.blobs_checked,
            },
            "faults": [vars(fault) for fault in self.faults],
            "orphans": list(self.orphans),
            "anchored_to": list(self.anchored_to),
            "not_checked": list(self.not_checked),
        }


@dataclass
class Findings:
    """Where the parts of a verification put what they find."""

    faults: list[Fault] = field(default_factory=list)
    orphans: list[str] = field(default_factory=list)
    anchored_to: list[str] = field(default_factory=list)
    not_checked: list[str] = field(default_factory=list)
    counted: dict[str, int] = field(default_factory=dict)

    def fault(
        self, where: str, what: str, *, entry: int | None = None, expected: object = None, found: object = None
    ) -> None:
        self.faults.append(
            Fault(
                where, entry, None if expected is None else str(expected), None if found is None else str(found), what
            )
        )

    @contextlib.contextmanager
    def reading(self, where: str) -> Iterator[None]:
        """While a part of the evidence is read: what cannot be read is a fault, and the other parts go on."""
        try:
            yield
        except SoakledgerError as error:
            self.fault(str(error.where or where), f"cannot be read: {error.what}")
        except (sqlite3.Error, *UNREADABLE) as error:
            self.fault(where, f"cannot be read: {error}")

    def count(self, what: str, number: int = 1) -> None:
        self.counted[what] = self.counted.get(what, 0) + number

    def report(self, home: str, origin: str | None, head: Head | None) -> AuditReport:
        counted: Mapping[str, int] = self.counted
        return AuditReport(
            home=home,
            origin=origin,
            head=head,
            entries_checked=counted.get("entries", 0),
            checkpoints_checked=counted.get("checkpoints", 0),
            files_checked=counted.get("files", 0),
            blobs_checked=counted.get("blobs", 0),
            faults=tuple(self.faults),
            orphans=tuple(sorted(self.orphans)),
            anchored_to=tuple(self.anchored_to),
            not_checked=tuple(self.not_checked),
        )
