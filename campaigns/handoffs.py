"""From the producer's answer and the receiver's own record to the two receipts of a handoff."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from campaigns.attempt import Attempt
from ledger.entry import MAX_DOCUMENT_BYTES
from producer.client import Reply
from producer.enrollment import public_key_bytes
from producer.handoff import ack, inspection
from producer.lane import Lane
from receipts import canonical
from receipts.errors import CanonicalError, SoakledgerError
from receipts.kinds import AdmissionBody, Failure, HandoffBody, Instance, Outcome, ProducerBlock, ReceiverBlock, Span
from receipts.store import read_bounded


@dataclass(frozen=True)
class Asked:
    """One request as it went: what was asked, how it ended, and whether the producer outlived it."""

    handoff_id: str
    prompt_sha256: str
    prompt_tokens: int
    reply: Reply
    span: Span
    instance: Instance
    alive: bool


def handoff_body(attempt: Attempt, asked: Asked) -> tuple[HandoffBody, AdmissionBody | None]:
    """The handoff's body, and the receiver's record where it admitted one.

    The signature is verified here with the enrolled public key: a bad one makes the rep errored. What the lane says
    is input like any other: an answer that does not hold what an answer must is an errored rep and never a missing one.
    """
    admission, fault = _admission(attempt.lane, asked.handoff_id)
    try:
        return _body(attempt, asked, admission, fault), admission
    except (CanonicalError, KeyError, TypeError, ValueError, AttributeError) as error:
        reply = Reply("bad_answer", text=f"the producer's answer is none ({error}): {asked.reply.value}")
        return _body(attempt, replace(asked, reply=reply), admission, fault), admission


def _body(attempt: Attempt, asked: Asked, admission: AdmissionBody | None, fault: Failure | None) -> HandoffBody:
    value = asked.reply.value or {}
    acknowledgement = value.get("acknowledgement")
    outcome, error = _outcome(asked)
    receiver = None
    if admission is not None and outcome == "acknowledged":
        receiver, error = _receiver(attempt, admission, value["producer"])
        outcome = "acknowledged" if error is None else "no_ack"
    elif outcome == "acknowledged":
        outcome, error = "no_ack", fault
    manifest = None
    if acknowledgement is not None:
        manifest = attempt.blobs.put_bytes(acknowledgement["manifest"].encode("utf-8"))
    return HandoffBody(
        handoff_id=asked.handoff_id,
        outcome=outcome,
        prompt_sha256=asked.prompt_sha256,
        prompt_tokens=asked.prompt_tokens,
        payload_bytes=acknowledgement["payload_bytes"] if acknowledgement else None,
        payload_root=acknowledgement["root"] if acknowledgement else None,
        tensors_root=acknowledgement["tensors_root"] if acknowledgement else None,
        manifest_blob=manifest,
        transfer=attempt.lane.path.transfer,
        digest="at_capture",
        producer=_producer(attempt, value["producer"], acknowledgement) if value.get("producer") else None,
        receiver=receiver,
        runner=asked.span,
        error=error,
    )


def _outcome(asked: Asked) -> tuple[Outcome, Failure | None]:
    reply = asked.reply
    if reply.ending == "answer" and reply.value:
        error = reply.value.get("error")
        outcome: Outcome = reply.value["outcome"]
        return outcome, Failure(code=error["code"], text=error["text"]) if error else None
    if reply.ending == "interrupted":
        return "interrupted", Failure(code="interrupted", text=reply.text)
    if reply.ending == "bad_answer" and asked.alive:
        return "no_ack", Failure(code="bad-answer", text=reply.text)
    if not asked.alive:
        return "died", Failure(code="producer-died", text=reply.text)
    if reply.ending == "deadline":
        return "wedged", Failure(code="wedged", text="alive past the rep's deadline and its watchdog: wedged, not dead")
    if reply.ending == "not_listening":
        return "refused", Failure(code="not-listening", text=reply.text)
    # It lives and did not say what it did: the payload may have left, and may have been admitted.
    return "no_ack", Failure(code=reply.ending.replace("_", "-"), text=reply.text)


def _producer(attempt: Attempt, said: dict[str, Any], acknowledgement: dict[str, Any] | None) -> ProducerBlock:
    """What the producer said of itself. Without an answer nothing was observed: the intent names whom we asked."""
    known = said["instance"]
    return ProducerBlock.read(
        {
            "host": known["host"],
            "boot_id": known["boot_id"],
            "clock": attempt.clock.clock,
            "identity": said["identity"],
            "cache_identity": said["cache_identity"],
            "mode": said["mode"],
            "pid": known["pid"],
            "start_ticks": known["start_ticks"],
            "socket": acknowledgement["socket"] if acknowledgement else None,
            "wire_busy_ns": None,
            **{name: said.get(name) for name in _OBSERVED},
        }
    )


_OBSERVED = (
    "handoffs_before",
    "journal",
    "request_ns",
    "compute_start_ns",
    "last_token_ns",
    "first_byte_ns",
    "ack_ns",
    "awake_start_ns",
    "awake_end_ns",
    "free_blocks",
    "rss_bytes",
    "fds",
    "threads",
)


def _receiver(
    attempt: Attempt, admission: AdmissionBody, said: dict[str, Any]
) -> tuple[ReceiverBlock | None, Failure | None]:
    statement = ack.AckStatement(
        lane=admission.lane,
        receiver=admission.receiver,
        identity=said["identity"],
        cache_identity=said["cache_identity"],
        mode=said["mode"],
        handoff_id=admission.handoff_id,
        prompt_sha256=admission.prompt_sha256,
        root=admission.root,
        total_bytes=admission.total_bytes,
        nonce_p=admission.nonces.p,
        nonce_r=admission.nonces.r,
    )
    enrolled = attempt.ledger.entry(attempt.enrollment_seq).data
    try:
        ack.verify(statement, admission.sig, public_key_bytes(enrolled["receiver_public_key"]))
    except SoakledgerError as error:
        return None, Failure(code="bad-signature", text=str(error))
    shown = _shown(attempt.lane, admission.handoff_id)
    block = ReceiverBlock(
        host=admission.host,
        boot_id=admission.boot_id,
        clock=admission.clock,
        name=admission.receiver,
        root=admission.root,
        signature=admission.sig,
        admission=canonical.sha256(canonical.file_bytes(admission.document())),
        first_byte_ns=admission.first_byte_ns,
        admitted_ns=admission.admitted_ns,
        awake_start_ns=None,
        awake_end_ns=None,
        bytes_received=shown.bytes_received if shown else None,
        nonce_p=admission.nonces.p,
        nonce_r=admission.nonces.r,
        enrollment_seq=attempt.enrollment_seq,
        socket=None if shown is None else _socket(shown.socket),
    )
    return block, None


def _socket(document: dict[str, str | None]) -> Any:
    from receipts.kinds import SocketEnds

    return SocketEnds.read(document)


def _admission(lane: Lane, handoff_id: str) -> tuple[AdmissionBody | None, Failure | None]:
    """The receiver's record of this handoff, or why there is none to go by."""
    path: Path = lane.receiver.work_dir / "admissions" / f"{handoff_id}.json"
    try:
        return AdmissionBody.read(canonical.parse(read_bounded(path, MAX_DOCUMENT_BYTES))), None
    except FileNotFoundError:
        return None, Failure(code="no-admission-record", text="the receiver has no admission record")
    except OSError as error:
        return None, Failure(code="bad-admission-record", text=f"{path.name}: {error.strerror}")
    except CanonicalError as error:
        return None, Failure(code="bad-admission-record", text=f"{path.name}: {error}")


def _shown(lane: Lane, handoff_id: str) -> inspection.Shown | None:
    try:
        return inspection.show(lane.receiver.work_dir, handoff_id)
    except (SoakledgerError, OSError):
        return None
