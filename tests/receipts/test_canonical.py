"""RFC 8785: the vectors of the standard, and every value that strict JSON refuses, with its path."""

from __future__ import annotations

import struct
from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from receipts import canonical
from receipts.errors import CanonicalError, NotCanonicalError

# RFC 8785 appendix B, as IEEE 754 bit patterns; the rows beyond ±(2⁵³ − 1) are below, among the refused.
NUMBERS = [
    ("0000000000000000", "0"),
    ("8000000000000000", "0"),
    ("0000000000000001", "5e-324"),
    ("8000000000000001", "-5e-324"),
    ("433fffffffffffff", "9007199254740991"),
    ("c33fffffffffffff", "-9007199254740991"),
    ("3eb0c6f7a0b5ed8d", "0.000001"),
    ("3eb0c6f7a0b5ed8c", "9.999999999999997e-7"),
    ("41b3de4355555553", "333333333.3333332"),
    ("41b3de4355555554", "333333333.33333325"),
    ("41b3de4355555555", "333333333.3333333"),
    ("41b3de4355555556", "333333333.3333334"),
    ("41b3de4355555557", "333333333.33333343"),
    ("becbf647612f3696", "-0.0000033333333333333333"),
]
BEYOND = ["7fefffffffffffff", "4340000000000000", "4430000000000000", "44b52d02c7e14af5", "444b1ae4d6e2ef50"]
NOT_FINITE = ["7fffffffffffffff", "7ff0000000000000", "fff0000000000000"]


def _double(bits: str) -> float:
    return float(struct.unpack(">d", bytes.fromhex(bits))[0])


@pytest.mark.parametrize(("bits", "text"), NUMBERS)
def test_numbers_are_written_as_appendix_b_has_them(bits: str, text: str) -> None:
    assert canonical.dumps(_double(bits)) == text.encode()


@pytest.mark.parametrize("bits", BEYOND + NOT_FINITE)
def test_numbers_that_other_readers_would_not_keep_are_refused_with_their_path(bits: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical.dumps({"a": [0, {"b": _double(bits)}]})
    assert caught.value.where == "$.a[1].b"


def test_the_example_of_section_3_2_2_comes_out_byte_for_byte() -> None:
    # Its number 333333333.33333329 is 333333333.3333333; 1E30 is beyond what we take and is left out here.
    text = r'{"numbers":[333333333.33333329,4.50,2e-3,0.000000000000000000000000001],' + (
        r'"string":"\u20ac$\u000F\u000aA' + "'" + r'\u0042\u0022\u005c\\\"\/","literals":[null,true,false]}'
    )
    assert (
        canonical.dumps(canonical.parse(text))
        == (
            '{"literals":[null,true,false],"numbers":[333333333.3333333,4.5,0.002,1e-27],'
            '"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
        ).encode()
    )


def test_keys_are_sorted_by_utf_16_code_units_as_in_section_3_2_3() -> None:
    text = (
        r'{"\u20ac":"Euro Sign","\r":"Carriage Return","\ufb33":"Hebrew Letter Dalet With Dagesh","1":"One",'
        r'"\ud83d\ude00":"Emoji: Grinning Face","\u0080":"Control","\u00f6":"Latin Small Letter O With Diaeresis"}'
    )
    assert list(canonical.parse(canonical.dumps(canonical.parse(text))).values()) == [
        "Carriage Return",
        "One",
        "Control",
        "Latin Small Letter O With Diaeresis",
        "Euro Sign",
        "Emoji: Grinning Face",
        "Hebrew Letter Dalet With Dagesh",
    ]


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('{"a":{"b":1,"b":2}}', "$.a.b"),
        ('{"é":1,"e\u0301":2}', "$.e\u0301"),
        ('{"a":[1,NaN]}', "$.a[1]"),
        ('{"a":-Infinity}', "$.a"),
        ('{"a":1e400}', "$.a"),
        ('{"a":9007199254740992}', "$.a"),
        ('{"a":-9007199254740992}', "$.a"),
        ('{"a":9007199254740993.0}', "$.a"),
        ('{"a":' + "9" * 5000 + "}", "$.a"),
        ('{"a":"\\ud800"}', "$.a"),
        ('{"a":1} {}', "$"),
        ("{'a':1}", "$"),
        ("", "$"),
        ("\ufeff{}", "$"),
        ("[" * 100_000, "$"),
    ],
)
def test_what_is_not_strict_json_is_refused_with_the_path_of_the_value(text: str, where: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical.parse(text)
    assert caught.value.where == where


@pytest.mark.parametrize(
    ("value", "where"),
    [
        ({"a": {1: 2}}, "$.a"),
        ({"a": b"x"}, "$.a"),
        ({"a": [{1, 2}]}, "$.a[0]"),
        ({"a": 2**53}, "$.a"),
        ({"\ud800": 1}, "$.?"),
    ],
)
def test_what_has_no_json_form_is_refused_with_its_path(value: Any, where: str) -> None:
    with pytest.raises(CanonicalError) as caught:
        canonical.dumps(value)
    assert caught.value.where == where


def test_bytes_that_are_not_utf_8_are_refused() -> None:
    with pytest.raises(CanonicalError, match="not UTF-8"):
        canonical.parse(b'{"a":"\xff"}')


def test_sixty_four_levels_are_read_and_sixty_five_are_not() -> None:
    assert canonical.parse("[" * 64 + "0" + "]" * 64)
    with pytest.raises(CanonicalError, match="deeper than 64"):
        canonical.parse("[" * 66 + "]" * 66)


@pytest.mark.parametrize(
    "data",
    [b'{"b":1,"a":2}', b'{"a": 1}', b'{"a":1.0}', b'{"a":1}\n', b'{"a":"\\u0041"}', b'{"a":"\\/"}', b'{"a":-0}',
     b'{"a":1,"a":1}', b'{"a":9007199254740992}', '{"é":1,"e\u0301":2}'.encode(), b'{"a":NaN}', b'{"a":"\\ud800"}',
     b"[" * 70 + b"]" * 70],
)  # fmt: skip
def test_what_is_not_in_the_one_byte_form_is_not_read_as_canonical(data: bytes) -> None:
    with pytest.raises(CanonicalError):
        canonical.parse_canonical(data)


JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(-(2.0**53) + 1, 2.0**53 - 1)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text('ab\x00"é😀\ufb33', max_size=3), inner, max_size=4)
    ),
    max_leaves=12,
)


@given(JSON_VALUES)
def test_writing_and_reading_back_is_the_same_value_and_the_same_bytes(value: Any) -> None:
    data = canonical.dumps(value)
    assert canonical.parse_canonical(data) == value
    assert data == rfc8785.dumps(value)
    assert b"\n" not in data


def test_a_file_ends_in_one_newline_and_digests_are_prefixed() -> None:
    assert canonical.file_bytes({}) == b"{}\n"
    # SHA-256 of the empty string, FIPS 180-4; BLAKE3 of the empty string, its published test vector.
    assert canonical.sha256(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert canonical.blake3_digest(b"") == "blake3:af1349b9f5f9a1a6a0404dea36dcc9499bcb25c9adc112b7cc9a93cae41f3262"


@pytest.mark.parametrize("innermost", ["", "1", '"é"'])
def test_sixty_four_arrays_inside_one_another_are_read_and_written_and_sixty_five_are_not(innermost: str) -> None:
    deepest = ("[" * 64 + innermost + "]" * 64).encode()
    assert canonical.dumps(canonical.parse(deepest)) == deepest
    assert canonical.parse_canonical(deepest) == canonical.parse(deepest)
    for read in (canonical.parse, canonical.parse_canonical):
        with pytest.raises(CanonicalError, match="deeper than 64") as caught:
            read(b"[" + deepest + b"]")
        assert caught.value.where == "$" + "[0]" * 64
    with pytest.raises(CanonicalError, match="deeper than 64"):
        canonical.dumps([canonical.parse(deepest)])


def test_objects_count_as_levels_like_arrays() -> None:
    assert canonical.parse('{"a":[' * 32 + "]}" * 32)
    with pytest.raises(CanonicalError, match="deeper than 64"):
        canonical.parse("[" + '{"a":[' * 32 + "]}" * 32 + "]")


def test_a_value_that_holds_itself_is_refused_and_does_not_hang() -> None:
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(CanonicalError, match="deeper than 64"):
        canonical.dumps(endless)


def _containers(inner: Any) -> Any:
    return st.lists(inner, max_size=4) | st.dictionaries(st.text("abcXYZ_09 é", max_size=4), inner, max_size=4)


@given(st.recursive(st.none() | st.booleans() | st.integers(-(2**53) + 1, 2**53 - 1) | st.text(), _containers))
def test_the_short_way_of_plain_values_gives_what_the_reference_gives(value: Any) -> None:
    written = canonical.dumps(value)
    assert written == rfc8785.dumps(value)
    assert canonical.parse_canonical(written) == value


@pytest.mark.parametrize(
    "written",
    [b' {"a":1}', b'{"a":1}\n', b'{"b":1,"a":1}', b'{"a":1.0}', b'{"a":-0}', b'{"a":"\\u0041"}', b'{"a":"\\/"}'],
)
def test_another_form_of_the_same_value_is_not_canonical(written: bytes) -> None:
    assert canonical.parse(written)
    with pytest.raises(NotCanonicalError):
        canonical.parse_canonical(written)


@pytest.mark.parametrize("text", ["AB==", "AAB=", "AA", "AA=", "A A=", "AA==\n", "-_==", "AAAA===="])
def test_base64_has_one_spelling(text: str) -> None:
    assert canonical.from_base64("AA==") == b"\x00"
    assert canonical.from_base64("AAA=") == b"\x00\x00"
    with pytest.raises(ValueError):
        canonical.from_base64(text)
