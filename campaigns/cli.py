"""The root command: groups are loaded only when they are used, and every error ends in one clear message."""

from __future__ import annotations

import importlib
import os
import shutil
import sys
from typing import Final, NoReturn

import click

from campaigns.commands import exits

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
    sys.exit(run(sys.argv[1:]))


def run(arguments: list[str]) -> int:
    """Run one command; returns its exit status. Tracebacks are for our mistakes, never for the user's."""
    try:
        # Click takes no width under 50 by itself; a narrow terminal gets narrow help all the same.
        width = min(shutil.get_terminal_size((80, 24)).columns, 80)
        result = root.main(args=arguments, prog_name="soakledger", standalone_mode=False, terminal_width=width)
        sys.stdout.flush()
        return result if isinstance(result, int) else exits.DONE
    except click.exceptions.Exit as stop:
        return stop.exit_code
    except click.ClickException as error:
        error.show(sys.stderr)
        return exits.USAGE
    except click.Abort:
        _say("interrupted")
        return exits.of_signal(2)
    except BrokenPipeError:
        return _closed_reader()
    except Exception as error:
        from receipts.errors import SoakledgerError

        if not isinstance(error, SoakledgerError):
            raise
        _say(str(error))
        return exits.of_error(error)


def _say(text: str) -> None:
    sys.stderr.write(f"soakledger: {text}\n")


def _closed_reader() -> int:
    """The reader of our output went away: nothing to report, and nothing more to write at exit."""
    try:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, ValueError):
        pass
    return exits.DONE


if __name__ == "__main__":
    main()
