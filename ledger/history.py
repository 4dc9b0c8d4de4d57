"""The whole history read again: bodies against hashes, hashes against the chain, the tree against every signature.

The node table has no part in it: it is derived, and may have been left as it was when the entries were changed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import sqlalchemy as sa

from ledger import checkpoints, merkle, note
from ledger.entry import NO_PREV, Entry
from ledger.home import EvidenceHome
from ledger.keys import VerifyKey
from ledger.reader import LedgerReader
from ledger.seen import Mark
from ledger.tables import CHECKPOINT
from receipts.errors import EvidenceError

_VERIFY: Final = "soakledger ledger verify names every fault"


@dataclass(frozen=True)
class History:
    """A history that was found to be the one that was signed."""

    size: int
    """Entries that were read."""
    signed: int
    """The largest tree that the ledger's own key signed over them."""
    roots: dict[int, str]
    """Root (``sha256:<hex>``) by tree size, for every size that was asked for, signed or seen."""


def require_history(reader: LedgerReader, home: EvidenceHome, *, upto: int, mark: Mark | None) -> History:
    """Read the entries from genesis on, at least ``upto`` of them and all that were signed, and compare.

    Linear in their number. Raises EvidenceError naming the first entry that is not what it was, or the range of them.
    """
    size = reader.size()
    if size < upto:
        raise EvidenceError(f"the ledger has {size} entries, and {upto} are spoken of", next_step=_VERIFY)
    claims = _claims(reader, home, size)
    signed = max(claims, default=0)
    if mark is not None and mark.size <= max(signed, upto):
        claims.setdefault(mark.size, {})[mark.root] = "this machine has seen"
    roots: dict[int, str] = {}
    frontier, last_leaf, good = merkle.Frontier(), NO_PREV, 0
    for entry in reader.entries(0, max(signed, upto) - 1):
        _require_next(entry, frontier.size, last_leaf)
        frontier.append(bytes.fromhex(entry.leaf_hash))
        last_leaf = entry.leaf_hash
        if frontier.size == upto or frontier.size in claims:
            root = roots[frontier.size] = "sha256:" + frontier.root().hex()
            for known, whose in claims.get(frontier.size, {}).items():
                _require_root(root, known, whose, good, frontier.size)
            good = frontier.size if frontier.size in claims else good
    if frontier.size < max(signed, upto):
        raise EvidenceError("missing", where=f"entry {frontier.size}", next_step=_VERIFY)
    return History(frontier.size, signed, roots)


def _claims(reader: LedgerReader, home: EvidenceHome, size: int) -> dict[int, dict[str, str]]:
    """What was signed over the first entries: by tree size, each root and whose word it is."""
    key = checkpoints.verify_key(reader)
    found: dict[int, dict[str, str]] = {}
    rows = sa.select(CHECKPOINT.c.tree_size, CHECKPOINT.c.note).where(CHECKPOINT.c.key_id == key.key_id.hex())
    for stored_size, stored in reader.fetch(rows):
        signed = _of_row(stored_size, stored, key)
        if signed.size <= size:
            found.setdefault(signed.size, {})[signed.root] = "were signed"
    # A file whose row somebody took away still says what was signed.
    for known in checkpoints.file_sizes(home.checkpoints):
        if known <= size and (in_file := checkpoints.read_file(home, known, key)) is not None:
            found.setdefault(known, {})[in_file.root] = "were signed"
    return found


def _of_row(size: object, stored: object, key: VerifyKey) -> note.Checkpoint:
    where = f"table checkpoint, size {size}"
    try:
        signed = note.verify_checkpoint(str(stored).encode(), key)
    except (EvidenceError, ValueError) as error:
        raise EvidenceError(f"holds no checkpoint by the ledger's own key: {error}", where=where) from None
    if signed.size != size:
        raise EvidenceError(f"its note is over {signed.size} entries", where=where, next_step=_VERIFY)
    return signed


def _require_next(entry: Entry, seq: int, last_leaf: str) -> None:
    if entry.seq != seq:
        raise EvidenceError("missing", where=f"entry {seq}", next_step=_VERIFY)
    if entry.prev_hash != last_leaf:
        raise EvidenceError(
            f"the hash of entry {seq - 1} is not the one that this entry names: one of the two was changed",
            where=f"entry {seq}",
            next_step=_VERIFY,
        )


def _require_root(root: str, known: str, whose: str, good: int, size: int) -> None:
    if root != known:
        raise EvidenceError(
            f"the first {size} entries are not those that {whose}",
            where=f"entry {good}" if good == size - 1 else f"entries {good} … {size - 1}",
            details=[f"expected {known}", f"found {root}"],
            next_step=_VERIFY,
        )
