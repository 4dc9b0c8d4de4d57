"""What a producer leaves in its work folder while it lives: names of its artefacts, and how to read them.

The startup receipt and the RoPE cache are created O_EXCL, the socket is bound once: a bare restart over what a dead
producer left behind therefore fails, and the ritual is the only way (DESIGN section 8).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from producer.host import linux
from producer.lane import Lane
from receipts import canonical
from receipts.errors import CanonicalError
from receipts.kinds import ClockBlock, Document, Instance, Nanoseconds
from receipts.names import Sha256
from receipts.store import read_bounded

STARTUP_RECEIPT: Final = "startup-receipt.json"
ROPE_CACHE: Final = "rope-cache.bin"
MOST_STARTUP_BYTES: Final = 1 << 20


class StartupReceipt(Document):
    """Written once a start is ready: model loaded, warmed up, equal to its identity."""

    v: int
    lane: str
    instance: Instance
    identity: Sha256
    cache_identity: Sha256
    mode: str
    files_checked: str
    """How each file was checked: ``sha256``, later also ``stat-seal``."""
    warmup_root: str
    rope_cache_sha256: Sha256 | None
    block: ClockBlock
    started_ns: Nanoseconds
    ready_ns: Nanoseconds


@dataclass(frozen=True)
class Artefacts:
    """The paths that one lane's producer uses below its work folder."""

    work_dir: Path
    socket: Path

    @classmethod
    def of(cls, lane: Lane) -> Artefacts:
        return cls(lane.producer.work_dir, lane.socket)

    @property
    def startup_receipt(self) -> Path:
        return self.work_dir / STARTUP_RECEIPT

    @property
    def rope_cache(self) -> Path:
        return self.work_dir / ROPE_CACHE

    @property
    def logs(self) -> Path:
        return self.work_dir / "logs"

    def read_startup(self) -> tuple[StartupReceipt, str] | None:
        """The startup receipt and its digest; None while there is none or it is not whole."""
        try:
            data = read_bounded(self.startup_receipt, MOST_STARTUP_BYTES)
            return StartupReceipt.read(canonical.parse(data)), canonical.sha256(data)
        except (OSError, CanonicalError):
            return None

    def ready_instance(self) -> Instance | None:
        """The instance that wrote the startup receipt, if exactly that process still runs."""
        found = self.read_startup()
        if found is None or not linux.is_alive(found[0].instance):
            return None
        return found[0].instance
