"""The resident's loop: one request at a time, and death rather than a degraded state (DESIGN section 8).

Three ways out of here with status 75 and no other: the watchdog (``engine/watchdog.py``), the response after an
engine-touched error was delivered, and the third consecutive request that was answered with a non-engine error.
"""

from __future__ import annotations

import os
import socket
import time
from dataclasses import dataclass
from typing import Any, Final

from producer import requests
from producer.engine.base import Engine, Prefilled
from producer.engine.deaths import die, note_armed, note_disarmed
from producer.engine.watchdog import armed
from producer.handoff import manifest, sender
from producer.handoff.enrollment import ProducerSide, ReceiverAddress, SenderTimes
from producer.handoff.errors import RefusedError, WireError
from producer.host import linux
from producer.instance import Artefacts
from producer.journal import Journal
from producer.lane import Lane
from producer.lease import Lease
from receipts.clock import HostClock
from receipts.errors import InputError, SoakledgerError
from receipts.events import DeathEvent, DeathSite, HandoffEvent
from receipts.kinds import Instance, Outcome

MAX_CONSECUTIVE_ERRORS: Final = 3
REQUEST_TIMEOUT_S: Final = 10.0


@dataclass
class Served:
    """How one handoff went. ``stamps`` holds what was observed of it, in the words of the handoff receipt."""

    outcome: Outcome
    engine_touched: bool
    stamps: dict[str, Any]
    acknowledgement: sender.Acknowledgement | None = None
    payload_bytes: int | None = None
    """Of the acknowledged payload."""
    error: dict[str, str] | None = None


@dataclass
class Service:
    """One ready producer. ``serve`` never returns but through an exit of the process."""

    lane: Lane
    engine: Engine
    side: ProducerSide
    limits: requests.Limits
    clock: HostClock
    journal: Journal
    instance: Instance
    lease: Lease
    ready_ns: int
    handoffs: int = 0
    consecutive_errors: int = 0
    last_handoff_id: str | None = None

    def serve(self, listener: socket.socket) -> None:
        """Answer one connection after another, one line each."""
        while True:
            connection, _ = listener.accept()
            with connection:
                self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        if linux.peer_uid(connection) not in {os.geteuid(), 0}:
            return  # a stranger is not answered, and never counts
        line = _read_line(connection)
        if line is None:
            return  # an incomplete line does not count (DESIGN section 8)
        try:
            request = requests.parse(line)
            if isinstance(request, requests.StatusRequest):
                _deliver(connection, {"v": 1, "status": "ok", **self._standing()})
                return
            ids = requests.prompt_ids(request, self.limits)
            if request.receiver != self.side.receiver:
                raise InputError(f"receiver {request.receiver} is not enrolled; {self.side.receiver} is")
            if not self.lease.is_on_path():
                raise InputError("the lease file is no longer the one that is held", where=str(self.lease.path))
        except Exception as error:  # the engine was not touched, and nothing that is asked may end us
            text = str(error) if isinstance(error, SoakledgerError) else f"{type(error).__name__}: {error}"
            served = Served("refused", False, {}, error={"code": "bad-request", "text": text})
            self._finish(connection, served, None)
            return
        self._finish(connection, self._handoff(request, ids), request)

    def _handoff(self, request: requests.HandoffRequest, ids: list[int]) -> Served:
        stamps: dict[str, Any] = {
            "request_ns": str(self.clock.stamp()),
            "awake_start_ns": str(self.clock.awake()),
            "handoffs_before": self.handoffs,
        }
        payload = manifest.total_bytes(manifest.expected_tensors(self.side.geometry, len(ids)))
        seconds = min(request.watchdog_s or self.lane.producer.watchdog_s, self.lane.producer.watchdog_s)
        host = self.lane.receiver_host
        address = ReceiverAddress(host.address, self.lane.ports.handoff)
        try:
            opened = sender.connect(
                self.side, address, payload, clock=self.clock, times=SenderTimes(session_s=float(seconds) + 30.0)
            )
        except WireError as error:
            return Served("refused", False, stamps, error=_wire_error(error))
        with opened:
            return self._prefill_and_send(request, ids, opened, seconds, stamps)

    def _prefill_and_send(
        self,
        request: requests.HandoffRequest,
        ids: list[int],
        opened: sender.OpenedHandoff,
        seconds: int,
        stamps: dict[str, Any],
    ) -> Served:
        try:
            opened.check()  # a slot that was freed is learnt before the engine is touched
        except WireError as error:
            return Served("refused", False, stamps, error=_wire_error(error))
        note_armed(self.lane.producer.work_dir, self.instance, seconds)
        try:
            with armed(seconds, f"soakledger producer: exit 75 (watchdog): no answer within {seconds} s"):
                try:
                    prefilled = self.engine.prefill(ids)
                except Exception as error:
                    opened.abort("engine_failed", type(error).__name__)
                    text = f"{type(error).__name__}: {error}"
                    return Served("aborted", True, stamps, error={"code": "engine-failed", "text": text})
                stamps["compute_start_ns"] = str(prefilled.compute_start_ns)
                stamps["last_token_ns"] = str(prefilled.last_token_ns)
                return self._send(request, prefilled, opened, stamps)
        finally:
            note_disarmed(self.lane.producer.work_dir)  # whatever ends us now, the watchdog did not

    def _send(
        self,
        request: requests.HandoffRequest,
        prefilled: Prefilled,
        opened: sender.OpenedHandoff,
        stamps: dict[str, Any],
    ) -> Served:
        captured = prefilled.captured
        tensors = list(zip(captured.descriptions, captured.buffers, strict=True))
        try:
            acknowledgement = opened.send(
                request.handoff_id, request.prompt_sha256, captured.n_tokens, tensors, captured.digests
            )
        except RefusedError as error:
            return Served("nack", True, stamps, error=_wire_error(error))
        except WireError as error:
            return Served("no_ack", True, stamps, error=_wire_error(error))
        finally:
            captured.release()
        stamps["first_byte_ns"] = str(acknowledgement.first_byte_ns)
        stamps["ack_ns"] = str(acknowledgement.ack_ns)
        return Served("acknowledged", True, stamps, acknowledgement, manifest.total_bytes(captured.descriptions))

    def _finish(self, connection: socket.socket, served: Served, request: requests.HandoffRequest | None) -> None:
        """Journal, reply, and die where the culture asks for it: the reply comes first."""
        failed = served.error is not None
        served.stamps["awake_end_ns"] = str(self.clock.awake())
        self.consecutive_errors = self.consecutive_errors + 1 if failed and not served.engine_touched else 0
        reason = self._fatal_reason(served)
        if request is not None and served.engine_touched:
            try:
                self._record(request, served)
            except (SoakledgerError, OSError) as error:
                # What it did is on record nowhere from here on: the answer still leaves, and then it ends.
                reason = reason or f"engine touched, {served.outcome}, and the journal cannot be written: {error}"
        delivered = _deliver(connection, self._response(served))
        if reason is None:
            return
        site: DeathSite = "engine_touched" if served.engine_touched else "third_error"
        now = self.clock.stamp()
        try:
            self.journal.append(
                DeathEvent(
                    instance=self.instance,
                    site=site,
                    status=75,
                    signal=None,
                    reason=reason if delivered else f"{reason} (the reply could not be delivered)",
                    uptime_ns=str(now - self.ready_ns),
                    last_handoff_id=self.last_handoff_id,
                    died_ns=str(now),
                    observed_by="self",
                )
            )
        finally:
            die(site, reason)

    def _fatal_reason(self, served: Served) -> str | None:
        if served.error is None:
            return None
        if served.engine_touched:
            return f"engine touched, {served.outcome}: {served.error['code']}: {served.error['text']}"
        if self.consecutive_errors >= MAX_CONSECUTIVE_ERRORS:
            return (
                f"{self.consecutive_errors} consecutive requests answered with an error, last: {served.error['text']}"
            )
        return None

    def _record(self, request: requests.HandoffRequest, served: Served) -> None:
        acknowledgement = served.acknowledgement
        self.journal.append(
            HandoffEvent(
                instance=self.instance,
                handoff_id=request.handoff_id,
                outcome=served.outcome,
                prompt_sha256=request.prompt_sha256,
                payload_root=acknowledgement.root if acknowledgement else None,
                payload_bytes=served.payload_bytes,
                handoffs_before=self.handoffs,
                used_by=request.used_by,
            )
        )
        self.handoffs += 1
        self.last_handoff_id = request.handoff_id

    def _response(self, served: Served) -> dict[str, Any]:
        acknowledgement = served.acknowledgement
        return {
            "v": 1,
            "status": "error" if served.error else "ok",
            "outcome": served.outcome,
            "engine_touched": served.engine_touched,
            "error": served.error,
            "producer": {**self._standing(), **served.stamps},
            "acknowledgement": None
            if acknowledgement is None
            else {
                "root": acknowledgement.root,
                "tensors_root": acknowledgement.tensors_root,
                "manifest": acknowledgement.manifest.decode("utf-8"),
                "signature": acknowledgement.signature,
                "nonce_p": acknowledgement.nonce_p,
                "nonce_r": acknowledgement.nonce_r,
                "payload_bytes": served.payload_bytes,
                "socket": acknowledgement.socket.document(),
            },
        }

    def _standing(self) -> dict[str, Any]:
        usage = linux.usage()
        return {
            "instance": self.instance.document(),
            "identity": self.side.identity,
            "cache_identity": self.side.cache_identity,
            "mode": self.side.mode,
            "journal": self.journal.head().document(),
            "free_blocks": self.engine.free_blocks(),
            "rss_bytes": usage.rss_bytes,
            "fds": usage.fds,
            "threads": usage.threads,
        }


def bind(artefacts: Artefacts) -> socket.socket:
    """The producer's socket, 0600 from its first moment. A leftover socket blocks the bind; the ritual removes it."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    before = os.umask(0o177)
    try:
        listener.bind(str(artefacts.socket))
    except OSError as error:
        raise InputError(
            f"the producer's socket cannot be bound: {error.strerror}",
            where=str(artefacts.socket),
            next_step="start the producer by the ritual (`soakledger producer start`), never bare",
        ) from None
    finally:
        os.umask(before)
    listener.listen(8)
    return listener


def _wire_error(error: WireError) -> dict[str, str]:
    return {"code": error.code.replace("_", "-"), "text": str(error)}


def _read_line(connection: socket.socket) -> bytes | None:
    """One line, or None when the peer ended, took too long or went past the limit before its newline."""
    data = bytearray()
    end = time.monotonic() + REQUEST_TIMEOUT_S
    while not data.endswith(b"\n"):
        try:
            # One limit for the whole line: a limit for each piece would let a trickle keep everybody else out.
            connection.settimeout(max(0.001, end - time.monotonic()))
            piece = connection.recv(65536)
        except OSError:
            return None
        if not piece or len(data) + len(piece) > requests.MAX_LINE_BYTES:
            return None
        data += piece
        if b"\n" in data[:-1]:
            return bytes(data.partition(b"\n")[0]) + b"\n"
    return bytes(data)


def _deliver(connection: socket.socket, value: dict[str, Any]) -> bool:
    try:
        connection.settimeout(REQUEST_TIMEOUT_S)
        connection.sendall(requests.answer(value))
    except OSError:
        return False
    return True
