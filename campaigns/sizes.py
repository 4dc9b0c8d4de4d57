"""How large a registration and a verdict can become: both are one entry of the ledger (DESIGN section 6). Pure.

A verdict holds no row of a rep, so it grows with the criteria and not with N. What else makes it grow: the exact mean
of many rates, the attempts of the family that went before, and what an amendment is weaker in.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Protocol

from campaigns.spec import CampaignSpec, Criterion, SeededPrompt, SoakStage, resolve, samples_of
from ledger.entry import MAX_DOCUMENT_BYTES
from receipts import canonical
from receipts.metrics import METRICS, MOST_DEATHS

MAX_REASON_BYTES: Final = 4096
"""Longest reason of an amendment, in UTF-8."""
ROOM_BYTES: Final = 8192
"""What every verdict keeps free when its spec is registered: for some eighty earlier attempts of the family."""


class MetricFacts(Protocol):
    """What of a metric decides how long its figures get."""

    @property
    def kind(self) -> str: ...
    @property
    def scope(self) -> str: ...


Metrics = Mapping[str, MetricFacts]

_DIGEST: Final = "sha256:" + "f" * 64
_COUNT: Final = 2**53 - 1
_NAME: Final = "x" * 64
_TOKEN_DIGITS: Final = 8
_SPAN_DIGITS: Final = 30
"""Of a monotonic stamp, as receipts/kinds.py takes them."""
_MOST_DIGITS: Final = 4300
"""Python writes no longer whole number as text."""
_SHOWN: Final = "9" * 40


def registration_bytes(spec: CampaignSpec, text: str) -> int:
    """Canonical bytes that a registration of ``spec`` keeps of it at most: its text and its resolved form."""
    stages: list[Any] = []
    longer = 0
    for stage in spec.stages:
        if isinstance(stage, SoakStage):
            short = {key: _short(getattr(stage, key)) for key in ("prompt", "control") if getattr(stage, key)}
            longer += _TOKEN_DIGITS * len(short)
            stages.append(stage.model_copy(update=short))
        else:
            stages.append(stage)
    # No prompt is drawn for this: its digest has one length, and the number of its tokens a few digits.
    resolved = resolve(spec.model_copy(update={"stages": tuple(stages)}), lambda _: [0])
    return len(canonical.dumps({"resolved": resolved, "spec": text})) + longer


def _short(prompt: Any) -> Any:
    return prompt.model_copy(update={"tokens": 1}) if isinstance(prompt, SeededPrompt) else prompt


def verdict_bytes(
    spec: CampaignSpec,
    *,
    weaker: Sequence[Mapping[str, Any]] = (),
    earlier: Sequence[tuple[str, int]] = (),
    metrics: Metrics = METRICS,
) -> int:
    """Bytes of the longest verdict that an attempt of ``spec`` can have.

    ``weaker``: what its registration is weaker in. ``earlier``: (campaign, attempt) of each of the family before it.
    """
    document = {
        "v": 1,
        "campaign": spec.id,
        "family": spec.family,
        "attempt": _COUNT,
        "lane": _NAME,
        "identity": _DIGEST,
        "registration": {
            "spec_sha256": _DIGEST,
            "seq": _COUNT,
            "attempt_open_seq": _COUNT,
            "checkpoint_note_sha256": _DIGEST,
            "anchored": False,
            "weaker_than": [dict(item) for item in weaker] or None,
        },
        "evaluator": {"name": _NAME, "source_sha256": _DIGEST},
        "ended": "precondition",
        "verdict": "INCONCLUSIVE",
        "criteria": [_criterion(spec, item, metrics[item.metric]) for item in spec.criteria],
        "failure_rate_upper_95": {
            **dict.fromkeys(("failures", "of", "runs_failed", "runs"), _COUNT),
            "per_rep": "100.0",
            "per_run": "100.0",
        },
        "receipts": {"from_seq": _COUNT, "to_seq": _COUNT, "tree_root": _DIGEST},
        "earlier_in_family": [
            {"campaign": campaign, "attempt": attempt, "verdict": "INCONCLUSIVE"} for campaign, attempt in earlier
        ],
    }
    return len(canonical.file_bytes(document))


def _criterion(spec: CampaignSpec, criterion: Criterion, metric: MetricFacts) -> dict[str, Any]:
    samples = samples_of(spec.stage(criterion.stage), metric.scope, criterion.include_control)
    top, bottom = _digits(criterion.aggregate, metric, samples)
    death = {"rep": _COUNT, "site": "engine_touched", "status": _COUNT, "injected": False}
    return {
        "name": criterion.name,
        "outcome": "deviation",
        "bound": criterion.bound_text,
        "observed": {"exact": "9" * top + "/" + "9" * bottom, "shown": _SHOWN},
        "expected_samples": _COUNT,
        "samples": _COUNT,
        "reps": dict.fromkeys(("measured", "errored", "untrusted", "missing"), samples),
        "worst_of": {"case": "control", "run": _COUNT, "rep": _COUNT, "class": "untrusted"},
        "deaths": [death] * MOST_DEATHS if metric.kind == "deaths" else None,
        "series": dict.fromkeys(("first", "last", "min", "max"), _SHOWN),
    }


def _digits(aggregate: str, metric: MetricFacts, samples: int) -> tuple[int, int]:
    """Digits of the exact figure's two numbers, at most."""
    more = len(str(samples)) + 1
    if aggregate == "distinct" or metric.kind in ("acknowledgement", "deaths"):
        top, bottom = more, more
    else:
        top, bottom = _SPAN_DIGITS + more, 10 + more  # of a duration or a size, and of the sums and means of them
    if metric.kind == "rate":
        top, bottom = (17, _SPAN_DIGITS) if metric.scope == "rep" else (5 * _SPAN_DIGITS, 5 * _SPAN_DIGITS)
    if aggregate == "mean" and metric.kind == "rate":
        bottom *= samples  # no two durations share a factor
        top += bottom
    elif aggregate in ("median", "trend"):
        top = bottom = 4 * (top + bottom)  # two figures, or two slopes of two figures each
    return min(top + more, _MOST_DIGITS), min(bottom + more, _MOST_DIGITS)


def refusals(spec: CampaignSpec, text: str, metrics: Metrics) -> Iterator[str]:
    """Why a spec that is sound is too large for a ledger, with its size and the bound; nothing if it is not."""
    size = registration_bytes(spec, text)
    if size > MAX_DOCUMENT_BYTES:
        yield (
            f"its text and its resolved form have {size} bytes, and the most that a registration keeps of them is "
            f"{MAX_DOCUMENT_BYTES}"
        )
    size = verdict_bytes(spec, metrics=metrics)
    if size > MAX_DOCUMENT_BYTES - ROOM_BYTES:
        yield (
            f"a verdict on its {len(spec.criteria)} criteria could have {size} bytes, and the most that is left for "
            f"them in an entry is {MAX_DOCUMENT_BYTES - ROOM_BYTES}"
        )
