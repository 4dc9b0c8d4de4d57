"""Pages in a real browser: nothing scrolls sideways on a telephone, and nothing is asked of a network."""

from __future__ import annotations

import html
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from told import Attempt, spec
from told_attempts import ATTEMPTS

from templates.render import render_story
from templates.story import story

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
pytestmark = [pytest.mark.browser, pytest.mark.skipif(CHROMIUM is None, reason="no chromium on this machine")]

MEASURE = (
    "<script>addEventListener('load',()=>{const d=document.documentElement;"
    "parent.document.documentElement.dataset.measured=[innerWidth,d.scrollWidth,"
    "document.querySelector('h1').getBoundingClientRect().bottom,"
    "...[...document.querySelectorAll('main *')].filter(e=>e.getBoundingClientRect().right>innerWidth+1)"
    ".map(e=>e.tagName)].join(' ')})</script>"
)


def measured(page: str, folder: Path, width: int) -> list[str]:
    """Inner width, scroll width, bottom of the verdict's word, and every element that passes the right edge.

    The page lies in a frame: a headless window is never narrower than 500 pixels.
    """
    path = folder / "frame.html"
    inner = html.escape(page.replace("</body>", MEASURE + "</body>"))
    path.write_text(f'<iframe style="border:0;width:{width}px;height:800px" srcdoc="{inner}"></iframe>', "utf-8")
    command = [
        str(CHROMIUM), "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        f"--user-data-dir={folder / 'profile'}", "--window-size=1400,900", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=120)
    found = re.search(r'data-measured="([^"]*)"', done.stdout)
    assert found is not None, done.stderr[-2000:]
    return found.group(1).split()


@pytest.mark.parametrize("name", ATTEMPTS)
def test_at_360_pixels_nothing_scrolls_sideways(name: str, tmp_path: Path) -> None:
    attempt = ATTEMPTS[name]()
    page = render_story(story(attempt.ledger, "soak-n12", attempt.number), fmt="html")
    inner, scroll, _, *beyond = measured(page, tmp_path, 360)
    assert inner == "360"
    assert int(scroll) <= 360
    assert not beyond


def test_long_names_and_words_without_a_space_do_not_scroll_either(tmp_path: Path) -> None:
    resolved = spec()
    resolved.update(title="t" * 300, question="q" * 300, not_covered=["n" * 300])
    resolved["criterion"][0].update(name="c" * 64, why="w" * 300)
    attempt = Attempt(resolved=resolved)
    attempt.rep(1, None, outcome="not_seen", error=("x" * 64, "e" * 300))
    attempt.close("aborted", reason="r" * 300, cleanup=(("p" * 300, False, "f" * 300),))
    page = render_story(story(attempt.ledger, "soak-n12", 1), fmt="html")
    for width in (360, 1200):
        inner, scroll, _, *beyond = measured(page, tmp_path, width)
        assert int(scroll) <= int(inner), beyond
        assert not beyond


def test_the_verdict_stands_on_the_first_screen_of_a_telephone(tmp_path: Path) -> None:
    attempt = ATTEMPTS["failing"]()
    page = render_story(story(attempt.ledger, "soak-n12", attempt.number), fmt="html")
    _, _, bottom, *_ = measured(page, tmp_path, 360)
    assert float(bottom) < 150
