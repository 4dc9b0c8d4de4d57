"""soak: runs of consecutive handoffs of one prompt through one producer instance, bracketed by controls.

Intent before act; every rep's receipts are durable before the next rep begins; nothing is written inside a timed
section. A death ends the run at that rep, and the reps behind it stay what they are: never observed.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from campaigns.attempt import Attempt, Place
from campaigns.handoffs import Asked, handoff_body
from campaigns.intake import Intake
from campaigns.interrupts import Interrupts
from campaigns.progress import Progress
from campaigns.stages.outcome import StageOutcome
from producer import client, receiving, ritual
from producer.host import linux
from producer.instance import Artefacts
from receipts.errors import LaneError, SoakledgerError
from receipts.events import DeathEvent, JournalRecord
from receipts.kinds import CONTROL, ClockBlock, Failure, HandoffBody, Instance, IntentBody, RitualBody

DEATH_SETTLES_S: Final = 10.0
"""How long a dying producer may take until its exit is seen and journalled."""
DEATH_HURRIED_S: Final = 1.0
"""The same after a signal, which must close the attempt within two seconds."""


@dataclass(frozen=True)
class SoakRun:
    """What one soak stage needs while it runs; ``stage`` is its table of the resolved spec."""

    attempt: Attempt
    stage: dict[str, Any]
    intake: Intake
    interrupts: Interrupts
    progress: Progress

    @property
    def name(self) -> str:
        return str(self.stage["name"])


def run(soak: SoakRun) -> StageOutcome:
    """Do every run of the stage. The outcome is ``done`` also when a death ended a run."""
    for number in range(1, soak.stage["runs"] + 1):
        if not _start_run(soak, number):
            if soak.interrupts:
                return StageOutcome("interrupted")
            continue
        for place, prompt in _reps(soak, number):
            if soak.interrupts:
                return StageOutcome("interrupted")
            outcome = _rep(soak, place, prompt)
            if outcome == "interrupted":
                return StageOutcome("interrupted")
            if soak.attempt.instance is None:
                break
    return StageOutcome("done")


def _reps(soak: SoakRun, number: int) -> Iterator[tuple[Place, dict[str, Any]]]:
    control = soak.stage["control"]
    if control is not None:
        yield Place(soak.name, CONTROL, number, 1), control
    for rep in range(1, soak.stage["reps"] + 1):
        yield Place(soak.name, None, number, rep), soak.stage["prompt"]
    if control is not None:
        yield Place(soak.name, CONTROL, number, 2), control


def _start_run(soak: SoakRun, number: int) -> bool:
    """Receiver up, producer ready: by the ritual when the spec wants a fresh start or none runs."""
    attempt = soak.attempt
    resident = Artefacts.of(attempt.lane).ready_instance()
    place = Place(soak.name, None, number)
    if resident is not None and not soak.stage["fresh_start"]:
        attempt.write(place, "intent", _intent(soak, "reuse", None, None, resident), attempt.tree())
        attempt.instance = resident
        return True
    tree = attempt.tree()
    attempt.write(place, "intent", _intent(soak, "ritual", None, None, resident), tree)
    begun = attempt.begin()
    ready: ritual.Ready | None = None
    error: Failure | None = None
    try:
        if resident is not None:
            ritual.stop(attempt.lane, attempt.clock, resident, f"fresh start for {attempt.subject}")
        soak.progress.say("starting the producer by the ritual")
        ready = ritual.start(
            attempt.lane, attempt.clock, waiting=soak.progress.waiting, give_up=lambda: bool(soak.interrupts)
        )
    except LaneError as failure:
        error = Failure(code="start-failed", text=str(failure))
        soak.progress.say(str(failure))
    body = RitualBody(
        moved=ready.moved if ready else (),
        removed=ready.removed if ready else (),
        instance=ready.instance if ready else None,
        startup_receipt_sha256=ready.startup_sha256 if ready else None,
        span=attempt.span(begun),
        error=error,
    )
    attempt.write(place, "ritual", body, tree)
    soak.intake.take()
    attempt.instance = ready.instance if ready else None
    if ready:
        soak.progress.say(f"producer ready as pid {ready.instance.pid}")
    return ready is not None


def _rep(soak: SoakRun, place: Place, prompt: dict[str, Any]) -> str:
    attempt = soak.attempt
    tree = attempt.tree()
    handoff_id = secrets.token_hex(16)
    attempt.write(place, "intent", _intent(soak, "handoff", handoff_id, prompt, attempt.instance), tree)
    asked = _ask(soak, place, handoff_id, prompt)
    body, admission = handoff_body(attempt, asked)
    if admission is not None:
        attempt.write(place, "admission", admission, tree)
    attempt.write(place, "handoff", body, tree)
    if attempt.instance is not None and not linux.is_alive(attempt.instance):
        # It may have died a moment ago, behind its answer: its death must be on record before the run is closed.
        _have_death_recorded(soak, attempt.instance)
        attempt.instance = None
    soak.intake.take()
    soak.progress.rep(_shown(attempt, place, body), soak.stage["reps"])
    return body.outcome


def _ask(soak: SoakRun, place: Place, handoff_id: str, prompt: dict[str, Any]) -> Asked:
    """The timed section: nothing in here but the request and what is needed to know how it ended."""
    attempt = soak.attempt
    assert attempt.instance is not None
    request = {
        "v": 1,
        "op": "handoff",
        "handoff_id": handoff_id,
        "prompt": _prompt_source(prompt),
        "prompt_sha256": prompt["prompt_sha256"],
        "receiver": attempt.lane.receiver.host,
        "watchdog_s": soak.stage["watchdog_s"],
        "used_by": attempt.subject,
    }
    deadline_s = float(soak.stage["rep_deadline_s"])
    what = f"control {place.rep}" if place.case == CONTROL else f"rep {place.rep} of {soak.stage['reps']}"
    begun = attempt.begin()
    reply = client.ask(
        attempt.lane.socket,
        request,
        timeout_s=deadline_s,
        interrupt=soak.interrupts.descriptor,
        waiting=lambda seconds: soak.progress.running(f"{what}: {seconds:.0f} s (deadline {deadline_s:.0f} s)"),
    )
    span = attempt.span(begun)
    alive = _still_alive(soak, reply, attempt.instance)
    return Asked(handoff_id, prompt["prompt_sha256"], prompt["tokens"], reply, span, attempt.instance, alive)


def _still_alive(soak: SoakRun, reply: client.Reply, instance: Instance) -> bool:
    """Whether the producer outlived the request, given the time its own death takes to be seen."""
    fatal = reply.ending in {"closed", "not_listening"} or bool(
        reply.value and reply.value.get("status") == "error" and reply.value.get("engine_touched")
    )
    wait_s = DEATH_SETTLES_S if fatal else 0.5 if reply.value and reply.value.get("status") == "error" else 0.0
    if reply.ending == "deadline":
        # The lane's watchdog ends a wedged engine; only what outlives it is wedged, not dead.
        wait_s = (
            max(
                0.0,
                float(soak.stage["watchdog_s"] or soak.attempt.lane.producer.watchdog_s)
                - float(soak.stage["rep_deadline_s"]),
            )
            + DEATH_SETTLES_S
        )
    end = time.monotonic() + wait_s
    while linux.is_alive(instance):
        if time.monotonic() >= end or soak.interrupts:
            return True
        time.sleep(0.02)
    return False


def _have_death_recorded(soak: SoakRun, instance: Instance) -> None:
    """Wait until the end of a producer that is gone stands in the journal; if nobody writes it, we do.

    Its keeper writes a moment after the exit. A keeper that was killed too leaves us as the only ones who saw it.
    """
    journal = soak.intake.journal
    gone_ns = soak.attempt.clock.stamp()
    first = max(1, journal.head().n - 8)
    end = time.monotonic() + (DEATH_HURRIED_S if soak.interrupts else DEATH_SETTLES_S)
    while time.monotonic() < end:
        try:
            if any(_ends(record, instance) for record, _ in journal.read(first)):
                return
        except (SoakledgerError, OSError) as error:
            # What is wrong with a journal is the intake's to say; nothing can be added behind a broken chain.
            soak.progress.say(f"the journal cannot be read for a death: {error}")
            return
        time.sleep(0.05)
    journal.append(
        DeathEvent(
            instance=instance,
            site="not_known",
            status=None,
            signal=None,
            reason="the producer is gone, and its keeper did not say how it ended",
            uptime_ns=None,
            last_handoff_id=None,
            died_ns=str(gone_ns),
            observed_by="runner",
        )
    )


def _ends(record: JournalRecord, instance: Instance) -> bool:
    return record.kind in {"death", "stop"} and record.body.get("instance") == instance.document()


def _prompt_source(prompt: dict[str, Any]) -> dict[str, Any]:
    if prompt["source"] == "seeded":
        return {
            "source": "seeded",
            "seed": prompt["seed"],
            "tokens": prompt["tokens"],
            "id_range": list(prompt["id_range"]),
        }
    return {"source": "ids", "ids": list(prompt["ids"])}


def _intent(
    soak: SoakRun, action: str, handoff_id: str | None, prompt: dict[str, Any] | None, instance: Instance | None
) -> IntentBody:
    clock = soak.attempt.clock
    deadline = int(soak.stage["rep_deadline_s"]) * 10**9 if action == "handoff" else None
    return IntentBody.read(
        {
            "action": action,
            "handoff_id": handoff_id,
            "prompt_sha256": prompt["prompt_sha256"] if prompt else None,
            "prompt_tokens": prompt["tokens"] if prompt else None,
            "instance": instance.document() if instance else None,
            "deadline_ns": None if deadline is None else str(deadline),
            "clock": ClockBlock(host=clock.host, boot_id=clock.boot_id, clock=clock.clock).document(),
            "at_ns": str(clock.stamp()),
        }
    )


def _shown(attempt: Attempt, place: Place, body: HandoffBody) -> dict[str, Any]:
    """The part of a handoff's envelope that a progress line needs."""
    return {
        "kind": "handoff",
        "campaign": attempt.campaign,
        "attempt": attempt.number,
        "stage": place.stage,
        "case": place.case,
        "run": place.run,
        "rep": place.rep,
        "body": body.document(),
    }


def ensure_receiver(attempt: Attempt) -> receiving.RunningReceiver | None:
    """Start a receiver unless one of this lane runs; returns the one that is ours to stop."""
    return None if receiving.is_serving(attempt.lane) else receiving.start(attempt.lane)
