"""Text from outside on a terminal: what it would obey is shown and not passed on; letters of any script stay."""

from __future__ import annotations

import pytest

from receipts.visible import on_terminal, one_line, quoted


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2Jgone", "\\x1b[2Jgone"),
        ("a\rb", "a\\x0db"),
        ("a\x07\x7f\x9b", "a\\x07\\x7f\\x9b"),
        ("abc\u202edcba", "abc\\u202edcba"),
        ("a\u2028b", "a\\u2028b"),
        ("\udc80", "\\udc80"),
        ("two\nlines\tand a tab", "two\nlines\tand a tab"),
        ("Größe 大小 👍", "Größe 大小 👍"),
    ],
)
def test_whole_output_keeps_its_lines_and_nothing_that_is_obeyed(text: str, shown: str) -> None:
    assert on_terminal(text) == shown


def test_a_value_in_a_message_is_one_line_and_has_an_end() -> None:
    assert one_line("a\nb\tc") == "a\\x0ab\\x09c"
    assert one_line("x" * 80) == "x" * 80
    assert one_line("x" * 81) == "x" * 79 + "…"
    assert quoted("it") == "'it'"
