"""A Llama written as a Hugging Face folder: plain bfloat16, or NVFP4 W4A4 in compressed-tensors layout.

The layout is ``nvfp4-pack-quantized`` as vLLM's ``compressed_tensors_w4a4_nvfp4.py`` reads it (FACTS section 4).
Files depend on their content alone: sorted keys, no times, no paths.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from safetensors.torch import save_file
from torch import Tensor

from producer.checkpoint.llama import GROUPS, LlamaGeometry, layer_prefix
from producer.checkpoint.manifest import Progress
from producer.checkpoint.nvfp4 import GROUP, global_divisor, quantise

CHAT_TEMPLATE_NAME: Final = "chat_template.jinja"


def quantised_tensors(
    geometry: LlamaGeometry, weights: Mapping[str, Tensor], input_maxima: Mapping[str, float], *, progress: Progress
) -> dict[str, Tensor]:
    """The tensors of the NVFP4 checkpoint: linear layers quantised, embeddings and norms in bfloat16.

    The members of a fused group share ``weight_global_scale`` and ``input_global_scale``: vLLM keeps only the
    largest of each when it fuses them (``compressed_tensors_w4a4_nvfp4.py:108-137``).
    """
    tensors: dict[str, Tensor] = {}
    for layer in range(geometry.layers):
        progress("quantising layers", layer, geometry.layers)
        for group in GROUPS:
            names = [layer_prefix(layer) + member for member in group.members]
            matrices = [weights[f"{name}.weight"].float() for name in names]
            weight_divisor = global_divisor(max(float(matrix.abs().max()) for matrix in matrices))
            input_divisor = global_divisor(input_maxima[layer_prefix(layer) + group.inputs_of])
            for name, matrix in zip(names, matrices, strict=True):
                quantised = quantise(matrix, weight_divisor)
                tensors[f"{name}.weight_packed"] = quantised.packed
                tensors[f"{name}.weight_scale"] = quantised.scale
                tensors[f"{name}.weight_global_scale"] = weight_divisor.clone()
                tensors[f"{name}.input_global_scale"] = input_divisor.clone()
    progress("quantising layers", geometry.layers, geometry.layers)
    linear = {
        f"{layer_prefix(n)}{member}.weight" for n in range(geometry.layers) for g in GROUPS for member in g.members
    }
    return tensors | bfloat16_tensors({name: tensor for name, tensor in weights.items() if name not in linear})


def bfloat16_tensors(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """All weights rounded to bfloat16."""
    return {name: tensor.to(torch.bfloat16).contiguous() for name, tensor in weights.items()}


def write_model(folder: Path, geometry: LlamaGeometry, tensors: Mapping[str, Tensor], *, nvfp4: bool) -> None:
    """Write ``model.safetensors``, ``config.json`` and ``generation_config.json`` into ``folder``."""
    save_file(dict(sorted(tensors.items())), folder / "model.safetensors", metadata={"format": "pt"})
    config = _config(geometry)
    if nvfp4:
        config["quantization_config"] = _quantization_config()
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", _generation_config(geometry))


def write_json(path: Path, document: Mapping[str, Any]) -> None:
    """Indented JSON with sorted keys and one newline at the end: these files are read by people too."""
    path.write_text(json.dumps(document, indent=2, sort_keys=True, ensure_ascii=False) + "\n", encoding="utf-8")


def _config(geometry: LlamaGeometry) -> dict[str, Any]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": geometry.bos_token,
        "eos_token_id": geometry.eos_token,
        "pad_token_id": geometry.pad_token,
        "head_dim": geometry.head_size,
        "hidden_act": "silu",
        "hidden_size": geometry.hidden,
        "initializer_range": 0.02,
        "intermediate_size": geometry.intermediate,
        "max_position_embeddings": geometry.context,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": geometry.heads,
        "num_hidden_layers": geometry.layers,
        "num_key_value_heads": geometry.kv_heads,
        "rms_norm_eps": geometry.norm_epsilon,
        "rope_parameters": {"rope_theta": geometry.rope_theta, "rope_type": "default"},
        "rope_theta": geometry.rope_theta,
        "tie_word_embeddings": True,
        "torch_dtype": "bfloat16",
        "use_cache": True,
        "vocab_size": geometry.vocabulary,
    }


def _generation_config(geometry: LlamaGeometry) -> dict[str, Any]:
    return {
        "bos_token_id": geometry.bos_token,
        "eos_token_id": geometry.eos_token,
        "pad_token_id": geometry.pad_token,
    }


def _quantization_config() -> dict[str, Any]:
    number = {"num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": GROUP, "symmetric": True}
    return {
        "quant_method": "compressed-tensors",
        "format": "nvfp4-pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": ["lm_head"],
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": "nvfp4-pack-quantized",
                "weights": {**number, "dynamic": False},
                "input_activations": {**number, "dynamic": "local"},
                "output_activations": None,
            }
        },
    }
