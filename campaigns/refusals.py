"""What a spec is refused for before it may be registered, all at once, each with line and key. Pure.

``read_spec`` is the door: bytes in, a spec that can be judged out. How large it may be is in ``campaigns/sizes.py``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from fractions import Fraction
from typing import Any, Final, Protocol

from pydantic import TypeAdapter, ValidationError

from campaigns import sizes
from campaigns.spec import (
    MAX_REPS,
    CampaignSpec,
    Criterion,
    PreflightStage,
    SoakStage,
    Stage,
    UnbuiltStage,
    carries_percentile,
    decimal_text,
    percentile_rank,
    samples_of,
)
from receipts import lint
from receipts.lint import Fault
from receipts.names import quoted
from receipts.nearest import nearest
from receipts.toml_lines import KeyPath

BURST_RATIO: Final = "handoff.burst_last3_over_first3"
BURST_RATIO_REPS: Final = 6
TREND_SAMPLES: Final = 3
GROUPS: Final = (
    "run", "case", "prompt_sha256", "prompt_tokens", "payload_bytes", "payload_root", "tensors_root", "transfer",
    "outcome", "producer.identity", "producer.cache_identity", "producer.mode", "producer.host", "producer.boot_id",
    "producer.pid", "receiver.name", "receiver.host",
)  # fmt: skip
"""What ``by`` may group on: run, case, or a scalar field of the handoff body."""

_ORDERED: Final = frozenset({"min", "max", "mean", "first", "last"})
AGGREGATES: Final[Mapping[str, frozenset[str]]] = {
    "acknowledgement": _ORDERED | {"sum"},
    "deaths": frozenset({"sum", "max", "mean"}),
    "duration": _ORDERED | {"sum", "median", "trend", "pNN"},
    "rate": _ORDERED | {"median", "trend", "pNN"},
    "size": _ORDERED | {"sum", "median", "trend", "pNN", "distinct"},
    "count": _ORDERED | {"sum", "median", "trend", "pNN", "distinct"},
    "digest": frozenset({"distinct"}),
    "identity": frozenset({"distinct"}),
}
"""Aggregates that mean something, by kind of metric; a rate has no sum, a digest only a number of values."""

SAME_GROUP: Final[Mapping[str, frozenset[str]]] = {
    "handoff.payload_root": frozenset({"payload_root"}),
    "handoff.tensors_root": frozenset({"tensors_root", "payload_root"}),
    "handoff.payload_bytes": frozenset({"payload_bytes", "payload_root", "tensors_root"}),
}
"""Fields that fix a metric's value: grouped by one of them, every group holds one value whatever happened."""

MEAN_OF_RATES_SAMPLES: Final = 128
"""A mean of rates has the product of their durations below its line: of so many, each of as many digits as a stamp
may have, it still prints exactly."""

NO_SECOND_BOUND: Final = frozenset({"acknowledgement", "deaths", "digest", "identity"})


class MetricFacts(Protocol):
    """What is asked of an entry of ``receipts.metrics.METRICS``."""

    @property
    def kind(self) -> str: ...
    @property
    def scope(self) -> str: ...
    @property
    def low(self) -> Fraction | None: ...
    @property
    def high(self) -> Fraction | None: ...
    @property
    def stage_kinds(self) -> frozenset[str]: ...
    @property
    def transfers(self) -> frozenset[str]: ...
    @property
    def modes(self) -> frozenset[str]: ...


Metrics = Mapping[str, MetricFacts]


def known_metrics() -> Metrics:
    """The metrics of this release."""
    from receipts.metrics import METRICS

    table: Metrics = METRICS
    return table


def read_spec(raw: bytes, source: str, metrics: Metrics | None = None) -> CampaignSpec:
    """Read a spec strictly. FaultsError with every fault of form and of meaning, ordered by line."""
    inspection = lint.inspect(lint.parse_document(raw, source), CampaignSpec)
    table = known_metrics() if metrics is None else metrics
    spec = inspection.checked(inspection.fault(*found) for found in _refusals(inspection.data, table))
    return inspection.checked(Fault(1, (), what) for what in sizes.refusals(spec, raw.decode("utf-8"), table))


_Refusal = tuple[KeyPath, str, str | None]
_Stages = Mapping[str, PreflightStage | SoakStage]


def _refusals(data: Mapping[str, Any], metrics: Metrics) -> Iterator[_Refusal]:
    """Faults of meaning. Items that do not read on their own were reported by the model, and are passed over."""
    stages, criteria = _list(data, "stage"), _list(data, "criterion")
    yield from _duplicates("stage", stages)
    yield from _duplicates("criterion", criteria)
    read: dict[str, PreflightStage | SoakStage] = {}
    for index, item in enumerate(stages):
        stage = _read(_STAGE, item)
        if isinstance(stage, PreflightStage | SoakStage) and not isinstance(stage, UnbuiltStage):
            read.setdefault(stage.name, stage)
        if isinstance(stage, SoakStage):
            yield from _soak_refusals(stage, ("stage", index), criteria, metrics)
    names = [item["name"] for item in stages if isinstance(item, Mapping) and isinstance(item.get("name"), str)]
    for index, item in enumerate(criteria):
        if isinstance(item, Mapping):
            yield from _reference_refusals(item, ("criterion", index), names, metrics)
        criterion = _read(_CRITERION, item)
        if isinstance(criterion, Criterion) and criterion.metric in metrics:
            yield from _criterion_refusals(criterion, ("criterion", index), read, metrics[criterion.metric])


_STAGE: Final[TypeAdapter[Any]] = TypeAdapter(Stage)
_CRITERION: Final[TypeAdapter[Any]] = TypeAdapter(Criterion)


def _read(adapter: TypeAdapter[Any], item: Any) -> Any:
    try:
        return adapter.validate_python(item)
    except ValidationError:
        return None


def _list(data: Mapping[str, Any], key: str) -> Sequence[Any]:
    value = data.get(key)
    return value if isinstance(value, list) else []


def _duplicates(key: str, items: Sequence[Any]) -> Iterator[_Refusal]:
    seen: set[str] = set()
    for index, item in enumerate(items):
        name = item.get("name") if isinstance(item, Mapping) else None
        if isinstance(name, str) and name in seen:
            yield (key, index, "name"), f"{quoted(name)} is the name of an earlier {key}", None
        elif isinstance(name, str):
            seen.add(name)


def _soak_refusals(stage: SoakStage, at: KeyPath, criteria: Sequence[Any], metrics: Metrics) -> Iterator[_Refusal]:
    if (reps := stage.runs * stage.reps) > MAX_REPS:
        yield (
            (*at, "runs"),
            f"runs of reps: {reps} in all, and a stage has at most {MAX_REPS}",
            None,
        )
    if stage.watchdog_s is not None and stage.watchdog_s >= stage.rep_deadline_s:
        yield (*at, "watchdog_s"), f"{stage.watchdog_s} is not below rep_deadline_s {stage.rep_deadline_s}", None
    looked_at = any(
        isinstance(item, Mapping)
        and item.get("stage") == stage.name
        and item.get("include_control") is True
        and not _sees_no_control(metrics, item.get("metric"))
        for item in criteria
    )
    if stage.control is not None and not looked_at:
        yield (
            (*at, "control"),
            "no criterion of this stage has include_control = true: the control decides nothing",
            None,
        )


def _sees_no_control(metrics: Metrics, name: Any) -> bool:
    metric = metrics.get(name) if isinstance(name, str) else None
    return metric is not None and (metric.kind == "deaths" or metric.scope != "rep")


def _reference_refusals(
    item: Mapping[str, Any], at: KeyPath, stages: Sequence[str], metrics: Metrics
) -> Iterator[_Refusal]:
    stage, metric, by = item.get("stage"), item.get("metric"), item.get("by")
    if isinstance(stage, str) and stage not in stages:
        yield (*at, "stage"), f"{quoted(stage)} is no stage of this spec", nearest(stage, stages)
    if isinstance(metric, str) and metric not in metrics:
        near = nearest(metric, metrics, 0.5)
        known = "" if near else "; `soakledger campaign metrics` lists them"
        yield (*at, "metric"), f"{quoted(metric)} is no metric{known}", near
    if isinstance(by, str) and by not in GROUPS:
        yield (*at, "by"), f"{quoted(by)} is none of {' | '.join(GROUPS)}", nearest(by, GROUPS, 0.5)


def _criterion_refusals(criterion: Criterion, at: KeyPath, stages: _Stages, metric: MetricFacts) -> Iterator[_Refusal]:
    family = "pNN" if percentile_rank(criterion.aggregate, 1) is not None else criterion.aggregate
    allowed = AGGREGATES.get(metric.kind, frozenset())
    if family not in allowed:
        listed = " | ".join(sorted(allowed))
        article = "an" if metric.kind[0] in "aeiou" else "a"
        yield (*at, "aggregate"), f"{criterion.aggregate} says nothing of {article} {metric.kind}; use {listed}", None
    if criterion.by is not None and criterion.aggregate != "distinct":
        yield (*at, "by"), 'is only for aggregate = "distinct"', None
    elif criterion.by in SAME_GROUP.get(criterion.metric, frozenset()):
        yield (*at, "by"), f"every group of one {criterion.by} has one {criterion.metric}: it decides nothing", None
    if criterion.op == "==" and family != "distinct" and metric.kind not in ("acknowledgement", "deaths"):
        yield (*at, "op"), f"== has no failing end on a {metric.kind}; use >= or <=", None
    yield from _second_bound_refusals(criterion, at, metric)
    stage = stages.get(criterion.stage)
    if stage is None:
        return
    if stage.kind not in metric.stage_kinds:
        yield (*at, "metric"), f"{criterion.metric} is not produced by a {stage.kind} stage", None
        return
    if isinstance(stage, SoakStage):
        yield from _sample_refusals(criterion, at, stage, metric)
    if family in allowed:
        yield from _bound_refusals(criterion, at, stage, metric)


def _second_bound_refusals(criterion: Criterion, at: KeyPath, metric: MetricFacts) -> Iterator[_Refusal]:
    second = criterion.deviate_to
    if second is None:
        return
    if metric.kind in NO_SECOND_BOUND or criterion.aggregate == "distinct":
        yield (*at, "deviate_to"), f"there is no second bound on {metric.kind}: it holds or it does not", None
    elif criterion.op in (">=", ">") and second >= criterion.value:
        yield (*at, "deviate_to"), "is not looser than value: it must lie below it", None
    elif criterion.op in ("<=", "<") and second <= criterion.value:
        yield (*at, "deviate_to"), "is not looser than value: it must lie above it", None


def _sample_refusals(criterion: Criterion, at: KeyPath, stage: SoakStage, metric: MetricFacts) -> Iterator[_Refusal]:
    samples = samples_of(stage, metric.scope, criterion.include_control)
    if criterion.metric == BURST_RATIO and stage.reps < BURST_RATIO_REPS:
        yield (*at, "metric"), f"needs at least {BURST_RATIO_REPS} reps a run; the stage has {stage.reps}", None
    if not carries_percentile(criterion.aggregate, samples):
        rank = percentile_rank(criterion.aggregate, samples)
        yield (
            (*at, "aggregate"),
            (f"{criterion.aggregate} of {samples} samples is rank {rank}, an end of them: use min or max"),
            None,
        )
    if criterion.aggregate == "trend":
        yield from _trend_refusals(criterion, at, stage, metric)
    if criterion.aggregate == "mean" and metric.kind == "rate":
        most = MEAN_OF_RATES_SAMPLES if metric.scope == "rep" else MEAN_OF_RATES_SAMPLES // BURST_RATIO_REPS
        if samples > most:
            yield (*at, "aggregate"), f"mean of rates is exact up to {most} samples, not {samples}: use median", None
    if criterion.include_control:
        yield from _control_refusals(criterion, at, stage, metric)


def _trend_refusals(criterion: Criterion, at: KeyPath, stage: SoakStage, metric: MetricFacts) -> Iterator[_Refusal]:
    if metric.scope != "rep":
        yield (*at, "aggregate"), f"trend is a slope per rep; {criterion.metric} is one value a {metric.scope}", None
    elif stage.reps < TREND_SAMPLES:
        yield (*at, "aggregate"), f"trend needs {TREND_SAMPLES} reps a run; the stage has {stage.reps}", None


def _control_refusals(criterion: Criterion, at: KeyPath, stage: SoakStage, metric: MetricFacts) -> Iterator[_Refusal]:
    why = None
    if stage.control is None:
        why = f"stage {stage.name} has no control"
    elif metric.kind == "deaths":
        why = f"{criterion.metric} counts every death from the stage's start to its close: controls are in it anyway"
    elif metric.scope != "rep":
        why = f"{criterion.metric} is one value a {metric.scope}; controls are not in it"
    elif criterion.aggregate == "trend":
        why = "a control has no place among the reps that a trend runs over"
    if why is not None:
        yield (*at, "include_control"), why, None


def _bound_refusals(
    criterion: Criterion, at: KeyPath, stage: PreflightStage | SoakStage, metric: MetricFacts
) -> Iterator[_Refusal]:
    samples = samples_of(stage, metric.scope, criterion.include_control and metric.kind != "deaths")
    if criterion.aggregate == "distinct" and isinstance(stage, SoakStage):
        samples = _largest_group(criterion, stage)
    low, high = _attainable(criterion.aggregate, samples, metric)
    value, op, whole = criterion.value, criterion.op, criterion.aggregate == "distinct"
    never = {
        "==": (low is not None and value < low) or (high is not None and value > high),
        ">=": high is not None and value > high,
        ">": high is not None and value >= high,
        "<=": low is not None and value < low,
        "<": low is not None and value <= low,
    }[op]
    always = {
        "==": low == high == value,
        ">=": low is not None and value <= low,
        ">": low is not None and value < low,
        "<=": high is not None and value >= high,
        "<": high is not None and value > high,
    }[op]
    counted = whole or (metric.kind in ("acknowledgement", "deaths") and criterion.aggregate != "mean")
    never = never or (op == "==" and counted and value.denominator != 1)
    shown = f"{criterion.aggregate} of {samples} sample(s) lies within {_end(low)} .. {_end(high)}"
    if never:
        yield (*at, "value"), f"no value can meet {op} {decimal_text(value)}: {shown}", None
    elif always:
        yield (*at, "value"), f"every value meets {op} {decimal_text(value)}: {shown}", None


def _largest_group(criterion: Criterion, stage: SoakStage) -> int:
    """The most samples that one group of ``by`` can hold."""
    controls = 2 if criterion.include_control and stage.control is not None else 0
    if criterion.by == "run":
        return stage.reps + controls
    if criterion.by == "case":
        return stage.runs * max(stage.reps, controls)
    return stage.runs * (stage.reps + controls)


def _attainable(aggregate: str, samples: int, metric: MetricFacts) -> tuple[Fraction | None, Fraction | None]:
    if aggregate == "distinct":
        return Fraction(1), Fraction(samples)
    if aggregate == "trend":
        return None, None
    factor = samples if aggregate == "sum" else 1
    return (
        None if metric.low is None else metric.low * factor,
        None if metric.high is None else metric.high * factor,
    )


def _end(value: Fraction | None) -> str:
    return "…" if value is None else str(value)
