"""What a receiver holds of the sample model is that prompt's KV: sixteen tokens decoded from its bytes alone.

The bytes go the whole way: captured from the real NVFP4 model, over a real socket, admitted by a receiver in a process
of its own, and read back from there. The engine that decodes opens after the producing one is gone.

A decoding engine computes the last prompt token alone, a local prefill among the others, which rounds differently: how
a prompt is cut is part of an identity (DESIGN section 7). Where two words are nearly equally likely that shows, between
two local prefills of 1,024 and of n − 1 tokens a chunk just as well; these prompts have no such place.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from handoff_lane import PROMPT, handoff_id, producer_side, receiver_process
from tiny_engine import BLOCK_TOKENS

from producer.checkpoint.build import build_sample
from producer.engine.base import EngineSettings
from producer.handoff import inspection, sender
from producer.handoff.manifest import total_bytes
from receipts.clock import HostClock

pytest.importorskip("vllm")
from producer.engine.decode import DecodeEngine
from producer.engine.native import NativeEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

SAMPLE = Path(__file__).parents[2] / "build" / "checkpoints" / "sample"
TOKENS = 16
QUESTION = "What is the capital of France?"
LEDGER = (
    "A ledger is a book in which a merchant writes what was bought, what was sold and what is owed. Nothing in it is "
    "ever erased: a wrong line is struck out, stays readable, and the right one is written below it. "
)


@contextlib.contextmanager
def opened(engine_class: Any) -> Iterator[Any]:
    before = dict(os.environ)
    engine = engine_class.open(EngineSettings(SAMPLE, "native", 256 * 1024**2, 2048, 1024, 2), HostClock("here"))
    try:
        yield engine
    finally:
        engine.close()
        os.environ.clear()
        os.environ.update(before)


@pytest.fixture(scope="module")
def prompts() -> dict[str, list[int]]:
    build_sample(SAMPLE, progress=lambda *_: None)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(SAMPLE)
    question = [{"role": "user", "content": QUESTION}]
    return {
        "question": tokenizer.apply_chat_template(question, add_generation_prompt=True, return_dict=False),
        "over a block": tokenizer(LEDGER * 4)["input_ids"],
    }


@pytest.fixture(scope="module")
def received(prompts: dict[str, list[int]], tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[bytes]]:
    """What the receiver holds of each prompt, tensor by tensor."""
    work_dir = tmp_path_factory.mktemp("receiver")
    kept = {}
    with opened(NativeEngine) as engine:
        geometry = engine.binding.geometry
        with receiver_process(work_dir, geometry) as receiver:
            for name, ids in prompts.items():
                identifier = handoff_id()
                captured = engine.prefill(ids).captured
                size = total_bytes(captured.descriptions)
                tensors = list(zip(captured.descriptions, captured.buffers, strict=True))
                side = producer_side(geometry)
                with sender.connect(side, receiver.address, size, clock=HostClock("here")) as handoff:
                    handoff.send(identifier, PROMPT, len(ids), tensors, captured.digests)
                captured.release()
                shown = inspection.show(work_dir, identifier, payload=True)
                assert shown.payload is not None
                kept[name] = split(shown.payload, [item["bytes"] for item in shown.manifest["tensors"]])
    return kept


@pytest.fixture(scope="module")
def decoder(received: dict[str, list[bytes]]) -> Iterator[Any]:  # noqa: ARG001
    with opened(DecodeEngine) as engine:
        yield engine


def split(payload: bytes, sizes: list[int]) -> list[bytes]:
    starts = [sum(sizes[:index]) for index in range(len(sizes))]
    return [payload[start : start + size] for start, size in zip(starts, sizes, strict=True)]


@pytest.mark.parametrize("name", ["question", "over a block"])
def test_sixteen_tokens_decoded_from_the_receivers_bytes_equal_those_of_a_local_prefill(
    decoder: Any, prompts: dict[str, list[int]], received: dict[str, list[bytes]], name: str
) -> None:
    local = decoder.generate(prompts[name], TOKENS)
    assert len(local) == TOKENS
    assert decoder.decode(prompts[name], received[name], TOKENS) == local
    # They hang on these bytes: without them the same prompt goes on differently.
    assert decoder.decode(prompts[name], [bytes(len(tensor)) for tensor in received[name]], TOKENS) != local


def test_the_prompts_lie_within_a_block_and_over_several(prompts: dict[str, list[int]]) -> None:
    assert len(prompts["question"]) < BLOCK_TOKENS < len(prompts["over a block"])


def test_the_answer_from_the_receivers_bytes_names_paris(
    decoder: Any, prompts: dict[str, list[int]], received: dict[str, list[bytes]]
) -> None:
    from transformers import AutoTokenizer

    answer = decoder.decode(prompts["question"], received["question"], TOKENS)
    assert "Paris" in AutoTokenizer.from_pretrained(SAMPLE).decode(answer)
