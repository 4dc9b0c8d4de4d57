"""Registering: what is compared with what, whoever else registers at the same moment."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from judged import SOAK_N12
from judged_ledger import new_ledger, still_clock

from campaigns import registry
from campaigns.registration import Registered, register
from campaigns.spec import resolve
from ledger.store import Ledger
from receipts.errors import InputError

LOOSE = SOAK_N12.replace(b"value = 3.0", b"value = 0.5")


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


@pytest.fixture
def other(ledger: Ledger, tmp_path: Path) -> Ledger:
    """The same ledger in another process's hands."""
    environ = {"XDG_CONFIG_HOME": str(tmp_path / "cfg"), "XDG_STATE_HOME": str(tmp_path / "state")}
    clock, tool = still_clock(), {"version": "0", "commit": None}
    return Ledger.open(ledger.home, clock=clock, tool=tool, read_only=False, environ=environ)


def registered(ledger: Ledger, text: bytes, folder: Path, reason: str | None = None) -> Registered:
    path = folder / "spec.toml"
    path.write_bytes(text)
    loaded = registry.find(str(path))
    return register(ledger, loaded, resolve(loaded.spec), reason)


def test_a_spec_that_another_process_registers_meanwhile_is_compared_with(
    ledger: Ledger, other: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both began when nothing was registered; the strict one was faster, and the loose one is not the first."""
    append = ledger._append

    def after_the_other(make: Any) -> Any:
        monkeypatch.undo()
        registered(other, SOAK_N12, tmp_path)
        return append(make)

    monkeypatch.setattr(ledger, "_append", after_the_other)
    with pytest.raises(InputError, match="registered with another text"):
        registered(ledger, LOOSE, tmp_path)
    amended = registered(ledger, LOOSE, tmp_path, "the floor was a wish")
    assert not registered(other, LOOSE, tmp_path, "again").fresh
    assert amended.data.parent_seq == 1
    assert [item["field"] for item in amended.data.weaker] == ["criterion.burst-floor.value"]


def test_the_same_spec_again_changes_nothing(ledger: Ledger, tmp_path: Path) -> None:
    first = registered(ledger, SOAK_N12, tmp_path)
    again = registered(ledger, SOAK_N12, tmp_path)
    assert (first.fresh, again.fresh) == (True, False)
    assert (again.entry, ledger.size()) == (first.entry, 2)
