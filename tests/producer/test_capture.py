"""What is captured is the prompt's KV: against plain transformers, over blocks, chunks and earlier requests."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_engine import BLOCK_TOKENS, CHUNK_TOKENS, opened, prompt

pytest.importorskip("vllm")
import blake3
import torch

from producer.checkpoint.build import build_tiny
from producer.engine.base import EngineTouchedError
from producer.engine.native import NativeEngine
from producer.handoff import manifest

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "bf16"
    build_tiny(folder, nvfp4=False)
    return folder


@pytest.fixture(scope="module")
def engine(checkpoint: Path) -> Iterator[Any]:
    with opened(NativeEngine, checkpoint) as engine:
        assert engine.binding.block_size == BLOCK_TOKENS
        yield engine


@pytest.fixture(scope="module")
def plain(checkpoint: Path) -> Any:
    from transformers import LlamaForCausalLM

    return LlamaForCausalLM.from_pretrained(checkpoint, dtype=torch.bfloat16)


def root_of(engine: Any, ids: list[int]) -> str:
    captured = engine.prefill(ids).captured
    root = manifest.tensors_root(manifest.tensors_array(captured.descriptions, captured.digests))
    captured.release()
    return root


def cosine(a: torch.Tensor, b: torch.Tensor) -> float:
    return torch.nn.functional.cosine_similarity(a.flatten().double(), b.flatten().double(), dim=0).item()


LENGTHS = {
    "one token": 1,
    "one less than a block": BLOCK_TOKENS - 1,
    "a block": BLOCK_TOKENS,
    "a block and a token": BLOCK_TOKENS + 1,
    "exactly one chunk": CHUNK_TOKENS,
    "two chunks": CHUNK_TOKENS + 44,
    "exactly two chunks": 2 * CHUNK_TOKENS,
    "three chunks": 2 * CHUNK_TOKENS + 188,
}


@pytest.mark.parametrize("tokens", LENGTHS.values(), ids=LENGTHS.keys())
def test_every_layers_k_and_v_agree_with_plain_transformers(engine: Any, plain: Any, tokens: int) -> None:
    ids = prompt(5, tokens)
    prefilled = engine.prefill(ids)
    with torch.no_grad():
        answer = plain(torch.tensor([ids]), use_cache=True)
    captured = prefilled.captured
    layers = len(engine.binding.geometry.layers)
    assert [(item.layer, item.part) for item in captured.descriptions] == [
        (layer, part) for layer in range(layers) for part in ("k", "v")
    ]
    for description, buffer in zip(captured.descriptions, captured.buffers, strict=True):
        ours = torch.frombuffer(bytearray(buffer), dtype=torch.bfloat16).view(description.shape)
        cache = answer.past_key_values.layers[description.layer]
        theirs = (cache.keys if description.part == "k" else cache.values)[0].permute(1, 0, 2)
        assert cosine(ours, theirs) >= 0.9999, (description.layer, description.part)
        if tokens > 1:
            assert cosine(ours[1:], theirs[:-1]) <= 0.9, "one token off must not look right"
    captured.release()


def test_a_digest_is_that_of_the_bytes_and_the_bytes_cannot_be_written(engine: Any) -> None:
    captured = engine.prefill(prompt(5, 200)).captured
    for description, buffer, digest in zip(captured.descriptions, captured.buffers, captured.digests, strict=True):
        assert len(buffer) == description.bytes
        assert digest == "blake3:" + blake3.blake3(bytes(buffer)).hexdigest()
        with pytest.raises(TypeError):
            buffer[0] = 0
    captured.release()


def test_one_prompt_has_one_root_whatever_ran_before_it(engine: Any) -> None:
    first = root_of(engine, prompt(11, 300))
    blocks = []
    for seed, tokens in ((12, 130), (13, 700), (14, 5)):
        blocks.append(root_of(engine, prompt(seed, tokens)))
    assert root_of(engine, prompt(11, 300)) == first
    assert len({first, *blocks}) == 4


def test_a_prompt_that_differs_in_its_last_token_has_another_root(engine: Any) -> None:
    ids = prompt(11, 300)
    assert root_of(engine, ids) != root_of(engine, [*ids[:-1], ids[-1] ^ 1])


def test_an_unreleased_payload_survives_later_prefills_and_releases(engine: Any) -> None:
    kept = engine.prefill(prompt(21, 200)).captured
    before = [bytes(view) for view in kept.buffers]
    for seed in (22, 23, 24):
        engine.prefill(prompt(seed, 200)).captured.release()
    assert [bytes(view) for view in kept.buffers] == before
    kept.release()


def test_a_released_payload_refuses_to_be_read(engine: Any) -> None:
    captured = engine.prefill(prompt(21, 200)).captured
    captured.release()
    captured.release()
    with pytest.raises(ValueError, match="released"):
        bytes(captured.buffers[0])


def test_all_blocks_are_free_again_after_each_request(engine: Any) -> None:
    before = engine.free_blocks()
    engine.prefill(prompt(31, 700)).captured.release()
    engine.generate(prompt(32, 200), 3)
    assert engine.free_blocks() == before


def test_the_first_token_is_the_one_that_generation_begins_with(engine: Any) -> None:
    ids = prompt(33, 150)
    prefilled = engine.prefill(ids)
    prefilled.captured.release()
    assert engine.generate(ids, 3)[0] == prefilled.first_token
    assert prefilled.compute_start_ns < prefilled.last_token_ns


@pytest.mark.usefixtures("engine")
def test_a_capture_behind_a_failing_forward_is_refused() -> None:
    """``wait_for_save`` runs in a ``finally``: seen here as a call while an exception is being handled."""
    try:
        raise RuntimeError("a forward that failed")
    except RuntimeError:
        assert sys.exc_info()[0] is RuntimeError
        connector = _worker_connector()
        connector.bind_connector_metadata(_metadata([0], 1))
        connector.wait_for_save()
        connector.clear_connector_metadata()
    assert _desk().draft is None


@pytest.mark.usefixtures("engine")
def test_a_step_that_did_not_compute_every_layer_is_refused() -> None:
    connector = _worker_connector()
    connector.bind_connector_metadata(_metadata([0], 1))
    for name in _desk().layers[:-1]:
        connector.save_kv_layer(name, torch.empty(0), None)
    with pytest.raises(EngineTouchedError, match="3 layers were computed in the step, the model has 4"):
        connector.wait_for_save()
    connector.clear_connector_metadata()
    assert _desk().draft is None


def _worker_connector() -> Any:
    from vllm.distributed.kv_transfer import get_kv_transfer_group

    return get_kv_transfer_group()


def _metadata(blocks: list[int], tokens: int) -> Any:
    from producer.engine.capture import CaptureMetadata

    return CaptureMetadata(blocks=blocks, n_tokens=tokens)


def _desk() -> Any:
    from producer.engine.capture import DESK

    return DESK
