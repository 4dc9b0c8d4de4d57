"""soakledger lane: init, enroll, show."""

from __future__ import annotations

from pathlib import Path

import click

from campaigns.commands.options import home_option, lane_option, load_lane, width, write_ledger
from campaigns.commands.streams import put
from receipts.visible import one_line


@click.group("lane")
def group() -> None:
    """The lane: its file, its keys, its enrollment."""


@group.command()
@click.argument("folder", type=click.Path(path_type=Path))
@click.option("--checkpoint", type=click.Path(path_type=Path), help="The producer's checkpoint folder.")
def init(folder: Path, checkpoint: Path | None) -> None:
    """Write the lane file of a loopback lane.

    FOLDER/lane.toml, for this machine; one that is there stays as it is.
    """
    from producer.sample_lane import write_loopback_lane

    path = folder / "lane.toml"
    made = write_loopback_lane(path, checkpoint)
    put(f"{path}: {'written' if made else 'is there already, left as it is'}")


@group.command()
@lane_option
@home_option
def enroll(lane_file: Path, home: str | None) -> None:
    """Make the lane's keys and enter it in the ledger.

    Each end gets its own copies of what it has to know of the other.
    """
    from producer.enrollment import enroll as enroll_lane

    lane = load_lane(lane_file)
    enrolled = enroll_lane(lane)
    for path in enrolled.made:
        put(f"made   {path}", err=True)
    for old, new in enrolled.moved:
        put(f"moved  {old} to {new.name}", err=True)
    with write_ledger(home, lane.orchestrator.host, create=True) as ledger:
        ledger.signing_key()  # a lost key is found before the entry that it is to sign over
        data = enrolled.data.document()
        latest = ledger.latest("enrollment", lane.name)
        if latest is not None and latest.data == data:
            put(f"lane {lane.name} is enrolled already, entry {latest.seq}")
            return
        entry = ledger.append("enrollment", lane.name, data)
        ledger.checkpoint()
    put(f"lane {lane.name} enrolled as entry {entry.seq}")
    put(f"identity       {enrolled.data.identity_sha256}")
    put(f"cache identity {enrolled.data.cache_identity}")


@group.command()
@lane_option
def show(lane_file: Path) -> None:
    """Read the lane file strictly and print what it resolves to."""
    from templates.columns import wrapped

    lane = load_lane(lane_file)
    rows = [
        ("lane", lane.name),
        ("digest", lane.sha256),
        ("producer", f"{lane.producer.host}, {lane.producer.runtime}, {lane.producer.checkpoint}"),
        ("receiver", f"{lane.receiver.host} at {lane.receiver_host.address}:{lane.ports.handoff}"),
        ("path", f"{lane.path.kind}, transfer {lane.path.transfer}"),
        ("mode", lane.receiver.producer_mode),
        ("lease", str(lane.producer.lease)),
        ("work", str(lane.producer.work_dir)),
        ("watchdog", f"{lane.producer.watchdog_s} s"),
    ]
    for name, value in rows:
        for line in wrapped(f"{name:<8} {one_line(value, 4000)}", width()):
            put(line)
