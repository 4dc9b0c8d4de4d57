"""One launch of a registered campaign, from the busy lane that is found first to the checkpoint at the end.

Order (DESIGN section 6): checkpoint → attempt_open → stages → attempt_close → intake of the journal → verdict →
checkpoint. ``attempt_open`` is durable before anything is done; whatever ends the attempt, it is closed and judged.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from campaigns import judging
from campaigns.attempt import Attempt, StageMarks
from campaigns.exclusive import lane_held, note_holder
from campaigns.intake import Intake
from campaigns.interrupts import Interrupts
from campaigns.lost import abandon_lost, judge_late_records, started_producer
from campaigns.progress import Progress
from campaigns.registration import Registered, stage_tables
from campaigns.stages import preflight, soak
from campaigns.stages.outcome import StageOutcome
from campaigns.terms import check_against_model
from ledger.entry import Entry, Ref
from ledger.reader import LedgerReader
from ledger.reading import readable
from ledger.store import Ledger
from producer import identity as identities
from producer import lease, receiving, ritual
from producer.host import linux
from producer.instance import Artefacts
from producer.journal import Journal
from producer.lane import Lane, require_built
from producer.unseen import write_unseen_deaths
from receipts.clock import HostClock
from receipts.errors import BusyError, EvidenceError, FaultsError, IdentityError, InputError, LaneError, SoakledgerError
from receipts.kinds import Instance
from receipts.leaves import AttemptClose, AttemptOpen, Cleanup, Ended, Enrollment
from receipts.store import BlobStore


@dataclass(frozen=True)
class Launched:
    """A launch that is over: its number, its verdict, and the signal that ended it, if one did."""

    attempt: int
    judged: judging.Judged
    signal: int | None


def launch(
    ledger: Ledger,
    lane: Lane,
    registered: Registered,
    ids_by_digest: dict[str, list[int]],
    progress: Progress,
) -> Launched:
    """Run a registered campaign once. What is refused before an attempt is opened is BusyError or InputError."""
    require_built(lane)
    campaign = registered.data.campaign
    with Interrupts() as interrupts, lane_held(lane, campaign) as lock:
        preflight.require_disk(ledger.home.path)
        clock = HostClock(lane.orchestrator.host)
        enrollment = current_enrollment(ledger, lane)
        stages = stage_tables(registered.data.resolved, ids_by_digest)
        if faults := check_against_model(stages, Enrollment.read(enrollment.data).identity["geometry"]):
            raise FaultsError(faults, next_step="register a prompt that this lane's model can take")
        _require_free(lane)
        intake = Intake(ledger, Journal(lane.producer.work_dir, lane.name, clock))
        for gone in write_unseen_deaths(intake.journal, "runner"):
            progress.say(f"producer pid {gone.pid} is gone, and nobody had written its death; the journal has it now")
        intake.take()  # before lost attempts are judged: what the journal says of them belongs to their evidence
        with readable(ledger):
            for verdict in abandon_lost(ledger, clock, lane.name):
                progress.say(f"{verdict.subject} was lost; it is closed now and judged {verdict.data['verdict']}")
            for verdict in judge_late_records(ledger, lane.name):
                told = f"{verdict.subject} is judged again, {verdict.data['verdict']}"
                progress.say(f"what the journal told late belongs to an attempt: {told}")
        opened = _open(ledger, lane, registered, enrollment, clock)
        attempt = _attempt(ledger, lane, opened, clock, enrollment)
        note_holder(lock, attempt.subject)
        intake.campaign, intake.attempt = campaign, attempt.number
        progress.say(f"attempt {attempt.subject} opened as entry {opened.seq}")
        _run_and_close(attempt, stages, intake, interrupts, progress)
        progress.say("judging")
        judged = judging.store_verdict(ledger, campaign, attempt.number)
        return Launched(attempt.number, judged, interrupts.signal)


def current_enrollment(ledger: Ledger, lane: Lane) -> Entry:
    """The lane's enrollment, which must be of the identity that the lane holds now."""
    entry = ledger.latest("enrollment", lane.name)
    if entry is None:
        raise InputError(
            f"lane {lane.name} is not enrolled in this ledger",
            where=str(ledger.home.path),
            next_step=f"run `soakledger lane enroll --lane {lane.source}`",
        )
    data = Enrollment.read(entry.data)
    if identities.digest(data.identity) != data.identity_sha256:
        raise EvidenceError(
            "this enrollment holds another identity than the one whose digest it names",
            where=f"entry {entry.seq}",
            next_step="run `soakledger ledger verify`",
        )
    found = identities.digest(identities.read(lane.producer.identity))
    if data.identity_sha256 != found:
        raise IdentityError(
            f"identity: enrolled {data.identity_sha256} (entry {entry.seq}), found {found}",
            where=str(lane.producer.identity),
            next_step=f"enroll it: `soakledger lane enroll --lane {lane.source}`",
        )
    return entry


def _require_free(lane: Lane) -> None:
    """A lane whose accelerator is someone else's is busy; its own ready producer is no stranger."""
    holder = lease.settled_holder(lane.producer.lease)
    resident = Artefacts.of(lane).ready_instance()
    if holder is not None and (resident is None or resident.pid != holder.pid):
        raise BusyError(f"the accelerator lease is held by {holder}", where=str(lane.producer.lease))


def _open(ledger: Ledger, lane: Lane, registered: Registered, enrollment: Entry, clock: HostClock) -> Entry:
    checkpoint = ledger.checkpoint()
    myself = linux.instance_of(os.getpid(), clock.host)
    data = registered.data
    identity = Enrollment.read(enrollment.data)

    def build(reader: LedgerReader) -> tuple[str, Any, Ref | None]:
        earlier = list(reader.entries(kinds={"attempt_open"}, subject_prefix=f"{data.campaign}/"))
        opened = AttemptOpen(
            host=clock.host,
            boot_id=clock.boot_id,
            clock=clock.clock,
            campaign=data.campaign,
            family=data.family,
            attempt=len(earlier) + 1,
            rehearsal=False,
            registration_seq=registered.entry.seq,
            spec_sha256=data.spec_sha256,
            resolved_sha256=data.resolved_sha256,
            lane=lane.name,
            lane_sha256=lane.sha256,
            identity=identity.identity_sha256,
            cache_identity=identity.cache_identity,
            enrollment_seq=enrollment.seq,
            checkpoint_note_sha256=checkpoint.note_sha256,
            prev_attempt_open=earlier[-1].seq if earlier else None,
            attempts_before=len(earlier),
            at_ns=str(clock.stamp()),
            pid=myself.pid,
            start_ticks=myself.start_ticks,
        )
        return f"{data.campaign}/{opened.attempt}", opened.document(), None

    return ledger.append_built("attempt_open", build)


def _attempt(ledger: Ledger, lane: Lane, opened: Entry, clock: HostClock, enrollment: Entry) -> Attempt:
    data = AttemptOpen.read(opened.data)
    return Attempt(
        ledger=ledger,
        lane=lane,
        clock=clock,
        campaign=data.campaign,
        number=data.attempt,
        open_entry=opened,
        enrollment_seq=enrollment.seq,
        identity=data.identity,
        cache_identity=data.cache_identity,
        blobs=BlobStore(ledger.home.blobs),
    )


def _run_and_close(
    attempt: Attempt, stages: list[dict[str, Any]], intake: Intake, interrupts: Interrupts, progress: Progress
) -> None:
    """Run the stages; whatever happens, put back what was taken and close the attempt."""
    found = _found_running(attempt, intake.journal)
    receiver: receiving.RunningReceiver | None = None
    outcome = StageOutcome("done")
    try:
        for stage in stages:
            if stage["kind"] == "soak" and receiver is None:
                receiver = soak.ensure_receiver(attempt)
            outcome = _run_stage(attempt, stage, intake, interrupts, progress)
            if outcome.ending != "done":
                break
    except LaneError as error:  # no producer or no receiver came to be: nothing was asked of either
        progress.say(str(error))
        outcome = StageOutcome("precondition", str(error))
    except SoakledgerError as error:
        progress.say(str(error))
        outcome = StageOutcome("aborted", str(error))
    except BaseException as error:
        outcome = StageOutcome("aborted", f"{type(error).__name__}: {error}")
        raise
    finally:
        cleanup = _put_back(attempt, found, receiver)
        try:
            _close(attempt, [stage["name"] for stage in stages], outcome, interrupts, cleanup)
        except SoakledgerError:
            left = "it stays open, and the next launch closes it as abandoned and judges it with what it has"
            progress.say(f"attempt {attempt.subject} could not be closed: {left}")
            raise
        intake.take()


def _found_running(attempt: Attempt, journal: Journal) -> Instance | None:
    """The producer that was there before us and is not ours to stop. One that a lost attempt started is ours."""
    instance = Artefacts.of(attempt.lane).ready_instance()
    if instance is None or started_producer(attempt.ledger, journal, instance):
        return None
    return instance


def _run_stage(
    attempt: Attempt, stage: dict[str, Any], intake: Intake, interrupts: Interrupts, progress: Progress
) -> StageOutcome:
    if interrupts:
        return StageOutcome("interrupted")
    marks = attempt.marks.setdefault(stage["name"], StageMarks())
    marks.started_ns = attempt.clock.stamp()
    progress.say(f"stage {stage['name']}")
    try:
        if stage["kind"] == "preflight":
            outcome = preflight.run(attempt, stage["name"], interrupts, progress)
        else:
            outcome = soak.run(soak.SoakRun(attempt, stage, intake, interrupts, progress))
    finally:
        marks.closed_ns = attempt.clock.stamp()
    marks.reached_end = outcome.ending == "done"
    return outcome


def _put_back(
    attempt: Attempt, found: Instance | None, receiver: receiving.RunningReceiver | None
) -> tuple[Cleanup, ...]:
    """Leave the lane as it was found: stop what this attempt started and nothing else."""
    done = []
    running = Artefacts.of(attempt.lane).ready_instance()
    if running is not None and found is None:
        why = f"end of {attempt.subject}"
        done.append(_guarded("producer stopped", lambda: ritual.stop(attempt.lane, attempt.clock, running, why)))
    # After the producer: one that loses its receiver in the middle of a send dies of it.
    if receiver is not None and found is None:
        done.append(_guarded("receiver stopped", receiver.stop))
    elif receiver is not None:
        # Nor may one die of it that is not ours and is in the middle of a handoff that we gave up waiting for.
        finishing = "" if receiver.ends() else ", after the handoff that the standing producer is in"
        done.append(Cleanup(what=f"receiver told to end{finishing}", ok=True, found=None))
    return tuple(done)


def _guarded(what: str, act: Callable[[], None]) -> Cleanup:
    try:
        act()
    except (SoakledgerError, OSError) as error:
        return Cleanup(what=what, ok=False, found=str(error))
    return Cleanup(what=what, ok=True, found=None)


def _close(
    attempt: Attempt,
    stages: list[str],
    outcome: StageOutcome,
    interrupts: Interrupts,
    cleanup: tuple[Cleanup, ...],
) -> None:
    ended: Ended = "complete" if outcome.ending == "done" else outcome.ending
    clock = attempt.clock
    data = AttemptClose(
        host=clock.host,
        boot_id=clock.boot_id,
        clock=clock.clock,
        campaign=attempt.campaign,
        attempt=attempt.number,
        ended=ended,
        signal=interrupts.name,
        reason=outcome.reason,
        stages=attempt.stage_closes(stages),
        cleanup=cleanup,
        at_ns=str(clock.stamp()),
    )
    attempt.ledger.append("attempt_close", attempt.subject, data.document())
