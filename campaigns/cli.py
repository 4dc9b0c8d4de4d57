"""The root command: groups are loaded only when they are used, and every error ends in one clear message."""

from __future__ import annotations

import importlib
import os
import sys
from typing import Final, NoReturn

import click

from campaigns.commands import exits, streams
from receipts.visible import one_line

GROUPS: Final = {
    "campaign": "Specs, registrations, attempts and verdicts.",
    "lane": "The lane: its file, its keys, its enrollment.",
    "ledger": "The evidence: log, show, verify, reproject.",
    "producer": "The resident producer and its checkpoint.",
    "receiver": "The receiver and what it admitted.",
    "report": "Pages rendered from the ledger.",
}


class LazyGroups(click.Group):
    """Finds ``campaigns.commands.<name>`` by name, so that ``--help`` imports no command."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002
        return sorted(GROUPS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002
        if cmd_name not in GROUPS:
            return None
        group = importlib.import_module(f"campaigns.commands.{cmd_name}").group
        assert isinstance(group, click.Group)
        return group

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(sorted(GROUPS.items()))

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Exit status"):
            formatter.write_dl([(str(status), meaning) for status, meaning in exits.MEANING.items()])


@click.group(cls=LazyGroups, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="soakledger", prog_name="soakledger")
def root() -> None:
    """Evidence ledger and soak campaigns for disaggregated LLM prefill.

    Register what will count as a pass, launch the real producer, and keep every
    observation where a stranger can check it offline.
    """


def main() -> NoReturn:
    """Run the command line and end the process with a status of DESIGN section 10."""
    streams.make_steady()
    status, is_finding = _run(sys.argv[1:])
    sys.stdout.flush()
    lost = getattr(sys.stdout, "lost_output", None)
    if lost:
        _say(f"the output could not be written: {lost}")
        # A verdict or a verification stands as it is; of a command that only prints, printing was all there was to do.
        status = status if is_finding or status else exits.USAGE
    sys.stderr.flush()
    sys.exit(status)


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit status. Tracebacks are for our mistakes, never for the user's."""
    return _run(arguments)[0]


def _run(arguments: list[str]) -> tuple[int, bool]:
    """The exit status, and whether the command itself gave it as what it found."""
    try:
        _require_text(arguments)
        # Click takes no width under 50 by itself; a narrow terminal gets narrow help all the same.
        width = min(_columns(), 80)
        result = root.main(args=arguments, prog_name="soakledger", standalone_mode=False, terminal_width=width)
        sys.stdout.flush()
        return (result, True) if isinstance(result, int) else (exits.DONE, False)
    except click.exceptions.Exit as stop:
        return stop.exit_code, True
    except click.exceptions.NoArgsIsHelpError as error:
        sys.stderr.write(f"{error.format_message()}\n")
        _say("a command is missing")
        return exits.USAGE, True
    except click.ClickException as error:
        _say(_usage(error))
        return exits.USAGE, True
    except click.Abort:
        _say("interrupted")
        return exits.of_signal(2), True
    except Exception as error:
        return _told(error), True


def _columns() -> int:
    """Columns of $COLUMNS, of the terminal, or 80: as ``shutil`` says, which loads three compressors for it."""
    try:
        told = int(os.environ["COLUMNS"])
    except (KeyError, ValueError):
        told = 0
    if told > 0:
        return told
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or 80  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):
        return 80


def _require_text(arguments: list[str]) -> None:
    for number, argument in enumerate(arguments, 1):
        if any(0xD800 <= ord(character) <= 0xDFFF for character in argument):
            raise click.UsageError(f"argument {number} is not UTF-8: {argument.encode('utf-8', 'surrogateescape')!r}")


def _usage(error: click.ClickException) -> str:
    """What click refused, and where the help is: one line, as every other message."""
    text = one_line(error.format_message(), 2000).rstrip(".").replace("a valid integer range", "a whole number")
    if isinstance(error, click.NoSuchOption) and error.option_name.lstrip("-").isdecimal():
        text = f"{error.option_name} is read as an option for its dash; no number below 0 is taken here"
    context = getattr(error, "ctx", None)
    return text if context is None else f"{text}; next: read `{context.command_path} --help`"


def _told(error: Exception) -> int:
    """Say what a user can mend, and give its status; anything else is ours and is raised again."""
    from receipts.errors import SoakledgerError

    if isinstance(error, SoakledgerError):
        # The reason is the last line, whatever is told beside it: long details would scroll it away.
        for line in error.detail_lines:
            streams.put_wrapped(line, _columns())
        _say(error.headline + error.next_words)
        return exits.of_error(error)
    if isinstance(error, OSError) and error.filename is not None:
        # A path that is too long, no folder, not ours to write: the system's own words and the path say it best.
        _say(f"{one_line(str(error.filename), 200)}: {error.strerror}")
        return exits.USAGE
    if isinstance(error, OverflowError):
        _say(f"a number is out of range: {one_line(str(error), 200)}")
        return exits.USAGE
    raise error


def _say(text: str) -> None:
    streams.put_wrapped(f"soakledger: {text}", _columns())


if __name__ == "__main__":
    main()
