"""Deaths that nobody wrote down: producer, keeper and orchestrator were gone together (docs/formats/journal.md).

The next one who looks at the lane writes them: the ritual before it starts another producer, and a launch before it
judges what went before.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

from producer.host import linux
from producer.journal import Journal
from receipts.errors import SoakledgerError
from receipts.events import DeathEvent, Observer
from receipts.kinds import Instance

SETTLES_S: Final = 2.0
"""How long a keeper that saw the end may take to write it."""
_POLL_S: Final = 0.05
_ENDS: Final = frozenset({"death", "stop", "failed_start"})


@dataclass
class _Standing:
    """Instances since the last ritual that led to a start, and how the journal has them."""

    started: list[Instance] = field(default_factory=list)
    ended: list[dict[str, Any]] = field(default_factory=list)
    handoffs: dict[str, str] = field(default_factory=dict)
    """Of each instance, by its pid and start, the last handoff."""

    @classmethod
    def of(cls, journal: Journal) -> _Standing:
        found = cls()
        for record in journal.backwards():
            instance = record.body.get("instance")
            if record.kind == "ritual" and found.started:
                break  # whoever performed it looked at what was before
            if record.kind == "start":
                found.started.append(Instance.read(instance))
            elif record.kind in _ENDS and isinstance(instance, dict):
                found.ended.append(instance)
            elif record.kind == "handoff" and isinstance(instance, dict):
                found.handoffs.setdefault(_key(instance), record.body["handoff_id"])
        return found

    def unwritten(self, host: str) -> list[Instance]:
        """Instances of this host that are gone and of whose end nothing is on record, the oldest first."""
        return [
            instance
            for instance in reversed(self.started)
            if instance.host == host and instance.document() not in self.ended and not linux.is_alive(instance)
        ]


def write_unseen_deaths(journal: Journal, observed_by: Observer, settles_s: float = SETTLES_S) -> list[Instance]:
    """Write the death of each producer that is gone without a word, and return whose.

    ``died_ns`` is now, the latest time at which it can have been alive; of an instance of an earlier boot 0, for it was
    gone when this one began. Nothing is written behind a journal that cannot be read: that is the intake's to say.
    Raises HomeError when it cannot be written.
    """
    clock = journal.clock
    gone_ns = clock.stamp()
    end = time.monotonic() + settles_s
    try:
        while (standing := _Standing.of(journal)).unwritten(clock.host) and time.monotonic() < end:
            time.sleep(_POLL_S)
        unwritten = standing.unwritten(clock.host)
    except (SoakledgerError, OSError, KeyError):
        return []
    for instance in unwritten:
        rebooted = instance.boot_id != clock.boot_id
        why = "its host was started anew" if rebooted else "the producer is gone"
        journal.append(
            DeathEvent(
                instance=instance,
                site="not_known",
                status=None,
                signal=None,
                reason=f"{why}, and nobody wrote how it ended",
                uptime_ns=None,
                last_handoff_id=standing.handoffs.get(_key(instance.document())),
                died_ns="0" if rebooted else str(gone_ns),
                observed_by=observed_by,
            )
        )
    return unwritten


def _key(instance: dict[str, Any]) -> str:
    return f"{instance.get('boot_id')}/{instance.get('pid')}/{instance.get('start_ticks')}"
