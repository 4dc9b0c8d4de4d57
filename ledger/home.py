"""Where the evidence lives: one folder, and the two places outside it (DESIGN section 4).

Only names are computed here. Nothing is created by looking.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

HOME_VARIABLE: Final = "SOAKLEDGER_HOME"
DEFAULT_HOME: Final = "evidence"


@dataclass(frozen=True)
class EvidenceHome:
    """The folder that holds a ledger and its evidence."""

    path: Path

    @property
    def ledger_db(self) -> Path:
        return self.path / "ledger.db"

    @property
    def receipts(self) -> Path:
        return self.path / "receipts"

    @property
    def blobs(self) -> Path:
        return self.path / "blobs"

    @property
    def checkpoints(self) -> Path:
        """Signed tree heads, ``<size>.checkpoint``."""
        return self.path / "checkpoints"

    @property
    def reports(self) -> Path:
        """Disposable: everything here can be rendered again from the ledger."""
        return self.path / "reports"


def resolve_home(option: str | None, environ: Mapping[str, str]) -> EvidenceHome:
    """The home that ``--home``, else ``$SOAKLEDGER_HOME``, else ``./evidence`` names, as an absolute path.

    An empty option or variable counts as not given. Creates nothing and reads nothing.
    """
    chosen = option or environ.get(HOME_VARIABLE) or DEFAULT_HOME
    return EvidenceHome(Path(chosen).expanduser().absolute())


def config_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_CONFIG_HOME/soakledger``, else ``~/.config/soakledger``: the signing keys, outside every home."""
    return _xdg(environ, "XDG_CONFIG_HOME", ".config") / "soakledger"


def state_folder(environ: Mapping[str, str]) -> Path:
    """``$XDG_STATE_HOME/soakledger``, else ``~/.local/state/soakledger``: the last-seen marks."""
    return _xdg(environ, "XDG_STATE_HOME", ".local/state") / "soakledger"


def _xdg(environ: Mapping[str, str], variable: str, fallback: str) -> Path:
    # The XDG base directory specification: a relative path in the variable is invalid and ignored.
    named = Path(environ.get(variable, ""))
    if named.is_absolute():
        return named
    user_home = environ.get("HOME")
    return (Path(user_home) if user_home else Path.home()) / fallback
