"""The exit status of every command (DESIGN section 10): the only place that knows them."""

from __future__ import annotations

import signal
from typing import Final

from receipts.errors import BusyError, EvidenceError, InputError, LaneError, SoakledgerError

DONE: Final = 0
FAIL: Final = 1
USAGE: Final = 2
INCONCLUSIVE: Final = 3
DEVIATION: Final = 4
EVIDENCE: Final = 5
TRY_AGAIN: Final = 75

MEANING: Final = {
    DONE: "PASS, or done",
    FAIL: "FAIL, or the lane failed",
    USAGE: "usage or invalid input",
    INCONCLUSIVE: "INCONCLUSIVE",
    DEVIATION: "DEVIATION",
    EVIDENCE: "the ledger or its evidence does not verify",
    TRY_AGAIN: "try again later (lane busy)",
    128 + signal.SIGHUP: "closed by SIGHUP",
    128 + signal.SIGINT: "closed by SIGINT",
    128 + signal.SIGTERM: "closed by SIGTERM",
}

_VERDICTS: Final = {"PASS": DONE, "FAIL": FAIL, "INCONCLUSIVE": INCONCLUSIVE, "DEVIATION": DEVIATION}
_ERRORS: Final[tuple[tuple[type[SoakledgerError], int], ...]] = (
    (InputError, USAGE),
    (EvidenceError, EVIDENCE),
    (BusyError, TRY_AGAIN),
    (LaneError, FAIL),
)


def of_verdict(verdict: str) -> int:
    """The status of a verdict word."""
    return _VERDICTS[verdict]


def of_error(error: SoakledgerError) -> int:
    """The status of an error, by its class."""
    return next((status for kind, status in _ERRORS if isinstance(error, kind)), FAIL)


def of_signal(number: int) -> int:
    """The status of a command that a signal closed."""
    return 128 + number


def table() -> str:
    """The statuses as help text, one a line."""
    return "\n".join(f"  {status:>3}  {meaning}" for status, meaning in MEANING.items())
