"""What Python could import beside the files that the identity hashes (docs/formats/identity.md).

A module that no RECORD lists changes no digest and may still take the place of one that is listed: an extension
before its source, a package before a module of its name, a ``sitecustomize`` before everything.
"""

from __future__ import annotations

import hashlib
import importlib.machinery
import importlib.util
import os
import site
import sysconfig
from base64 import urlsafe_b64encode
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path
from typing import Final

from receipts import canonical
from receipts.errors import IdentityError

_SUFFIXES: Final = tuple(importlib.machinery.all_suffixes())
CUSTOMIZERS: Final = ("sitecustomize", "usercustomize")
"""Modules that every Python imports by itself where it finds them."""


def unlisted(folder: Path, base: Path, listed: Collection[str]) -> Iterator[str]:
    """Paths below ``folder``, relative to ``base``, that could be imported and that ``listed`` does not hold.

    Bytecode in a ``__pycache__`` is none of them: the producer reads none. A linked folder is one, whatever it holds.
    """
    for place, folders, files in os.walk(folder):
        if "__pycache__" in folders:
            folders.remove("__pycache__")
        where = Path(place)
        for name in sorted(folders):
            if (where / name).is_symlink():
                yield (where / name).relative_to(base).as_posix() + "/"
        for name in sorted(files):
            if name.endswith(_SUFFIXES) and (path := (where / name).relative_to(base).as_posix()) not in listed:
                yield path


def require_listed(package: str, folders: Iterable[Path], base: Path, listed: Collection[str]) -> None:
    """Raise IdentityError naming each file of ``folders`` that could be imported and is hashed by nobody."""
    strays = [path for folder in folders for path in unlisted(folder, base, listed)]
    if strays:
        raise IdentityError(
            f"files of {package} are there that are no part of it and could be imported",
            details=[f"{path}: in no list of its files" for path in strays],
            where=str(base),
            next_step=f"take them away, or install {package} anew",
        )


def require_no_customizer() -> None:
    """Raise IdentityError where Python would import a ``sitecustomize`` or ``usercustomize`` of others by itself."""
    library = [Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib")]
    for name in CUSTOMIZERS:
        try:
            spec = importlib.util.find_spec(name)
        except ValueError:  # loaded by hand, and says of itself nothing
            spec = None
        origin = None if spec is None else spec.origin or str(spec.submodule_search_locations)
        if origin is not None and Path(origin).parent not in library:
            raise IdentityError(
                f"Python imports {name} by itself, and nobody hashed it",
                where=origin,
                next_step="take it away, or use an environment of Python without it",
            )


def startup_code(folders: Iterable[Path] | None = None) -> dict[str, str]:
    """SHA-256 by name of each ``.pth`` file that runs code at the start of Python and is as no RECORD says.

    ``folders`` are the site folders, this Python's own by default.
    """
    found = {}
    for folder in map(Path, site.getsitepackages()) if folders is None else folders:
        for path in sorted(folder.glob("*.pth")):
            data = path.read_bytes()
            runs = any(line.startswith((b"import ", b"import\t")) for line in data.splitlines())
            if runs and not _is_recorded(folder, path.name, data):
                found[path.name] = canonical.sha256(data)
    return found


def _is_recorded(folder: Path, name: str, data: bytes) -> bool:
    digest = urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
    row = f"{name},sha256={digest},"
    records = folder.glob("*.dist-info/RECORD")
    return any(line.startswith(row) for record in records for line in record.read_text("utf-8").splitlines())
