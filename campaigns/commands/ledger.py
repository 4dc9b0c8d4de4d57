"""soakledger ledger: log, show, verify, reproject."""

from __future__ import annotations

import json

import click

from campaigns.commands import exits
from campaigns.commands.options import home_option, open_home, read_ledger, width
from campaigns.commands.streams import put


@click.group("ledger")
def group() -> None:
    """The evidence: log, show, verify, reproject."""


@group.command()
@click.option("--campaign", help="Only entries of this campaign.")
@click.option("--attempt", type=click.IntRange(1), help="Only entries of this attempt.")
@click.option("--kind", help="Only entries of this kind.")
@click.option("--first", type=click.IntRange(0), default=0, show_default=True, help="First entry.")
@click.option("--limit", type=click.IntRange(1, 2**31), default=200, show_default=True)
@home_option
def log(campaign: str | None, attempt: int | None, kind: str | None, first: int, limit: int, home: str | None) -> None:
    """List entries, oldest first."""
    from ledger import query
    from templates.terminal import log_lines

    with read_ledger(home) as ledger:
        rows = list(query.log(ledger, first=first, limit=limit, kind=kind, campaign=campaign, attempt=attempt))
        for line in log_lines(rows, width()):
            put(line)
        if not rows:
            known = sorted({entry.kind for entry in ledger.entries()})
            hint = f"; there are {', '.join(known)}" if kind is not None and kind not in known else ""
            put(f"soakledger: no entry of the {ledger.size()} matches{hint}", err=True)


@group.command(context_settings={"ignore_unknown_options": True})
@click.argument("seq", type=click.IntRange(0))
@home_option
def show(seq: int, home: str | None) -> None:
    """Print entry SEQ whole, as indented JSON."""
    from ledger import query

    with read_ledger(home) as ledger:
        entry = query.show(ledger, seq)
        put(json.dumps(entry.leaf, indent=1, ensure_ascii=True))
        put(f"leaf hash {entry.leaf_hash}", err=True)


@group.command()
@click.option("--json", "as_json", is_flag=True, help="Print the whole report as JSON.")
@home_option
@click.pass_context
def verify(ctx: click.Context, as_json: bool, home: str | None) -> None:
    """Check all of the evidence; status 5 on any fault.

    Every entry, file, blob, checkpoint, trigger and projection; all faults are reported.
    """
    from ledger.audit import verify as audit

    report = audit(open_home(home))
    if as_json:
        put(json.dumps(report.document(), indent=1))
    else:
        for line in _report_lines(report.document()):
            put(line)
    if not report.ok:
        put(f"soakledger: {len(report.faults)} fault(s); the evidence does not verify", err=True)
        ctx.exit(exits.EVIDENCE)
    ctx.exit(exits.DONE)


@group.command()
@home_option
def reproject(home: str | None) -> None:
    """Rebuild the projections from the entries.

    In one transaction; no entry is changed.
    """
    from ledger.projections import reproject as rebuild
    from receipts.metrics import measure_receipt

    count = rebuild(open_home(home), measure=measure_receipt)
    put(f"projections rebuilt from {count} entries")


def _report_lines(report: dict[str, object]) -> list[str]:
    from templates.terminal import audit_lines

    return audit_lines(report, width())
