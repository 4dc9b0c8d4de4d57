"""The checkpoints of a ledger: each a row of its table and a file beside it that hold the same signed note.

The row is committed first, in the transaction of the entry that is signed over, so that no kill parts them; then the
file is written. A file that a killed writer owed is written by the next writer that opens the ledger.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final, NamedTuple

import sqlalchemy as sa

from ledger import note
from ledger.entry import Head
from ledger.home import EvidenceHome
from ledger.keys import SigningKey, VerifyKey
from ledger.note import Checkpoint
from ledger.reader import LedgerReader
from ledger.tables import CHECKPOINT, insert
from receipts.errors import EvidenceError, HomeError
from receipts.store import open_below, open_regular, write_exclusive

_NAME: Final = re.compile(r"(0|[1-9][0-9]{0,15})\.checkpoint")


def size_in_name(name: str) -> int | None:
    """The tree size that ``<size>.checkpoint`` speaks of; None for any other name."""
    match = _NAME.fullmatch(name)
    return int(match[1]) if match else None


def file_sizes(folder: Path) -> Iterator[int]:
    """The tree sizes that the names in a folder of checkpoints speak of."""
    if folder.is_dir():
        for path in folder.iterdir():
            size = size_in_name(path.name)
            if size is not None:
                yield size


def read_file(home: EvidenceHome, size: int, key: VerifyKey) -> Checkpoint | None:
    """The checkpoint over ``size`` entries that lies in the folder, None unless ``key`` signed it."""
    try:
        with open_below(home.path, f"checkpoints/{size}.checkpoint") as file:
            signed = note.verify_checkpoint(file.read(note.MAX_NOTE_BYTES + 1), key)
    except (OSError, EvidenceError):
        return None
    return signed if signed.size == size else None


def write_file(home: EvidenceHome, size: int, data: bytes) -> None:
    """Keep a signed checkpoint as a file; the same one again is no error.

    Raises EvidenceError when something else has its name, HomeError when it cannot be written.
    """
    path = home.checkpoints / f"{size}.checkpoint"
    try:
        write_exclusive(path, data)
    except EvidenceError:
        # A checkpoint of this head was written before, by us or by another process: Ed25519 gives equal bytes.
        with contextlib.suppress(OSError), open_regular(path) as file:
            if file.read(len(data) + 1) == data:
                return
        raise


def insert_row(connection: sa.Connection, signed: Checkpoint, key_id: str) -> None:
    """Add the row of a checkpoint unless it is there. Raises EvidenceError when another was signed over that size."""
    known = sa.select(CHECKPOINT.c.note).where(CHECKPOINT.c.tree_size == signed.size, CHECKPOINT.c.key_id == key_id)
    rows = connection.execute(known).all()
    if not rows:
        row = {
            "tree_size": signed.size,
            "key_id": key_id,
            "root": signed.root.removeprefix("sha256:"),
            "note": signed.note.decode(),
        }
        insert(connection, "checkpoint", [row])
    elif str(rows[0][0]).encode() != signed.note:
        raise EvidenceError(
            f"the first {signed.size} entries are not those that were signed before",
            where="table checkpoint",
            next_step="soakledger ledger verify names every fault",
        )


def signing_key(reader: LedgerReader, environ: Mapping[str, str]) -> SigningKey:
    """The private key on this machine of the ledger that ``reader`` reads. Raises HomeError when it is lost."""
    key = SigningKey.load(reader.origin, environ)
    if key.verify_key != verify_key(reader):
        raise HomeError(f"the signing key on this machine is not the one that ledger {reader.origin} was made with")
    return key


def verify_key(reader: LedgerReader) -> VerifyKey:
    """The public key that genesis fixed. Raises EvidenceError."""
    return VerifyKey.from_text(reader.origin, str(reader.genesis().data.get("public_key")))


def sign(connection: sa.Connection, head: Head, key: SigningKey) -> Checkpoint:
    """Sign a head that this transaction sees or makes, and add its row; the caller writes the file after the commit."""
    signed = note.sign_checkpoint(head.size, head.root, key)
    insert_row(connection, signed, key.key_id.hex())
    return signed


class Sizes(NamedTuple):
    """The trees that the checkpoints of a home speak of: the largest of the table, and those in the files' names."""

    row: int
    files: tuple[int, ...]


def sizes(reader: LedgerReader, home: EvidenceHome) -> Sizes:
    """What the checkpoints speak of now."""
    ((row,),) = reader.fetch(sa.select(sa.func.max(CHECKPOINT.c.tree_size)))
    if row is not None and not isinstance(row, int):
        raise EvidenceError(
            "holds a row that is no checkpoint",
            where="table checkpoint",
            next_step="soakledger ledger verify names every fault",
        )
    return Sizes(row or 0, tuple(file_sizes(home.checkpoints)))


def largest(spoken_of: Sizes, home: EvidenceHome, key: Callable[[], VerifyKey], size: int) -> int:
    """The largest tree that was signed.

    A file's name says nothing: one that speaks of more than the ``size`` entries that there are counts when the
    ledger's own key signed it. Anything else that lies there is for ``verify`` to name.
    """
    beyond = (known for known in spoken_of.files if known > size)
    return max([spoken_of.row, *(known for known in beyond if read_file(home, known, key()))])


def owed_files(reader: LedgerReader, home: EvidenceHome, key: VerifyKey) -> list[tuple[int, bytes]]:
    """Size and note of the checkpoints whose rows have no file."""
    there = set(file_sizes(home.checkpoints))
    return [(size, data) for size, data in _notes(reader, key).items() if size not in there]


def owed_rows(reader: LedgerReader, home: EvidenceHome, key: VerifyKey) -> list[Checkpoint]:
    """The checkpoints in the folder that ``key`` signed over this very history and that no row holds."""
    without = sorted(set(file_sizes(home.checkpoints)) - _notes(reader, key).keys())
    size = reader.size()
    found = (read_file(home, known, key) for known in without if 0 < known <= size)
    return [signed for signed in found if signed is not None and signed.root == reader.root_at(signed.size)]


def _notes(reader: LedgerReader, key: VerifyKey) -> dict[int, bytes]:
    stored = sa.select(CHECKPOINT.c.tree_size, CHECKPOINT.c.note).where(CHECKPOINT.c.key_id == key.key_id.hex())
    return {int(size): str(data).encode() for size, data in reader.fetch(stored)}
