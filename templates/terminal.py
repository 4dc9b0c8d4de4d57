"""Lines for a terminal or a pipe: plain text, as wide as it may be, with no escape byte in it.

The same text everywhere: on a terminal, in a pipe, with TERM=dumb, NO_COLOR or LANG=C. Foreign text goes through
``one_line``. A width is in columns of a terminal, where a Chinese character takes two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from receipts.visible import one_line
from templates import words
from templates.columns import GAP, aligned, columns, table_lines, wrapped
from templates.explain import ending_sentence, explain, heading, outcome_counts, weaker_sentence
from templates.rows import CriterionRow, RepRow, how_it_ended, last_words, rep_row
from templates.story import Story

_OUTCOME_WIDTH: Final = 16
_ALIGNED_FROM: Final = 60
"""From this width on the criteria's outcomes stand in a column of their own."""


def verdict_lines(story: Story, width: int) -> list[str]:
    """The verdict first, then what was promised, a line a criterion, the handoffs, and what it does not say."""
    return [
        heading(story),
        *_promise_lines(story, width),
        *_earlier_lines(story, width),
        *_explanation_lines(story, width),
        "",
        "Criteria",
        *_criterion_lines(story, width),
        "",
        "Handoffs" + (f" (over {words.LOOPBACK})" if story.loopback else ""),
        *_rep_lines(story, width),
        "",
        *_limits_lines(story, width),
    ]


def rep_line(envelope: Mapping[str, Any], reps: int) -> str:
    """One rep, as soon as it is over: what became of it and what was observed of it, within 80 columns."""
    row = rep_row(envelope)
    place = row.label if row.control else f"rep {row.rep} of {reps}"
    figures = [(row.total_s, "s"), (row.burst_gbps, "Gbit/s"), (row.payload_mb, "MB")]
    told = [f"{value} {unit}" for value, unit in figures if value != words.MISSING]
    told += [] if row.root == words.MISSING else [f"root {row.root}"]
    text = f"  {place:<13} {row.outcome:<12} {'  '.join(told)}"
    return text if row.error is None else f"{text}\n    {one_line(row.error, 400)}"


def log_lines(entries: Iterable[Any], width: int) -> list[str]:
    """Entries of a ledger, oldest first: seq, time, kind, subject. The day stands once, above its entries."""
    found = list(entries)
    if not found:
        return []
    rows = [[str(e.seq), e.recorded_at[11:19], e.kind, e.subject + _amendment(e)] for e in found]
    lines = table_lines(("seq", "UTC", "kind", "subject"), rows, width)
    is_table = len(lines) == len(rows) + 1 and lines[0].startswith("seq")
    if not is_table:
        lines = []
    days = [entry.recorded_at[:10] for entry in found]
    for index, row in enumerate(rows):
        if index == 0 or days[index] != days[index - 1]:
            lines.insert(len(lines) - len(rows) + index if is_table else len(lines), days[index])
        if not is_table:
            lines += wrapped(GAP.join(one_line(cell, 400) for cell in row if cell), width)
    return lines


def _amendment(entry: Any) -> str:
    """Whether a registration changes an earlier one, and whether it asks for less."""
    if entry.kind != "registration" or entry.data.get("parent_seq") is None:
        return ""
    return " (amended, weaker)" if entry.data.get("weaker") else " (amended)"


def audit_lines(report: Mapping[str, Any], width: int) -> list[str]:
    """An audit: ok or not, every fault, what was checked, what was not."""
    faults = report["faults"]
    lines = ["VERIFIES" if not faults else f"DOES NOT VERIFY: {len(faults)} fault(s)"]
    for fault in faults:
        lines += wrapped(_fault_text(fault), width, "  ")
    head = report["head"]
    counted = [f"{count} {what.replace('_', ' ')}" for what, count in report["checked"].items()]
    lines += wrapped("checked: " + ", ".join(counted), width)
    if head:
        lines += wrapped(f"head: {head['size']} entries, root {head['root']}", width)
    for title, key in (("held against", "anchored_to"), ("orphan", "orphans"), ("not checked", "not_checked")):
        for item in report.get(key, ()):
            lines += wrapped(f"{title}: {one_line(str(item), 400)}", width)
    return lines


def _promise_lines(story: Story, width: int) -> list[str]:
    lines = wrapped(one_line(str(story.spec["title"]), 300), width)
    promise = f"Promised: {story.promise}. {words.MEANING[story.word]} {one_line(ending_sentence(story), 600)}"
    lines += wrapped(promise + (f" {words.REHEARSAL}" if story.rehearsal else ""), width)
    lines += wrapped(f"{outcome_counts(story)}.", width)
    lines += _rate_lines(story.verdict["failure_rate_upper_95"], width) if story.verdict else []
    where = f", over {words.LOOPBACK}" if story.loopback else ""
    lines += wrapped(f"{story.campaign}/{story.attempt} on lane {story.lane}{where}", width)
    if story.earlier_verdicts:
        lines += wrapped(f"Judged before: {', '.join(story.earlier_verdicts)}.", width)
    return lines


def _earlier_lines(story: Story, width: int) -> list[str]:
    if not story.earlier:
        return wrapped(f"No earlier attempt of the family {story.family}.", width)
    lines = wrapped(
        f"Earlier attempts of the family {story.family}: {len(story.earlier)}, without a pass: "
        f"{len(story.earlier_without_pass)}.",
        width,
    )
    for item in story.earlier_without_pass:
        lines += wrapped(f"{item.campaign}/{item.attempt} {item.verdict or 'without a verdict'}", width, "  ")
    return lines


def _explanation_lines(story: Story, width: int) -> list[str]:
    explanation = explain(story)
    if explanation is None:
        return []
    lines = [""]
    for sentence in [f"The producer {item}." for item in story.death_sentences] + list(explanation.happened):
        lines += wrapped(one_line(sentence, 600), width, "  ")
    lines += wrapped(f"Next: {explanation.next_step}", width)
    return lines + wrapped(explanation.theatre, width)


def _criterion_lines(story: Story, width: int) -> list[str]:
    lines = []
    for row in story.criteria:
        outcome = row.word.ljust(_OUTCOME_WIDTH if width >= _ALIGNED_FROM else 0)
        lines += wrapped(f"{outcome} {_criterion_text(row)}", width, "  ")
    return lines


def _criterion_text(row: CriterionRow) -> str:
    text = f"{row.name}: {row.measured}, bound {row.bounded}"
    if row.samples == words.MISSING:
        return text
    if row.margin != words.MISSING:
        text += f", {row.margin}"
    text += f", {row.samples} samples"
    if row.outcome == "met":
        return text
    return f"{text} ({row.classes})" if row.worst == words.MISSING else f"{text} ({row.classes}), worst {row.worst}"


def _rep_lines(story: Story, width: int) -> list[str]:
    unit = f"Gbit/s ({words.LOOPBACK})" if story.loopback else "Gbit/s"
    lines = _rep_table(story.reps, unit, width) if story.reps else ["  none"]
    for record in story.journal_deaths:
        body = record["body"]
        lines += wrapped(
            f"journal record {record['n']}: pid {body['instance']['pid']}, {how_it_ended(body)}: "
            f"{one_line(last_words(body), 400)}",
            width,
            "  ",
        )
    if story.unobserved:
        lines += wrapped(f"never observed: {'; '.join(story.unobserved)}", width, "  ")
    return lines


def _rep_table(rows: Sequence[RepRow], unit: str, width: int) -> list[str]:
    figures = ("total s", "prefill s", unit, "MB")
    headers = ["run", "rep", "outcome", *figures, "root"]
    cells = [
        [str(row.run), _place(row), row.outcome, row.total_s, row.prefill_s, row.burst_gbps, row.payload_mb, row.root]
        for row in rows
    ]
    if {row.run for row in rows} == {1}:
        headers, cells = headers[1:], [row[1:] for row in cells]
    sizes = [max(map(columns, column)) for column in zip(headers, *cells, strict=True)]
    if 2 + sum(sizes) + len(GAP) * (len(sizes) - 1) <= width:
        return [f"  {aligned(row, sizes, figures, headers)}" for row in [headers, *cells]]
    return [part for row in rows for part in wrapped(_rep_text(row, unit), width, "  ")]


def _rep_text(row: RepRow, unit: str) -> str:
    place = _place(row) if row.control else f"rep {_place(row)}"
    figures = f"{row.total_s} s, {row.burst_gbps} {unit}, {row.payload_mb} MB, {row.root}"
    return f"run {row.run} {place}: {row.outcome}, {figures}"


def _place(row: RepRow) -> str:
    return row.label if row.control or row.case is None else f"{row.case} {row.rep}"


def _limits_lines(story: Story, width: int) -> list[str]:
    anchored = words.ANCHORED if story.anchored else words.NOT_ANCHORED
    registered = "Pre-registered" if story.pre_registered else "NOT pre-registered"
    lines = wrapped(f"{registered} (entry {story.registration_seq}); {anchored}.", width)
    for item in story.weaker:
        lines += wrapped(one_line(weaker_sentence(item), 400), width)
    lines += wrapped("Not covered: " + one_line("; ".join(story.spec["not_covered"]), 1000) + ".", width)
    if story.emulated:
        lines += wrapped(f"{words.EMULATION}.", width)
    return lines


def _rate_lines(rate: Mapping[str, Any] | None, width: int) -> list[str]:
    if rate is None:
        return wrapped(words.NO_RATE, width)
    lines = wrapped(
        f"{rate['failures']} of {rate['of']} handoffs failed: up to {rate['per_rep']} % of handoffs may fail "
        f"(one-sided 95 % upper bound), {words.INDEPENDENCE}.",
        width,
    )
    if rate["per_run"] is None:
        return lines + wrapped(words.NO_WHOLE_RUN, width)
    return lines + wrapped(
        f"{rate['runs_failed']} of {rate['runs']} runs failed: up to {rate['per_run']} % of runs may.", width
    )


def _fault_text(fault: Mapping[str, Any]) -> str:
    where = str(fault["where"])
    if fault["entry"] is not None and not where.startswith("entry"):
        where = f"entry {fault['entry']} ({where})"
    text = f"{where}: {fault['what']}"
    if fault["expected"] is not None or fault["found"] is not None:
        text += f"; expected {fault['expected'] or words.MISSING}, found {fault['found'] or words.MISSING}"
    return one_line(text, 2000)
