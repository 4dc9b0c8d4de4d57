"""soakledger campaign: schema, metrics, list, show, validate, register, launch, status, rejudge."""

from __future__ import annotations

import json
import signal
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from campaigns.commands import exits
from campaigns.commands.options import home_option, lane_option, load_lane, open_home, read_ledger, width, write_ledger
from campaigns.commands.streams import put
from receipts.visible import one_line, quoted

if TYPE_CHECKING:
    from campaigns.registry import LoadedSpec
    from ledger.store import Ledger


_CLOSING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@click.group("campaign")
def group() -> None:
    """Specs, registrations, attempts and verdicts."""


@group.command()
def schema() -> None:
    """Print the JSON Schema of a campaign spec."""
    from campaigns.spec import json_schema

    put(json.dumps(json_schema(), indent=1, sort_keys=True))


@group.command()
def metrics() -> None:
    """Print every metric that a criterion may name."""
    from receipts.metrics import METRICS
    from templates.columns import table_lines

    rows = [(item.name, item.unit, item.kind, item.scope) for item in METRICS.values()]
    _print(table_lines(("metric", "unit", "kind", "scope"), rows, width()))


@group.command("list")
@home_option
def list_campaigns(home: str | None) -> None:
    """List what is shipped, registered and attempted."""
    from campaigns import registry
    from templates.columns import table_lines

    rows = [(loaded.spec.id, loaded.spec.title) for loaded in registry.shipped()]
    _print(table_lines(("shipped", "title"), rows, width()))
    if open_home(home).ledger_db.exists():
        with read_ledger(home) as ledger:
            _registration_lines(ledger)
            put()
            _attempt_lines(ledger)
    else:
        put(f"soakledger: {open_home(home).path}: there is no ledger here yet", err=True)


@group.command()
@click.argument("spec")
@home_option
def show(spec: str, home: str | None) -> None:
    """Print SPEC as it is written.

    SPEC is a shipped id, a file, or an id that is registered in the home.
    """
    from campaigns import registry
    from campaigns.commands.streams import put_document

    if not open_home(home).ledger_db.exists():
        loaded = registry.find(spec)
    else:
        with read_ledger(home) as ledger:
            loaded = registry.find_registered(spec, ledger)
    put_document(loaded.raw)


@group.command()
@click.argument("spec")
@click.option("--lane", "lane_file", type=click.Path(path_type=Path), help="Also check that this lane can run it.")
def validate(spec: str, lane_file: Path | None) -> None:
    """Check SPEC strictly and name every fault.

    Each fault has its file, line and key.
    """
    from campaigns import registry

    loaded = registry.find(spec)
    if lane_file is not None:
        _require_runnable(loaded, lane_file)
    put(f"{loaded.source}: valid ({loaded.spec.id}, {loaded.spec_sha256})")


@group.command()
@click.argument("spec")
@click.option("--lane", "lane_file", type=click.Path(path_type=Path), help="Needed for text prompts: its tokenizer.")
@click.option("--reason", help="Why a registered spec is amended.")
@home_option
def register(spec: str, lane_file: Path | None, reason: str | None, home: str | None) -> None:
    """Freeze SPEC in the ledger, before any run."""
    from campaigns import registration, registry

    loaded = registry.find(spec)
    registration.require_reason(reason)
    lane = load_lane(lane_file) if lane_file else None
    resolved, _ = registration.resolved_for(loaded, lane)
    with write_ledger(home, create=True) as ledger:
        registered = registration.register(ledger, loaded, resolved, reason)
    word = "registered as" if registered.fresh else "is registered already,"
    put(f"{loaded.spec.id} {word} entry {registered.entry.seq}")
    put(f"spec     {registered.data.spec_sha256}")
    put(f"resolved {registered.data.resolved_sha256}")
    for item in registered.data.weaker:
        put(f"weaker than entry {item['than_seq']}: {item['field']}: {item['old']} -> {item['new']}", err=True)
    if registered.data.weaker:
        put("soakledger: no attempt of a weaker registration can end better than DEVIATION", err=True)


@group.command()
@click.argument("spec")
@lane_option
@home_option
@click.pass_context
def launch(ctx: click.Context, spec: str, lane_file: Path, home: str | None) -> None:
    """Run a registered SPEC once and judge it.

    SPEC is a shipped id, a file, or the id that it was registered under.
    """
    from campaigns import registration, registry, runner
    from campaigns.progress import PlainProgress

    lane = load_lane(lane_file)
    with write_ledger(home, lane.orchestrator.host, create=False) as ledger:
        loaded = registry.find_registered(spec, ledger)
        _require_runnable(loaded, lane_file)
        resolved, ids = registration.resolved_for(loaded, lane)
        registered = registration.require_registered(ledger, loaded, resolved)
        progress = PlainProgress(loopback=lane.path.kind == "loopback")
        launched = runner.launch(ledger, lane, registered, ids, progress)
    status = _told_by_a_fresh_process(f"{loaded.spec.id}/{launched.attempt}", home)
    if launched.signal is not None:
        put(f"soakledger: closed by {signal.Signals(launched.signal).name}", err=True)
        status = exits.of_signal(launched.signal)
    ctx.exit(status)


def _told_by_a_fresh_process(attempt: str, home: str | None) -> int:
    """Print what a process that remembers nothing of this run computes from the home alone."""
    import subprocess

    place = str(open_home(home).path)
    sys.stdout.flush()
    command = [sys.executable, "-m", "campaigns.cli", "campaign", "rejudge", attempt, "--home", place]
    # A Ctrl-C that hurries the launch must not take the account of it away, neither by its child nor by us.
    before = {number: signal.signal(number, signal.SIG_IGN) for number in _CLOSING}
    try:
        return subprocess.run(command, check=False, start_new_session=True).returncode
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@group.command()
@click.argument("attempt")
@click.option("--json", "as_json", is_flag=True, help="Print the verdict document.")
@home_option
@click.pass_context
def rejudge(ctx: click.Context, attempt: str, as_json: bool, home: str | None) -> None:
    """Check the evidence of ATTEMPT and judge it again.

    ATTEMPT is ID/NUMBER, or ID for its last one. Reads the home alone, and writes nothing.
    """
    from campaigns import judging
    from campaigns.standing import life_of
    from templates.explain import because, heading, outcome_counts
    from templates.story import story
    from templates.terminal import verdict_lines

    with read_ledger(home) as ledger:
        campaign, number = which_attempt(ledger, attempt)
        judged = judging.rejudge(ledger, campaign, number)
        view = story(ledger, campaign, number, verdict=judged.document, life=life_of(ledger, campaign, number))
    if as_json:
        put(json.dumps(judged.document, indent=1))
    else:
        _print(verdict_lines(view, width()))
    place = one_line(str(open_home(home).path), 400)
    put(f"as a page: soakledger report verdict {campaign}/{number} --format html --home {place}", err=True)
    stored = (
        "judged now, nothing was written"
        if judged.entry is None
        else f"equals the stored verdict, entry {judged.entry.seq}"
    )
    # What the exit status rests on is the last line, for whoever sees nothing else.
    put(f"soakledger: {campaign}/{number}: {heading(view)}: {outcome_counts(view)}{because(view)}; {stored}", err=True)
    ctx.exit(exits.of_verdict(judged.document["verdict"]))


@group.command()
@click.argument("campaign", required=False)
@home_option
def status(campaign: str | None, home: str | None) -> None:
    """List the attempts and how each stands.

    Of all campaigns, or of CAMPAIGN alone. RUNNING only while its orchestrator lives, else LOST or how it ended.
    """
    with read_ledger(home) as ledger:
        if campaign is not None:
            campaign, _ = which_attempt(ledger, campaign)
        _attempt_lines(ledger, campaign)


def which_attempt(ledger: Ledger, text: str) -> tuple[str, int]:
    """``ID`` or ``ID/NUMBER`` as campaign and number; the last attempt where no number is given."""
    from ledger import query
    from receipts.errors import InputError

    campaign, slash, number = text.partition("/")
    if slash and not (number.isascii() and number.isdecimal() and len(number) < 10):
        raise InputError(f"{quoted(text)} is no attempt; write ID or ID/NUMBER")
    known = [row.attempt for row in query.attempts(ledger, campaign)]
    if not known:
        raise InputError(f"there is no attempt of {campaign[:80]!r} in this ledger", where=str(ledger.home.path))
    if slash and int(number) not in known:
        raise InputError(f"there is no attempt {text}; the last is {campaign}/{known[-1]}")
    return campaign, int(number) if slash else known[-1]


def _registration_lines(ledger: Ledger) -> None:
    """The last registration of each campaign, and how often it was attempted."""
    from ledger import query
    from templates.columns import table_lines

    attempts = Counter(row.campaign for row in query.attempts(ledger))
    last = {row.campaign: row for row in query.campaigns(ledger)}
    rows = [
        (name, f"entry {row.registration_seq}", _moment(row.registered_at), str(attempts[name] or "none yet"))
        for name, row in sorted(last.items())
    ]
    if rows:
        put()
        _print(table_lines(("registered", "as", "at (UTC)", "attempts"), rows, width()))


def _attempt_lines(ledger: Ledger, campaign: str | None = None) -> None:
    from campaigns.standing import standing_of
    from ledger import query
    from templates.columns import table_lines

    stands = [standing_of(ledger, row) for row in query.attempts(ledger, campaign)]
    if not stands:
        put("no attempts yet")
        return
    rows = [(item.attempt, item.word, _moment(item.opened_at), item.how) for item in stands]
    _print(table_lines(("attempt", "stands", "opened (UTC)", "how it ended"), rows, width()))


def _moment(recorded_at: str) -> str:
    """To the second: ``2026-12-01 00:28:25``."""
    return recorded_at[:19].replace("T", " ")


def _print(lines: Iterable[str]) -> None:
    for line in lines:
        put(line)


def _require_runnable(loaded: LoadedSpec, lane_file: Path) -> None:
    from campaigns.terms import LaneTerms, check_against_lane
    from producer.lane import require_built
    from receipts.errors import FaultsError

    lane = load_lane(lane_file)
    require_built(lane)
    terms = LaneTerms(
        transfer=lane.path.transfer,
        mode=lane.receiver.producer_mode,
        watchdog_s=lane.producer.watchdog_s,
        context_tokens=lane.producer.context_tokens,
    )
    reasons = check_against_lane(loaded.spec, terms)
    if reasons:
        raise FaultsError([f"{loaded.source}: {reason}" for reason in reasons])
