"""What happens when somebody's values stand where ours should: a named fault, never a traceback.

What is read of a ledger is checked where it is read. This is what is left: a value of another type in a column, a
receipt whose body lacks what a reader takes for granted. Only then is it looked for, so that reading pays nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from ledger.audit import verify
from ledger.store import Ledger
from receipts.errors import EvidenceError, SoakledgerError

_NEXT = "soakledger ledger verify names every fault"


@contextlib.contextmanager
def readable(ledger: Ledger) -> Iterator[None]:
    """While entries and projections of ``ledger`` are read and made something of.

    An error of Python's own becomes EvidenceError if an entry has not the shape of its kind, which is then named, or
    else if the ledger does not verify. If nothing is wrong with the evidence it is a mistake of ours, and stays.
    """
    try:
        yield
    except SoakledgerError:
        raise
    except (
        TypeError,
        ValueError,
        LookupError,
        AttributeError,
        ArithmeticError,
        AssertionError,
        StopIteration,
    ) as error:
        _require_shapes(ledger, error)
        faults = verify(ledger.home, files=False).faults
        if faults:
            raise EvidenceError(
                "what is stored cannot be read, and the ledger does not verify",
                where=str(ledger.home.ledger_db),
                details=[str(fault) for fault in faults[:3]],
                next_step=_NEXT,
            ) from error
        raise


def _require_shapes(ledger: Ledger, error: Exception) -> None:
    from receipts.shapes import receipt_fault_of  # imported late: brings pydantic

    for entry in ledger.entries():
        _ = entry.data  # names itself
        if entry.kind == "receipt" and (fault := receipt_fault_of(entry.data)):
            raise EvidenceError(
                f"this receipt has not the shape of its kind: {fault}", where=f"entry {entry.seq}", next_step=_NEXT
            ) from error
