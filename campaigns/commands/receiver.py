"""soakledger receiver: serve, status, show."""

from __future__ import annotations

import json
import os
from pathlib import Path

import click

from campaigns.commands.options import lane_option, load_lane
from campaigns.commands.streams import put


@click.group("receiver")
def group() -> None:
    """The receiver and what it admitted."""


@group.command()
@lane_option
def serve(lane_file: Path) -> None:
    """Be the receiver, in the foreground, until a signal."""
    from producer import receiving

    def announce(address: str, port: int) -> None:
        put(f"receiver listens on {address}:{port}", err=True)

    receiving.serve(load_lane(lane_file), announce)


@group.command()
@lane_option
def status(lane_file: Path) -> None:
    """Print what the running receiver holds, as JSON."""
    from producer.handoff import inspection

    put(json.dumps(inspection.status(load_lane(lane_file).receiver.work_dir), indent=1, sort_keys=True))


@group.command()
@click.argument("handoff_id")
@lane_option
@click.option("--out", type=click.Path(path_type=Path), help="Write the payload's raw bytes to this new file.")
def show(handoff_id: str, lane_file: Path, out: Path | None) -> None:
    """Print one admitted handoff: its admission record and its manifest."""
    from producer.handoff import inspection
    from receipts.errors import InputError
    from receipts.store import write_exclusive

    if out is not None and os.path.lexists(out):
        raise InputError("there is something already", where=str(out), next_step="name a new file")
    shown = inspection.show(load_lane(lane_file).receiver.work_dir, handoff_id, payload=out is not None)
    if out is not None and shown.payload is not None:
        write_exclusive(out.absolute(), shown.payload)
    put(json.dumps({"admission": shown.admission, "manifest": shown.manifest}, indent=1, sort_keys=True))
