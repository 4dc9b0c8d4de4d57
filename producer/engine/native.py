"""The native engine: vLLM in this process, driven by ``add_request`` and ``step``, one request at a time.

Importing this module imports nothing heavy; ``NativeEngine.open`` sets the allow-listed environment first and only then
imports vLLM, because vLLM and torch read theirs at import time.
"""

from __future__ import annotations

import importlib.metadata
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from producer.engine.base import Binding, EngineSettings, EngineTouchedError, Prefilled
from producer.engine.exact import open_exact
from receipts.clock import HostClock
from receipts.errors import InputError

if TYPE_CHECKING:
    from producer.engine.capture import Desk

KNOWN_VLLM: Final = "0.32."
IDLE_STEPS: Final = 200
"""Steps in a row that may schedule nothing while a request is unfinished; past that it spins (FACTS, hazard 1)."""
SWEPT: Final = ("VLLM_", "OMP_", "GOMP_", "KMP_", "MKL_", "ONEDNN_", "DNNL_", "ATEN_", "TORCH_", "HF_", "TRANSFORMERS_")
"""Families of variables that reach into vLLM and torch. One that is not ours goes: VLLM_CPU_KVCACHE_SPACE alone would
override the lane's KV allocation without the identity seeing it."""
PASSED_ON: Final = ("SOAKLEDGER_NVFP4_MATMUL", "VLLM_CPU_OMP_THREADS_BIND", "MUSER_NVFP4_EXACT")


def producer_environment(settings: EngineSettings) -> dict[str, str]:
    """The environment that decides numbers or keeps the producer silent; part of the identity."""
    fixed = {
        "SOAKLEDGER_PRODUCER": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_CONFIGURE_LOGGING": "0",
        "DO_NOT_TRACK": "1",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": str(settings.threads),
        "MKL_NUM_THREADS": str(settings.threads),
        # Our own plugin is called by name below; those of others must not change what is bound.
        "VLLM_PLUGINS": "",
    }
    return fixed | {name: os.environ[name] for name in PASSED_ON if name in os.environ}


def enter_environment(settings: EngineSettings) -> dict[str, str]:
    """Make this process's environment the producer's, and return that; before torch and vLLM are imported."""
    environment = producer_environment(settings)
    for name in [name for name in os.environ if name.startswith(SWEPT) and name not in environment]:
        del os.environ[name]
    os.environ.update(environment)
    return environment


class NativeEngine:
    """One vLLM engine with one model. Not thread-safe: the resident does one thing at a time."""

    def __init__(
        self, engine: Any, desk: Desk, binding: Binding, environment: Mapping[str, str], clock: HostClock, rope: bytes
    ) -> None:
        """Use ``open``."""
        self._engine = engine
        self._desk = desk
        self._binding = binding
        self._environment = environment
        self._clock = clock
        self._rope = rope
        self._count = 0
        self._broken = ""

    @classmethod
    def open(cls, settings: EngineSettings, clock: HostClock) -> NativeEngine:
        """Load the model. Raises InputError on an unknown vLLM, layout or geometry, by name."""
        if settings.mode == "exact":
            open_exact()
        _require_known_vllm()
        environment = enter_environment(settings)
        engine = build(settings, connector="CaptureConnector", module="producer.engine.capture", role="kv_producer")
        from producer.engine.binding import attention_layers, read_binding, rope_tables
        from producer.engine.capture import DESK

        binding = read_binding(engine, settings)
        DESK.isa, DESK.geometry = binding.isa, binding.geometry
        DESK.layers = list(attention_layers(engine))
        return cls(engine, DESK, binding, environment, clock, rope_tables(engine))

    @property
    def binding(self) -> Binding:
        return self._binding

    @property
    def environment(self) -> Mapping[str, str]:
        return self._environment

    def prefill(self, ids: Sequence[int]) -> Prefilled:
        """Compute the prompt and one token; the KV is captured behind the last chunk."""
        from producer.engine.capture import PARAMETER

        self._desk.draft = None
        started = self._clock.stamp()
        output = self._run(ids, 1, {PARAMETER: True})
        ended = self._clock.stamp()
        captured, self._desk.draft = self._desk.draft, None
        # Only a request that finished by length has a prompt that was computed to its end.
        if output.finish_reason != "length" or captured is None or captured.n_tokens != len(ids):
            raise EngineTouchedError(f"the prefill ended with {output.finish_reason}, captured: {captured is not None}")
        return Prefilled(captured, started, ended, int(output.token_ids[0]))

    def prefill_without_capture(self, ids: Sequence[int]) -> int:
        """The same request with the capture switched off; returns nanoseconds (the benchmark's baseline)."""
        from producer.engine.capture import PARAMETER

        started = self._clock.stamp()
        self._run(ids, 1, {PARAMETER: False})
        return self._clock.stamp() - started

    def generate(self, ids: Sequence[int], tokens: int) -> list[int]:
        from producer.engine.capture import PARAMETER

        return [int(token) for token in self._run(ids, tokens, {PARAMETER: False}).token_ids]

    def free_blocks(self) -> int:
        return int(self._core.scheduler.kv_cache_manager.block_pool.get_num_free_blocks())

    def rope_cache(self) -> bytes | None:
        return self._rope or None

    def close(self) -> None:
        self._engine.engine_core.shutdown()

    @property
    def _core(self) -> Any:
        return self._engine.engine_core.engine_core

    def _run(self, ids: Sequence[int], tokens: int, transfer: Mapping[str, Any]) -> Any:
        """One request to its end. Any failure is an EngineTouchedError, and the engine refuses every later request."""
        if self._broken:
            raise EngineTouchedError(f"the engine failed before and is not used again: {self._broken}")
        try:
            self._add(ids, tokens, transfer)
            return self._steps()
        except BaseException as error:
            self._broken = f"{type(error).__name__}: {error}"
            if isinstance(error, EngineTouchedError) or not isinstance(error, Exception):
                raise
            raise EngineTouchedError(f"the engine raised {self._broken}") from error

    def _add(self, ids: Sequence[int], tokens: int, transfer: Mapping[str, Any]) -> None:
        from vllm import SamplingParams

        self._count += 1
        name = f"soakledger-{self._count}"
        sampling = SamplingParams(
            temperature=0.0,
            max_tokens=tokens,
            ignore_eos=True,
            detokenize=False,
            extra_args={"kv_transfer_params": dict(transfer)},
        )
        self._engine.add_request(name, {"prompt_token_ids": list(ids)}, sampling)

    def _steps(self) -> Any:
        """Step until the request is finished. Raises EngineTouchedError when the engine spins."""
        idle = 0
        progress = self._progress()
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    return output.outputs[0]
            now = self._progress()
            idle = idle + 1 if now == progress else 0
            progress = now
            if idle > IDLE_STEPS:
                raise EngineTouchedError(
                    f"{idle} steps scheduled nothing while a request was unfinished: the engine spins"
                )
        raise EngineTouchedError("the engine has no unfinished request and gave no finished one")

    def _progress(self) -> int:
        return sum(request.num_computed_tokens for request in self._core.scheduler.requests.values())


def build(settings: EngineSettings, *, connector: str, module: str, role: str) -> Any:
    """A vLLM engine in this process with our ``connector``; the producer's environment must be in force."""
    import torch

    torch.set_num_threads(settings.threads)
    from vllm.config import KVTransferConfig
    from vllm.engine.arg_utils import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    from producer.engine import plugin

    plugin.register()
    arguments = EngineArgs(
        model=str(settings.checkpoint),
        skip_tokenizer_init=True,
        max_model_len=settings.context_tokens,
        max_num_batched_tokens=settings.chunk_tokens,
        enable_chunked_prefill=True,
        max_num_seqs=1,
        enable_prefix_caching=False,
        enforce_eager=True,
        kv_cache_memory_bytes=settings.kv_cache_memory_bytes,
        seed=0,
        disable_log_stats=True,
        async_scheduling=False,
        kv_transfer_config=KVTransferConfig(
            kv_connector=connector,
            kv_connector_module_path=module,
            kv_role=role,
            engine_id="soakledger-producer",
        ),
    )
    return LLMEngine.from_engine_args(arguments)


def _require_known_vllm() -> None:
    for name in ("vllm-cpu", "vllm"):
        try:
            version = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        if not version.startswith(KNOWN_VLLM):
            raise InputError(f"{name} {version} is not a vLLM that this producer knows; it knows {KNOWN_VLLM}x")
        return
    raise InputError("vLLM is not installed here", next_step="install soakledger with the extra `cpu` or `cuda`")
