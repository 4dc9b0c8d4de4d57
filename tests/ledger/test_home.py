"""Where the evidence is, and that looking makes nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ledger.audit import verify
from ledger.home import EvidenceHome, resolve_home
from ledger.store import Ledger
from receipts.errors import HomeError


def test_the_option_wins_over_the_variable_and_the_variable_over_the_folder_here(tmp_path: Path) -> None:
    environ = {"SOAKLEDGER_HOME": "/somewhere/else"}
    assert resolve_home(str(tmp_path), environ).path == tmp_path
    assert resolve_home(None, environ).path == Path("/somewhere/else")
    assert resolve_home(None, {}).path == Path.cwd() / "evidence"


def test_reading_a_home_that_is_not_there_says_so_and_creates_nothing(home: EvidenceHome, tmp_path: Path) -> None:
    with pytest.raises(HomeError, match="no ledger here"):
        Ledger.open(home, read_only=True)
    assert [fault.what for fault in verify(home).faults] == ["there is no ledger here"]
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("module", "absent"), [("ledger.home", "sqlalchemy"), ("ledger.store", "torch")])
def test_importing_a_module_leaves_the_heavy_ones_alone(module: str, absent: str) -> None:
    code = f"import sys, {module}; sys.exit({absent!r} in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
