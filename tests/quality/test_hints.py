"""Quality 15: every command and option that a hint, a page or a document names exists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import click

from campaigns.cli import GROUPS, root

ROOT = Path(__file__).parents[2]
COMMAND = re.compile(rf"soakledger ({'|'.join(sorted(GROUPS))}) ([a-z][a-z-]+)")
OPTION = re.compile(r"(?<![\w-])(--[a-z][a-z-]+)")
NEXT_STEP = re.compile(r"next_step=\(?\s*((?:f?\"[^\"]*\"\s*)+)")


def texts() -> Iterator[Path]:
    for folder in ("campaigns", "ledger", "producer", "receipts", "templates", "scripts"):
        yield from sorted((ROOT / folder).rglob("*.py"))
        yield from sorted((ROOT / folder).rglob("*.j2"))
    yield from (ROOT / "README.md", ROOT / "CONTRIBUTING.md")
    yield from sorted((ROOT / "docs").rglob("*.md"))


def commands() -> dict[tuple[str, str], click.Command]:
    context = click.Context(root)
    found = {}
    for name in GROUPS:
        group = root.get_command(context, name)
        assert isinstance(group, click.Group)
        for command in group.list_commands(context):
            found[name, command] = group.commands[command]
    return found


def test_every_command_that_anything_names_exists() -> None:
    known = commands()
    named = {(match, path.name) for path in texts() for match in COMMAND.findall(path.read_text(encoding="utf-8"))}
    assert len(named) > 20
    unknown = [item for item in sorted(named) if item[0] not in known and item[0][1] not in {"group", "command"}]
    assert unknown == []


def test_every_option_that_a_next_step_names_exists() -> None:
    known = {option for command in commands().values() for item in command.params for option in item.opts}
    unknown = []
    for path in texts():
        for step in NEXT_STEP.findall(path.read_text(encoding="utf-8")):
            ours = re.sub(r"`pip [^`]*`", "", step)  # options of somebody else's command
            unknown += [(path.name, option) for option in OPTION.findall(ours) if option not in known]
    assert unknown == []
