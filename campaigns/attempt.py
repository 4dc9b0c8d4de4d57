"""An open attempt as its runner writes it: numbered receipts, files before entries, every rep after a known tree."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Final

from ledger.entry import Entry
from ledger.store import Ledger
from producer.lane import Lane
from receipts import canonical
from receipts.clock import HostClock
from receipts.environment import tool
from receipts.kinds import Document, Instance, Receipt, Span, Tree
from receipts.leaves import StageClose
from receipts.store import BlobStore

RECEIPTS_FOLDER: Final = "receipts"


@dataclass(frozen=True)
class Place:
    """Where in a stage something was observed; a control has case ``control``."""

    stage: str
    case: str | None = None
    run: int | None = None
    rep: int | None = None


@dataclass
class StageMarks:
    """A stage's own times and whether it reached its end."""

    started_ns: int | None = None
    closed_ns: int | None = None
    reached_end: bool = False


@dataclass
class Attempt:
    """One launch of a registered campaign while it runs."""

    ledger: Ledger
    lane: Lane
    clock: HostClock
    campaign: str
    number: int
    open_entry: Entry
    enrollment_seq: int
    identity: str
    cache_identity: str
    blobs: BlobStore
    counters: dict[str, int] = field(default_factory=lambda: defaultdict(int))
    marks: dict[str, StageMarks] = field(default_factory=dict)
    instance: Instance | None = None
    """The producer instance that this attempt uses right now."""

    @property
    def subject(self) -> str:
        return f"{self.campaign}/{self.number}"

    def tree(self) -> Tree:
        """The head as it is now; read it before the rep starts."""
        head = self.ledger.head()
        return Tree(size=head.size, root=head.root)

    def write(self, place: Place, kind: str, body: Document, tree: Tree) -> str:
        """Make one receipt durable, file first, then entry; returns the digest of its file."""
        self.counters[place.stage] += 1
        receipt = Receipt(
            kind=kind,
            lane=self.lane.name,
            host=self.clock.host,
            campaign=self.campaign,
            attempt=self.number,
            stage=place.stage,
            case=place.case,
            run=place.run,
            rep=place.rep,
            n=self.counters[place.stage],
            recorded_at=self.clock.recorded_at(),
            tool=tool(),
            tree=tree,
            body=body.document(),
        )
        document = receipt.document()
        subject = receipt.path.removesuffix(".json")
        path = f"{RECEIPTS_FOLDER}/{receipt.path}"
        try:
            self.ledger.record("receipt", subject, path, document)
        except BaseException:
            if not (self.ledger.home.path / path).exists():
                self.counters[place.stage] -= 1  # nothing stands under this number: it is no gap
            raise
        return canonical.sha256(canonical.file_bytes(document))

    def begin(self) -> tuple[int, int]:
        """The two stamps that begin a span: counting suspend, and not."""
        return self.clock.stamp(), self.clock.awake()

    def span(self, begun: tuple[int, int]) -> Span:
        """The span from ``begun`` to now."""
        ended, awake = self.clock.stamp(), self.clock.awake()
        return Span(
            host=self.clock.host,
            boot_id=self.clock.boot_id,
            clock=self.clock.clock,
            started_ns=str(begun[0]),
            ended_ns=str(ended),
            awake_start_ns=str(begun[1]),
            awake_end_ns=str(awake),
        )

    def stage_closes(self, stages: list[str]) -> tuple[StageClose, ...]:
        """How far each registered stage got, in the spec's order."""
        return tuple(self._stage_close(name) for name in stages)

    def _stage_close(self, name: str) -> StageClose:
        marks = self.marks.get(name, StageMarks())
        return StageClose(
            stage=name,
            last_n=self.counters[name],
            reached_end=marks.reached_end,
            started_ns=None if marks.started_ns is None else str(marks.started_ns),
            closed_ns=None if marks.closed_ns is None else str(marks.closed_ns),
        )
