"""Hand-written entries of one attempt of a small soak, for the tests of judging. Nothing here runs anything."""

from __future__ import annotations

import base64
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from campaigns.refusals import read_spec
from campaigns.spec import resolve
from campaigns.verdict import EntryView, judge
from receipts import canonical

KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
IDENTITY = "sha256:" + "1" * 64
CACHE = "sha256:" + "2" * 64
SECOND = 10**9
BYTES = 47_185_920
SOAK_N12 = (Path(__file__).parents[2] / "campaigns/specs/soak-n12.toml").read_bytes()


def public_key() -> str:
    return "ed25519:" + base64.b64encode(KEY.public_key().public_bytes_raw()).decode()


@dataclass
class Attempt:
    """Entries of attempt ``number`` of a spec, appended in the order in which a runner would."""

    spec: bytes = SOAK_N12
    number: int = 1
    weaker: list[dict[str, Any]] = field(default_factory=list)
    entries: list[EntryView] = field(default_factory=list)
    at: int = 1000 * SECOND
    journal: int = 0
    numbers: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.resolved = resolve(read_spec(self.spec, "spec.toml"))
        self.campaign = self.resolved["id"]
        self.soak = next(stage for stage in self.resolved["stage"] if stage["kind"] == "soak")
        if not self.entries:
            enrollment = {"lane": "loopback", "receiver": "here", "receiver_public_key": public_key()}
            self.add("enrollment", "loopback", enrollment)
            self.event("ritual", {})
        registration = {"campaign": self.campaign, "resolved": self.resolved, "weaker": self.weaker}
        registered = self.add("registration", self.campaign, registration)
        opened = {
            "family": self.resolved["family"],
            "campaign": self.campaign,
            "attempt": self.number,
            "lane": "loopback",
            "identity": IDENTITY,
            "cache_identity": CACHE,
            "registration_seq": registered.seq,
            "spec_sha256": canonical.sha256(self.spec),
            "checkpoint_note_sha256": "sha256:" + "3" * 64,
            "enrollment_seq": 0,
            "host": "here",
            "boot_id": "b",
            "at_ns": str(self.at),
        }
        self.add("attempt_open", f"{self.campaign}/{self.number}", opened)
        self.started = self.at

    def add(self, kind: str, subject: str, data: dict[str, Any]) -> EntryView:
        entry = EntryView(len(self.entries), kind, subject, data)
        self.entries.append(entry)
        return entry

    def receipt(self, kind: str, place: tuple[str | None, int, int | None], body: dict[str, Any]) -> None:
        self.numbers["soak"] = self.numbers.get("soak", 0) + 1
        case, run, rep = place
        self.add(
            "receipt",
            f"{kind}-{self.numbers['soak']}",
            {
                "kind": kind,
                "campaign": self.campaign,
                "attempt": self.number,
                "stage": "soak",
                "case": case,
                "run": run,
                "rep": rep,
                "n": self.numbers["soak"],
                "body": body,
            },
        )

    def head(self) -> dict[str, Any]:
        """The journal's head as a handoff sees it now."""
        events = [entry.data for entry in self.entries if entry.kind == "process_event"]
        return {"n": self.journal, "head": events[-1]["record_sha256"] if events else "sha256:" + "0" * 64}

    def event(self, kind: str, body: dict[str, Any], host: str = "here") -> None:
        before = [entry.data for entry in self.entries if entry.kind == "process_event"]
        self.journal += 1
        record = {
            "v": 1,
            "clock": "boottime",
            "at_ns": str(self.at),
            "recorded_at": "2026-11-30T00:00:00.000Z",
            "n": self.journal,
            "prev": before[-1]["record_sha256"] if before else "sha256:" + "0" * 64,
            "lane": "loopback",
            "host": host,
            "boot_id": "b",
            "kind": kind,
            "body": body,
        }
        digest = canonical.sha256(canonical.file_bytes(record))
        self.add(
            "process_event", f"loopback/{self.journal}", {"record": record, "record_sha256": digest, "injected": False}
        )

    def start_run(self, run: int = 1) -> None:
        self.receipt("intent", (None, run, None), {"at_ns": str(self.at)})

    def rep(
        self,
        rep: int,
        *,
        case: str | None = None,
        run: int = 1,
        outcome: str = "acknowledged",
        gbps: Fraction | int = 10,
        total_s: int = 5,
        pid: int = 4711,
        bytes_of: str | None = None,
        admitted: bool = True,
        signed: bool = True,
        slept_s: int = 0,
        backwards: bool = False,
        identity: str = IDENTITY,
        cache_identity: str = CACHE,
    ) -> None:
        """One handoff with its admission; ``gbps`` fixes the burst exactly, ``total_s`` the runner's span."""
        prompt = self.soak["control" if case else "prompt"]["prompt_sha256"]
        content = bytes_of or prompt
        root = canonical.blake3_digest(f"{prompt}{content}".encode())
        again = sum(entry.kind == "receipt" for entry in self.entries)
        handoff_id = f"{self.number:02x}{run:02x}{rep:02x}{'c' if case else '0'}{again:04x}".ljust(32, "0")
        started, ended = self.at, self.at + total_s * SECOND
        self.at = ended
        burst_ns = Fraction(BYTES * 8) / Fraction(gbps)
        acknowledged = outcome == "acknowledged"
        statement = {
            "lane": "loopback", "receiver": "here", "identity": identity, "cache_identity": cache_identity,
            "mode": "native", "handoff_id": handoff_id, "prompt_sha256": prompt, "root": root, "total_bytes": BYTES,
            "nonce_p": "4" * 64, "nonce_r": "5" * 64,
        }  # fmt: skip
        signature = KEY.sign(
            b"soakledger/ack/1\n" + canonical.dumps(statement if signed else {**statement, "mode": "exact"})
        )
        admission = {
            "handoff_id": handoff_id, "prompt_sha256": prompt, "root": root, "total_bytes": BYTES,
            "nonces": {"p": "4" * 64, "r": "5" * 64}, "sig": "ed25519:" + base64.b64encode(signature).decode(),
        }  # fmt: skip
        if acknowledged and admitted:
            self.receipt("admission", (case, run, rep), admission)
        producer = {
            "host": "here", "boot_id": "b", "pid": pid, "start_ticks": "9", "identity": identity,
            "cache_identity": cache_identity, "mode": "native", "journal": self.head(),
            "request_ns": str(started), "compute_start_ns": str(started), "last_token_ns": str(started + SECOND),
            "first_byte_ns": str(started + SECOND), "ack_ns": str(started + SECOND + round(burst_ns)),
            "awake_start_ns": "0", "awake_end_ns": str(total_s * SECOND), "free_blocks": 7, "rss_bytes": 8, "fds": 9,
            "threads": 10, "socket": None,
        }  # fmt: skip
        if backwards:
            producer["ack_ns"] = str(started)
        self.receipt(
            "handoff",
            (case, run, rep),
            {
                "handoff_id": handoff_id,
                "outcome": outcome,
                "prompt_sha256": prompt,
                "payload_bytes": BYTES if acknowledged else None,
                "payload_root": root if acknowledged else None,
                "tensors_root": canonical.blake3_digest(content.encode()) if acknowledged else None,
                "transfer": "after",
                "producer": producer,
                "receiver": {
                    "root": root,
                    "admission": canonical.sha256(canonical.file_bytes(admission)),
                    "enrollment_seq": 0,
                }
                if acknowledged
                else None,
                "runner": {
                    "started_ns": str(started),
                    "ended_ns": str(ended),
                    "awake_start_ns": "0",
                    "awake_end_ns": str((total_s - slept_s) * SECOND),
                },
                "error": None,
            },
        )

    def death(
        self,
        *,
        site: str = "watchdog",
        status: int | None = 75,
        pid: int = 4711,
        injected: bool = False,
        host: str = "here",
    ) -> None:
        """A death a tenth of a second from now."""
        self.at += SECOND // 10
        instance = {"host": host, "boot_id": "b", "pid": pid, "start_ticks": "9"}
        told = {"signal": None, "reason": "r", "uptime_ns": None, "last_handoff_id": None, "observed_by": "keeper"}
        body = {"instance": instance, "site": site, "status": status, "died_ns": str(self.at)}
        self.event("death", body | told, host)
        if injected:
            last = self.entries[-1]
            self.entries[-1] = EntryView(last.seq, last.kind, last.subject, {**last.data, "injected": True})

    def close(self, ended: str = "complete", cleanup: tuple[dict[str, Any], ...] = ()) -> None:
        self.at += SECOND
        self.add(
            "attempt_close",
            f"{self.campaign}/{self.number}",
            {
                "attempt": self.number,
                "ended": ended,
                "cleanup": list(cleanup),
                "stages": [
                    {
                        "stage": stage["name"],
                        "last_n": self.numbers.get(stage["name"], 0),
                        "reached_end": ended == "complete",
                        "started_ns": str(self.started),
                        "closed_ns": str(self.at),
                    }
                    for stage in self.resolved["stage"]
                ],
            },
        )

    def clean(self, reps: range = range(1, 13), **changed: Any) -> None:
        """Control, reps, control: everything as promised."""
        self.start_run()
        self.rep(1, case="control")
        for rep in reps:
            self.rep(rep, **changed)
        self.rep(2, case="control")

    def judge(self) -> dict[str, Any]:
        return judge(
            self.entries,
            self.campaign,
            self.number,
            evaluator_sha256="sha256:" + "6" * 64,
            tree_root="sha256:" + "7" * 64,
        )


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    """Outcome by criterion."""
    return {item["name"]: item["outcome"] for item in document["criteria"]}


def criterion(document: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in document["criteria"] if item["name"] == name)
