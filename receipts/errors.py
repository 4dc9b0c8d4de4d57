"""The tree of errors: each says what happened, where, and what to do next.

The command line prints exactly that and ends with the status that
``campaigns/commands/exits.py`` gives the class. Nothing else in the house knows exit statuses.
"""

from __future__ import annotations

from collections.abc import Sequence


class SoakledgerError(Exception):
    """Base of every error that soakledger raises on purpose.

    ``what`` is one sentence for a person. ``where`` is a file, a path inside a document, or an
    address. ``next_step`` is the legitimate next thing to do, if there is one.
    """

    def __init__(self, what: str, *, where: str | None = None, next_step: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.where = where
        self.next_step = next_step

    @property
    def headline(self) -> str:
        """Where and what in one line."""
        what = self.what.partition("\n")[0]
        return f"{self.where}: {what}" if self.where else what

    @property
    def details(self) -> tuple[str, ...]:
        """What is told beside the reason, line by line: differences, single faults."""
        return tuple(self.what.split("\n")[1:])

    def __str__(self) -> str:
        head = f"{self.where}: {self.what}" if self.where else self.what
        return f"{head}\n  next: {self.next_step}" if self.next_step else head


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
        return self.faults[-1]

    @property
    def details(self) -> tuple[str, ...]:
        """Every other fault."""
        return self.faults[:-1]


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
