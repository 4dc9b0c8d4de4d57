"""A real ledger with hand-written attempts in it: the entries of ``judged.Attempt`` with their files."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from judged import SOAK_N12, Attempt

from campaigns.verdict import EntryView
from ledger.entry import Entry, Ref
from ledger.home import EvidenceHome
from ledger.store import Draft, Ledger
from receipts import canonical
from receipts.clock import HostClock
from receipts.kinds import attempt_folder

MOMENT = datetime(2026, 11, 30, tzinfo=UTC)
DIGEST = "sha256:" + "a" * 64


def still_clock(host: str = "here", boot_id: str = "b") -> HostClock:
    return HostClock(host, boot_id=boot_id, clock="boottime", stamp=lambda: 5, awake=lambda: 5, wall=lambda: MOMENT)


def new_ledger(folder: Path) -> Ledger:
    environ = {"XDG_CONFIG_HOME": str(folder / "cfg"), "XDG_STATE_HOME": str(folder / "state")}
    tool = {"version": "0", "commit": None}
    return Ledger.create(EvidenceHome(folder / "home"), clock=still_clock(), tool=tool, environ=environ)


def clean_attempt(*, closed: bool = True, **changed: Any) -> Attempt:
    attempt = Attempt(**changed)
    attempt.clean()
    if closed:
        attempt.close()
    return attempt


def put(ledger: Ledger, attempt: Attempt, *, first: int = 0, **opened: Any) -> None:
    """Append the attempt's entries from ``first`` on; ``opened`` changes members of ``attempt_open``."""
    assert ledger.size() == first + 1, "the hand-written numbers are those behind genesis"
    genesis = (ledger.home.checkpoints / "1.checkpoint").read_bytes()
    opened = {"checkpoint_note_sha256": canonical.sha256(genesis)} | opened
    drafts = []
    for view in attempt.entries[first:]:
        data = _whole(attempt, view, opened)
        if view.kind != "receipt":
            drafts.append(Draft(view.kind, view.subject, data))
            continue
        path, written = receipt_path(attempt, data), canonical.file_bytes(data)
        (ledger.home.path / path).parent.mkdir(parents=True, exist_ok=True)
        (ledger.home.path / path).write_bytes(written)
        subject = path.removeprefix("receipts/").removesuffix(".json")
        drafts.append(Draft("receipt", subject, data, Ref.of(path, written)))
    ledger.append_many(drafts)


def receipt_path(attempt: Attempt, data: dict[str, Any]) -> str:
    folder = attempt_folder(attempt.campaign, attempt.number)
    return f"receipts/{folder}/{data['stage']}/{data['n']:06d}-{data['kind']}.json"


def verdicts(ledger: Ledger) -> list[Entry]:
    return list(ledger.entries(kinds={"verdict"}))


def refs(entries: list[Entry]) -> Iterator[str]:
    for entry in entries:
        assert entry.ref is not None
        yield Path(entry.ref.path).name


def _whole(attempt: Attempt, view: EntryView, opened: dict[str, Any]) -> dict[str, Any]:
    """The entry's data with the members that a ledger asks for and a judge does not."""
    data = dict(view.data)
    if view.kind == "registration":
        resolved = canonical.sha256(canonical.dumps(attempt.resolved))
        return data | {
            "family": attempt.resolved["family"], "spec": SOAK_N12.decode(), "spec_sha256": canonical.sha256(SOAK_N12),
            "resolved_sha256": resolved, "parent_seq": None, "after_attempt": None, "reason": None,
        }  # fmt: skip
    if view.kind == "attempt_open":
        return data | {
            "clock": "boottime", "rehearsal": False, "lane_sha256": DIGEST, "prev_attempt_open": None,
            "resolved_sha256": DIGEST, "attempts_before": 0, "pid": 4000, "start_ticks": "9",
            "registration_seq": data["registration_seq"] + 1, "enrollment_seq": data["enrollment_seq"] + 1,
        } | opened  # fmt: skip
    if view.kind == "attempt_close":
        return data | {
            "host": "here", "boot_id": "b", "clock": "boottime", "campaign": attempt.campaign, "signal": None,
            "reason": None, "at_ns": str(attempt.at),
        }  # fmt: skip
    if view.kind == "receipt":
        body = dict(data["body"])
        if body.get("receiver"):
            body["receiver"] = body["receiver"] | {"enrollment_seq": body["receiver"]["enrollment_seq"] + 1}
        return data | {"recorded_at": "2026-11-30T00:00:00.000Z", "body": body}
    if view.kind == "enrollment":
        return data | {
            "identity": {}, "identity_sha256": DIGEST, "cache_identity": DIGEST, "handoff_key_id": DIGEST,
            "template_sha256": {},
        }  # fmt: skip
    return data | {"merged_n": []} if view.kind == "process_event" else data
