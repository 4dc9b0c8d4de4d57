"""What both ends of a lane were enrolled with, each from its own copy; and how long each step may take."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Final, Literal

from producer.handoff.manifest import KVGeometry
from producer.handoff.stream import Congestion
from receipts.clock import HostClock

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

Mode = Literal["native", "exact"]

MAX_STRANGERS: Final = 16
"""Connections that have not taken the slot; the oldest of them is closed when one more comes."""


@dataclass(frozen=True)
class ProducerSide:
    """What the producer knows of its lane. ``handoff_key`` and ``receiver_public_key`` have 32 raw bytes."""

    lane: str
    identity: str
    cache_identity: str
    mode: Mode
    receiver: str
    receiver_public_key: bytes
    handoff_key: bytes = field(repr=False)
    geometry: KVGeometry


@dataclass(frozen=True)
class ReceiverAddress:
    """Where the enrolled receiver listens."""

    host: str
    port: int


@dataclass(frozen=True)
class SenderTimes:
    """Limits of the producer's end, in seconds. ``session_s`` is wall clock from connect to ACK."""

    connect_s: float = 5.0
    handshake_s: float = 10.0
    session_s: float = 900.0
    ping_s: float = 5.0
    silence_s: float = 30.0


@dataclass(frozen=True)
class ReceiverTimes:
    """Limits of the receiver's end, in seconds. ``handshake_s`` covers HELLO to OPEN, however slowly it trickles."""

    handshake_s: float = 10.0
    silence_s: float = 30.0
    write_s: float = 5.0
    drain_s: float = 2.0


@dataclass(frozen=True)
class ReceiverConfig:
    """One receiver: its name (its host's), what it is enrolled with, where it listens, how much it may hold.

    ``port`` 0 lets the system choose (``ready`` is told). ``identity`` and ``cache_identity`` are digests.
    """

    name: str
    lane: str
    address: str
    port: int
    work_dir: Path
    memory_limit_bytes: int
    handoff_key: bytes = field(repr=False)
    signing_key: Ed25519PrivateKey = field(repr=False)
    identity: str
    cache_identity: str
    mode: Mode
    geometry: KVGeometry
    clock: HostClock
    times: ReceiverTimes = ReceiverTimes()
    congestion: Congestion = "auto"
