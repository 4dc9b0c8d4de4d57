"""The specs that ship with soakledger, and how a spec is found by id or path and compared with its registration."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from campaigns.refusals import Metrics, read_spec
from campaigns.spec import CampaignSpec
from ledger.reader import LedgerReader
from receipts import canonical, lint
from receipts.errors import InputError
from receipts.names import is_identifier, one_line, quoted
from receipts.nearest import nearest


@dataclass(frozen=True)
class LoadedSpec:
    """A spec with the bytes it was read from; ``spec_sha256`` is over them. ``folder`` is None for shipped ones."""

    spec: CampaignSpec
    raw: bytes
    source: str
    folder: Path | None

    @property
    def spec_sha256(self) -> str:
        return canonical.sha256(self.raw)


def shipped(metrics: Metrics | None = None) -> tuple[LoadedSpec, ...]:
    """Every spec under ``campaigns/specs``, by id."""
    loaded = [_load_shipped(name, raw, metrics) for name, raw in _shipped_files()]
    return tuple(sorted(loaded, key=lambda item: item.spec.id))


def find(name: str, metrics: Metrics | None = None) -> LoadedSpec:
    """The shipped spec with that id, or else the file at that path. InputError names the nearest id."""
    if is_identifier(name) and not name.endswith(".toml"):
        ids = {}
        for source, raw in _shipped_files():
            ids[Path(source).stem] = (source, raw)
        if name in ids:
            return _load_shipped(*ids[name], metrics)
        if not Path(name).exists():
            near = nearest(name, ids)
            hint = f" (did you mean {quoted(near)}?)" if near else f"; shipped: {', '.join(sorted(ids))}"
            raise InputError(f"no shipped campaign and no file is named {quoted(name)}{hint}")
    path = Path(name)
    document = lint.read_document(path)
    return LoadedSpec(
        read_spec(document.raw, document.source, metrics), document.raw, document.source, path.absolute().parent
    )


def find_registered(name: str, ledger: LedgerReader) -> LoadedSpec:
    """What ``find`` finds; where that is nothing, the spec that the ledger's last registration of that id froze."""
    if is_identifier(name) and not Path(name).exists() and not any(Path(s).stem == name for s, _ in _shipped_files()):
        entry = ledger.latest("registration", name)
        if entry is not None:
            raw = str(entry.data["spec"]).encode("utf-8")
            return LoadedSpec(read_spec(raw, f"entry {entry.seq}"), raw, f"entry {entry.seq}", None)
    return find(name)


def raw_difference(registered: bytes, now: bytes) -> str:
    """Unified diff of two spec files, empty where the bytes are equal; safe to print."""
    if registered == now:
        return ""
    before, after = registered.decode("utf-8", "replace"), now.decode("utf-8", "replace")
    return _diff(before, after) or "the two differ in line endings only"


def resolved_difference(registered: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """Unified diff of two resolved specs, one value a line, empty where they are equal."""
    return _diff(*(json.dumps(item, indent=1, sort_keys=True, ensure_ascii=False) for item in (registered, now)))


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), "registered", "now", lineterm="", n=2)
    return "\n".join(one_line(line.rstrip("\n"), 400) for line in lines)


def _shipped_files() -> Iterator[tuple[str, bytes]]:
    yield from _toml_files(resources.files("campaigns") / "specs", "specs")


def _toml_files(folder: Traversable, name: str) -> Iterator[tuple[str, bytes]]:
    for item in sorted(folder.iterdir(), key=lambda entry: entry.name):
        if item.is_dir():
            yield from _toml_files(item, f"{name}/{item.name}")
        elif item.name.endswith(".toml"):
            yield f"{name}/{item.name}", item.read_bytes()


def _load_shipped(source: str, raw: bytes, metrics: Metrics | None) -> LoadedSpec:
    return LoadedSpec(read_spec(raw, source, metrics), raw, source, None)
