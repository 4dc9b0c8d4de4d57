"""The resident producer: ``python -m producer.resident --lane lane.toml`` (no click, so that a container can run it).

It runs in an interpreter that compiles whatever it imports (``producer/interpreter.py``); started in another one it
becomes one. Start-up order: lease, O_EXCL artefacts, identity of every file, engine, identity of what is bound,
warm-up, startup receipt, socket. What fails here ends with status 1 and names the reason; 75 belongs to the three
sites only.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import signal
import sys
from pathlib import Path
from typing import Any

from producer import identity as identities
from producer import interpreter
from producer.engine.base import Engine
from producer.engine.deaths import note_lease_held
from producer.host import linux
from producer.instance import Artefacts, StartupReceipt
from producer.lane import Lane, LaneConfig, require_built
from producer.lease import Lease
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import IdentityError, InputError, LeaseHeldError, SoakledgerError
from receipts.events import StartEvent
from receipts.kinds import ClockBlock
from receipts.store import write_exclusive

MODE_VARIABLE = "MUSER_NVFP4_EXACT"


def producer_mode(environment: dict[str, str] | os._Environ[str]) -> str:
    """The closed mode of this process from ``MUSER_NVFP4_EXACT``: unset or 0 native, 1 exact, else refused."""
    value = environment.get(MODE_VARIABLE, "0")
    if value not in {"0", "1"}:
        raise InputError(f"{MODE_VARIABLE} must be exactly 0 or 1, not {value[:20]!r}")
    if value == "1":
        raise InputError(f"{MODE_VARIABLE}=1: the exact producer is not built yet")
    return "native"


def serve(lane: Lane) -> None:
    """Start up and serve until death. Returns never; raises SoakledgerError when the start fails."""
    require_built(lane)
    clock = HostClock(lane.producer.host)
    started_ns = clock.stamp()
    _require_mode(lane)
    try:
        lease = Lease.take(lane.producer.lease)
    except LeaseHeldError:
        with contextlib.suppress(OSError):
            note_lease_held(lane.producer.work_dir, linux.instance_of(os.getpid(), clock.host))
        raise
    artefacts = Artefacts.of(lane)
    _require_clean(artefacts)
    say("hashing every file of the identity")
    interpreter.require_from_source(identities.OVERLAY_PACKAGES, interpreter.root())
    enrolled = identities.read(lane.producer.identity)
    identities.require_equal(enrolled, identities.files_half(lane), where=str(lane.producer.identity))
    say("loading the engine")
    engine = open_engine(lane, clock)
    for package in identities.ENGINE_DISTRIBUTIONS:
        interpreter.require_from_source((package,), identities.installed_in(package) / package)
    interpreter.require_nothing_beside(interpreter.root())
    identities.require_equal(enrolled, bound_half(lane, engine), where=str(lane.producer.identity))
    say("warming up")
    answer = known_answer(engine, enrolled)
    identities.require_equal(enrolled, {"known_answer": answer}, where=str(lane.producer.identity))
    _go_resident(lane, lease, artefacts, clock, engine, enrolled, started_ns)


def open_engine(lane: Lane, clock: HostClock) -> Engine:
    """The engine of this lane's mode, loaded in-process."""
    from producer.engine.base import EngineSettings
    from producer.engine.native import NativeEngine

    settings = EngineSettings(
        checkpoint=lane.producer.checkpoint,
        mode=lane.receiver.producer_mode,
        kv_cache_memory_bytes=lane.producer.kv_cache_memory_bytes,
        context_tokens=lane.producer.context_tokens,
        chunk_tokens=lane.producer.chunk_tokens,
        threads=lane.producer.threads,
    )
    return NativeEngine.open(settings, clock)


def bound_half(lane: Lane, engine: Engine) -> dict[str, Any]:
    """The half of the identity that is read off the loaded model and this host."""
    bound = engine.binding.document()
    geometry = bound.pop("geometry")
    return {"geometry": geometry, "numerics": {**bound, **identities.numerics_of_host(lane, engine.environment)}}


def known_answer(engine: Engine, enrolled: dict[str, Any] | None = None) -> dict[str, Any]:
    """Prefill one known prompt twice (equal roots) and decode it greedily: stable garbage is caught by its answer.

    Raises SoakledgerError when two prefills of one prompt differ.
    """
    from producer.engine.warmup import answer_of

    return answer_of(engine, None if enrolled is None else enrolled["known_answer"]["prompt"])


def say(text: str) -> None:
    """One line of the resident's log."""
    sys.stderr.write(f"soakledger producer: {text}\n")
    sys.stderr.flush()


def _require_mode(lane: Lane) -> None:
    mode = producer_mode(os.environ)
    if mode != lane.receiver.producer_mode:
        raise InputError(f"this process is {mode}, the lane's receiver takes {lane.receiver.producer_mode}")


def _require_clean(artefacts: Artefacts) -> None:
    left = [path for path in (artefacts.startup_receipt, artefacts.rope_cache, artefacts.socket) if path.exists()]
    if left:
        raise InputError(
            f"left by an earlier producer: {', '.join(path.name for path in left)}",
            where=str(artefacts.work_dir),
            next_step="start the producer by the ritual (`soakledger producer start`), never bare",
        )


def _go_resident(
    lane: Lane,
    lease: Lease,
    artefacts: Artefacts,
    clock: HostClock,
    engine: Engine,
    enrolled: dict[str, Any],
    started_ns: int,
) -> None:
    from producer.enrollment import producer_side
    from producer.journal import Journal
    from producer.requests import Limits, enrolled_tokenizer
    from producer.service import Service, bind

    instance = linux.instance_of(os.getpid(), clock.host)
    side = producer_side(lane, enrolled)
    tokenizer = enrolled_tokenizer(lane.producer.checkpoint, enrolled["checkpoint"]["files"])
    rope = engine.rope_cache()
    if rope is not None:
        write_exclusive(artefacts.rope_cache, rope)
    ready_ns = clock.stamp()
    receipt = StartupReceipt(
        v=1,
        lane=lane.name,
        instance=instance,
        identity=side.identity,
        cache_identity=side.cache_identity,
        mode=side.mode,
        files_checked="sha256",
        warmup_root=enrolled["known_answer"]["root"],
        rope_cache_sha256=canonical.sha256(rope) if rope is not None else None,
        block=ClockBlock(host=clock.host, boot_id=clock.boot_id, clock=clock.clock),
        started_ns=str(started_ns),
        ready_ns=str(ready_ns),
    )
    data = canonical.file_bytes(receipt.document())
    write_exclusive(artefacts.startup_receipt, data)
    listener = bind(artefacts)
    # Last, when whoever waits for both may ask at once: a start without this record is one that failed.
    journal = Journal(lane.producer.work_dir, lane.name, clock)
    journal.append(
        StartEvent(
            instance=instance,
            startup_receipt_sha256=canonical.sha256(data),
            identity=side.identity,
            cache_identity=side.cache_identity,
            mode=side.mode,
        )
    )
    say(f"ready as pid {instance.pid}, identity {side.identity}")
    limits = Limits(lane.producer.context_tokens, engine.binding.vocab_size, tokenizer)
    Service(lane, engine, side, limits, clock, journal, instance, lease, ready_ns).serve(listener)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m producer.resident", description=__doc__)
    parser.add_argument("--lane", type=Path, required=True)
    options = parser.parse_args(arguments)
    try:
        interpreter.enter("producer.resident", ["--lane", str(options.lane.absolute())])
    except IdentityError as error:
        say(str(error))
        return 1
    # A stop is SIGTERM and ends us at once, whatever C code runs; nothing here needs an orderly end.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        lane = LaneConfig.load(options.lane)
    except SoakledgerError as error:
        say(str(error))
        return 2  # a lane file that is not one is a mistake in what was asked, not a lane that failed
    try:
        serve(lane)
    except SoakledgerError as error:
        say(str(error))
        return 1
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
