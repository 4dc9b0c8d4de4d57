"""Tokens decoded from captured bytes equal a local prefill's: the bytes are usable KV, and only that prompt's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_engine import build_attentive, opened, prompt

pytest.importorskip("vllm")
from producer.engine.native import NativeEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

TOKENS = 16
LENGTHS = [1, 2, 128, 129, 130, 300, 700]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("attentive") / "bf16"
    build_attentive(folder)
    return folder


@pytest.fixture(scope="module")
def payloads(checkpoint: Path) -> dict[int, list[bytes]]:
    """What a producer captured; its engine is gone before the decoding one opens."""
    kept = {}
    with opened(NativeEngine, checkpoint) as engine:
        for length in LENGTHS:
            captured = engine.prefill(prompt(9, length)).captured
            kept[length] = [bytes(buffer) for buffer in captured.buffers]
            captured.release()
    return kept


@pytest.fixture(scope="module")
def decoder(checkpoint: Path, payloads: dict[int, list[bytes]]) -> Any:  # noqa: ARG001
    from producer.engine.decode import DecodeEngine

    with opened(DecodeEngine, checkpoint) as engine:
        yield engine


@pytest.mark.parametrize("length", LENGTHS)
def test_sixteen_tokens_decoded_from_the_bytes_equal_a_local_prefills(
    decoder: Any, payloads: dict[int, list[bytes]], length: int
) -> None:
    ids = prompt(9, length)
    assert decoder.decode(ids, payloads[length], TOKENS) == decoder.generate(ids, TOKENS)


def test_the_bytes_are_used_other_bytes_give_other_tokens(decoder: Any, payloads: dict[int, list[bytes]]) -> None:
    ids = prompt(9, 300)
    zeros = [bytes(len(tensor)) for tensor in payloads[300]]
    exchanged = [tensor for pair in zip(payloads[300][1::2], payloads[300][::2], strict=True) for tensor in pair]
    assert decoder.decode(ids, zeros, TOKENS) != decoder.generate(ids, TOKENS)
    assert decoder.decode(ids, exchanged, TOKENS) != decoder.generate(ids, TOKENS)


def test_tensors_of_another_length_are_refused(decoder: Any, payloads: dict[int, list[bytes]]) -> None:
    with pytest.raises(ValueError, match="are not the KV of 299 tokens"):
        decoder.decode(prompt(9, 299), payloads[300], TOKENS)
