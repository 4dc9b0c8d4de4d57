"""soakledger producer: build-checkpoint, enroll, serve, start, stop, status."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from campaigns.commands import exits
from campaigns.commands.options import lane_option, load_lane
from campaigns.commands.streams import put


@click.group("producer")
def group() -> None:
    """The resident producer and its checkpoint."""


@group.command("build-checkpoint")
@click.argument("out", type=click.Path(path_type=Path))
@click.option("--tiny", is_flag=True, help="A random 4-layer model of about 2 MB, for tests.")
@click.option("--bf16", is_flag=True, help="With --tiny: the unquantised twin.")
def build_checkpoint(out: Path, tiny: bool, bf16: bool) -> None:
    """Build the sample NVFP4 checkpoint in OUT.

    If it is there and whole, nothing is done.
    """
    from campaigns.progress import PlainProgress
    from producer.checkpoint.build import build_sample, build_tiny

    if bf16 and not tiny:
        raise click.UsageError("--bf16 goes with --tiny")

    progress = PlainProgress().counting
    built = build_tiny(out, nvfp4=not bf16, progress=progress) if tiny else build_sample(out, progress=progress)
    put(f"{out}: {len(built.files)} files, {built.total_bytes} bytes, recipe {built.recipe}")


@group.command()
@lane_option
@click.option("--renew", is_flag=True, help="Enroll anew where the files differ: a new identity.")
def enroll(lane_file: Path, renew: bool) -> None:
    """Freeze the identity document.

    Every file is hashed, and the engine loaded to read what it binds.
    """
    from producer.enrolling import enroll_producer

    def say(text: str) -> None:
        put(text, err=True)

    digest, path, made = enroll_producer(load_lane(lane_file), renew=renew, say=say)
    put(f"{path}: {'frozen' if made else 'is frozen already, and the files are as enrolled'}")
    put(f"identity {digest}")


@group.command()
@lane_option
def serve(lane_file: Path) -> None:
    """Be the resident producer, in the foreground.

    Over a clean work folder only: `producer start` is the ritual that cleans one.
    """
    from producer.resident import main

    sys.exit(main(["--lane", str(lane_file)]))


@group.command()
@lane_option
def start(lane_file: Path) -> None:
    """Start the producer by the ritual.

    Ends when the producer is ready, or could not be.
    """
    from producer import ritual
    from receipts.clock import HostClock

    lane = load_lane(lane_file)
    ready = ritual.start(lane, HostClock(lane.producer.host), waiting=lambda text: put(f"  {text}"[:78], err=True))
    for moved in ready.moved:
        put(f"moved aside {moved.old} to {moved.new} ({moved.bytes} bytes, {moved.sha256})")
    for name in ready.removed:
        put(f"removed {name}")
    put(f"ready: pid {ready.instance.pid}, identity {ready.startup.identity}")


@group.command()
@lane_option
@click.option("--why", default="asked for on the command line", show_default=True)
def stop(lane_file: Path, why: str) -> None:
    """Stop the producer on command: journalled, then SIGTERM."""
    from producer import ritual
    from producer.instance import Artefacts
    from receipts.clock import HostClock

    lane = load_lane(lane_file)
    instance = Artefacts.of(lane).ready_instance()
    if instance is None:
        put("no ready producer runs on this lane")
        return
    ritual.stop(lane, HostClock(lane.producer.host), instance, why)
    put(f"stopped pid {instance.pid}")


@group.command()
@lane_option
@click.pass_context
def status(ctx: click.Context, lane_file: Path) -> None:
    """Say whether the producer is ready; exit 1 when it is not."""
    from producer import lease
    from producer.instance import Artefacts

    lane = load_lane(lane_file)
    instance = Artefacts.of(lane).ready_instance()
    holder = lease.holder(lane.producer.lease)
    put(f"producer {'not ready' if instance is None else f'ready as pid {instance.pid}'}")
    put(f"lease    {'free' if holder is None else f'HELD by {holder}'}")
    if instance is None:
        ctx.exit(exits.FAIL)
