"""Our NVFP4 linear kernels for vLLM on a CPU: weights dequantised once at load, activations quantised per call.

Emulation, like vLLM's own (``kernels/linear/nvfp4/emulation.py``), which dequantises the weights at every call:
never compare its speed with a GPU's. There are two, told apart by their class names because an identity records the
class bound to the layers (DESIGN section 7); their numbers differ. docs/decisions/0002 says why.

Only the plugin imports this module: it needs torch and vLLM.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, ClassVar, Final

import torch
from torch import Tensor
from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearKernel, NvFp4LinearLayerConfig

from producer.checkpoint.nvfp4 import dequantise_stored, quantise_dequantise
from receipts.errors import InputError

MATMUL_VARIABLE: Final = "SOAKLEDGER_NVFP4_MATMUL"
"""``model``, ``float32`` or ``auto`` (the default); belongs to the allow-listed environment of the identity."""


def chosen_matmul(environment: Mapping[str, str] = os.environ, capability: str | None = None) -> str:
    """``model`` or ``float32``: what the environment says, else what this CPU is fast in.

    Without AVX-512, PyTorch multiplies bfloat16 at an eighth of the speed of float32. ``capability`` is
    ``torch.backends.cpu.get_cpu_capability()`` unless given. Raises InputError on any other value.
    """
    wish = environment.get(MATMUL_VARIABLE, "auto")
    if wish in ("model", "float32"):
        return wish
    if wish != "auto":
        raise InputError(
            f"the NVFP4 matmul dtype {wish!r} is unknown",
            where=f"environment variable {MATMUL_VARIABLE}",
            next_step="set it to model, float32 or auto, or unset it",
        )
    found = torch.backends.cpu.get_cpu_capability() if capability is None else capability
    return "model" if "AVX512" in found else "float32"


class _DequantOnceNvFp4LinearKernel(NvFp4LinearKernel):  # type: ignore[misc]
    """The interface of vLLM's EmulationNvFp4LinearKernel; a subclass says in which dtype it multiplies."""

    matmul: ClassVar[str]

    @classmethod
    def is_supported(cls, compute_capability: int | None = None) -> tuple[bool, str | None]:  # noqa: ARG003
        chosen = chosen_matmul()
        return (True, None) if cls.matmul == chosen else (False, f"the matmul dtype chosen here is {chosen}")

    @classmethod
    def can_implement(cls, config: NvFp4LinearLayerConfig) -> tuple[bool, str | None]:  # noqa: ARG003
        return True, None

    def process_weights_after_loading(self, layer: Any) -> None:
        """Add ``layer.weight_dequantised`` ``[N, K]``; the packed weight stays for whoever reads the layer."""
        weight = dequantise_stored(
            layer.weight.data, layer.weight_scale.data, layer.weight_global_scale, self.weight_dtype(layer)
        )
        layer.weight_dequantised = torch.nn.Parameter(weight, requires_grad=False)

    def weight_dtype(self, layer: Any) -> torch.dtype:
        """The dtype in which the dequantised weight is held and multiplied."""
        raise NotImplementedError

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """``x`` ``[…, K]`` in the model's dtype → ``[…, N]`` in the model's dtype."""
        weight = layer.weight_dequantised
        rows = x.reshape(-1, x.shape[-1])
        activations = quantise_dequantise(rows, layer.input_global_scale_inv, weight.dtype)
        out = torch.matmul(activations, weight.t())
        if bias is not None:
            out = out + bias
        return out.to(x.dtype).reshape(*x.shape[:-1], weight.shape[0])


class DequantOnceNvFp4LinearKernelModel(_DequantOnceNvFp4LinearKernel):
    """Multiplies in the model's dtype: bit-equal to vLLM's emulation."""

    matmul = "model"

    def weight_dtype(self, layer: Any) -> torch.dtype:
        dtype: torch.dtype = layer.params_dtype
        return dtype


class DequantOnceNvFp4LinearKernelFloat32(_DequantOnceNvFp4LinearKernel):
    """Multiplies in float32 and rounds once: bit-equal to vLLM's emulation on the float32 of the same activations."""

    matmul = "float32"

    def weight_dtype(self, layer: Any) -> torch.dtype:  # noqa: ARG002
        return torch.float32


KERNELS: Final = (DequantOnceNvFp4LinearKernelModel, DequantOnceNvFp4LinearKernelFloat32)
