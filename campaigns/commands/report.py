"""soakledger report: pages rendered from the ledger alone. Exit 0 whatever they report."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import click

from campaigns.commands.campaign import which_attempt
from campaigns.commands.options import home_option, open_home, read_ledger, width
from campaigns.commands.streams import put
from receipts.visible import one_line

if TYPE_CHECKING:
    from ledger.store import Ledger


@click.group("report")
def group() -> None:
    """Pages rendered from the ledger."""


@group.command()
@click.argument("attempt")
@click.option("--format", "fmt", type=click.Choice(["md", "html", "txt"]), help="md into a pipe, txt on a terminal.")
@click.option("-o", "--out", type=click.Path(path_type=Path), help="Write here; - for stdout.")
@home_option
def verdict(attempt: str, fmt: Literal["md", "html", "txt"] | None, out: Path | None, home: str | None) -> None:
    """Render the verdict of ATTEMPT as a page.

    ATTEMPT is ID/NUMBER, or ID for its last one. HTML goes into the home's reports unless -o says otherwise.
    """
    from campaigns.standing import life_of
    from receipts.errors import InputError
    from receipts.kinds import attempt_folder
    from templates.render import render_verdict
    from templates.story import story
    from templates.terminal import verdict_lines

    if fmt is None:
        fmt = "txt" if out is None and sys.stdout.isatty() else "md"
    with read_ledger(home) as ledger:
        campaign, number = which_attempt(ledger, attempt)
        life = life_of(ledger, campaign, number)
        if fmt == "txt":
            page = "".join(f"{line}\n" for line in verdict_lines(story(ledger, campaign, number, life=life), width()))
        else:
            page = render_verdict(ledger, campaign, number, fmt=fmt, life=life)
        _say_what_is_not_whole(ledger, campaign, number)
    if out == Path("-") or (out is None and fmt != "html"):
        put(page, end="")
        return
    place = open_home(home)
    path = out or place.reports / f"{attempt_folder(campaign, number)}.{fmt}"
    # A page is disposable and may replace an older one; nothing else in a home may ever be replaced.
    inside = path.resolve()
    if inside.is_relative_to(place.path.resolve()) and not inside.is_relative_to(place.reports.resolve()):
        raise InputError(
            "a report may not be written over the evidence",
            where=str(path),
            next_step=f"write below {place.reports}, or outside of the home",
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(page, encoding="utf-8")
    put(one_line(str(path), 4000))


def _say_what_is_not_whole(ledger: Ledger, campaign: str, number: int) -> None:
    """A page is made from the entries alone; a reader of it must still learn that their files are not whole."""
    from campaigns.judging import check_files
    from receipts.errors import EvidenceError

    try:
        check_files(ledger, campaign, number)
    except EvidenceError as error:
        for line in [f"soakledger: {error.headline}; the page is from the entries alone", *error.detail_lines]:
            put(line, err=True)
