"""Options that several commands share, and what they open."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from ledger.home import EvidenceHome
    from ledger.store import Ledger
    from producer.lane import Lane

Command = TypeVar("Command", bound=Callable[..., Any])


def home_option(command: Command) -> Command:
    """``--home DIR``"""
    return click.option("--home", metavar="DIR", help="Evidence home; else $SOAKLEDGER_HOME, else ./evidence.")(command)


def lane_option(command: Command) -> Command:
    """``--lane FILE``"""
    return click.option(
        "--lane",
        "lane_file",
        metavar="FILE",
        type=click.Path(path_type=Path),
        default=Path("lane/lane.toml"),
        show_default=True,
        help="The lane's lane.toml.",
    )(command)


def open_home(home: str | None) -> EvidenceHome:
    """The evidence home that the option or the environment names."""
    from ledger.home import resolve_home

    return resolve_home(home, os.environ)


def load_lane(path: Path) -> Lane:
    """Read a lane file strictly."""
    from producer.lane import LaneConfig
    from receipts.errors import InputError

    if not path.exists() and not path.is_symlink():
        raise InputError(
            "there is no such file",
            where=str(path),
            next_step="make one with `soakledger lane init FOLDER`; make soak makes lane/lane.toml",
        )
    return LaneConfig.load(path)


@contextlib.contextmanager
def read_ledger(home: str | None) -> Iterator[Ledger]:
    """Open an existing ledger for reading; creates nothing. What cannot be read of it is EvidenceError."""
    from ledger.reading import readable
    from ledger.store import Ledger

    with Ledger.open(open_home(home), read_only=True) as ledger, readable(ledger):
        yield ledger


def write_ledger(home: str | None, host: str | None = None, *, create: bool) -> Ledger:
    """Open a ledger for appending; with ``create`` a missing one is begun."""
    from ledger.files import LedgerExistsError
    from ledger.store import Ledger
    from receipts.clock import HostClock
    from receipts.environment import tool
    from receipts.metrics import measure_receipt

    place = open_home(home)
    clock = HostClock(host or this_host())
    document = tool().document()
    if create and not place.ledger_db.exists():
        # Another process may begin it in this moment: then it is opened as if it had always been there.
        with contextlib.suppress(LedgerExistsError):
            return Ledger.create(place, clock=clock, tool=document, measure=measure_receipt)
    return Ledger.open(place, clock=clock, tool=document, read_only=False, measure=measure_receipt)


def this_host() -> str:
    """This machine's name as an identifier, for commands that concern no lane."""
    import re
    import socket

    name = re.sub(r"[^a-z0-9._-]", "-", socket.gethostname().lower()).strip("-._")[:64]
    return name or "here"


def width() -> int:
    """Columns of the terminal, or $COLUMNS, or 80."""
    import shutil

    return shutil.get_terminal_size((80, 24)).columns
