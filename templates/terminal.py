"""Lines for a terminal or a pipe: plain text, as wide as it may be, with no escape byte in it.

Rich is used by whoever draws on a real terminal; what is printed as a result is the same text everywhere.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any, Final

from receipts.names import one_line
from templates import words
from templates.story import RepRow, Story, rep_row

LOOPBACK: Final = "loopback"


def verdict_lines(story: Story, width: int) -> list[str]:
    """The verdict first, then what was promised, a line a criterion, the handoffs, and what it does not say."""
    lines = [story.word, *_wrapped(f"{story.campaign} attempt {story.attempt} on lane {story.lane}", width)]
    lines += _wrapped(one_line(str(story.spec["title"]), 300), width)
    if story.verdict is not None:
        lines += _wrapped(f"{words.MEANING[story.word]} Ended: {words.ENDED[story.verdict['ended']]}.", width)
    lines += _earlier_lines(story, width)
    lines += ["", "Criteria", *_criterion_lines(story, width)]
    lines += ["", "Handoffs" + (f" (over {LOOPBACK})" if story.loopback else ""), *_rep_lines(story.reps, width)]
    lines += ["", *_limits_lines(story, width)]
    return lines


def rep_line(envelope: Mapping[str, Any], reps: int, *, loopback: bool) -> str:
    """One rep while it runs: what became of it and its figures."""
    row = rep_row(envelope)
    place = row.label if row.control else f"rep {row.rep} of {reps}"
    where = f" ({LOOPBACK})" if loopback else ""
    figures = f"{row.total_s} s  {row.burst_gbps} Gbit/s{where}  {row.payload_mb} MB  root {row.root}"
    text = f"  {place:<13} {row.outcome:<12} {figures}"
    return text if row.error is None else f"{text}\n    {one_line(row.error, 400)}"


def audit_lines(report: Mapping[str, Any], width: int) -> list[str]:
    """An audit: ok or not, every fault, what was checked, what was not."""
    faults = report["faults"]
    lines = ["VERIFIES" if not faults else f"DOES NOT VERIFY: {len(faults)} fault(s)"]
    for fault in faults:
        lines += _wrapped(_fault_text(fault), width, "  ")
    head = report["head"]
    counted = [f"{count} {what.replace('_', ' ')}" for what, count in report["checked"].items()]
    lines += _wrapped("checked: " + ", ".join(counted), width)
    if head:
        lines += _wrapped(f"head: {head['size']} entries, root {head['root']}", width)
    for title, key in (("anchored to", "anchored_to"), ("orphan", "orphans"), ("not checked", "not_checked")):
        for item in report.get(key, ()):
            lines += _wrapped(f"{title}: {one_line(str(item), 400)}", width)
    return lines


def _fault_text(fault: Mapping[str, Any]) -> str:
    where = str(fault["where"])
    if fault["entry"] is not None and not where.startswith("entry"):
        where = f"entry {fault['entry']} ({where})"
    text = f"{where}: {fault['what']}"
    if fault["expected"] is not None or fault["found"] is not None:
        text += f"; expected {fault['expected'] or words.MISSING}, found {fault['found'] or words.MISSING}"
    return one_line(text, 2000)


def _earlier_lines(story: Story, width: int) -> list[str]:
    if story.verdict is None or not story.verdict["earlier_in_family"]:
        return ["No earlier attempt of this family."] if story.verdict is not None else []
    earlier = story.verdict["earlier_in_family"]
    passed = len(earlier) - len(story.earlier_without_pass)
    lines = _wrapped(f"Earlier attempts of the family: {len(earlier)}, of which PASS: {passed}.", width)
    for item in story.earlier_without_pass:
        lines.append(f"  {item['campaign']}/{item['attempt']} {item['verdict'] or 'without a verdict'}")
    return lines


def _criterion_lines(story: Story, width: int) -> list[str]:
    lines = []
    for row in story.criteria:
        outcome = words.OUTCOMES[row.outcome]
        unit = "" if row.unit in {"1", "digest", "instance", "deaths"} else f" {row.unit}"
        text = f"{outcome:<16} {row.name}: {row.observed}{unit}, bound {row.bound}, {row.samples} samples"
        if row.outcome != "met":
            text += f" ({row.classes})"
        lines += _wrapped(text, width, "  ")
    for sentence in words.deaths_sentence([dict(item) for item in story.deaths], story.reps_registered):
        lines += _wrapped(sentence, width, "  ")
    return lines


def _rep_lines(rows: Sequence[RepRow], width: int) -> list[str]:
    if not rows:
        return ["  none"]
    lines = ["  rep        outcome        total s  prefill s  Gbit/s     MB  root"]
    for row in rows:
        lines.append(
            f"  {row.label:<10} {row.outcome:<12} {row.total_s:>9} {row.prefill_s:>10} {row.burst_gbps:>7}"
            f" {row.payload_mb:>6}  {row.root}"
        )
    if width >= max(map(len, lines)):
        return lines
    return [
        part
        for row in rows
        for part in _wrapped(
            f"{row.label}: {row.outcome}, {row.total_s} s, {row.burst_gbps} Gbit/s, {row.payload_mb} MB, {row.root}",
            width,
            "  ",
        )
    ]


def _limits_lines(story: Story, width: int) -> list[str]:
    rate = story.verdict["failure_rate_upper_95"] if story.verdict else None
    lines = []
    if rate is not None:
        lines += _wrapped(
            f"{rate['failures']} of {rate['of']} handoffs failed: up to {rate['per_rep']} % a handoff may fail "
            f"(95 %, one-sided), {words.INDEPENDENCE}.",
            width,
        )
        if rate["per_run"] is not None:
            lines += _wrapped(
                f"{rate['runs_failed']} of {rate['runs']} runs failed: up to {rate['per_run']} % of runs may.", width
            )
    anchored = story.verdict is not None and story.verdict["registration"]["anchored"]
    if story.pre_registered:
        lines += _wrapped("Pre-registered" + ("." if anchored else f"; {words.NOT_ANCHORED}."), width)
    for item in story.weaker:
        lines += _wrapped(
            f"Weaker than entry {item['than_seq']}: {item['field']}: {item['old']} -> {item['new']}", width
        )
    lines += _wrapped("Not covered: " + one_line("; ".join(story.spec["not_covered"]), 1000) + ".", width)
    if story.word in words.NEXT_STEP:
        lines += ["", *_wrapped(f"Next: {words.NEXT_STEP[story.word]}", width), *_wrapped(words.THEATRE, width)]
    return lines


def _wrapped(text: str, width: int, indent: str = "") -> list[str]:
    return textwrap.wrap(
        text, max(20, width), initial_indent=indent, subsequent_indent=indent + "  ", break_long_words=False,
        break_on_hyphens=False,
    ) or [""]  # fmt: skip
