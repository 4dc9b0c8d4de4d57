"""What an entry says, as rows of the projections. Pure: one entry in, rows out, nothing looked up.

The same function feeds the tables on append, rebuilds them, and lets ``verify`` compare them. Figures are
derived only in ``receipts/metrics.py``; the rows of ``measurement`` come from the function handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ledger.entry import Entry
from ledger.home import EvidenceHome
from receipts.errors import InputError

Measure = Callable[[Mapping[str, Any]], "list[tuple[str, str, str]]"]
"""The figures of one receipt (its whole envelope): (metric, exact value as text)."""


@dataclass(frozen=True)
class ProjectedRow:
    """A row of a projection: ``values`` by column; a column that is not named is NULL."""

    table: str
    values: Mapping[str, Any]


def rows_of(entry: Entry, measure: Measure | None = None) -> list[ProjectedRow]:
    """The rows that ``entry`` projects to; none for an unknown kind.

    Raises InputError when the data of a known kind lacks what every reader of that kind needs.
    """
    project = _PROJECTORS.get(entry.kind)
    rows = list(project(entry)) if project else []
    if entry.kind == "receipt" and measure is not None:
        rows += [
            ProjectedRow("measurement", {"seq": entry.seq, "metric": metric, "value": value, "shown": shown})
            for metric, value, shown in measure(entry.leaf["data"])
        ]
    return rows + list(_artefacts(entry))


def reproject(home: EvidenceHome, *, measure: Measure | None = None) -> int:
    """Rebuild the node table and every projection from the entries alone, in one transaction.

    Returns the number of entries read. Raises EvidenceError when an entry or the chain does not verify.
    """
    from ledger.rebuild import rebuild  # imported late: this module is pure and imports no database

    return rebuild(home, measure)


def blobs_named(data: Any) -> Iterator[tuple[str, str]]:
    """(member, digest) of every blob that a document names.

    A member called ``…_blob`` holds one digest or null; one called ``…_blobs`` holds an array or an object of them.
    """
    if isinstance(data, dict):
        for key, value in data.items():
            if key.endswith("_blob"):
                named = [value]
            elif key.endswith("_blobs"):
                named = list(value.values()) if isinstance(value, dict) else value if isinstance(value, list) else []
            else:
                yield from blobs_named(value)
                continue
            yield from ((key, item) for item in named if isinstance(item, str))
    elif isinstance(data, list):
        for item in data:
            yield from blobs_named(item)


def _registration(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry)
    parent = data.any_integer("parent_seq")
    yield ProjectedRow(
        "campaign",
        {
            "registration_seq": entry.seq,
            "campaign": data.text("campaign"),
            "family": data.text("family"),
            "registered_at": entry.recorded_at,
            "spec_sha256": data.text("spec_sha256"),
            "resolved_sha256": data.text("resolved_sha256"),
            "parent": None if parent is None else str(parent),
            "reason": data.any_text("reason"),
        },
    )


def _attempt_open(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry)
    rehearsal = data.value.get("rehearsal")
    yield ProjectedRow(
        "attempt",
        {
            "open_seq": entry.seq,
            "campaign": data.text("campaign"),
            "attempt": data.integer("attempt"),
            "family": data.any_text("family"),
            "rehearsal": int(rehearsal) if isinstance(rehearsal, bool) else None,
            "registration_seq": data.any_integer("registration_seq"),
            "lane": data.any_text("lane"),
            "identity": data.any_text("identity"),
            "cache_identity": data.any_text("cache_identity"),
            "opened_at": entry.recorded_at,
            "host": data.any_text("host"),
            "boot_id": data.any_text("boot_id"),
            "pid": data.any_integer("pid"),
            "start_ticks": data.any_text("start_ticks"),
        },
    )


def _attempt_end(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry)
    campaign, attempt = data.text("campaign"), data.integer("attempt")
    ended = "abandoned" if entry.kind == "attempt_abandoned" else data.text("ended")
    yield ProjectedRow(
        "attempt_end",
        {
            "close_seq": entry.seq,
            "campaign": campaign,
            "attempt": attempt,
            "ended": ended,
            "closed_at": entry.recorded_at,
        },
    )
    for stage in data.objects("stages"):
        yield ProjectedRow(
            "stage_end",
            {
                "close_seq": entry.seq,
                "stage": stage.text("stage"),
                "campaign": campaign,
                "attempt": attempt,
                "last_n": stage.integer("last_n"),
            },
        )


def _receipt(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry)
    ref = entry.ref
    yield ProjectedRow(
        "receipt",
        {
            "seq": entry.seq,
            "campaign": data.text("campaign"),
            "attempt": data.integer("attempt"),
            "stage": data.text("stage"),
            "case_name": data.any_text("case"),
            "run": data.any_integer("run"),
            "rep": data.any_integer("rep"),
            "n": data.integer("n"),
            "kind": data.text("kind"),
            "outcome": data.object("body").any_text("outcome"),
            "lane": data.any_text("lane"),
            "host": data.any_text("host"),
            "recorded_at": data.text("recorded_at"),
            "path": ref.path if ref else None,
        },
    )


def _verdict(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry)
    campaign, attempt = data.text("campaign"), data.integer("attempt")
    ref = entry.ref
    yield ProjectedRow(
        "verdict",
        {
            "seq": entry.seq,
            "campaign": campaign,
            "attempt": attempt,
            "verdict": data.text("verdict"),
            "ended": data.any_text("ended"),
            "evaluator": data.any_object("evaluator").any_text("name"),
            "source_sha256": data.any_object("evaluator").any_text("source_sha256"),
            "to_seq": data.any_object("receipts").any_integer("to_seq"),
            "judged_at": entry.recorded_at,
            "path": ref.path if ref else None,
        },
    )
    for position, criterion in enumerate(data.objects("criteria")):
        observed = criterion.any_object("observed")
        yield ProjectedRow(
            "criterion_result",
            {
                "seq": entry.seq,
                "position": position,
                "campaign": campaign,
                "attempt": attempt,
                "name": criterion.text("name"),
                "outcome": criterion.text("outcome"),
                "bound": criterion.any_text("bound"),
                "observed_exact": observed.any_text("exact"),
                "observed_shown": observed.any_text("shown"),
                "expected_samples": criterion.any_integer("expected_samples"),
                "samples": criterion.any_integer("samples"),
            },
        )


def _process_event(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry).object("record")
    body = data.any_object("body")
    instance = body.any_object("instance")
    yield ProjectedRow(
        "event",
        {
            "seq": entry.seq,
            "lane": data.text("lane"),
            "n": data.integer("n"),
            "kind": data.text("kind"),
            "host": data.any_text("host"),
            "boot_id": data.any_text("boot_id"),
            "at_ns": data.any_text("at_ns"),
            "recorded_at": data.any_text("recorded_at"),
            "pid": instance.any_integer("pid"),
            "start_ticks": instance.any_text("start_ticks"),
            "site": body.any_text("site"),
            "status": body.any_integer("status"),
        },
    )


def _claim(entry: Entry) -> Iterator[ProjectedRow]:
    yield ProjectedRow(
        "claim",
        {
            "seq": entry.seq,
            "claim": entry.subject,
            "action": entry.kind,
            "text": _Data(entry).any_text("text"),
            "recorded_at": entry.recorded_at,
        },
    )


def _claim_evidence(entry: Entry) -> Iterator[ProjectedRow]:
    data = _Data(entry)
    yield ProjectedRow(
        "claim_evidence",
        {
            "seq": entry.seq,
            "claim": entry.subject,
            "direction": entry.kind.removeprefix("claim_"),
            "campaign": data.any_text("campaign"),
            "attempt": data.any_integer("attempt"),
            "verdict_seq": data.any_integer("verdict_seq"),
        },
    )


def _artefacts(entry: Entry) -> Iterator[ProjectedRow]:
    ref = entry.ref
    if ref is not None:
        yield ProjectedRow(
            "artefact",
            {"seq": entry.seq, "role": entry.kind, "path": ref.path, "sha256": ref.sha256, "size": ref.size},
        )
    # Most entries name no blob, and in canonical bytes the name of such a member stands as it is.
    named = set(blobs_named(entry.leaf["data"])) if b"_blob" in entry.body else set()
    for role, digest in sorted(named):
        hexadecimal = digest.removeprefix("sha256:")
        path = f"blobs/{hexadecimal[:2]}/{hexadecimal}"
        yield ProjectedRow("artefact", {"seq": entry.seq, "role": role, "path": path, "sha256": digest, "size": None})


_PROJECTORS: Final[Mapping[str, Callable[[Entry], Iterator[ProjectedRow]]]] = {
    "registration": _registration,
    "attempt_open": _attempt_open,
    "attempt_close": _attempt_end,
    "attempt_abandoned": _attempt_end,
    "receipt": _receipt,
    "verdict": _verdict,
    "process_event": _process_event,
    "claim": _claim,
    "claim_withdrawn": _claim,
    "claim_support": _claim_evidence,
    "claim_contradict": _claim_evidence,
}


class _Data:
    """A document read by member: ``text`` and its like insist, ``any_…`` gives None for what is not of the type."""

    def __init__(self, entry: Entry, value: Any = None, path: str = "data") -> None:
        self._entry = entry
        self._path = path
        self.value: dict[str, Any] = entry.leaf["data"] if path == "data" else value
        if not isinstance(self.value, dict):
            raise self._fault(path, "an object")

    def text(self, key: str) -> str:
        value = self.value.get(key)
        if not isinstance(value, str):
            raise self._fault(f"{self._path}.{key}", "a text")
        return value

    def integer(self, key: str) -> int:
        value = self.any_integer(key)
        if value is None:
            raise self._fault(f"{self._path}.{key}", "an integer")
        return value

    def object(self, key: str) -> _Data:
        return _Data(self._entry, self.value.get(key), f"{self._path}.{key}")

    def objects(self, key: str) -> list[_Data]:
        value = self.value.get(key, [])
        if not isinstance(value, list):
            raise self._fault(f"{self._path}.{key}", "an array")
        return [_Data(self._entry, item, f"{self._path}.{key}[{place}]") for place, item in enumerate(value)]

    def any_text(self, key: str) -> str | None:
        value = self.value.get(key)
        return value if isinstance(value, str) else None

    def any_integer(self, key: str) -> int | None:
        value = self.value.get(key)
        return value if isinstance(value, int) and not isinstance(value, bool) else None

    def any_object(self, key: str) -> _Data:
        value = self.value.get(key)
        return _Data(self._entry, value if isinstance(value, dict) else {}, f"{self._path}.{key}")

    def _fault(self, path: str, wanted: str) -> InputError:
        where = f"{self._entry.kind} entry {self._entry.subject}".rstrip()
        return InputError(f"{path} is not {wanted}", where=where)
