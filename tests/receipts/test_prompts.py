"""A prompt's digest and a seeded prompt, against values worked out from DESIGN section 7 with hashlib alone."""

from __future__ import annotations

import hashlib

import pytest

from receipts.prompts import prompt_sha256, seeded_token_ids

SOAK_HEAD = (30803, 16410, 37999, 5971)
"""Worked out with sha256sum, sed and bc: the first four ids of campaigns/specs/soak-n12.toml."""


def test_the_digest_covers_the_domain_line_and_little_endian_u32_ids() -> None:
    expected = hashlib.sha256(b"soakledger/prompt/1\n" + b"\x01\x00\x00\x00" + b"\xff\xff\xff\xff").hexdigest()
    assert prompt_sha256([1, 2**32 - 1]) == "sha256:" + expected


def test_the_order_of_ids_is_part_of_the_digest() -> None:
    assert prompt_sha256([1, 2]) != prompt_sha256([2, 1])


def test_each_seeded_id_is_drawn_from_seed_and_position() -> None:
    zero = int.from_bytes(hashlib.sha256(b"soakledger/seeded-prompt/1\n7\n0").digest()[:8], "little")
    twelfth = int.from_bytes(hashlib.sha256(b"soakledger/seeded-prompt/1\n7\n12").digest()[:8], "little")
    ids = seeded_token_ids(7, 13, 1000, 40000)
    assert (ids[0], ids[12]) == (1000 + zero % 39000, 1000 + twelfth % 39000)


def test_the_first_ids_of_the_soak_are_these() -> None:
    assert seeded_token_ids(20260823, 4, 1000, 40000) == SOAK_HEAD


def test_a_longer_prompt_of_one_seed_begins_with_the_shorter_and_another_seed_does_not() -> None:
    assert seeded_token_ids(7, 50, 3, 500)[:20] == seeded_token_ids(7, 20, 3, 500)
    assert seeded_token_ids(8, 20, 3, 500) != seeded_token_ids(7, 20, 3, 500)


def test_ids_lie_in_the_half_open_range() -> None:
    assert set(seeded_token_ids(1, 200, 5, 7)) == {5, 6}


@pytest.mark.parametrize(("low", "high"), [(5, 5), (6, 5), (-1, 5)])
def test_an_empty_or_negative_range_is_refused(low: int, high: int) -> None:
    with pytest.raises(ValueError, match="range"):
        seeded_token_ids(1, 1, low, high)
