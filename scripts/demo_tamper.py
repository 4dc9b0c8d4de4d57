"""Change one byte of a scratch copy of the ledger and show that ``ledger verify`` names the entry.

The forger of this demo drops the triggers, changes a digit inside one entry, and puts the triggers back.
The real ledger, its files and this machine's last-seen mark are only read. Status 0 when the copy was
refused with status 5 and the right entry named, and the real ledger verifies; else 1.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EVIDENCE_FAULT = 5
_A_TIME = re.compile(rb'_ns":"\d*(\d)\d{5}"')
_ANY_DIGIT = re.compile(rb"(\d)")


@dataclass(frozen=True)
class Forgery:
    """What was changed: entry ``seq``, byte ``offset`` of its body, from one byte to another."""

    seq: int
    subject: str
    offset: int
    old: str
    new: str


def main(arguments: list[str] | None = None) -> int:
    """Show the forgery on a copy, then the real ledger; returns 0 when both came out as they must."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--home", type=Path, default=Path("evidence"))
    home = parser.parse_args(arguments).home.absolute()
    if not (home / "ledger.db").is_file():
        print(f"demo: there is no ledger in {home}", file=sys.stderr)
        return 1
    with tempfile.TemporaryDirectory(prefix="soakledger-demo-") as scratch:
        copy = Path(scratch) / "evidence"
        shutil.copytree(home, copy, ignore=shutil.ignore_patterns("reports"))
        forgery = forge(copy / "ledger.db")
        # The mark of this machine stays out of it: a copy must not even be able to move it.
        refused, told = verify(copy, {"XDG_STATE_HOME": str(Path(scratch) / "state")})
    accepted, _ = verify(home, {})
    _tell(forgery, refused, told, accepted)
    return 0 if refused == EVIDENCE_FAULT and names(told, forgery.seq) and accepted == 0 else 1


def forge(database: Path) -> Forgery:
    """Change one digit of one entry of ``database`` as somebody with the file would, triggers and all."""
    with contextlib.closing(sqlite3.connect(database, isolation_level=None)) as connection:
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        seq, subject, text = connection.execute(
            "SELECT seq, subject, body FROM entry ORDER BY kind = 'receipt' AND subject LIKE '%-handoff' DESC, seq DESC"
        ).fetchone()
        body = bytearray(text.encode())
        found = _A_TIME.search(body) or _ANY_DIGIT.search(body)
        assert found is not None, "every entry holds its own number"
        offset = found.start(1)
        old = chr(body[offset])
        new = "1" if old == "9" else str(int(old) + 1)
        body[offset] = ord(new)
        connection.execute("BEGIN IMMEDIATE")
        for name, _ in triggers:
            connection.execute(f'DROP TRIGGER "{name}"')
        connection.execute("UPDATE entry SET body = ? WHERE seq = ?", (body.decode(), seq))
        for _, sql in triggers:
            connection.execute(sql)
        connection.execute("COMMIT")
    return Forgery(seq, subject, offset, old, new)


def verify(home: Path, environ: dict[str, str]) -> tuple[int, str]:
    """Status and output of ``soakledger ledger verify`` on ``home``."""
    command = [sys.executable, "-m", "campaigns.cli", "ledger", "verify", "--home", str(home)]
    environment = {**os.environ, "COLUMNS": "78", **environ}
    run = subprocess.run(command, check=False, cwd=ROOT, env=environment, capture_output=True, text=True)
    return run.returncode, run.stdout + run.stderr


def names(told: str, seq: int) -> bool:
    """Whether the output names entry ``seq``."""
    return re.search(rf"\bentry {seq}\b", told) is not None


def _tell(forgery: Forgery, refused: int, told: str, accepted: int) -> None:
    print("One byte changed, on a scratch copy of the ledger:")
    print(f"  entry {forgery.seq} ({forgery.subject})")
    print(f"  byte {forgery.offset} of its body: {forgery.old} became {forgery.new}")
    print("`soakledger ledger verify` on the copy:")
    for line in told.splitlines():
        print(f"  {line}")
    print(f"  status {refused}{'' if refused == EVIDENCE_FAULT else f', and it should be {EVIDENCE_FAULT}'}")
    if not names(told, forgery.seq):
        print(f"  and entry {forgery.seq} is not named: this demo failed")
    print(f"The real ledger: status {accepted}{', it verifies' if accepted == 0 else ', IT DOES NOT VERIFY'}")


if __name__ == "__main__":
    sys.exit(main())
