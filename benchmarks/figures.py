"""A figure with its bound, as every benchmark reports it, and how documents are read into figures.

A benchmark is a module of this package that answers ``python -m benchmarks.<name> --json`` with one JSON
object. Its member ``figures`` is a list of {name, value, unit, op, bound}; ``op`` is ``<=`` or ``>=``, and
``bound`` is null for a figure that is only told. A value that could not be measured is null.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Figure:
    """One measured figure; ``value`` None was not measured, ``bound`` None is not asked of it."""

    name: str
    value: float | None
    unit: str
    op: str
    bound: float | None

    @property
    def reached(self) -> str:
        """``yes``, ``NO``, or a dash where there is nothing to compare: what was not measured is not reached."""
        if self.bound is None:
            return "—"
        if self.value is None:
            return "NO"
        return "yes" if (self.value <= self.bound if self.op == "<=" else self.value >= self.bound) else "NO"

    def document(self) -> dict[str, Any]:
        return {"name": self.name, "value": self.value, "unit": self.unit, "op": self.op, "bound": self.bound}


def figures_of(benchmark: str, document: dict[str, Any]) -> list[Figure]:
    """The figures in what ``benchmark`` printed. Raises KeyError or TypeError on a document of another shape."""
    if "figures" in document:
        return [Figure(**item) for item in document["figures"]]
    return _ADAPTERS[benchmark](document)


def _wire(document: dict[str, Any]) -> list[Figure]:
    found = [Figure("BLAKE3, one thread", document["machine"]["blake3_gb_per_s"], "GB/s", ">=", None)]
    for case in document["cases"]:
        name, over = case["payload"], case["receiver_peak_over_payload_bytes"]
        found.append(Figure(f"plain stream {name}", case["plain_gb_per_s"], "GB/s", ">=", None))
        at_capture, in_window = (case[f"digest_{where}_ratio"]["median"] for where in ("at_capture", "in_window"))
        found.append(Figure(f"handoff {name} / plain", at_capture, "", ">=", document["floor"]))
        # No producer of ours works so; it shows what digests made at capture are worth.
        found.append(Figure(f"both digests in the window {name} / plain", in_window, "", ">=", None))
        found.append(Figure(f"receiver over {name}", None if over is None else over / 2**20, "MiB", "<=", 64))
    return found


def _ledger(document: dict[str, Any]) -> list[Figure]:
    limit = document["record_receipt_limit_ms"]
    return [
        Figure("recorded receipt, p50", document["record_receipt_p50_ms"], "ms", "<=", limit),
        Figure("one fsync of one byte, p50", document["fsync_p50_ms"], "ms", "<=", None),
        Figure(f"verify {document['verify_entries']} entries", document["verify_s"], "s", "<=", None),
    ]


_ADAPTERS = {"wire": _wire, "ledger": _ledger}
