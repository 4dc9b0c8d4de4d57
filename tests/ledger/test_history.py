"""A history that was rewritten under a node table that was left alone: whoever reads the bodies again sees it."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Callable

import pytest
from ledger_samples import record_receipt, rewrite

from ledger import seen
from ledger.home import EvidenceHome
from ledger.store import Ledger
from receipts.errors import EvidenceError


@pytest.fixture(autouse=True)
def soaked(ledger: Ledger) -> None:
    """Receipts 1 … 9 under checkpoints over 1, 4 and 10 entries, and one more that nothing covers."""
    for n in range(1, 10):
        record_receipt(ledger, n)
        if n in (3, 9):
            ledger.checkpoint()
    record_receipt(ledger, 10)


def refused(ledger: Ledger, upto: int = 11) -> str:
    with pytest.raises(EvidenceError) as caught:
        ledger.require_history(upto=upto)
    return caught.value.headline


def test_an_honest_history_gives_the_roots_of_the_tree(ledger: Ledger) -> None:
    found = ledger.require_history(upto=7)
    assert (found.size, found.signed) == (10, 10)
    assert found.roots == {size: ledger.root_at(size) for size in (1, 4, 7, 10)}
    assert ledger.require_history(upto=11).roots[11] == ledger.head().root


def test_an_entry_that_was_changed_with_its_hash_alone_is_named_by_the_next(ledger: Ledger) -> None:
    head = ledger.head()
    rewrite(ledger, 6, "acknowledged", "refused", chained=False)
    assert ledger.head() == head  # what the node table says
    assert (
        refused(ledger)
        == "entry 7: the hash of entry 6 is not the one that this entry names: one of the two was changed"
    )


def test_a_history_that_was_chained_anew_is_not_the_one_that_was_signed(ledger: Ledger) -> None:
    rewrite(ledger, 6, "acknowledged", "refused", chained=True)
    assert refused(ledger, upto=1) == "entries 4 … 9: the first 10 entries are not those that were signed"


def test_a_checkpoint_whose_row_was_taken_away_still_speaks_as_a_file(ledger: Ledger, sql: Callable[..., None]) -> None:
    rewrite(ledger, 2, "acknowledged", "refused", chained=True)
    sql("DROP TRIGGER checkpoint_no_delete", "DELETE FROM checkpoint")
    assert refused(ledger) == "entries 1 … 3: the first 4 entries are not those that were signed"


def test_without_any_checkpoint_the_mark_of_this_machine_speaks(
    home: EvidenceHome, ledger: Ledger, sql: Callable[..., None]
) -> None:
    rewrite(ledger, 10, "acknowledged", "refused", chained=True)
    sql("DROP TRIGGER checkpoint_no_delete", "DELETE FROM checkpoint")
    for path in home.checkpoints.iterdir():
        path.unlink()
    assert refused(ledger) == "entries 0 … 10: the first 11 entries are not those that this machine has seen"
    seen.mark_path(ledger.origin, os.environ).unlink()
    assert ledger.require_history(upto=11).signed == 0


def test_an_entry_that_was_taken_away_is_missing(ledger: Ledger, sql: Callable[..., None]) -> None:
    sql("DROP TRIGGER entry_no_delete", "DELETE FROM entry WHERE seq = 5")
    assert refused(ledger) == "entry 5: missing"


def test_a_row_that_holds_no_checkpoint_of_ours_is_named(ledger: Ledger, sql: Callable[..., None]) -> None:
    sql("DROP TRIGGER checkpoint_no_update", "UPDATE checkpoint SET note = 'x' WHERE tree_size = 4")
    assert refused(ledger).startswith("table checkpoint, size 4: holds no checkpoint by the ledger's own key")


def test_the_node_table_has_no_part_in_it(ledger: Ledger) -> None:
    with sqlite3.connect(ledger.home.ledger_db) as connection:
        connection.execute("DELETE FROM node")
    connection.close()
    assert ledger.require_history(upto=11).signed == 10
