"""Per-rep plots as inline SVG: a few lines of our own, no library, colours from the page's CSS variables.

One panel a figure, 320 units wide, so that its text keeps its size on a telephone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from html import escape
from typing import Final

from templates import words
from templates.rows import RepRow
from templates.story import Story
from templates.words import MISSING

WIDTH: Final = 320
HEIGHT: Final = 168
_LEFT: Final = 40
_RIGHT: Final = 10
_TOP: Final = 14
_BOTTOM: Final = 24
_LABEL_WIDTH: Final = 42.0
"""Of the word before a bound's figure; a figure's letter has 6."""
_STRIP: Final = 18
"""Height of the strip below the axis in which places stand that nobody observed; only there where one is."""
_MOST_LABELS: Final = 16
_MOST_SLOTS: Final = 400
"""Above this many registered reps only what was observed gets a place."""
_OFF_SCALE: Final = 3
"""A bound this many times above everything measured is named in words: to scale it would flatten the marks."""


@dataclass(frozen=True)
class _Slot:
    """One place on the axis: a registered rep or control, and what was observed of it."""

    label: str
    row: RepRow | None
    first_of_run: bool


@dataclass(frozen=True)
class _Panel:
    key: str
    title: str
    unit: str
    figure: Callable[[RepRow], str]
    metric: str


def rep_plots(view: Story) -> str:
    """A panel of burst rates and one of total times, in the order of the handoffs; empty where none was observed."""
    if not view.reps:
        return ""
    slots = list(_slots(view))
    where = f" over {words.LOOPBACK}" if view.loopback else ""
    unit = f"Gbit/s ({words.LOOPBACK})" if view.loopback else "Gbit/s"
    panels = (
        _Panel("burst", f"Burst rate of each handoff{where}", unit, lambda row: row.burst_gbps, "handoff.burst_gbps"),
        _Panel("total", "Total time of each handoff", "s", lambda row: row.total_s, "handoff.total_s"),
    )
    return "".join(_panel(panel, view, slots) for panel in panels)


def _slots(view: Story) -> Iterator[_Slot]:
    """Every registered place in order, or only the observed ones where there are very many."""
    soaks = [stage for stage in view.spec["stage"] if stage["kind"] == "soak"]
    if len(soaks) != 1 or view.has_cases or view.reps_registered > _MOST_SLOTS:
        run = None
        for row in view.reps:
            yield _Slot("c" if row.control else str(row.rep), row, row.run != run)
            run = row.run
        return
    found = {(row.run, row.control, row.rep): row for row in view.reps}
    stage = soaks[0]
    for run in range(1, stage["runs"] + 1):
        places = [(False, rep) for rep in range(1, stage["reps"] + 1)]
        if stage.get("control"):
            places = [(True, 1), *places, (True, 2)]
        for index, (control, rep) in enumerate(places):
            yield _Slot("c" if control else str(rep), found.get((run, control, rep)), index == 0)


def _panel(panel: _Panel, view: Story, slots: list[_Slot]) -> str:
    known = [float(panel.figure(slot.row)) for slot in slots if slot.row and panel.figure(slot.row) != MISSING]
    highest = max(known, default=0.0) or 1.0
    bounds = [(row.bound, float(value)) for row in view.criteria if (value := _bound_of(row.metric, row.bound, panel))]
    drawn = [item for item in bounds if item[1] <= highest * _OFF_SCALE]
    beyond = [text for text, value in bounds if value > highest * _OFF_SCALE]
    top = max([highest, *(value for _, value in drawn)]) * 1.12
    deaths = {str(item["rep"]) for item in view.deaths if not item["injected"]}
    step = -(-len(slots) // _MOST_LABELS)
    strip = _STRIP if any(slot.row is None for slot in slots) else 0
    height = HEIGHT + strip
    marks = "".join(
        _mark(
            index,
            slot,
            len(slots),
            panel,
            top,
            labelled=index % step == 0,
            died=_died(view, slot, deaths),
            height=height,
        )
        for index, slot in enumerate(slots)
    )
    points = [
        (_x(index, len(slots)), _y(float(panel.figure(slot.row)), top))
        for index, slot in enumerate(slots)
        if slot.row and panel.figure(slot.row) != MISSING
    ]
    lines = "".join(_bound_line(text, value, top, points) for text, value in drawn)
    note = f"; bound {escape(', '.join(beyond))} lies above this scale" if beyond else ""
    described = (
        f"In order of the handoffs: filled circles are reps, hollow ones controls, a cross is a handoff without this "
        f"figure, an open square in the strip below the axis was not observed{note}."
    )
    ids = f"plot-{panel.key}"
    return (
        f'<figure class="plot"><figcaption>{escape(panel.title)}, {escape(panel.unit)}{note}</figcaption>'
        f'<svg role="img" aria-labelledby="{ids}-title {ids}-desc" viewBox="0 0 {WIDTH} {height}">'
        f'<title id="{ids}-title">{escape(panel.title)}, {escape(panel.unit)}</title>'
        f'<desc id="{ids}-desc">{described}</desc>'
        f"{_axis(highest, top)}{_strip() if strip else ''}{lines}{marks}</svg>{_legend(panel, slots)}</figure>"
    )


def _strip() -> str:
    """The band below the axis: what stands in it has no figure, and least of all zero."""
    x, y = _LEFT, HEIGHT - _BOTTOM + 5
    return f'<rect x="{x}" y="{y}" width="{WIDTH - _RIGHT - x}" height="{_STRIP - 4}" class="strip"/>'


def _legend(panel: _Panel, slots: list[_Slot]) -> str:
    """What each sign in this panel means; a sign that is not in it is left out."""
    kinds = {_kind(slot, panel) for slot in slots}
    items = "".join(
        f'<span><svg viewBox="0 0 10 10" aria-hidden="true">{_LEGEND_SIGNS[kind]}</svg> {meaning}</span>'
        for kind, meaning in _LEGEND.items()
        if kind in kinds
    )
    return f'<p class="legend">{items}</p>'


_LEGEND: Final = {
    "rep": "rep",
    "control": "control",
    "failed": "not acknowledged",
    "cross": "handoff without this figure",
    "unseen": "not observed",
}
_LEGEND_SIGNS: Final = {
    **{kind: f'<circle cx="5" cy="5" r="3.5" class="sign {kind}"/>' for kind in ("rep", "control", "failed")},
    "cross": '<path d="M1 1l8 8m-8 0l8 -8" class="sign failed"/>',
    "unseen": '<rect x="2" y="2" width="6" height="6" class="sign unseen"/>',
}


def _kind(slot: _Slot, panel: _Panel) -> str:
    """Which sign a slot gets: a key of the legend."""
    if slot.row is None:
        return "unseen"
    if panel.figure(slot.row) == MISSING:
        return "cross"
    if not slot.row.acknowledged:
        return "failed"
    return "control" if slot.row.control else "rep"


def _bound_of(metric: str, bound: str, panel: _Panel) -> str | None:
    """The number in ``>= 3``, where the criterion is about this panel's figure and it is a decimal."""
    value = bound.rpartition(" ")[2]
    return value if metric == panel.metric and "/" not in value else None


def _died(view: Story, slot: _Slot, deaths: set[str]) -> bool:
    """A document's death names the rep and not the run: with several runs only a rep that failed is marked."""
    if slot.label not in deaths or slot.row is None:
        return False
    return not slot.row.acknowledged or max(row.run for row in view.reps) == 1


def _axis(highest: float, top: float) -> str:
    base, peak = _y(0.0, top), _y(highest, top)
    return (
        f'<line x1="{_LEFT}" y1="{base:.1f}" x2="{WIDTH - _RIGHT}" y2="{base:.1f}" class="axis"/>'
        f'<line x1="{_LEFT}" y1="{peak:.1f}" x2="{WIDTH - _RIGHT}" y2="{peak:.1f}" class="grid"/>'
        f'<text x="{_LEFT - 6}" y="{peak + 4:.1f}" text-anchor="end">{_tick(highest)}</text>'
        f'<text x="{_LEFT - 6}" y="{base + 4:.1f}" text-anchor="end">0</text>'
    )


def _bound_line(text: str, value: float, top: float, points: list[tuple[float, float]]) -> str:
    y = _y(value, top)
    x, baseline = _label_place(y, _LABEL_WIDTH + 6.0 * len(text), points)
    return (
        f'<line x1="{_LEFT}" y1="{y:.1f}" x2="{WIDTH - _RIGHT}" y2="{y:.1f}" class="bound"/>'
        f'<text x="{x:.1f}" y="{baseline:.1f}" text-anchor="end" class="bound-text">bound {escape(text)}</text>'
    )


def _label_place(y: float, width: float, points: list[tuple[float, float]]) -> tuple[float, float]:
    """Right end and baseline of a bound's label: over the line or under it, as far right as it covers no point."""
    for baseline in (y - 4, y + 12):
        right = float(WIDTH - _RIGHT)
        while right - width >= _LEFT:
            if baseline > HEIGHT - _BOTTOM:
                break
            covered = any(
                right - width - 5 <= px <= right + 5 and baseline - 14 <= py <= baseline + 6 for px, py in points
            )
            if not covered:
                return right, baseline
            right -= 8
    return float(WIDTH - _RIGHT), y - 4


def _x(index: int, count: int) -> float:
    return _LEFT + 10 + index * (WIDTH - _LEFT - _RIGHT - 20) / max(1, count - 1)


def _mark(
    index: int, slot: _Slot, count: int, panel: _Panel, top: float, *, labelled: bool, died: bool, height: int
) -> str:
    x = _x(index, count)
    base = _y(0.0, top)
    parts = []
    if slot.first_of_run and index:
        between = x - (WIDTH - _LEFT - _RIGHT - 20) / max(1, count - 1) / 2
        parts.append(f'<line x1="{between:.1f}" y1="{_TOP}" x2="{between:.1f}" y2="{base:.1f}" class="grid"/>')
    if labelled or died:
        parts.append(f'<text x="{x:.1f}" y="{height - 8}" text-anchor="middle">{escape(slot.label)}</text>')
    if died:
        parts.append(f'<line x1="{x:.1f}" y1="{_TOP}" x2="{x:.1f}" y2="{base:.1f}" class="death"/>')
        end = x > WIDTH - 60
        parts.append(
            f'<text x="{x + (-7 if end else 7):.1f}" y="{base - 14:.1f}" text-anchor="{"end" if end else "start"}" '
            f'class="death-text">died</text>'
        )
    parts.append(_point(x, slot, panel, top))
    return "".join(parts)


def _point(x: float, slot: _Slot, panel: _Panel, top: float) -> str:
    base = _y(0.0, top)
    sign = _kind(slot, panel)
    if slot.row is None:
        y = base + 3 + _STRIP / 2
        return (
            f'<rect x="{x - 3:.1f}" y="{y - 3:.1f}" width="6" height="6" class="unseen">'
            f"<title>{escape(slot.label)}: not observed</title></rect>"
        )
    shown = panel.figure(slot.row)
    kind = "control " if slot.row.control else "rep "
    said = escape(f"{kind}{slot.row.rep} of run {slot.row.run}: {slot.row.outcome}, {shown} {panel.unit}")
    if sign == "cross":
        y = base - 8
        cross = f"M{x - 4:.1f} {y - 4:.1f}l8 8m-8 0l8 -8"
        return f'<path d="{cross}" class="failed"><title>{said}</title></path>'
    return (
        f'<circle cx="{x:.1f}" cy="{_y(float(shown), top):.1f}" r="3.5" class="{sign}"><title>{said}</title></circle>'
    )


def _tick(value: float) -> str:
    return f"{value:.3g}" if value < 1000 else f"{value:.0f}"


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / top
