"""The entry: one leaf of the ledger, its fields and its one byte form (DESIGN section 6). Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

from ledger import merkle
from receipts import canonical
from receipts.canonical import JsonValue
from receipts.errors import CanonicalError, EvidenceError, InputError

LEAF_VERSION: Final = 1
MAX_LEAF_BYTES: Final = 65_535
"""The largest entry of a C2SP tile log; a leaf that passes it could never be served by one."""
MAX_DOCUMENT_BYTES: Final = 48 * 1024
"""The largest whole document in ``data``: its leaf stays below MAX_LEAF_BYTES whatever stands around it."""
MAX_SUBJECT: Final = 200
NO_PREV: Final = "0" * 64
"""``prev`` of the genesis entry."""

KINDS: Final = frozenset(
    {
        "genesis", "registration", "attempt_open", "attempt_close", "attempt_abandoned", "receipt", "process_event",
        "enrollment", "deviation", "verdict", "claim", "claim_support", "claim_contradict", "claim_withdrawn",
        "export", "anchor", "key_rotation", "restore", "adopted", "redaction", "schema",
    }
)  # fmt: skip
"""The kinds that this release knows. Another kind hashes, verifies and projects to nothing."""

DOCUMENT_KINDS: Final = frozenset({"receipt", "verdict"})
"""Kinds whose ``data`` is a whole document and whose ``ref`` is the file that holds it."""

SIGNED_KINDS: Final = frozenset({"genesis", "registration", "verdict", "schema"})
"""Kinds whose entry is signed over in its own transaction. Before ``attempt_open`` a checkpoint is asked for."""

_KIND: Final = re.compile(r"[a-z][a-z0-9_]{0,63}")
_SUBJECT: Final = re.compile(r"[ -~]{0,200}")
_SHA256: Final = re.compile(r"sha256:[0-9a-f]{64}")
LEAF_KEYS: Final = frozenset(
    {"v", "origin", "seq", "prev", "kind", "subject", "recorded_at", "host", "boot_id", "tool", "ref", "data"}
)


@dataclass(frozen=True)
class Ref:
    """A file of the home that an entry answers for: POSIX path relative to the home, ``sha256:<hex>``, bytes."""

    path: str
    sha256: str
    size: int

    def document(self) -> dict[str, JsonValue]:
        return {"path": self.path, "sha256": self.sha256, "size": self.size}

    @classmethod
    def of(cls, path: str, data: bytes) -> Ref:
        return cls(path, canonical.sha256(data), len(data))

    @classmethod
    def read(cls, value: JsonValue) -> Ref | None:
        """From a leaf's ``ref``. Raises EvidenceError on what is neither null nor a ref."""
        if value is None:
            return None
        match value:
            case {"path": str(path), "sha256": str(sha256), "size": int(size), **rest} if (
                not rest and _SHA256.fullmatch(sha256) and size >= 0 and not isinstance(size, bool)
            ):
                return cls(path, sha256, size)
        raise EvidenceError("ref is neither null nor {path, sha256, size}")


@dataclass(frozen=True)
class Head:
    """A tree head: number of leaves and root as ``sha256:<hex>``."""

    size: int
    root: str

    def document(self) -> dict[str, JsonValue]:
        """The ``tree`` member of a receipt."""
        return {"size": self.size, "root": self.root}


@dataclass(frozen=True)
class Entry:
    """One entry as stored. ``leaf_hash`` and ``prev_hash`` are 64 lower-case hex digits."""

    seq: int
    kind: str
    subject: str
    recorded_at: str
    body: bytes
    leaf_hash: str
    prev_hash: str

    @cached_property
    def leaf(self) -> dict[str, Any]:
        """The parsed body. Raises EvidenceError when it is not the canonical leaf that the columns describe."""
        leaf = parse_leaf(self.body, self.seq)
        for name, column in self.columns().items():
            if leaf[name] != column:
                raise EvidenceError(
                    f"column {name} holds {column!r} but the body says {leaf[name]!r}", where=f"entry {self.seq}"
                )
        return leaf

    @cached_property
    def data(self) -> Any:
        """What the entry records. Raises EvidenceError when it has not the shape that readers of its kind need."""
        from receipts.shapes import fault_of  # imported late: brings pydantic

        data = self.leaf["data"]
        if fault := fault_of(self.kind, data):
            raise EvidenceError(
                f"this {self.kind} has not the shape of its kind: {fault}",
                where=f"entry {self.seq}",
                next_step="soakledger ledger verify names every fault",
            )
        return data

    @property
    def ref(self) -> Ref | None:
        return Ref.read(self.leaf["ref"])

    def columns(self) -> dict[str, JsonValue]:
        """Each column that repeats a member of the leaf, under the member's name."""
        return {
            "seq": self.seq,
            "kind": self.kind,
            "subject": self.subject,
            "recorded_at": self.recorded_at,
            "prev": self.prev_hash,
        }

    def require_hash(self) -> None:
        """Raises EvidenceError when the body is not what ``leaf_hash`` was made from."""
        if merkle.leaf_hash(self.body).hex() != self.leaf_hash:
            raise EvidenceError(
                "the stored body does not hash to its leaf_hash: it was changed after it was written",
                where=f"entry {self.seq}",
                next_step="soakledger ledger verify names every fault",
            )


def parse_leaf(body: bytes, seq: int) -> dict[str, Any]:
    """Read a leaf's bytes. Raises EvidenceError when they are not a canonical leaf of a version we know."""
    try:
        leaf = canonical.parse_canonical(body)
    except CanonicalError as error:
        raise EvidenceError(f"the body is not canonical JSON: {error}", where=f"entry {seq}") from None
    if not isinstance(leaf, dict) or leaf.keys() != LEAF_KEYS:
        raise EvidenceError("the body does not have exactly the members of a leaf", where=f"entry {seq}")
    return leaf


def require_small(kind: str, subject: str, data: bytes) -> None:
    """Raises InputError when a whole document is larger than an entry takes."""
    if len(data) > MAX_DOCUMENT_BYTES:
        raise InputError(
            f"the document has {len(data)} bytes, and the most that an entry takes is {MAX_DOCUMENT_BYTES}",
            where=f"{kind} {subject}",
            next_step="keep what is bulky as a blob and name its digest",
        )


def require_own_ref(kind: str, data: JsonValue, ref: Ref | None) -> None:
    """Refuse a document without a ref, or with one that is not that of its own file."""
    if kind not in DOCUMENT_KINDS:
        return
    if ref is None:
        raise InputError(f"a {kind} entry names the file of its document, and this one names none")
    expected = Ref.of(ref.path, canonical.file_bytes(data))
    if expected != ref:
        raise InputError(
            f"the ref says {ref.size} bytes {ref.sha256} but the document has {expected.size} bytes {expected.sha256}",
            where=ref.path,
        )


def build_entry(leaf: dict[str, JsonValue]) -> Entry:
    """The entry of a leaf whose members are given. Raises InputError when no ledger may hold it."""
    kind, subject, where = leaf["kind"], leaf["subject"], f"{leaf['kind']} entry"
    if not _KIND.fullmatch(kind):
        raise InputError(f"{kind!r} cannot be the kind of an entry")
    if not _SUBJECT.fullmatch(subject):
        raise InputError(
            f"subject {subject[:80]!r} is not printable ASCII of at most {MAX_SUBJECT} letters", where=where
        )
    body = canonical.dumps(leaf)
    if len(body) > MAX_LEAF_BYTES:
        raise InputError(
            f"the entry has {len(body)} bytes, and the most that a ledger takes is {MAX_LEAF_BYTES}",
            where=f"{where} {subject}".rstrip(),
            next_step="keep what is bulky as a blob and name its digest",
        )
    entry = Entry(
        seq=leaf["seq"],
        kind=kind,
        subject=subject,
        recorded_at=leaf["recorded_at"],
        body=body,
        leaf_hash=merkle.leaf_hash(body).hex(),
        prev_hash=leaf["prev"],
    )
    # What ``leaf`` would read: these bytes were made canonical a moment ago and need no second look.
    entry.__dict__["leaf"] = json.loads(body)
    return entry
