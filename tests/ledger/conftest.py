"""A ledger in a folder of its own, with its key and mark beside it and a clock that stands still."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from ledger_samples import TOOL, still_clock

from ledger.home import EvidenceHome
from ledger.store import Ledger


@pytest.fixture(autouse=True)
def user_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


@pytest.fixture
def home(tmp_path: Path) -> EvidenceHome:
    return EvidenceHome(tmp_path / "evidence")


@pytest.fixture
def ledger(home: EvidenceHome) -> Iterator[Ledger]:
    with Ledger.create(home, clock=still_clock(), tool=TOOL) as made:
        yield made


@pytest.fixture
def reopen(home: EvidenceHome) -> Callable[..., Ledger]:
    def open_again(*, read_only: bool = False) -> Ledger:
        return Ledger.open(home, clock=still_clock(), tool=TOOL, read_only=read_only)

    return open_again


@pytest.fixture
def sql(home: EvidenceHome) -> Callable[..., None]:
    """Runs SQL on the file the way an outsider would: plain sqlite3, none of our guards on the connection."""

    def run(*statements: str, recursive_triggers: bool = True) -> None:
        connection = sqlite3.connect(home.ledger_db, isolation_level=None)
        try:
            connection.execute(f"PRAGMA recursive_triggers = {'ON' if recursive_triggers else 'OFF'}")
            for statement in statements:
                connection.execute(statement)
        finally:
            connection.close()

    return run
