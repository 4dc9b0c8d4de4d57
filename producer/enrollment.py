"""``lane enroll``: the keys of a lane and each end's own copies (DESIGN section 9).

The handoff key is 32 random bytes, one copy at each end; the receiver's Ed25519 key stays with the receiver and only
its public part travels. Every file is created O_EXCL with mode 0600; what is replaced by a new enrollment is moved
aside, never deleted.
"""

from __future__ import annotations

import base64
import contextlib
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from producer import identity as identities
from producer.handoff.enrollment import ProducerSide, ReceiverConfig
from producer.handoff.session import handoff_key_id
from producer.lane import Lane, require_built
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import IdentityError, InputError
from receipts.leaves import Enrollment
from receipts.store import read_bounded

KEY_BYTES: Final = 32
_MOST_KEY_BYTES: Final = 4096
SIGNING_KEY: Final = "receiver-signing.key"
IDENTITY_COPY: Final = "identity.json"
TEMPLATE_COPY: Final = "chat_template.jinja"


@dataclass(frozen=True)
class Enrolled:
    """The outcome of an enrollment: the ledger entry's data, and which files were made or moved."""

    data: Enrollment
    made: tuple[Path, ...]
    moved: tuple[tuple[Path, Path], ...]


def enroll(lane: Lane) -> Enrolled:
    """Make what is missing and refresh the receiver's copies. Running it twice changes nothing the second time.

    Both ends are on this host: with a remote end, that end's copy is carried over control (a later issue).
    """
    require_built(lane)
    if lane.producer.host != lane.receiver.host:
        raise InputError("enrolling a lane over two hosts is not built yet", where=str(lane.source))
    document = identities.read(lane.producer.identity)
    if document.get("mode") != lane.receiver.producer_mode:
        raise IdentityError(
            f"mode: the identity is {document.get('mode')}, the receiver takes {lane.receiver.producer_mode}",
            where=str(lane.producer.identity),
        )
    made: list[Path] = []
    moved: list[tuple[Path, Path]] = []
    _handoff_keys(lane, made)
    signing = _signing_key(lane, made)
    public = _public_text(signing)
    _copy(lane.receiver.enrolled / IDENTITY_COPY, canonical.file_bytes(document), made, moved)
    template = lane.producer.checkpoint / identities.CHAT_TEMPLATE
    if template.is_file():
        _copy(lane.receiver.enrolled / TEMPLATE_COPY, _read_bytes(template, identities.MOST_BYTES), made, moved)
    _copy(_public_copy(lane), public.encode("ascii") + b"\n", made, moved)
    identity = identities.digest(document)
    data = Enrollment(
        lane=lane.name,
        identity=document,
        identity_sha256=identity,
        cache_identity=identities.cache_identity(str(document["mode"]), identity),
        receiver=lane.receiver.host,
        receiver_public_key=public,
        handoff_key_id=handoff_key_id(_read_key(lane.producer.key)),
        template_sha256={
            "producer": _template_digest(document),
            "receiver": _file_sha256(lane.receiver.enrolled / TEMPLATE_COPY),
        },
    )
    if data.template_sha256["producer"] != data.template_sha256["receiver"]:
        raise IdentityError(
            f"chat template: the producer reads {data.template_sha256['producer']}, "
            f"the receiver {data.template_sha256['receiver']}",
            where=str(lane.receiver.enrolled / TEMPLATE_COPY),
        )
    return Enrolled(data, tuple(made), tuple(moved))


def producer_side(lane: Lane, document: Mapping[str, Any]) -> ProducerSide:
    """What the producer's end of the wire needs, from the producer's own files."""
    identity = identities.digest(document)
    return ProducerSide(
        lane=lane.name,
        identity=identity,
        cache_identity=identities.cache_identity(lane.receiver.producer_mode, identity),
        mode=lane.receiver.producer_mode,
        receiver=lane.receiver.host,
        receiver_public_key=public_key_bytes(_read_text(_public_copy(lane))),
        handoff_key=_read_key(lane.producer.key),
        geometry=identities.geometry_of(document),
    )


def receiver_config(lane: Lane) -> ReceiverConfig:
    """What the receiver's end needs, from the receiver's own copies; checks its own template against them."""
    document = identities.read(lane.receiver.enrolled / IDENTITY_COPY)
    own_template = _file_sha256(lane.receiver.enrolled / TEMPLATE_COPY)
    if own_template != _template_digest(document):
        raise IdentityError(
            f"chat template: enrolled {_template_digest(document)}, found {own_template}",
            where=str(lane.receiver.enrolled / TEMPLATE_COPY),
        )
    identity = identities.digest(document)
    host = lane.receiver_host
    return ReceiverConfig(
        name=lane.receiver.host,
        lane=lane.name,
        address=host.address,
        port=lane.ports.handoff,
        work_dir=lane.receiver.work_dir,
        memory_limit_bytes=lane.receiver.memory_limit_bytes,
        handoff_key=_read_key(lane.receiver.key),
        signing_key=_read_signing(lane.receiver.enrolled / SIGNING_KEY),
        identity=identity,
        cache_identity=identities.cache_identity(lane.receiver.producer_mode, identity),
        mode=lane.receiver.producer_mode,
        geometry=identities.geometry_of(document),
        clock=HostClock(lane.receiver.host),
    )


def public_key_bytes(text: str) -> bytes:
    """The 32 raw bytes of ``ed25519:<base64>``."""
    prefix, _, encoded = text.strip().partition(":")
    try:
        raw = canonical.from_base64(encoded)
    except ValueError:
        raw = b""
    if prefix != "ed25519" or len(raw) != 32:
        raise InputError(f"{text[:40]!r} is no ed25519 public key")
    return raw


def _handoff_keys(lane: Lane, made: list[Path]) -> None:
    ends = (lane.producer.key, lane.receiver.key)
    present = [path for path in ends if path.exists()]
    key = _read_key(present[0]) if present else secrets.token_bytes(KEY_BYTES)
    for path in ends:
        if path not in present:
            _create(path, key)
            made.append(path)
    if _read_key(ends[0]) != _read_key(ends[1]):
        raise IdentityError("the two ends hold different handoff keys", where=f"{ends[0]} and {ends[1]}")


def _signing_key(lane: Lane, made: list[Path]) -> Ed25519PrivateKey:
    path = lane.receiver.enrolled / SIGNING_KEY
    if not path.exists():
        raw = Ed25519PrivateKey.generate().private_bytes_raw()
        _create(path, raw)
        made.append(path)
    return _read_signing(path)


def _public_copy(lane: Lane) -> Path:
    return lane.producer.work_dir / "receivers" / f"{lane.receiver.host}.pub"


def _public_text(key: Ed25519PrivateKey) -> str:
    raw = key.public_key().public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)
    return "ed25519:" + base64.b64encode(raw).decode("ascii")


def _copy(path: Path, data: bytes, made: list[Path], moved: list[tuple[Path, Path]]) -> None:
    if path.exists():
        with contextlib.suppress(OSError):  # what is no regular file, or longer, is not this one
            if read_bounded(path, len(data)) == data:
                return
        target = path.with_name(f"{path.name}.stale-{datetime.now(UTC):%Y%m%dT%H%M%S.%fZ}")
        path.rename(target)
        moved.append((path, target))
    _create(path, data)
    made.append(path)


def _create(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _read_key(path: Path) -> bytes:
    data = _read_bytes(path)
    if path.stat().st_mode & 0o077:
        raise InputError("a key may be read by its owner only", where=str(path), next_step=f"chmod 600 {path}")
    if len(data) != KEY_BYTES:
        raise InputError(f"a key has {KEY_BYTES} bytes, this file {len(data)}", where=str(path))
    return data


def _read_signing(path: Path) -> Ed25519PrivateKey:
    return Ed25519PrivateKey.from_private_bytes(_read_key(path))


def _read_text(path: Path) -> str:
    return _read_bytes(path).decode("ascii", "replace")


def _read_bytes(path: Path, most_bytes: int = _MOST_KEY_BYTES) -> bytes:
    try:
        return read_bounded(path, most_bytes)
    except OSError as error:
        raise InputError(
            f"cannot be read: {error.strerror}", where=str(path), next_step="run `soakledger lane enroll`"
        ) from None


def _file_sha256(path: Path) -> str | None:
    return canonical.sha256(_read_bytes(path, identities.MOST_BYTES)) if path.is_file() else None


def _template_digest(document: Mapping[str, Any]) -> str | None:
    template = document.get("chat_template")
    return template["sha256"] if template else None
