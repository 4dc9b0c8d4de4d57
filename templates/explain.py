"""Why a verdict is not PASS: what happened, how far past the bound, the legitimate next step, and what is theatre."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from templates import words
from templates.rows import CriterionRow
from templates.story import Story
from templates.words import MISSING


@dataclass(frozen=True)
class Explanation:
    """Sentences for a person who has to act on it."""

    happened: tuple[str, ...]
    next_step: str
    theatre: str


def explain(story: Story) -> Explanation | None:
    """None for a PASS: there is nothing to explain."""
    if story.word == "PASS":
        return None
    step = words.NEXT_STEP[story.word if story.life is None else story.life].format(
        campaign=story.campaign, attempt=story.attempt
    )
    return Explanation(tuple(_happened(story)), step, words.THEATRE)


def heading(story: Story) -> str:
    """The verdict's word; of an attempt that nobody closed, how it stands and what it would be so far."""
    if story.life is None or story.verdict is None:
        return story.word
    return f"{story.life.upper()}: {story.word} so far"


def because(story: Story) -> str:
    """Why every criterion can be met and the verdict is still no PASS; empty where the criteria say it."""
    if story.word == "DEVIATION" and all(row.outcome == "met" for row in story.criteria):
        kinds = ["a weaker registration"] if story.weaker else []
        kinds += ["a recorded deviation"] if story.deviations else []
        kinds += ["something was not put back"] if any(not item["ok"] for item in story.cleanup) else []
        return f", with {' and '.join(kinds)}"
    return ""


def ending_sentence(story: Story) -> str:
    """How the attempt ended, with its signal, its reason, or what was found of it."""
    if story.ending is None:
        return f"{words.NOT_CLOSED[story.life]}. Last sign of life {words.utc(story.last_sign_at)}."
    text = f"Ended: {words.ENDED.get(story.ending['ended'], story.ending['ended'])}"
    if story.ending["ended"] == "complete" and story.unobserved:
        text += f"; {words.ENDED_EARLY}"
    details = [story.ending.get("signal"), story.ending.get("reason"), story.ending.get("found")]
    said = [str(item) for item in details if item]
    return f"{text} ({'; '.join(said)})." if said else f"{text}."


def _happened(story: Story) -> list[str]:
    lines = [sentence for row in story.criteria if (sentence := criterion_sentence(row))]
    lines += _unjudged(story.criteria)
    lines += [_check(item["name"], item["expected"], item["found"]) for item in story.checks if not item["ok"]]
    lines += [f"Deviation {item['what']}: {item['text']}" for item in story.deviations]
    lines += [
        f"Not put back: {item['what']}" + (f" ({item['found']})" if item["found"] else "")
        for item in story.cleanup
        if not item["ok"]
    ]
    lines += [weaker_sentence(item) for item in story.weaker]
    if story.unobserved and story.word != "PASS":
        lines.append(f"Never observed: {'; '.join(story.unobserved)}.")
    return lines


def deviation_sentences(story: Story) -> list[str]:
    """What did not go as registered: recorded deviations, criteria between their two bounds, a weaker registration."""
    lines = [f"{item['what']}: {item['text']}" for item in story.deviations]
    lines += [str(criterion_sentence(row)) for row in story.criteria if row.outcome == "deviation"]
    return lines + [weaker_sentence(item) for item in story.weaker]


def outcome_counts(story: Story) -> str:
    """``2 of 7 criteria met, 4 not met, 1 cannot be judged``; an outcome that none has is left out."""
    total = len(story.criteria)
    met = sum(row.outcome == "met" for row in story.criteria)
    text = f"{met} of {words.counted(total, 'criterion', 'criteria')} met"
    for outcome in ("not_met", "deviation", "invalid", "not_judged"):
        count = sum(row.outcome == outcome for row in story.criteria)
        if count:
            text += f", {count} {words.OUTCOMES.get(outcome, words.NOT_JUDGED)}"
    return text


def criterion_sentence(row: CriterionRow) -> str | None:
    """What keeps a criterion from being met; None where it is met, or cannot be judged."""
    if row.outcome == "not_met":
        return f"{row.name} is not met: {_against_bound(row)}."
    if row.outcome == "deviation":
        return f"{row.name} deviates: {_against_bound(row)}; the looser bound registered for it is {row.deviate_to}."
    return None


def _unjudged(rows: tuple[CriterionRow, ...]) -> list[str]:
    """One sentence for all criteria that cannot be judged: each with how many of its samples took part."""
    invalid = [f"{row.name} ({row.samples})" for row in rows if row.outcome == "invalid"]
    if not invalid:
        return []
    which = "1 criterion" if len(invalid) == 1 else f"{len(invalid)} criteria"
    return [f"{which} of {len(rows)} cannot be judged, by the samples that took part: {', '.join(invalid)}."]


def weaker_sentence(item: Mapping[str, Any]) -> str:
    """``The registration is weaker than entry 12: criterion.burst-floor.value: 3 → 2``"""
    old, new = item["old"] or MISSING, item["new"] or MISSING
    return f"The registration is weaker than entry {item['than_seq']}: {item['field']}: {old} → {new}"


def _against_bound(row: CriterionRow) -> str:
    if row.observed != MISSING:
        worst = "" if row.worst == MISSING else f", worst at {row.worst}"
        return f"observed {row.measured}, bound {row.bounded}, {row.margin}{worst}"
    text = f"bound {row.bounded}; {row.worst} lies beyond every bound"
    if row.series is None:
        return text
    unit = f" {row.unit}" if row.unit else ""
    low, high = row.series["min"], row.series["max"]
    span = f"is {low}" if low == high else f"lies between {low} and {high}"
    return f"{text}; what was measured {span}{unit}"


def _check(name: str, expected: str | None, found: str | None) -> str:
    return f"Preflight {name} failed: expected {expected or MISSING}, found {found or MISSING}"
