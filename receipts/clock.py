"""The clock of a host: stamps that count suspend, stamps that do not, and the boot they belong to.

Durations use two stamps of one block ``{host, boot_id, clock}`` and never wall time. On Linux the
stamp is CLOCK_BOOTTIME, which goes on in suspend; the awake stamp is CLOCK_MONOTONIC, which does
not: a difference between the two shows that the host slept. Nanoseconds travel as decimal
strings, because they pass 2⁵³ after 104 days of uptime (FACTS section 7).
"""

from __future__ import annotations

import functools
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

CLOCK_NAME: Final = "boottime" if sys.platform == "linux" else "monotonic_raw"


def _stamp_ns() -> int:
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)  # counts sleep on macOS; not run on a Mac


def _awake_ns() -> int:
    if sys.platform == "linux":
        return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
    return time.monotonic_ns()  # stops in sleep on macOS; not run on a Mac


@functools.cache
def boot_id() -> str:
    """The identifier of this boot of this host."""
    if sys.platform == "linux":
        return Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    answer = subprocess.run(["sysctl", "-n", "kern.bootsessionuuid"], capture_output=True, text=True, check=True)
    return answer.stdout.strip().lower()


@dataclass(frozen=True)
class HostClock:
    """Stamps of one host. ``stamp``, ``awake`` and ``wall`` can be replaced by a test.

    ``stamp()`` and ``awake()`` give nanoseconds as int; documents hold ``str(ns)``.
    """

    host: str
    boot_id: str = field(default_factory=boot_id)
    clock: str = CLOCK_NAME
    stamp: Callable[[], int] = _stamp_ns
    awake: Callable[[], int] = _awake_ns
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)

    def block(self) -> dict[str, str]:
        """The three fields that say whose clock a block's stamps are."""
        return {"host": self.host, "boot_id": self.boot_id, "clock": self.clock}

    def recorded_at(self) -> str:
        """Wall time for people, ``2026-11-30T20:41:07.512Z``; never used for order or duration."""
        return utc_text(self.wall())


def utc_text(moment: datetime) -> str:
    """RFC 3339 with milliseconds and Z. A naive time is a ValueError: its zone is not known."""
    if moment.tzinfo is None:
        raise ValueError("a time without a zone cannot be recorded")
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{moment.microsecond // 1000:03d}Z"
