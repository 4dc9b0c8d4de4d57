"""The per-rep plot as inline SVG: no library, no external reference, both colour schemes by CSS variables."""

from __future__ import annotations

from typing import Final

from templates.story import RepRow, Story
from templates.words import MISSING

WIDTH: Final = 640
HEIGHT: Final = 200
_LEFT: Final = 44
_BOTTOM: Final = 24
_TOP: Final = 12


def rep_plot(view: Story) -> str:
    """Burst rate of each handoff in order, controls hollow, a failed one as a cross on the axis; empty without any."""
    rows = view.reps
    known = [float(row.burst_gbps) for row in rows if row.burst_gbps != MISSING]
    if not known:
        return ""
    top = max(known) * 1.15
    marks = "".join(_mark(index, row, len(rows), top) for index, row in enumerate(rows))
    where = " over loopback" if view.loopback else ""
    title = f"Burst rate of each handoff, Gbit/s{where}"
    axis = _y(0.0, top)
    return (
        f'<svg role="img" aria-label="{title}" viewBox="0 0 {WIDTH} {HEIGHT}" class="plot">'
        f"<title>{title}</title>"
        f'<line x1="{_LEFT}" y1="{axis:.1f}" x2="{WIDTH - 8}" y2="{axis:.1f}" class="axis"/>'
        f'<text x="4" y="{_y(max(known), top) + 4:.1f}">{max(known):.2f}</text>'
        f'<text x="4" y="{axis + 4:.1f}">0</text>'
        f"{marks}</svg>"
    )


def _mark(index: int, row: RepRow, count: int, top: float) -> str:
    x = _LEFT + 16 + index * (WIDTH - _LEFT - 40) / max(1, count - 1)
    name = f"<title>{row.label}: {row.outcome}, {row.burst_gbps} Gbit/s</title>"
    label = f'<text x="{x:.1f}" y="{HEIGHT - 6}" text-anchor="middle">{"c" if row.control else row.rep}</text>'
    if row.burst_gbps == MISSING:
        y = _y(0.0, top)
        cross = f"M{x - 5:.1f} {y - 5:.1f}L{x + 5:.1f} {y + 5:.1f}M{x - 5:.1f} {y + 5:.1f}L{x + 5:.1f} {y - 5:.1f}"
        return f'<path d="{cross}" class="failed">{name}</path>{label}'
    kind = "control" if row.control else "rep"
    return f'<circle cx="{x:.1f}" cy="{_y(float(row.burst_gbps), top):.1f}" r="4" class="{kind}">{name}</circle>{label}'


def _y(value: float, top: float) -> float:
    return HEIGHT - _BOTTOM - (HEIGHT - _BOTTOM - _TOP) * value / top
