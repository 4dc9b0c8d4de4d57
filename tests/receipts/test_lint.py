from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict

from receipts import lint
from receipts.errors import FaultsError, InputError
from receipts.names import is_case, is_identifier, one_line
from receipts.nearest import nearest
from receipts.toml_lines import KeyPath, line_map, path_text


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    colour: Literal["red", "green"]
    weight_bytes: int
    label: str = ""


class Outer(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)
    title: str
    inner: list[Inner]


def faults(text: str | bytes) -> tuple[str, ...]:
    raw = text.encode() if isinstance(text, str) else text
    with pytest.raises(FaultsError) as caught:
        lint.inspect(lint.parse_document(raw, "f.toml"), Outer).checked()
    return caught.value.faults


def test_typo_in_required_typo_in_optional_and_wrong_word_are_exactly_three_lines() -> None:
    text = 'title = "x"\n[[inner]]\ncolour = "gren"\nwieght_bytes = 3\nlable = "y"\n'
    assert faults(text) == (
        "f.toml:3: inner[0].colour: 'gren' is none of red | green (did you mean 'green'?)",
        "f.toml:4: inner[0].wieght_bytes: unknown key (did you mean 'weight_bytes'?)",
        "f.toml:5: inner[0].lable: unknown key (did you mean 'label'?)",
    )


def test_a_missing_key_is_shown_at_the_header_of_its_table() -> None:
    text = 'title = "x"\n\n[[inner]]\ncolour = "red"\nweight_bytes = 1\n\n[[inner]]\ncolour = "red"\n'
    assert faults(text) == ("f.toml:7: inner[1].weight_bytes: is required but missing",)


def test_what_stands_behind_a_misspelt_key_is_still_checked() -> None:
    text = 'title = "x"\n[[iner]]\ncolour = "red"\nweight_bytes = "heavy"\n'
    assert faults(text) == (
        "f.toml:2: iner: unknown key (did you mean 'inner'?)",
        "f.toml:4: iner[0].weight_bytes: must be a whole number, not 'heavy'",
    )


def test_a_key_like_none_lists_what_is_known() -> None:
    text = 'title = "x"\nzzzz = 1\ninner = []\n'
    assert faults(text) == ("f.toml:2: zzzz: unknown key; known here: title, inner",)


@pytest.mark.parametrize(
    ("raw", "told"),
    [
        (b"\xef\xbb\xbftitle = 1\n", "f.toml:1: begins with a byte order mark"),
        (b"# a\ntitle = '\xff'\n", "f.toml:2: not UTF-8"),
        (b"title = 'x'\nb = = 2\n", "f.toml:2: not TOML"),
        (b"title = 'x'\ntitle = 'y'\n", "f.toml:2: title: is defined twice; the first stands in line 1"),
        (b"[a]\nx = 1\n[b]\n[a]\n", "f.toml:4: a: is defined twice; the first stands in line 1"),
        (b'b = """\n"""\nc = {e = 1, e = 2}', "f.toml:3: c.e: is defined twice; the first stands in line 3"),
        (b"[[s]]\nn = 1\n[[s]]\nn = 1\nn = 2\n", "f.toml:5: s[1].n: is defined twice; the first stands in line 4"),
        (b"a = 1\na.b = 2\n", "f.toml:2: a: is defined twice; the first stands in line 1"),
        (b"a.b = 1\na = 2", "f.toml:2: a: is defined twice; the first stands in line 1"),
        (b"a = {b = 1}\n[a]\nc = 1\n", "f.toml:2: a: is defined twice; the first stands in line 1"),
        (b"[a]\nb.c = 1\n[a.b]\n", "f.toml:3: a.b: is defined twice; the first stands in line 2"),
        (b"a = 1\nb = " + b"9" * 5000 + b"\n", "f.toml:2: not TOML we read: a number is too long"),
        (b"a = " + b"[" * 5000 + b"]" * 5000, "f.toml:1: not TOML we read: nested too deeply"),
        (b"#" * (lint.MAX_FILE_BYTES + 1), "f.toml:1: larger than 1048576 bytes"),
    ],
)
def test_a_file_that_is_no_toml_is_one_clear_line(raw: bytes, told: str) -> None:
    found = faults(raw)
    assert len(found) == 1
    assert found[0].startswith(told)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such file"):
        lint.read_document(tmp_path / "none.toml")
    with pytest.raises(InputError, match="is a directory"):
        lint.read_document(tmp_path)


def test_a_hostile_key_and_value_stay_on_one_line_without_escapes() -> None:
    (found,) = faults('title = "x"\ninner = []\n"a\\u001b\\u2028b" = 1\n')
    assert found.isprintable()
    assert found.startswith('f.toml:3: "a')


LINED = '''# comment = 1
top = 1
a.b."c d" = [ # three
  1,
  { x = 1, y = [2, 3] },
]
s = """
[not.a.table]
k = 1 \\""" still"""""
lit = \'\'\'
x = '\'\'\'

[t.u]
v = 1979-05-27 07:32:32 # k = 2
[[arr]]
n = 1
[[arr.sub]]
m = 1
[[arr]]
[[arr.sub]]
[[arr.sub]]
m = 2
[arr.tab]
"q\\u0041" = 'z'
'''


@pytest.mark.parametrize(
    ("path", "line"),
    [
        (("top",), 2), (("a", "b", "c d"), 3), (("a", "b", "c d", 1), 5), (("a", "b", "c d", 1, "y"), 5), (("s",), 7),
        (("lit",), 10), (("t", "u"), 13), (("t", "u", "v"), 14), (("arr", 0), 15), (("arr", 0, "n"), 16),
        (("arr", 0, "sub", 0, "m"), 18), (("arr", 1), 19), (("arr", 1, "sub", 1, "m"), 22), (("arr", 1, "tab"), 23),
        (("arr", 1, "tab", "qA"), 24), (("arr", 1, "absent"), 19),
    ],
)  # fmt: skip
def test_every_key_is_found_on_its_line(path: KeyPath, line: int) -> None:
    assert line_map(LINED).line_of(path) == line
    assert line_map(LINED.replace("\n", "\r\n")).line_of(path) == line


def _paths(value: Any, at: KeyPath = ()) -> set[KeyPath]:
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    found = {at} if at else set()
    return found.union(*(_paths(item, (*at, key)) for key, item in items))


def test_the_map_knows_exactly_the_paths_that_tomllib_reads() -> None:
    assert set(line_map(LINED).lines) == _paths(tomllib.loads(LINED))


@given(
    st.lists(
        st.tuples(
            st.sampled_from(["a", "b", "x.y", '"q.#"']),
            st.sampled_from(
                ["1", '"#"', "'''\n'''", '"""\n\\""""""', "[1,\n[2]]", "{p = 1, q.r = [{}]}", "2020-01-01 10:00:00"]
            ),
        ),
        max_size=5,
    )
)
def test_the_map_agrees_with_tomllib_on_generated_documents(pairs: list[tuple[str, str]]) -> None:
    text = "".join(f"[[t]]\n{key} = {value} # c\n" for key, value in pairs)
    assert set(line_map(text).lines) == _paths(tomllib.loads(text))


def test_identifiers_and_cases_are_what_design_section_5_allows() -> None:
    assert is_identifier("soak-n12.x_1") and is_identifier("a" * 64) and is_case("n=8")
    assert not any(map(is_identifier, ["", "A", "-a", "a" * 65, "n=8", "a\n", "ä"]))


def test_text_for_a_terminal_holds_no_control_character() -> None:
    assert one_line("a\x1b[31m\n\u2028\u202eb") == "a\\x1b[31m\\x0a\\u2028\\u202eb"


def test_the_nearest_name_sees_swapped_letters_and_refuses_strangers() -> None:
    assert nearest("rpes", ["reps", "runs"]) == "reps"
    assert nearest("=>", ["==", ">=", ">"], 0.5) == ">="
    assert nearest("banana", ["reps", "runs"]) is None


def test_a_path_quotes_what_is_no_bare_key() -> None:
    assert path_text(("a", 1, "b c")) == 'a[1]."b c"'
