"""Golden pages: what each kind of attempt looks like, byte for byte. SOAKLEDGER_GOLDEN=write renews them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from told_attempts import ATTEMPTS

from templates.render import render_story
from templates.story import story
from templates.terminal import verdict_lines

GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.parametrize("fmt", ["html", "md", "txt"])
@pytest.mark.parametrize("name", ATTEMPTS)
def test_a_page_is_the_golden_one(name: str, fmt: str) -> None:
    attempt = ATTEMPTS[name]()
    view = story(attempt.ledger, "soak-n12", attempt.number)
    if fmt == "txt":
        page = "\n".join(verdict_lines(view, 80)) + "\n"
    else:
        page = render_story(view, fmt="html" if fmt == "html" else "md")
    path = GOLDEN / f"{name}.{fmt}"
    if os.environ.get("SOAKLEDGER_GOLDEN") == "write":
        path.parent.mkdir(exist_ok=True)
        path.write_text(page, encoding="utf-8")
    assert page == path.read_text(encoding="utf-8")


def test_no_golden_page_is_left_over() -> None:
    expected = {f"{name}.{fmt}" for name in ATTEMPTS for fmt in ("html", "md", "txt")}
    assert {path.name for path in GOLDEN.iterdir()} == expected
