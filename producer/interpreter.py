"""What the interpreter of a process that runs our overlay may import: source that can be hashed, and nothing else.

Python prefers a ``.pyc`` to its source wherever time and size in its header fit, and nobody hashes a ``.pyc``. So the
keeper, the resident and the receiver start with a bytecode prefix under which nothing can lie, and compile what
they import. Standard library only: this is asked before anything else of ours is loaded.
"""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from types import ModuleType
from typing import Final

from receipts.errors import IdentityError

NO_BYTECODE: Final = os.devnull
"""The prefix of bytecode files: no file lies below a device, so none is found there, whoever may write where."""
OUR_PACKAGES: Final = ("campaigns", "ledger", "producer", "receipts", "templates")
_KEPT: Final = ("PYTHONUTF8", "PYTHONIOENCODING", "PYTHONHASHSEED", "PYTHONFAULTHANDLER")
"""Variables of the interpreter that add no code; every other one is dropped."""
_AGAIN: Final = "SOAKLEDGER_INTERPRETER_AGAIN"


def root() -> Path:
    """The folder that our packages are imported from."""
    return Path(__file__).resolve().parent.parent


def child_environment(environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """An environment whose Python imports our packages and the installed ones, compiles each, and writes nothing.

    A ``PYTHONPATH`` of others, the user's site folder and the working folder are no part of it.
    """
    given = os.environ if environment is None else environment
    kept = {name: value for name, value in given.items() if not name.startswith("PYTHON") or name in _KEPT}
    return kept | {
        "PYTHONPATH": str(root()),
        "PYTHONPYCACHEPREFIX": NO_BYTECODE,
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONNOUSERSITE": "1",
        "PYTHONSAFEPATH": "1",
        "PYTHONUNBUFFERED": "1",
    }


def faults() -> list[str]:
    """What lets this very process import code that nobody hashed; empty when nothing does."""
    found = []
    if sys.pycache_prefix != NO_BYTECODE:
        found.append(f"bytecode is read from {sys.pycache_prefix or '__pycache__'}, not compiled from source")
    if os.environ.get("PYTHONPATH") != str(root()):
        found.append(f"PYTHONPATH is {os.environ.get('PYTHONPATH')!r}, not {str(root())!r} alone")
    if not sys.flags.no_user_site:
        found.append("the user's site folder can be imported from")
    if not sys.flags.safe_path:
        found.append("the working folder can be imported from")
    return found


def enter(module: str, arguments: list[str]) -> None:
    """Go on only in an interpreter without ``faults``: else this process becomes ``python -m module`` in one.

    Pid and start time stay, so whoever waits for this process still does. Raises IdentityError when that did not help.
    """
    found = faults()
    if not found:
        os.environ.pop(_AGAIN, None)
        return
    if os.environ.get(_AGAIN) == "1":
        raise IdentityError("this Python would run code that nobody hashed", details=found, where=sys.executable)
    sys.stdout.flush()
    sys.stderr.flush()
    command = [sys.executable, "-m", module, *arguments]
    os.execve(sys.executable, command, child_environment() | {_AGAIN: "1"})


def require_from_source(packages: Iterable[str], base: Path) -> None:
    """Raise IdentityError naming each loaded module of ``packages`` that is bytecode of a file, or not of ``base``."""
    wanted = tuple(packages)
    found = []
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] in wanted or (name == "__main__" and _name_of(module).partition(".")[0] in wanted):
            found += [f"{name}: {fault}" for fault in _module_faults(module, base)]
    if found:
        raise IdentityError(
            "code was loaded that nobody hashed",
            details=found,
            where=str(base),
            next_step="start the producer by the ritual (`soakledger producer start`)",
        )


def require_nothing_beside(folder: Path) -> None:
    """Raise IdentityError naming each loaded module of ``folder`` that is none of our packages.

    Our root stands first among the places of import: a ``numpy.py`` beside our packages would be the one that is used.
    """
    if folder in _installed():
        return  # our packages lie among the others
    ours = tuple(folder / name for name in OUR_PACKAGES)
    apart = (*ours, *_installed(), Path(sys.prefix).resolve(), Path(sys.base_prefix).resolve())
    found = []
    for name, module in sorted(sys.modules.items()):
        origin = getattr(getattr(module, "__spec__", None), "origin", None)
        if not isinstance(origin, str) or not Path(origin).is_absolute():
            continue
        place = Path(origin).resolve()
        if place.is_relative_to(folder) and not any(place.is_relative_to(item) for item in apart):
            found.append(f"{name}: loaded from {origin}")
    if found:
        raise IdentityError("code was loaded that nobody hashed", details=found, where=str(folder))


def _installed() -> list[Path]:
    return [Path(item).resolve() for item in site.getsitepackages()]


def _name_of(module: ModuleType) -> str:
    spec = getattr(module, "__spec__", None)
    return str(spec.name) if spec is not None else ""


def _module_faults(module: ModuleType, base: Path) -> list[str]:
    spec = getattr(module, "__spec__", None)
    origin = getattr(spec, "origin", None)
    if not isinstance(origin, str) or not Path(origin).is_absolute():
        return []  # a namespace, or an object that its package put among the modules
    found = []
    cached = getattr(spec, "cached", None)
    if origin.endswith(".pyc"):
        found.append(f"bytecode without source, {origin}")
    elif isinstance(cached, str) and Path(cached).is_file():
        found.append(f"its bytecode {cached} may have been run in place of {origin}")
    if not Path(origin).resolve().is_relative_to(base.resolve()):
        found.append(f"loaded from {origin}")
    return found
