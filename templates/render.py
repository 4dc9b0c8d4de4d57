"""Pages from the ledger: Markdown and one self-contained HTML file, rendered by Jinja2 with nothing left undefined."""

from __future__ import annotations

import functools
import re
from typing import Any, Final, Literal

import jinja2
from markupsafe import Markup

from receipts.names import one_line
from templates import words
from templates.explain import deviation_sentences, ending_sentence, explain, outcome_counts
from templates.plots import rep_plots
from templates.rows import how_it_ended, last_words
from templates.story import LedgerReader, Life, Story, story

Format = Literal["md", "html"]
MAX_TEXT_CHARACTERS: Final = 4000
"""Longest free text of one field that a page shows; the ledger holds it whole."""
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")
_BLOCK_START: Final = re.compile(r"^(\s*)([-=](?=[-=\s]|$)|\d+(?=[.)](?:\s|$)))")
_LINK: Final = re.compile(r":(?=//)|(?<=www)\.", re.IGNORECASE)


def render_verdict(reader: LedgerReader, campaign: str, attempt: int, *, fmt: Format, life: Life | None = None) -> str:
    """The verdict page of one attempt, from the ledger and, where it has no end, from what its ``life`` is known as."""
    return render_story(story(reader, campaign, attempt, life=life), fmt=fmt)


def render_story(view: Story, *, fmt: Format) -> str:
    """The page of a story that was read already."""
    template = _environment(fmt).get_template(f"verdict.{fmt}.j2")
    return template.render(
        story=view,
        words=words,
        plots=Markup(rep_plots(view)) if fmt == "html" else "",
        explanation=explain(view),
        deviations=deviation_sentences(view),
        ending=ending_sentence(view),
        counts=outcome_counts(view),
        commands=[text.format(campaign=view.campaign, attempt=view.attempt) for text in words.CHECK_COMMANDS],
    )


def markdown(value: Any) -> str:
    """Free text as Markdown that shows exactly that text, on one line, and makes no link, list or entity of it."""
    text = _MARKDOWN.sub(r"\\\1", one_line(str(value), MAX_TEXT_CHARACTERS))
    text = _LINK.sub(lambda found: "\\" + found.group(), text)
    return _BLOCK_START.sub(_escaped_start, text)


def _escaped_start(found: re.Match[str]) -> str:
    space, mark = found.groups()
    # A digit cannot be escaped; its dot or bracket can, and that is the next character.
    return f"{space}{mark}\\" if mark[0].isdigit() else f"{space}\\{mark}"


def visible(value: Any) -> str:
    """Free text for HTML: on one line, controls and line separators as escapes. Jinja2 escapes the rest."""
    return one_line(str(value), MAX_TEXT_CHARACTERS)


@functools.cache
def _environment(fmt: Format) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=fmt == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["t"] = markdown if fmt == "md" else visible
    environment.filters["utc"] = words.utc
    environment.filters["how_it_ended"] = how_it_ended
    environment.filters["last_words"] = last_words
    return environment
