"""The warm-up: one known prompt prefilled twice, and its greedy answer compared with the enrolled one."""

from __future__ import annotations

from typing import Any, Final

from producer.engine.base import Engine
from producer.handoff import manifest
from receipts.errors import LaneError
from receipts.prompts import prompt_sha256, seeded_token_ids

ANSWER_TOKENS: Final = 16
KNOWN_PROMPT: Final[dict[str, Any]] = {"source": "seeded", "seed": 28, "tokens": 160, "low": 3, "high": 500}
"""Small enough for every checkpoint, longer than one KV block (128 tokens on CPU)."""


def answer_of(engine: Engine, prompt: dict[str, Any] | None = None) -> dict[str, Any]:
    """``{prompt, prompt_sha256, root, tokens}``: the payload root and the greedy tokens of the known prompt.

    Raises LaneError when two prefills of the same prompt give different bytes.
    """
    known = prompt or KNOWN_PROMPT
    high = min(known["high"], engine.binding.vocab_size)
    ids = list(seeded_token_ids(known["seed"], known["tokens"], known["low"], high))
    first, second = _root(engine, ids), _root(engine, ids)
    if first != second:
        raise LaneError(f"two prefills of the known prompt differ: {first} and {second}")
    return {
        "prompt": dict(known),
        "prompt_sha256": prompt_sha256(ids),
        "root": first,
        "tokens": engine.generate(ids, ANSWER_TOKENS),
    }


def _root(engine: Engine, ids: list[int]) -> str:
    captured = engine.prefill(ids).captured
    array = manifest.tensors_array(captured.descriptions, captured.digests)
    root = manifest.root(manifest.manifest_bytes(prompt_sha256(ids), captured.n_tokens, array))
    captured.release()
    return root
