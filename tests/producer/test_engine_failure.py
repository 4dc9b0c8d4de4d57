"""After a forward that raised, nothing is committed and the engine is not used again; a spin is noticed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tiny_engine import CHUNK_TOKENS, opened, prompt

pytest.importorskip("vllm")
from producer.checkpoint.build import build_tiny
from producer.engine.base import EngineTouchedError
from producer.engine.native import NativeEngine

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tiny") / "bf16"
    build_tiny(folder, nvfp4=False)
    return folder


@pytest.fixture
def engine(checkpoint: Path) -> Iterator[Any]:
    with opened(NativeEngine, checkpoint) as engine:
        yield engine


def layers(engine: Any) -> Any:
    return engine._core.model_executor.driver_worker.worker.model_runner.model.model.layers


def test_a_forward_that_raises_in_the_last_chunk_commits_nothing_and_ends_the_engine(
    engine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from producer.engine.capture import DESK

    last, calls = layers(engine)[-1], []
    whole = last.forward

    def failing(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise RuntimeError("a bad forward")
        return whole(*args, **kwargs)

    monkeypatch.setattr(last, "forward", failing)
    with pytest.raises(EngineTouchedError, match="RuntimeError: a bad forward"):
        engine.prefill(prompt(1, CHUNK_TOKENS + 10))
    assert len(calls) == 2
    assert DESK.draft is None
    monkeypatch.undo()
    with pytest.raises(EngineTouchedError, match="not used again"):
        engine.prefill(prompt(2, 10))
    with pytest.raises(EngineTouchedError, match="not used again"):
        engine.generate(prompt(2, 10), 1)


def test_an_engine_that_spins_is_noticed(engine: Any) -> None:
    """What a raised step leaves behind: a request that runs with nothing left to schedule (FACTS, hazard 1)."""
    raising = layers(engine)[0]
    whole = raising.forward
    raising.forward = lambda *_args, **_kwargs: (_ for _ in ()).throw(RuntimeError("a bad forward"))
    with pytest.raises(EngineTouchedError):
        engine.prefill(prompt(1, 20))
    raising.forward = whole
    engine._broken = ""  # as if nobody had noticed
    with pytest.raises(EngineTouchedError, match="the engine spins"):
        engine._run(prompt(2, 20), 2, {})
