"""SQLite's rollback journal beside a database, looked at before SQLite does.

SQLite rolls back whatever lies there by that name, and at the end of it deletes the file that the journal's tail names:
its super-journal, which only a transaction over several attached databases has (sqlite.org/atomiccommit.html, section
5). We attach none. A journal that names one was put there by somebody, to have a file of this user deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from receipts.errors import EvidenceError
from receipts.store import open_regular

_MAGIC: Final = bytes.fromhex("d9d505f920a163d7")
_TAIL_BYTES: Final = 16
"""Behind the name: its length, the sum of its bytes, and the magic number of a journal."""


def beside(path: Path, suffix: str) -> Iterator[Path]:
    """Where SQLite looks for its own file of a database: it follows links first, and so beside both ends of one."""
    yield path.with_name(path.name + suffix)
    if path.is_symlink():
        real = Path(os.path.realpath(path))
        yield real.with_name(real.name + suffix)


def require_own_journal(path: Path) -> None:
    """Refuse a database whose journal would have another file deleted. Raises EvidenceError, and touches nothing."""
    for journal in beside(path, "-journal"):
        if _names_a_super_journal(journal):
            raise EvidenceError(
                "this journal was put here by somebody else: it names another file, which SQLite would delete",
                where=str(journal),
                next_step="keep it aside as evidence; without it soakledger ledger verify says what the ledger is",
            )


def _names_a_super_journal(journal: Path) -> bool:
    # No text of an entry can end so: these bytes are not UTF-8. Nor can what a killed writer left.
    try:
        with open_regular(journal) as file:
            size = os.fstat(file.fileno()).st_size
            if size < _TAIL_BYTES:
                return False
            file.seek(size - len(_MAGIC))
            return file.read(len(_MAGIC)) == _MAGIC
    except OSError:
        return False  # none there, or one that SQLite cannot read either
