"""From the ledger to a verdict: checking the evidence of an attempt, then the pure judge over its entries."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, Final

from campaigns.evaluator import source_sha256
from campaigns.verdict import EntryView, judge
from ledger.entry import Entry, Ref
from ledger.reading import readable
from ledger.store import Ledger
from receipts import canonical
from receipts.errors import EvidenceError, InputError
from receipts.kinds import attempt_folder
from receipts.store import open_below, sync_folder

JUDGED_KINDS: Final = frozenset(
    {
        "registration",
        "attempt_open",
        "attempt_close",
        "attempt_abandoned",
        "receipt",
        "process_event",
        "enrollment",
        "deviation",
        "verdict",
        "anchor",
    }
)
VERDICT_FILE: Final = "SOAK_VERDICT"


@dataclass(frozen=True)
class Judged:
    """A verdict document, and the entry that holds it if one does."""

    document: dict[str, Any]
    entry: Entry | None


def rejudge(ledger: Ledger, campaign: str, attempt: int) -> Judged:
    """Judge an attempt again from its entries alone, after checking its evidence.

    With a stored verdict, the judge sees what that verdict saw and must give the same bytes. Raises EvidenceError:
    entries that are not those that were signed, a missing or different file, a gap in a stage's numbers, or other
    bytes than the stored verdict's.
    """
    with readable(ledger):
        return _rejudge(ledger, campaign, attempt)


def _rejudge(ledger: Ledger, campaign: str, attempt: int) -> Judged:
    subject = f"{campaign}/{attempt}"
    if ledger.latest("attempt_open", subject) is None:
        raise InputError(f"there is no attempt {subject} in this ledger", where=str(ledger.home.path))
    stored = ledger.latest("verdict", subject)
    last = ledger.size() - 1
    _require_signed(ledger, stored, last)
    check_files(ledger, campaign, attempt)
    if stored is None:
        return Judged(compute(ledger, campaign, attempt, last), None)
    document = compute(ledger, campaign, attempt, _seen_by(stored)[0])
    if document["evaluator"] != stored.data["evaluator"]:
        theirs, ours = (item["source_sha256"] for item in (stored.data["evaluator"], document["evaluator"]))
        raise InputError(
            f"the evidence is whole, but its verdict is by the evaluator {theirs}, and this release has {ours}",
            where=f"entry {stored.seq}",
            next_step="rejudge with the release that computed it",
        )
    if canonical.dumps(document) != canonical.dumps(stored.data):
        raise EvidenceError(
            "judging again gives another document than the stored verdict",
            where=f"entry {stored.seq}",
            next_step="run `soakledger ledger verify`: one of the entries it rests on is not what it was",
        )
    return Judged(document, stored)


def _require_signed(ledger: Ledger, stored: Entry | None, last: int) -> None:
    """The judge reads entries and trusts them: they are what was signed, and what the stored verdict was given over.

    The tree is built from the bodies for it; the node table, which ``compute`` takes its root from, is derived data.
    """
    if stored is None:
        ledger.require_history(upto=last + 1)
        return
    to_seq, told = _seen_by(stored)
    history = ledger.require_history(upto=to_seq + 1)
    if history.signed <= stored.seq:
        raise EvidenceError(
            "no checkpoint by the ledger's own key covers this verdict: one was signed in the moment it was written",
            where=f"entry {stored.seq}",
            next_step="run `soakledger ledger verify`: it names what is missing",
        )
    found = history.roots[to_seq + 1]
    if told != found:
        raise EvidenceError(
            "the entries are not those that this verdict was given over",
            where=f"entry {stored.seq}",
            details=[f"its tree_root {told}", f"that of the entries {found}"],
            next_step="run `soakledger ledger verify`: it names what was changed",
        )


def _seen_by(stored: Entry) -> tuple[int, str]:
    """The last entry that a stored verdict rests on, and the tree up to it."""
    match stored.data:
        case {"receipts": {"to_seq": int(to_seq), "tree_root": str(root)}, "evaluator": {"source_sha256": str()}} if (
            0 <= to_seq < stored.seq
        ):
            return to_seq, root
    raise EvidenceError("this verdict does not say over which entries it was given", where=f"entry {stored.seq}")


def compute(ledger: Ledger, campaign: str, attempt: int, to_seq: int) -> dict[str, Any]:
    """The judge's document over every entry up to ``to_seq``. Raises EvidenceError on one that it cannot read."""
    with readable(ledger):
        views = [
            EntryView(entry.seq, entry.kind, entry.subject, entry.data)
            for entry in ledger.entries(0, to_seq, kinds=JUDGED_KINDS)
        ]
        # The tree is told at the last entry that was judged, so that judging again up to it gives the same bytes.
        root = ledger.root_at(views[-1].seq + 1)
        return judge(views, campaign, attempt, evaluator_sha256=source_sha256(), tree_root=root)


def store_verdict(ledger: Ledger, campaign: str, attempt: int) -> Judged:
    """Judge over everything so far and keep the document: file first, then entry and checkpoint.

    A run that was killed between the two left a file without an entry: it is taken up if it holds this very document,
    else it stays what it is and the next free name is used.
    """
    subject = f"{campaign}/{attempt}"
    document = compute(ledger, campaign, attempt, ledger.size() - 1)
    data = canonical.file_bytes(document)
    used = {entry.ref.path for entry in ledger.entries(kinds={"verdict"}, subject=subject) if entry.ref is not None}
    for path in _verdict_paths(campaign, attempt):
        if path in used:
            continue
        if not os.path.lexists(ledger.home.path / path):
            entry = ledger.record("verdict", subject, path, document)
            break
        if _holds(ledger, path, data):
            # Whoever linked it may have died before the name was durable, and an entry never stands without its file.
            sync_folder((ledger.home.path / path).parent)
            entry = ledger.append("verdict", subject, document, Ref.of(path, data))
            break
    return Judged(document, entry)


def _verdict_paths(campaign: str, attempt: int) -> Iterator[str]:
    """``SOAK_VERDICT.json``, ``SOAK_VERDICT.2.json``, … of an attempt, relative to the home, without end."""
    folder = f"receipts/{attempt_folder(campaign, attempt)}"
    yield f"{folder}/{VERDICT_FILE}.json"
    for number in count(2):
        yield f"{folder}/{VERDICT_FILE}.{number}.json"


def _holds(ledger: Ledger, path: str, data: bytes) -> bool:
    try:
        with open_below(ledger.home.path, path) as file:
            return file.read(len(data) + 1) == data
    except OSError:
        return False


def check_files(ledger: Ledger, campaign: str, attempt: int) -> None:
    """Every ref of the attempt against its file, each stage's numbers for gaps, each handoff against its intent.

    Raises EvidenceError with every fault.
    """
    faults = []
    prefix = attempt_folder(campaign, attempt) + "/"
    receipts = list(ledger.entries(kinds={"receipt"}, subject_prefix=prefix))
    verdicts = ledger.entries(kinds={"verdict"}, subject=f"{campaign}/{attempt}")
    for entry in [*receipts, *verdicts]:
        if fault := _file_fault(ledger, entry):
            faults.append(fault)
    views = [EntryView(entry.seq, entry.kind, entry.subject, entry.data) for entry in receipts]
    closes = [
        EntryView(entry.seq, entry.kind, entry.subject, entry.data)
        for entry in ledger.entries(kinds={"attempt_close"}, subject=f"{campaign}/{attempt}")
    ]
    faults += check_numbers([*views, *closes], attempt)
    faults += check_intents(views)
    if faults:
        raise EvidenceError(
            "the evidence of this attempt is not whole",
            details=faults,
            where=f"{campaign}/{attempt}",
            next_step="run `soakledger ledger verify`, and put the original files back",
        )


def check_intents(receipts: Sequence[EntryView]) -> list[str]:
    """Handoffs that are not the one that the last intent of their place announced, each with what differs.

    An intent is durable before its act, so a runner cannot write such a receipt. A handoff without an intent is none
    of these: a missing entry makes nothing up.
    """
    announced: dict[tuple[Any, ...], EntryView] = {}
    faults = []
    for entry in receipts:
        body, place = entry.data["body"], tuple(entry.data[key] for key in ("stage", "case", "run", "rep"))
        if entry.data["kind"] == "intent":
            if body.get("action") == "handoff":
                announced[place] = entry
        elif entry.data["kind"] == "handoff" and (intent := announced.get(place)) is not None:
            faults += [
                f"{entry.subject}: {key} is {body[key]} (entry {entry.seq}), and its intent {intent.subject} "
                f"announced {intent.data['body'][key]} (entry {intent.seq})"
                for key in ("handoff_id", "prompt_sha256")
                if body[key] != intent.data["body"][key]
            ]
    return faults


def check_numbers(entries: Sequence[EntryView], attempt: int) -> list[str]:
    """Gaps in the running numbers of each stage, and numbers that ``attempt_close`` knows and no receipt has."""
    seen: dict[str, list[int]] = {}
    faults = []
    for entry in entries:
        if entry.kind == "receipt" and entry.data["attempt"] == attempt:
            seen.setdefault(entry.data["stage"], []).append(entry.data["n"])
    last: dict[str, int] = {}
    for entry in entries:
        if entry.kind == "attempt_close" and entry.data["attempt"] == attempt:
            last.update({stage["stage"]: stage["last_n"] for stage in entry.data["stages"]})
    for stage in sorted(seen.keys() | last.keys()):
        numbers = seen.get(stage, [])
        expected = range(1, max([*numbers, last.get(stage, 0)], default=0) + 1)
        faults += [f"stage {stage}: receipt {n} is missing" for n in expected if n not in set(numbers)]
        faults += [f"stage {stage}: receipt {n} stands twice" for n in sorted(set(numbers)) if numbers.count(n) > 1]
    return faults


def _file_fault(ledger: Ledger, entry: Entry) -> str | None:
    ref = entry.ref
    if ref is None:
        return f"{entry.subject}: entry {entry.seq} names no file for its document"
    try:
        with open_below(ledger.home.path, ref.path) as file:
            size = os.fstat(file.fileno()).st_size
            data = file.read() if size == ref.size else b""
    except EvidenceError as error:
        return f"{error.what} (entry {entry.seq})"
    except OSError as error:
        return f"{ref.path}: {os.strerror(error.errno or 0)} (entry {entry.seq})"
    if size != ref.size:
        return f"{ref.path}: entry {entry.seq} says {ref.size} bytes, the file has {size}"
    found = canonical.sha256(data)
    return None if found == ref.sha256 else f"{ref.path}: entry {entry.seq} says {ref.sha256}, the file has {found}"
