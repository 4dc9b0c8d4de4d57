"""Whether a sound spec can be run on a lane and its model: what the lane is, and what the spec wants of it. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from campaigns.refusals import Metrics, known_metrics
from campaigns.spec import CampaignSpec, SeededPrompt, SoakStage


@dataclass(frozen=True)
class LaneTerms:
    """What of a lane decides whether a spec can be run on it."""

    transfer: str
    mode: str
    watchdog_s: int
    context_tokens: int


def check_against_lane(spec: CampaignSpec, lane: LaneTerms, metrics: Metrics | None = None) -> tuple[str, ...]:
    """Why ``spec`` cannot be run on this lane, one sentence each; empty if it can."""
    table = known_metrics() if metrics is None else metrics
    reasons = []
    for criterion in spec.criteria:
        metric = table[criterion.metric]
        for what, needed, has in (("transfer", metric.transfers, lane.transfer), ("mode", metric.modes, lane.mode)):
            if has not in needed:
                reasons.append(
                    f"criterion {criterion.name}: {criterion.metric} needs {what} {' or '.join(sorted(needed))}; "
                    f"the lane has {has}"
                )
    for stage in spec.stages:
        if isinstance(stage, SoakStage):
            reasons += _stage_against_lane(stage, lane)
    return tuple(reasons)


def _stage_against_lane(stage: SoakStage, lane: LaneTerms) -> Iterator[str]:
    if stage.watchdog_s is not None and stage.watchdog_s > lane.watchdog_s:
        yield f"stage {stage.name}: watchdog_s {stage.watchdog_s} is above the lane's {lane.watchdog_s}"
    if stage.watchdog_s is None and lane.watchdog_s >= stage.rep_deadline_s:
        yield (
            f"stage {stage.name}: the lane's watchdog of {lane.watchdog_s} s is not below rep_deadline_s "
            f"{stage.rep_deadline_s}; set watchdog_s in the stage"
        )
    for key, prompt in (("prompt", stage.prompt), ("control", stage.control)):
        if isinstance(prompt, SeededPrompt) and not _fits(prompt.tokens, lane.context_tokens):
            yield (
                f"stage {stage.name}: {key} of {prompt.tokens} tokens does not fit the lane's context of "
                f"{lane.context_tokens}"
            )


def check_against_model(stages: Sequence[Mapping[str, Any]], geometry: Mapping[str, Any]) -> tuple[str, ...]:
    """Why the enrolled model cannot take these resolved stages' prompts, one sentence each; empty if it can.

    The producer would refuse each such request, and end itself on the third.
    """
    vocabulary, context = int(geometry["vocab_size"]), int(geometry["context_tokens"])
    reasons = []
    for stage in stages:
        for key in ("prompt", "control"):
            if (prompt := stage.get(key)) is None:
                continue
            highest = prompt["id_range"][1] - 1 if prompt["source"] == "seeded" else max(prompt["ids"], default=0)
            where = f"stage {stage['name']}: {key}"
            if highest >= vocabulary:
                reasons.append(f"{where}: id {highest} is outside the vocabulary of {vocabulary}")
            if not _fits(prompt["tokens"], context):
                reasons.append(f"{where} of {prompt['tokens']} tokens in a context of {context}")
    return tuple(reasons)


def _fits(tokens: int, context: int) -> bool:
    """One token of the context is left for the token that ends the prefill."""
    return 0 < tokens < context
