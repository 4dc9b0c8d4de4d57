"""The tree of errors: each says what happened, where, and what to do next.

The command line prints exactly that and ends with the status that
``campaigns/commands/exits.py`` gives the class. Nothing else in the house knows exit statuses.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from receipts.visible import one_line

_MOST_CHARACTERS: Final = 2000
"""Longest part of a message that is shown; a path or a program's words can be of any length."""


class SoakledgerError(Exception):
    """Base of every error that soakledger raises on purpose.

    ``what`` is one sentence for a person. ``where`` is a file, a path inside a document, or an
    address. ``details`` are lines told beside it: single faults, a difference, the last lines of a log. ``next_step``
    is the legitimate next thing to do, if there is one. Each may hold text from outside, and is shown as one line.
    """

    def __init__(
        self, what: str, *, where: str | None = None, details: Sequence[str] = (), next_step: str | None = None
    ) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.details = tuple(details)
        self.next_step = next_step

    @property
    def headline(self) -> str:
        """Where and what in one line."""
        return _shown(f"{self.where}: {self.what}" if self.where else self.what)

    @property
    def detail_lines(self) -> list[str]:
        """What is told beside the reason, each safe to print."""
        return [f"  {_shown(line)}" for line in self.details]

    @property
    def next_words(self) -> str:
        """The next step as the end of a line, empty where there is none."""
        return f"; next: {_shown(self.next_step)}" if self.next_step else ""

    def __str__(self) -> str:
        lines = [self.headline, *self.detail_lines]
        return "\n".join([*lines, f"  next: {_shown(self.next_step)}"] if self.next_step else lines)


def _shown(text: str) -> str:
    return one_line(text, _MOST_CHARACTERS)


class InputError(SoakledgerError):
    """The user's input is wrong: a file, an option, a value. Status 2."""


class FaultsError(InputError):
    """Several faults of one input, reported at once, one line each. Status 2."""

    def __init__(self, faults: Sequence[str], *, next_step: str | None = None) -> None:
        self.faults = tuple(faults)
        super().__init__("\n".join(self.faults), next_step=next_step)

    @property
    def headline(self) -> str:
        """The last fault."""
        return _shown(self.faults[-1])

    @property
    def detail_lines(self) -> list[str]:
        """Every other fault: they are equals, each a message of its own."""
        return [f"soakledger: {_shown(fault)}" for fault in self.faults[:-1]]

    def __str__(self) -> str:
        lines = [_shown(fault) for fault in self.faults]
        return "\n".join([*lines, f"  next: {_shown(self.next_step)}"] if self.next_step else lines)


class CanonicalError(InputError):
    """A document is not strict JSON in our sense; ``where`` is the path of the value. Status 2."""


class NotCanonicalError(CanonicalError):
    """Strict JSON, but not in the one form that RFC 8785 gives it. Status 2."""


class HomeError(InputError):
    """The evidence home is missing, full, read-only or on a refused file system. Status 2."""


class BusyError(SoakledgerError):
    """Somebody else holds what is needed; trying again later is right. Status 75."""


class EvidenceError(SoakledgerError):
    """The ledger or its evidence does not verify. Status 5."""


class LaneError(SoakledgerError):
    """The lane failed: a producer did not start, a handoff was refused, a host was not there. Status 1."""


class IdentityError(LaneError):
    """What was found is not what was enrolled; the message names field, enrolled and found. Status 1."""


class LeaseHeldError(LaneError):
    """The accelerator lease is held by someone else; the message names the holder. Status 1."""
