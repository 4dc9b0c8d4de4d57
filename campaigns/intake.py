"""Taking the lane's journal into the ledger: each record once, by digest; a gap or a fork is a deviation."""

from __future__ import annotations

from dataclasses import dataclass, field

from campaigns.verdict import JOURNAL_BROKEN
from ledger.entry import MAX_DOCUMENT_BYTES
from ledger.store import Draft, Ledger
from producer.journal import GENESIS, Journal
from receipts import canonical
from receipts.errors import EvidenceError, SoakledgerError
from receipts.events import DeathEvent, JournalRecord
from receipts.leaves import Deviation, ProcessEvent


@dataclass
class Intake:
    """What one ledger has of one lane's journal, and how it gets the rest."""

    ledger: Ledger
    journal: Journal
    campaign: str | None = None
    attempt: int | None = None
    _taken: int = 0
    _head: str = GENESIS
    _deaths: dict[str, int] = field(default_factory=dict)
    _known: bool = False

    def take(self) -> list[JournalRecord]:
        """Append every journal record that this ledger lacks, in one transaction; returns them."""
        self._learn()
        fresh: list[tuple[JournalRecord, ProcessEvent]] = []
        fault = self._read(fresh)
        if fresh:
            self.ledger.append_many(
                Draft("process_event", f"{record.lane}/{record.n}", event.document()) for record, event in fresh
            )
            last, event = fresh[-1]
            self._taken, self._head = last.n, event.record_sha256
        if fault is not None:
            self._deviate(JOURNAL_BROKEN, fault)
        return [record for record, _ in fresh]

    def _read(self, fresh: list[tuple[JournalRecord, ProcessEvent]]) -> str | None:
        """Put every further record of one chain into ``fresh``; says what is wrong with the journal, if anything is."""
        try:
            self._require_same_past()
            end = self.journal.head().n
            for record, digest in self.journal.read(self._taken + 1):
                fresh.append((record, self._small_event(record, digest)))
        except (SoakledgerError, OSError) as error:
            return str(error)
        last = fresh[-1][0].n if fresh else self._taken
        return None if last >= end else f"record {last + 1} of the journal is missing; its last is {end}"

    def _learn(self) -> None:
        """Once: how far this ledger is, from its own entries."""
        if self._known:
            return
        for entry in self.ledger.entries(kinds={"process_event"}, subject_prefix=f"{self.journal.lane}/"):
            event = ProcessEvent.read(entry.data)
            self._taken, self._head = int(event.record["n"]), event.record_sha256
            if event.record["kind"] == "death":
                self._deaths.setdefault(_instance_key(event.record["body"]), self._taken)
        self._known = True

    def _require_same_past(self) -> None:
        if self._taken and (not self.journal.path(self._taken).exists()):
            raise EvidenceError(f"the journal ends before record {self._taken}, which this ledger holds")
        if self._taken and self.journal.digest(self._taken) != self._head:
            raise EvidenceError(f"record {self._taken} of the journal is not the one that this ledger holds: a fork")

    def _event(self, record: JournalRecord, digest: str) -> ProcessEvent:
        if record.kind != "death":
            return ProcessEvent(record=record.document(), record_sha256=digest, injected=None, merged_n=())
        death = DeathEvent.read(record.body)
        key = _instance_key(death.document())
        earlier = self._deaths.setdefault(key, record.n)
        # Only a fault receipt can make a death injected; kinds of stages that inject faults come later.
        merged = () if earlier == record.n else (earlier,)
        return ProcessEvent(record=record.document(), record_sha256=digest, injected=False, merged_n=merged)

    def _small_event(self, record: JournalRecord, digest: str) -> ProcessEvent:
        """The event of a record. Raises EvidenceError on one that no entry can hold: none of ours is that long."""
        size = len(canonical.dumps(record.document()))
        if size > MAX_DOCUMENT_BYTES - 1024:
            raise EvidenceError(f"record {record.n} of the journal has {size} bytes, and no entry can hold it")
        return self._event(record, digest)

    def _deviate(self, what: str, text: str) -> None:
        subject = f"{self.campaign}/{self.attempt}" if self.campaign else ""
        data = Deviation(
            campaign=self.campaign,
            attempt=self.attempt,
            what=what,
            text=text,
            evidence={"lane": self.journal.lane, "taken": self._taken},
        )
        if not any(
            entry.data == data.document() for entry in self.ledger.entries(kinds={"deviation"}, subject=subject)
        ):
            self.ledger.append("deviation", subject, data.document())


def _instance_key(body: dict[str, object]) -> str:
    instance = body["instance"]
    assert isinstance(instance, dict)
    return f"{instance['host']}/{instance['boot_id']}/{instance['pid']}/{instance['start_ticks']}"
