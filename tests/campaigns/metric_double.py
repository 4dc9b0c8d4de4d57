"""Metrics for the tests of specs: the shape of ``receipts.metrics``, with values that the tests know."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

SOAK = frozenset({"soak"})
BOTH = frozenset({"after", "streaming"})
AFTER = frozenset({"after"})
NATIVE = frozenset({"native"})


@dataclass(frozen=True)
class Metric:
    kind: str
    scope: str = "rep"
    low: Fraction | None = None
    high: Fraction | None = None
    stage_kinds: frozenset[str] = SOAK
    transfers: frozenset[str] = BOTH
    modes: frozenset[str] = NATIVE


METRICS = {
    "handoff.acknowledged": Metric("acknowledgement", low=Fraction(0), high=Fraction(1)),
    "producer.instance": Metric("identity"),
    "producer.deaths": Metric("deaths", low=Fraction(0)),
    "handoff.payload_root": Metric("digest"),
    "handoff.tensors_root": Metric("digest"),
    "handoff.burst_gbps": Metric("rate", low=Fraction(0), transfers=AFTER),
    "handoff.burst_last3_over_first3": Metric("rate", scope="run", low=Fraction(0), transfers=AFTER),
    "handoff.total_s": Metric("duration", low=Fraction(0)),
}
