"""The view of one attempt that every page and the terminal share, read from the ledger in one snapshot.

Computes nothing: figures are those of the verdict document, or come from ``receipts/metrics.py``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from receipts.errors import EvidenceError, InputError
from receipts.events import signal_name
from receipts.kinds import attempt_folder
from receipts.metrics import MOST_DEATHS
from templates import words
from templates.facts import (
    Fact,
    environment_facts,
    identity_facts,
    is_emulated,
    promise,
    ritual_facts,
    unobserved,
)
from templates.rows import CriterionRow, RepRow, criterion_rows, death_sentence, deaths_of, rep_row

Life = Literal["running", "lost"]


class EntryLike(Protocol):
    """What is read of an entry."""

    @property
    def seq(self) -> int: ...
    @property
    def subject(self) -> str: ...
    @property
    def recorded_at(self) -> str: ...
    @property
    def data(self) -> Any: ...


class LedgerReader(Protocol):
    """What is asked of a ledger; ``ledger.store.Ledger`` answers it."""

    def entries(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        kinds: Collection[str] | None = None,
        subject: str | None = None,
        subject_prefix: str | None = None,
    ) -> Iterator[Any]: ...

    def head(self) -> Any: ...


@dataclass(frozen=True)
class Earlier:
    """An earlier attempt of the family; ``verdict`` is None where nobody judged it."""

    campaign: str
    attempt: int
    verdict: str | None


@dataclass(frozen=True)
class Story:
    """Everything that is told of one attempt. ``verdict`` is the document, None while there is none."""

    campaign: str
    attempt: int
    family: str
    lane: str
    loopback: bool
    emulated: bool
    rehearsal: bool
    promise: str
    opened_seq: int
    opened_at: str
    ended_at: str | None
    last_sign_at: str
    """When the last entry of this attempt was recorded: its last sign of life, if it never ended."""
    spec: Mapping[str, Any]
    reps_registered: int
    verdict: Mapping[str, Any] | None
    earlier_verdicts: tuple[str, ...]
    """Words of this same attempt's verdicts before the one that is told: a late event causes a new one."""
    registration: Mapping[str, Any]
    registration_seq: int
    registered_at: str
    checkpoint_note_sha256: str
    weaker: tuple[Mapping[str, Any], ...]
    pre_registered: bool
    earlier: tuple[Earlier, ...]
    criteria: tuple[CriterionRow, ...]
    reps: tuple[RepRow, ...]
    unobserved: tuple[str, ...]
    ending: Mapping[str, Any] | None
    life: Life | None
    """Of an attempt that never ended, whether its orchestrator lives; None where nobody looked."""
    cleanup: tuple[Mapping[str, Any], ...]
    deviations: tuple[Mapping[str, Any], ...]
    journal_deaths: tuple[Mapping[str, Any], ...]
    """Records of deaths in the lane's journal that came in between the attempt's opening and its verdict."""
    checks: tuple[Mapping[str, Any], ...]
    identity: tuple[Fact, ...]
    identity_sha256: str
    cache_identity: str
    environment: tuple[Fact, ...]
    starts: tuple[Fact, ...]
    tree_size: int
    tree_root: str

    @property
    def word(self) -> str:
        """The verdict's word, or that there is none."""
        return str(self.verdict["verdict"]) if self.verdict else words.NO_VERDICT

    @property
    def deaths(self) -> tuple[Mapping[str, Any], ...]:
        """Every death that a criterion lists, once."""
        return deaths_of(self.criteria)

    @property
    def death_sentences(self) -> list[str]:
        """One sentence a death: at which handoff, by which site or status."""
        # A verdict's death has no signal; the journal's record has, and names it where there is no choice of which.
        signals = {record["body"]["signal"] for record in self.journal_deaths if record["body"]["site"] == "signal"}
        name = signal_name(signals.pop()) if len(signals) == 1 and None not in signals else None
        return [death_sentence(item, self.reps_registered, name) for item in self.deaths]

    @property
    def deaths_are_cut(self) -> bool:
        """Whether a criterion lists as many deaths as it can: there may be more."""
        return any(len(row.deaths) >= MOST_DEATHS for row in self.criteria)

    @property
    def earlier_without_pass(self) -> list[Earlier]:
        return [item for item in self.earlier if item.verdict != "PASS"]

    @property
    def anchored(self) -> bool:
        """As the verdict document has it; without one nothing says so."""
        return bool(self.verdict and self.verdict["registration"]["anchored"])

    @property
    def has_cases(self) -> bool:
        """Whether a rep belongs to a case that is not just the control."""
        return any(row.case is not None and not row.control for row in self.reps)

    def document(self) -> dict[str, Any]:
        """The story as plain JSON values, from the same snapshot as the pages."""
        return dataclasses.asdict(self)


def story(
    reader: LedgerReader,
    campaign: str,
    attempt: int,
    verdict: Mapping[str, Any] | None = None,
    life: Life | None = None,
) -> Story:
    """Read one attempt; ``verdict`` replaces the stored document (a rejudge tells what it has just computed).

    ``life`` is what the machine says of an attempt that has no end: a ledger alone cannot.
    Raises InputError when the ledger has no such attempt, EvidenceError when what the attempt names is not there.
    """
    head = reader.head()
    last = head.size - 1
    subject = f"{campaign}/{attempt}"
    opened = next(iter(reader.entries(0, last, kinds={"attempt_open"}, subject=subject)), None)
    if opened is None:
        raise InputError(f"there is no attempt {subject} in this ledger", next_step="soakledger campaign status")
    registration = _named(reader, "registration", opened.data["registration_seq"])
    enrollment = _named(reader, "enrollment", opened.data["enrollment_seq"])
    endings = list(reader.entries(opened.seq, last, kinds={"attempt_close", "attempt_abandoned"}, subject=subject))
    stored = list(reader.entries(opened.seq, last, kinds={"verdict"}, subject=subject))
    document = verdict if verdict is not None else stored[-1].data if stored else None
    prefix = attempt_folder(campaign, attempt) + "/"
    entries = list(reader.entries(opened.seq, last, kinds={"receipt"}, subject_prefix=prefix))
    receipts = [entry.data for entry in entries]
    handoffs = [item for item in receipts if item["kind"] == "handoff"]
    loopback = any(_over_loopback(item) for item in handoffs)
    spec = registration.data["resolved"]
    reps = tuple(rep_row(item) for item in handoffs)
    environment = next((item["body"] for item in receipts if item["kind"] == "environment"), None)
    return Story(
        campaign=campaign,
        attempt=attempt,
        family=opened.data["family"],
        lane=opened.data["lane"],
        loopback=loopback,
        emulated=is_emulated(enrollment.data["identity"]),
        rehearsal=bool(opened.data.get("rehearsal")),
        promise=promise(spec),
        opened_seq=opened.seq,
        opened_at=opened.recorded_at,
        ended_at=endings[0].recorded_at if endings else None,
        last_sign_at=[opened, *entries][-1].recorded_at,
        spec=spec,
        reps_registered=sum(stage["runs"] * stage["reps"] for stage in spec["stage"] if stage["kind"] == "soak"),
        verdict=document,
        earlier_verdicts=tuple(str(entry.data["verdict"]) for entry in stored if entry.data != document),
        registration=registration.data,
        registration_seq=registration.seq,
        registered_at=registration.recorded_at,
        checkpoint_note_sha256=opened.data["checkpoint_note_sha256"],
        weaker=tuple(registration.data["weaker"]),
        pre_registered=registration.seq < opened.seq,
        earlier=_earlier(reader, opened, document),
        criteria=criterion_rows(spec, document, loopback=loopback),
        reps=reps,
        unobserved=unobserved(spec, receipts),
        ending=endings[0].data if endings else None,
        life=None if endings else life,
        cleanup=tuple(endings[0].data.get("cleanup", ())) if endings else (),
        deviations=tuple(entry.data for entry in reader.entries(0, last, kinds={"deviation"}, subject=subject)),
        journal_deaths=_journal_deaths(reader, opened, document, last),
        checks=tuple(check for item in receipts if item["kind"] == "preflight" for check in item["body"]["checks"]),
        identity=identity_facts(enrollment.data["identity"]),
        identity_sha256=opened.data["identity"],
        cache_identity=opened.data["cache_identity"],
        environment=() if environment is None else environment_facts(environment),
        starts=ritual_facts(item for item in receipts if item["kind"] == "ritual"),
        tree_size=head.size,
        tree_root=head.root,
    )


def _named(reader: LedgerReader, kind: str, seq: int) -> EntryLike:
    found: EntryLike | None = next(iter(reader.entries(seq, seq, kinds={kind})), None)
    if found is None:
        raise EvidenceError(f"entry {seq} is no {kind}, and the attempt names it as one", where=f"entry {seq}")
    return found


def _earlier(reader: LedgerReader, opened: EntryLike, document: Mapping[str, Any] | None) -> tuple[Earlier, ...]:
    """As the verdict document lists them; before there is one, from the ledger up to the attempt's opening."""
    if document is not None:
        return tuple(Earlier(**item) for item in document["earlier_in_family"])
    before = opened.seq - 1
    verdicts = {entry.subject: entry.data["verdict"] for entry in reader.entries(0, before, kinds={"verdict"})}
    return tuple(
        Earlier(entry.data["campaign"], entry.data["attempt"], verdicts.get(entry.subject))
        for entry in reader.entries(0, before, kinds={"attempt_open"})
        if entry.data["family"] == opened.data["family"]
    )


def _journal_deaths(
    reader: LedgerReader, opened: EntryLike, document: Mapping[str, Any] | None, last: int
) -> tuple[Mapping[str, Any], ...]:
    until = document["receipts"]["to_seq"] if document else last
    events = reader.entries(
        opened.seq, until, kinds={"process_event"}, subject_prefix=f"{opened.data['lane']}/"
    )  # fmt: skip
    return tuple(
        {**entry.data["record"], "injected": entry.data["injected"]}
        for entry in events
        if entry.data["record"]["kind"] == "death"
    )


def _over_loopback(envelope: Mapping[str, Any]) -> bool:
    producer = envelope["body"]["producer"]
    if not producer or not producer["socket"]:
        return False
    return str(producer["socket"]["peer"]).startswith(("127.", "[::1]", "[::ffff:127."))
