"""One model for each kind of receipt, and the envelope around it (DESIGN section 5, docs/formats/receipts.md).

A receipt holds what was observed and no derived figure: those come from ``receipts/metrics.py``. The
models are strict on the way in and frozen; ``document()`` gives the dict that is canonicalised.
"""

from __future__ import annotations

from typing import Annotated, Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from receipts import canonical
from receipts.canonical import MAX_SAFE_INTEGER, JsonValue
from receipts.errors import CanonicalError
from receipts.names import Blake3, CaseName, Identifier, Sha256, Told

# The last letter of 64 bytes carries two bits: its four unused ones are zero, so that one signature has one text.
Signature = Annotated[str, StringConstraints(pattern=r"^ed25519:[A-Za-z0-9+/]{85}[AQgw]==$")]
# pydantic patterns are Rust regexes: $ is the end of the text there, never before a newline.
Nanoseconds = Annotated[str, StringConstraints(pattern=r"^(0|[1-9][0-9]{0,29})$")]
Ticks = Nanoseconds
UtcTime = Annotated[
    str, StringConstraints(pattern=r"^[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}\.[0-9]{3}Z$")
]
HandoffId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Nonce = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Count = Annotated[int, Field(ge=0, le=MAX_SAFE_INTEGER)]
Ordinal = Annotated[int, Field(ge=1, le=MAX_SAFE_INTEGER)]

CONTROL: Final = "control"
"""The case of a control: rep 1 before the first rep of its run, rep 2 after the last."""

Outcome = Literal["acknowledged", "refused", "nack", "aborted", "no_ack", "died", "wedged", "not_seen", "interrupted"]


class Document(BaseModel):
    """Base of everything that is written down: strict, frozen, no unknown field."""

    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")

    def document(self) -> dict[str, Any]:
        return self.model_dump(mode="json", by_alias=True)

    @classmethod
    def read(cls, value: JsonValue) -> Self:
        """The model of a parsed JSON value. Raises CanonicalError naming the first field that does not fit."""
        try:
            return cls.model_validate_json(canonical.dumps(value))
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            where = "$" + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in first["loc"])
            raise CanonicalError(f"not a {cls.__name__}: {first['msg']}", where=where) from None


class ClockBlock(Document):
    """Whose clock the stamps beside it belong to."""

    host: Identifier
    boot_id: str
    clock: str


class Span(ClockBlock):
    """A stretch of one host's time. The awake pair is of a clock that stops in sleep."""

    started_ns: Nanoseconds
    ended_ns: Nanoseconds
    awake_start_ns: Nanoseconds
    awake_end_ns: Nanoseconds


class Instance(Document):
    """One process for good: a pid is reused, a pid with its start and its boot is not."""

    host: Identifier
    boot_id: str
    pid: Ordinal
    start_ticks: Ticks


class SocketEnds(Document):
    """A TCP connection as the kernel named it at one end."""

    local: str
    peer: str
    interface: str | None
    congestion: str | None


class JournalHead(Document):
    n: Count
    head: Sha256


class Failure(Document):
    """What went wrong: a stable code for machines, words for people."""

    code: Identifier
    text: Told


class Check(Document):
    """One item of a preflight: what was looked for, what was found, and how."""

    name: Identifier
    ok: bool
    expected: Told | None
    found: Told | None
    how: str


class PreflightBody(Document):
    checks: tuple[Check, ...]
    span: Span


class EnvironmentBody(Document):
    """The host as it was when the attempt began. Unknown values are null."""

    system: str
    kernel: str
    machine: str
    cpu_model: str | None
    cpu_flags: tuple[str, ...]
    logical_cpus: Count | None
    memory_total_bytes: Count | None
    memory_available_bytes: Count | None
    accelerators: tuple[str, ...]
    python: str
    packages: dict[str, str]
    settings: dict[str, str | None]
    clock: ClockBlock


class MovedFile(Document):
    """A stale artefact that the ritual moved aside; names are relative to the lane's work folder."""

    old: str
    new: str
    bytes: Count
    sha256: Sha256


class RitualBody(Document):
    """A start of the producer: what was moved aside and removed, and the instance that became ready."""

    moved: tuple[MovedFile, ...]
    removed: tuple[str, ...]
    instance: Instance | None
    startup_receipt_sha256: Sha256 | None
    span: Span
    error: Failure | None


class IntentBody(Document):
    """What the runner is about to do, durable before it is done."""

    action: Literal["ritual", "handoff", "reuse"]
    handoff_id: HandoffId | None
    prompt_sha256: Sha256 | None
    prompt_tokens: Count | None
    instance: Instance | None
    deadline_ns: Nanoseconds | None
    """How long the act may take, in nanoseconds."""
    clock: ClockBlock
    at_ns: Nanoseconds


class ProducerBlock(ClockBlock):
    """The producer's side of a handoff. A stamp that was not observed is null."""

    identity: Sha256
    cache_identity: Sha256
    mode: Literal["native", "exact"]
    pid: Ordinal
    start_ticks: Ticks
    handoffs_before: Count | None
    journal: JournalHead | None
    request_ns: Nanoseconds | None
    compute_start_ns: Nanoseconds | None
    last_token_ns: Nanoseconds | None
    first_byte_ns: Nanoseconds | None
    ack_ns: Nanoseconds | None
    awake_start_ns: Nanoseconds | None
    awake_end_ns: Nanoseconds | None
    free_blocks: Count | None
    rss_bytes: Count | None
    fds: Count | None
    threads: Count | None
    socket: SocketEnds | None
    wire_busy_ns: Nanoseconds | None


class ReceiverBlock(ClockBlock):
    """The receiver's side of an admitted handoff."""

    name: Identifier
    root: Blake3
    signature: Signature
    admission: Sha256
    first_byte_ns: Nanoseconds
    admitted_ns: Nanoseconds
    awake_start_ns: Nanoseconds | None
    awake_end_ns: Nanoseconds | None
    bytes_received: Count | None
    nonce_p: Nonce
    nonce_r: Nonce
    enrollment_seq: Count
    socket: SocketEnds | None


class HandoffBody(Document):
    handoff_id: HandoffId
    outcome: Outcome
    prompt_sha256: Sha256
    prompt_tokens: Ordinal
    payload_bytes: Count | None
    payload_root: Blake3 | None
    tensors_root: Blake3 | None
    manifest_blob: Sha256 | None
    transfer: Literal["after", "streaming"]
    digest: Literal["at_capture", "in_window"]
    producer: ProducerBlock | None
    receiver: ReceiverBlock | None
    runner: Span
    error: Failure | None


class Nonces(Document):
    p: Nonce
    r: Nonce


class AdmissionBody(ClockBlock):
    """The receiver's own record of what it admitted, byte for byte as its file holds it."""

    v: Literal[1]
    lane: Identifier
    receiver: Identifier
    handoff_id: HandoffId
    prompt_sha256: Sha256
    root: Blake3
    total_bytes: Count
    nonces: Nonces
    sig: Signature
    first_byte_ns: Nanoseconds
    admitted_ns: Nanoseconds


class Tool(Document):
    """Which soakledger wrote it. ``commit`` is null where the build does not know it."""

    version: str
    commit: str | None


class Tree(Document):
    """The ledger's head read before the rep began: the observation came after it."""

    size: Count
    root: Sha256


BODIES: Final[dict[str, type[Document]]] = {
    "preflight": PreflightBody,
    "environment": EnvironmentBody,
    "ritual": RitualBody,
    "intent": IntentBody,
    "handoff": HandoffBody,
    "admission": AdmissionBody,
}
"""The kinds of the main job. An unknown kind is kept and verified but never judged."""


class Receipt(Document):
    """The envelope: where in which attempt this was observed, by what tool, after which tree."""

    v: Literal[1] = 1
    kind: Identifier
    lane: Identifier
    host: Identifier
    campaign: Identifier
    attempt: Ordinal
    stage: Identifier
    case: CaseName | None
    run: Ordinal | None
    rep: Ordinal | None
    n: Ordinal
    recorded_at: UtcTime
    tool: Tool
    tree: Tree
    body: dict[str, Any]

    @property
    def file_name(self) -> str:
        """``000027-handoff.json``"""
        return f"{self.n:06d}-{self.kind}.json"

    @property
    def path(self) -> str:
        """The file's path below ``receipts/``: ``<campaign>/attempt-0004/soak/000027-handoff.json``"""
        return f"{attempt_folder(self.campaign, self.attempt)}/{self.stage}/{self.file_name}"


def attempt_folder(campaign: str, attempt: int) -> str:
    """The folder of one attempt below ``receipts/``."""
    return f"{campaign}/attempt-{attempt:04d}"
