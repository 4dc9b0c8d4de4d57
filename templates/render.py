"""Pages from the ledger: Markdown and one self-contained HTML file, rendered by Jinja2 with nothing left undefined."""

from __future__ import annotations

import re
from typing import Any, Final, Literal

import jinja2
from markupsafe import Markup

from receipts.names import one_line
from templates import words
from templates.plots import rep_plot
from templates.story import Reader, Story, story

Format = Literal["md", "html"]
_MARKDOWN: Final = re.compile(r"([\\`*_{}\[\]<>()#+!|~])")


def render_verdict(reader: Reader, campaign: str, attempt: int, *, fmt: Format) -> str:
    """The verdict page of one attempt, from the ledger alone."""
    return render_story(story(reader, campaign, attempt), fmt=fmt)


def render_story(view: Story, *, fmt: Format) -> str:
    """The page of a story that was read already."""
    template = _environment(fmt).get_template(f"verdict.{fmt}.j2")
    plot = Markup(rep_plot(view)) if fmt == "html" else ""
    return template.render(story=view, words=words, plot=plot, deaths=_deaths(view))


def markdown(value: Any) -> str:
    """Free text as Markdown that shows exactly that text, on one line."""
    return _MARKDOWN.sub(r"\\\1", one_line(str(value), 4000))


def _environment(fmt: Format) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.PackageLoader("templates", "."),
        undefined=jinja2.StrictUndefined,
        autoescape=fmt == "html",
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters["t"] = markdown if fmt == "md" else lambda value: one_line(str(value), 4000)
    return environment


def _deaths(view: Story) -> list[str]:
    return words.deaths_sentence([dict(item) for item in view.deaths], view.reps_registered)
