"""The specs that ship with soakledger, and how a spec is found by id or path and compared with its registration."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from campaigns.refusals import Metrics, read_spec
from campaigns.spec import CampaignSpec
from receipts import canonical, lint
from receipts.errors import InputError
from receipts.names import is_identifier, one_line, quoted
from receipts.nearest import nearest

if TYPE_CHECKING:
    from ledger.reader import LedgerReader

_MOST_CHANGES: Final = 4
"""Changed values that are told in one line; the difference below it has them all."""
_NONE: Final = object()


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


def find(name: str, metrics: Metrics | None = None, *, registered: Sequence[str] = ()) -> LoadedSpec:
    """The shipped spec with that id, or else the file at that path. InputError names the nearest id."""
    if is_identifier(name) and not name.endswith(".toml"):
        ids = {}
        for source, raw in _shipped_files():
            ids[Path(source).stem] = (source, raw)
        if name in ids:
            return _load_shipped(*ids[name], metrics)
        if not Path(name).exists():
            near = nearest(name, [*ids, *registered])
            others = [item for item in registered if item not in ids]
            known = f"; shipped: {', '.join(sorted(ids))}" + (f"; registered: {', '.join(others)}" if others else "")
            hint = f" (did you mean {quoted(near)}?)" if near else known
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
    return find(name, registered=sorted({entry.subject for entry in ledger.entries(kinds={"registration"})}))


def changes_in_words(registered: Mapping[str, Any], now: Mapping[str, Any]) -> str:
    """In one line, which values of a resolved spec changed and how; safe to print."""
    changes = [
        f"{place} {_value(old)} -> {_value(new)}" for place, old, new in _changes("", dict(registered), dict(now))
    ]
    if not changes:
        return "changed: only how it is written; every value is the same"
    more = len(changes) - _MOST_CHANGES
    return "changed: " + "; ".join(changes[:_MOST_CHANGES]) + (f"; and {more} more" if more > 0 else "")


def _changes(place: str, old: Any, new: Any) -> Iterator[tuple[str, Any, Any]]:
    """Every value that differs, with its place; stages and criteria go by their names, not by their order."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        for key in [*old, *(key for key in new if key not in old)]:
            yield from _changes(f"{place}.{key}".lstrip("."), old.get(key, _NONE), new.get(key, _NONE))
    elif _are_named(old) and _are_named(new):
        before, after = ({item["name"]: item for item in items} for items in (old, new))
        yield from _changes(place, before, after)
        if before == after and list(before) != list(after):
            yield f"{place} order", ", ".join(before), ", ".join(after)
    elif old != new:
        yield place, old, new


def _are_named(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, Mapping) and "name" in item for item in value)


def _value(value: Any) -> str:
    if value is _NONE or value is None:
        return "none"
    if isinstance(value, Mapping):
        return "given"
    return one_line(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), 40)


def raw_difference(registered: bytes, now: bytes) -> list[str]:
    """Unified diff of two spec files, empty where the bytes are equal; lines safe to print."""
    if registered == now:
        return []
    before, after = (raw.decode("utf-8", "replace").replace("\r\n", "\n") for raw in (registered, now))
    return _diff(before, after) or ["the two differ in line endings only"]


def resolved_difference(registered: Mapping[str, Any], now: Mapping[str, Any]) -> list[str]:
    """Unified diff of two resolved specs, one value a line, empty where they are equal."""
    return _diff(*(json.dumps(item, indent=1, sort_keys=True, ensure_ascii=False) for item in (registered, now)))


def _diff(before: str, after: str) -> list[str]:
    # Only a newline ends a line of TOML or JSON; U+2028 and its like are letters of a text there.
    lines = difflib.unified_diff(before.split("\n"), after.split("\n"), "registered", "now", lineterm="", n=2)
    return [one_line(line, 400) for line in lines]


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
