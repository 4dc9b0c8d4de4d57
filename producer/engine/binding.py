"""What is bound in a loaded vLLM engine, read off its layers (DESIGN section 7).

A config says what was asked for; some vLLM builds bind another kernel without a word (FACTS section 1), so classes are
read from the objects that will compute.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from producer.engine.base import Binding, EngineSettings
from producer.engine.layout import require_known
from producer.handoff.manifest import KVGeometry, LayerGeometry
from receipts.errors import InputError


def read_binding(engine: Any, settings: EngineSettings) -> Binding:
    """The binding of a loaded engine. Raises InputError naming a layout or geometry that is not known."""
    runner = _runner(engine)
    config = engine.vllm_config
    layers = attention_layers(engine)
    first = next(iter(layers.values()))
    groups = runner.kv_cache_config.kv_cache_groups
    if len(groups) != 1:
        raise InputError(f"the model has {len(groups)} KV-cache groups; more than one is not built yet")
    spec = groups[0].kv_cache_spec
    if type(spec).__name__ != "FullAttentionSpec":
        raise InputError(f"the KV-cache kind {type(spec).__name__} is not known to the capture")
    _require_plain_attention(layers, spec)
    kv_dtype = str(spec.dtype).removeprefix("torch.")
    backend = type(first.impl).__name__
    isa = require_known(getattr(first, "isa", None) or ("flash_attn" if "FlashAttention" in backend else backend))
    geometry = KVGeometry(tuple(_layer_geometry(layer) for layer in layers.values()), kv_dtype)
    return Binding(
        linear_kernels=_linear_kernels(runner.model),
        attention_backend=backend,
        isa=isa,
        model_dtype=str(config.model_config.dtype).removeprefix("torch."),
        kv_dtype=kv_dtype,
        block_size=int(spec.block_size),
        chunk_tokens=int(config.scheduler_config.max_num_batched_tokens),
        max_num_seqs=int(config.scheduler_config.max_num_seqs),
        prefix_caching=bool(config.cache_config.enable_prefix_caching),
        eager=bool(config.model_config.enforce_eager),
        runner=f"{type(runner).__module__}.{type(runner).__name__}",
        rope_modules=len(_rope_modules(runner.model)),
        vocab_size=int(config.model_config.get_vocab_size()),
        context_tokens=min(settings.context_tokens, int(config.model_config.max_model_len)),
        geometry=geometry,
    )


def _require_plain_attention(layers: dict[str, Any], spec: Any) -> None:
    """Refuse what would be captured as something that it is not: chunked attention, layers that share a cache."""
    if getattr(spec, "attention_chunk_size", None) is not None:
        raise InputError(f"chunked attention of {spec.attention_chunk_size} tokens is not known to the capture")
    for name, layer in layers.items():
        kind = type(layer).__name__
        if kind != "Attention":
            raise InputError(f"the attention kind {kind} is not known to the capture", where=name)
        if layer.kv_sharing_target_layer_name is not None:
            raise InputError(f"the layer shares the KV cache of {layer.kv_sharing_target_layer_name}", where=name)


def attention_layers(engine: Any) -> dict[str, Any]:
    """Attention layers by name, in the model's order."""
    context = engine.vllm_config.compilation_config.static_forward_context
    layers = {name: layer for name, layer in context.items() if hasattr(layer, "impl")}
    if not layers:
        raise InputError("the model has no attention layer that the capture knows")
    return dict(sorted(layers.items(), key=lambda item: _layer_number(item[0])))


def rope_tables(engine: Any) -> bytes:
    """The cos/sin tables of the model's RoPE modules, each distinct table once, in the model's order."""
    import torch

    tables: list[bytes] = []
    for module in _rope_modules(_runner(engine).model):
        raw = module.cos_sin_cache.detach().cpu().contiguous().view(torch.uint8).numpy().tobytes()
        if raw not in tables:
            tables.append(raw)
    return b"".join(tables)


def _runner(engine: Any) -> Any:
    return engine.engine_core.engine_core.model_executor.driver_worker.worker.model_runner


def _rope_modules(model: Any) -> list[Any]:
    # One table may be shared by every layer: count where it is used, not how often it exists.
    return [
        child
        for module in model.modules()
        for name, child in module.named_children()
        if name == "rotary_emb" and hasattr(child, "cos_sin_cache")
    ]


def _linear_kernels(model: Any) -> dict[str, int]:
    """Class of what multiplies, per linear layer: the kernel behind a quantisation scheme, else the method."""
    from vllm.model_executor.layers.linear import LinearBase

    counts: Counter[str] = Counter()
    for module in model.modules():
        if not isinstance(module, LinearBase):
            continue
        method = module.quant_method
        scheme = getattr(module, "scheme", None)
        kernel = getattr(scheme, "kernel", None)
        bound = kernel if kernel is not None else scheme if scheme is not None else method
        counts[type(bound).__name__] += 1
    return dict(counts)


def _layer_geometry(layer: Any) -> LayerGeometry:
    window = getattr(layer, "sliding_window", None)
    return LayerGeometry(
        attention="full" if window is None else "window",
        window=None if window is None else int(window),
        kv_heads=int(layer.num_kv_heads),
        head_size=int(layer.head_size),
        kv_group=0,
    )


def _layer_number(name: str) -> tuple[int, str]:
    numbers = [int(part) for part in name.split(".") if part.isdecimal()]
    return (numbers[0] if numbers else -1, name)
