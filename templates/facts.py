"""What ran, as short facts: from the enrolled identity, the environment receipt and the rituals.

An identity of another release may lack members; what is not there is left out, never guessed.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from receipts import metrics
from templates.words import MISSING, counted

_GIB: Final = 1 << 30


@dataclass(frozen=True)
class Fact:
    """A label and what stands behind it. ``code``: a digest or a name that is shown letter by letter."""

    label: str
    text: str
    code: bool = False


def identity_facts(identity: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The enrolled producer in a few lines."""
    numerics = _member(identity, "numerics")
    geometry = _member(identity, "geometry")
    found = [
        Fact("mode", str(identity["mode"])) if "mode" in identity else None,
        _distribution(_member(identity, "vllm"), "engine"),
        _distribution(_member(identity, "torch"), "tensors"),
        _checkpoint(_member(identity, "checkpoint")),
        _digest(_member(identity, "overlay"), "sha256", "our code in it"),
        _digest(_member(identity, "chat_template"), "sha256", "chat template"),
        Fact("runtime", str(identity["runtime"]["kind"])) if _member(identity, "runtime").get("kind") else None,
        _kernels(numerics),
        _joined("attention", numerics, ("attention_backend", "isa")),
        _types(numerics, geometry),
        _geometry(geometry),
        _counts(numerics),
        _joined("processor", numerics, ("cpu_model", "gpu", "driver", "cuda")),
    ]
    return tuple(fact for fact in found if fact is not None)


def environment_facts(environment: Mapping[str, Any]) -> tuple[Fact, ...]:
    """The orchestrator's host when the attempt began; what it did not tell is the missing sign."""
    packages = environment.get("packages") or {}
    settings = environment.get("settings") or {}
    return (
        Fact("system", f"{environment['system']} {environment['kernel']} on {environment['machine']}"),
        Fact("processor", f"{_or_missing(environment['cpu_model'])}, {_or_missing(environment['logical_cpus'])} CPUs"),
        Fact("memory", f"{_gib(environment['memory_available_bytes'])} of {_gib(environment['memory_total_bytes'])}"),
        Fact("accelerators", ", ".join(environment["accelerators"]) or "none listed by a driver"),
        Fact("Python", str(environment["python"])),
        Fact("packages", ", ".join(f"{name} {version}" for name, version in sorted(packages.items())) or MISSING),
        Fact("settings", ", ".join(f"{name} = {_or_missing(settings[name])}" for name in sorted(settings)) or MISSING),
    )


def ritual_facts(rituals: Iterable[Mapping[str, Any]]) -> tuple[Fact, ...]:
    """Each start of the producer: the instance that became ready, or why none did, and what was moved aside."""
    facts = []
    for envelope in rituals:
        body = envelope["body"]
        if body["error"] is not None:
            text = f"no producer became ready: {body['error']['code']}: {body['error']['text']}"
        elif body["instance"] is None:
            text = "no producer became ready"
        else:
            text = f"producer pid {body['instance']['pid']} became ready"
        moved = [str(item["new"]) for item in body["moved"]]
        if moved:
            text += f"; moved aside, nothing deleted: {', '.join(moved)}"
        run = envelope["run"]
        facts.append(Fact("start" if run is None else f"start of run {run}", text))
    return tuple(facts)


def is_emulated(identity: Mapping[str, Any]) -> bool:
    """Whether the bound kernels compute NVFP4 on a CPU, which has no unit for it (FACTS section 1)."""
    numerics = _member(identity, "numerics")
    quantised = any("nvfp4" in name.lower() for name in _member(numerics, "linear_kernels"))
    return quantised and bool(numerics.get("cpu_model")) and not numerics.get("gpu")


def unobserved(spec: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The registered reps that no receipt speaks of: ``run 1: reps 10 to 12``; of several soaks each by its name."""
    soaks = [stage for stage in spec["stage"] if stage["kind"] == "soak"]
    found = []
    for stage in soaks:
        named = "" if len(soaks) == 1 else f"stage {stage['name']}, "
        for run, places in itertools.groupby(metrics.unobserved(stage, receipts), key=lambda place: place[0]):
            found.append(f"{named}run {run}: {_ranges([rep for _, rep in places])}")
    return tuple(found)


def promise(spec: Mapping[str, Any]) -> str:
    """What N is: ``12 handoffs of 2,048 tokens (1 run of 12 reps), a control prompt before and after each run``."""
    parts = []
    for stage in spec["stage"]:
        if stage["kind"] != "soak":
            continue
        handoffs = counted(stage["runs"] * stage["reps"], "handoff")
        tokens = stage["prompt"].get("tokens")
        size = "" if tokens is None else f" of {counted(tokens, 'token')}"
        text = f"{handoffs}{size} ({counted(stage['runs'], 'run')} of {counted(stage['reps'], 'rep')})"
        if stage.get("control"):
            text += ", a control prompt before and after each run"
        parts.append(text)
    return "; ".join(parts) or "no handoffs"


def _ranges(numbers: list[int]) -> str:
    """``rep 7``, ``reps 3, 10 to 12``; ``numbers`` ascend."""
    parts: list[list[int]] = []
    for number in numbers:
        if parts and parts[-1][-1] == number - 1:
            parts[-1][1:] = [number]
        else:
            parts.append([number])
    text = ", ".join(str(part[0]) if len(part) == 1 else f"{part[0]} to {part[1]}" for part in parts)
    return f"rep {text}" if len(numbers) == 1 else f"reps {text}"


def _member(document: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = document.get(name)
    return value if isinstance(value, Mapping) else {}


def _distribution(block: Mapping[str, Any], label: str) -> Fact | None:
    if not block:
        return None
    commit = f" (commit {block['commit']})" if block.get("commit") else ""
    files = f", every one of {block['files']:,} files hashed" if block.get("files") else ""
    return Fact(label, f"{block.get('distribution', MISSING)} {block.get('version', MISSING)}{commit}{files}")


def _checkpoint(block: Mapping[str, Any]) -> Fact | None:
    if not block:
        return None
    name = block.get("repository") or "a local folder"
    revision = f" at {block['revision']}" if block.get("revision") else ""
    return Fact(
        "checkpoint", f"{name}{revision}, {counted(len(block['files']), 'file')}, {block['total_bytes']:,} bytes"
    )


def _digest(block: Mapping[str, Any], key: str, label: str) -> Fact | None:
    return Fact(label, str(block[key]), code=True) if block.get(key) else None


def _kernels(numerics: Mapping[str, Any]) -> Fact | None:
    kernels = _member(numerics, "linear_kernels")
    if not kernels:
        return None
    return Fact("linear kernels", ", ".join(f"{name} × {count}" for name, count in sorted(kernels.items())))


def _types(numerics: Mapping[str, Any], geometry: Mapping[str, Any]) -> Fact | None:
    if not numerics.get("model_dtype"):
        return None
    return Fact("number formats", f"model {numerics['model_dtype']}, KV {geometry.get('kv_dtype', MISSING)}")


def _geometry(geometry: Mapping[str, Any]) -> Fact | None:
    layers = geometry.get("layers")
    if not layers:
        return None
    kinds = Counter(_layer(layer) for layer in layers)
    text = "; ".join(f"{counted(count, 'layer')}: {kind}" for kind, count in kinds.items())
    return Fact("geometry", f"{text}; context of {geometry.get('context_tokens', MISSING)} tokens")


def _layer(layer: Mapping[str, Any]) -> str:
    window = f" over {layer['window']} tokens" if layer.get("window") else ""
    return f"{layer['attention']} attention{window}, {layer['kv_heads']} KV heads of {layer['head_size']}"


def _counts(numerics: Mapping[str, Any]) -> Fact | None:
    if "threads" not in numerics:
        return None
    chunk, block = numerics.get("chunk_tokens", MISSING), numerics.get("block_size", MISSING)
    eager = "eager" if numerics.get("eager") else "compiled"
    return Fact("execution", f"{numerics['threads']} threads, chunks of {chunk} tokens, blocks of {block}, {eager}")


def _joined(label: str, block: Mapping[str, Any], names: tuple[str, ...]) -> Fact | None:
    values = [str(block[name]) for name in names if block.get(name)]
    return Fact(label, ", ".join(values)) if values else None


def _or_missing(value: object) -> str:
    return MISSING if value is None else str(value)


def _gib(size_bytes: int | None) -> str:
    """10 × GiB cut to one place by integers: a figure for people, never judged by."""
    if size_bytes is None:
        return MISSING
    tenths = size_bytes * 10 // _GIB
    return f"{tenths // 10}.{tenths % 10} GiB"
