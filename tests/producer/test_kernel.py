"""Our NVFP4 linear kernels against vLLM's emulation, bit for bit, and the plugin that offers them."""

from __future__ import annotations

import subprocess
import sys

import pytest

from receipts.errors import InputError

pytestmark = pytest.mark.vllm

torch = pytest.importorskip("torch")
pytest.importorskip("vllm")

from producer.checkpoint import nvfp4  # noqa: E402
from producer.engine import plugin  # noqa: E402
from producer.engine.kernel import (  # noqa: E402
    MATMUL_VARIABLE,
    DequantOnceNvFp4LinearKernelFloat32,
    DequantOnceNvFp4LinearKernelModel,
    chosen_matmul,
)


@pytest.fixture
def layer():
    """What CompressedTensorsW4A4Fp4 leaves on a fused layer of 96 outputs and 192 inputs after loading."""
    generator = torch.Generator().manual_seed(11)
    weight = torch.randn(96, 192, generator=generator) / 14
    quantised = nvfp4.quantise(weight, nvfp4.global_divisor(float(weight.abs().max())))
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(quantised.packed, requires_grad=False)
    layer.weight_scale = torch.nn.Parameter(quantised.scale, requires_grad=False)
    layer.weight_global_scale = torch.nn.Parameter((1.0 / quantised.divisor).squeeze(0), requires_grad=False)
    layer.input_global_scale_inv = torch.nn.Parameter(torch.tensor(601.5), requires_grad=False)
    layer.params_dtype = torch.bfloat16
    return layer


@pytest.fixture
def activations():
    return torch.randn(40, 192, generator=torch.Generator().manual_seed(12)).to(torch.bfloat16)


def made(kind, monkeypatch):
    from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearLayerConfig

    monkeypatch.setenv(MATMUL_VARIABLE, kind.matmul)
    return kind(NvFp4LinearLayerConfig())


def emulated(layer, x, bias=None):
    from vllm.model_executor.kernels.linear.nvfp4.base import NvFp4LinearLayerConfig
    from vllm.model_executor.kernels.linear.nvfp4.emulation import EmulationNvFp4LinearKernel

    kernel = EmulationNvFp4LinearKernel(NvFp4LinearLayerConfig())
    kernel.process_weights_after_loading(layer)
    return kernel.apply_weights(layer, x, bias)


def same_bits(a, b):
    return a.dtype == b.dtype == torch.bfloat16 and torch.equal(a.view(torch.int16), b.view(torch.int16))


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_model_kernel_gives_the_emulations_bits(layer, activations, monkeypatch, with_bias):
    bias = torch.linspace(-1, 1, 96).to(torch.bfloat16) if with_bias else None
    kernel = made(DequantOnceNvFp4LinearKernelModel, monkeypatch)
    kernel.process_weights_after_loading(layer)
    found = kernel.apply_weights(layer, activations, bias)
    assert same_bits(found, emulated(layer, activations, bias))


@pytest.mark.parametrize("with_bias", [False, True])
def test_the_float32_kernel_gives_the_emulation_in_float32_rounded_once(layer, activations, monkeypatch, with_bias):
    bias = torch.linspace(-1, 1, 96).to(torch.bfloat16) if with_bias else None
    kernel = made(DequantOnceNvFp4LinearKernelFloat32, monkeypatch)
    kernel.process_weights_after_loading(layer)
    found = kernel.apply_weights(layer, activations, bias)
    assert same_bits(found, emulated(layer, activations.float(), bias).to(torch.bfloat16))


def test_a_changed_activation_changes_the_output(layer, activations, monkeypatch):
    kernel = made(DequantOnceNvFp4LinearKernelFloat32, monkeypatch)
    kernel.process_weights_after_loading(layer)
    before = kernel.apply_weights(layer, activations)
    activations[3, 5] = 40.0
    after = kernel.apply_weights(layer, activations)
    assert not same_bits(before[3], after[3])
    assert same_bits(before[4], after[4])


def test_the_weights_are_dequantised_at_load_and_not_again(layer, activations, monkeypatch):
    kernel = made(DequantOnceNvFp4LinearKernelFloat32, monkeypatch)
    kernel.process_weights_after_loading(layer)
    expected = kernel.apply_weights(layer, activations)
    layer.weight.data.zero_()
    assert same_bits(kernel.apply_weights(layer, activations), expected)


@pytest.mark.parametrize(
    ("capability", "chosen"),
    [("AVX2", "float32"), ("DEFAULT", "float32"), ("AVX512", "model"), ("AVX512_BF16", "model")],
)
def test_the_matmul_dtype_follows_the_cpu_unless_told(capability, chosen):
    assert chosen_matmul({}, capability) == chosen
    assert chosen_matmul({MATMUL_VARIABLE: "auto"}, capability) == chosen
    assert chosen_matmul({MATMUL_VARIABLE: "model"}, capability) == "model"
    assert chosen_matmul({MATMUL_VARIABLE: "float32"}, capability) == "float32"


@pytest.mark.parametrize("wish", ["", "bf16", "FLOAT32", "1"])
def test_an_unknown_matmul_dtype_is_refused_by_name(wish):
    with pytest.raises(InputError, match=MATMUL_VARIABLE):
        chosen_matmul({MATMUL_VARIABLE: wish}, "AVX2")


# --- the plugin ----------------------------------------------------------------------------------------------------


@pytest.fixture
def offered(monkeypatch):
    from vllm.model_executor.kernels import linear
    from vllm.platforms.interface import PlatformEnum

    table = {key: list(kernels) for key, kernels in linear._POSSIBLE_NVFP4_KERNELS.items() if key != PlatformEnum.CPU}
    monkeypatch.setattr(linear, "_POSSIBLE_NVFP4_KERNELS", table)
    return lambda: [kernel.__name__ for kernel in table.get(PlatformEnum.CPU, [])]


@pytest.mark.parametrize("value", [None, "0", "true", ""])
def test_other_peoples_vllm_is_left_alone(offered, monkeypatch, value):
    monkeypatch.delenv(plugin.ACTIVE_VARIABLE, raising=False)
    if value is not None:
        monkeypatch.setenv(plugin.ACTIVE_VARIABLE, value)
    plugin.register()
    assert offered() == []


def test_registering_twice_offers_each_kernel_once(offered, monkeypatch):
    monkeypatch.setenv(plugin.ACTIVE_VARIABLE, "1")
    plugin.register()
    plugin.register()
    assert offered() == ["DequantOnceNvFp4LinearKernelModel", "DequantOnceNvFp4LinearKernelFloat32"]


@pytest.mark.parametrize(
    ("wish", "bound"),
    [("model", "DequantOnceNvFp4LinearKernelModel"), ("float32", "DequantOnceNvFp4LinearKernelFloat32")],
)
@pytest.mark.usefixtures("offered")
def test_vllms_own_selection_binds_the_kernel_that_was_chosen(monkeypatch, wish, bound):
    from vllm.model_executor.kernels import linear

    monkeypatch.setattr(linear, "_get_linear_backend", lambda quantization: "auto")  # noqa: ARG005
    monkeypatch.setenv(plugin.ACTIVE_VARIABLE, "1")
    monkeypatch.setenv(MATMUL_VARIABLE, wish)
    plugin.register()
    assert type(linear.init_nvfp4_linear_kernel()).__name__ == bound


def test_an_unknown_matmul_dtype_stops_the_registration(offered, monkeypatch):
    monkeypatch.setenv(plugin.ACTIVE_VARIABLE, "1")
    monkeypatch.setenv(MATMUL_VARIABLE, "fast")
    with pytest.raises(InputError, match="fast"):
        plugin.register()
    assert offered() == []


def test_the_plugin_imports_neither_torch_nor_vllm():
    code = (
        "import sys; import producer.engine.plugin as p; p.register();"
        "print([m for m in ('torch', 'vllm', 'numpy') if m in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env={"PYTHONPATH": "."}
    )
    assert done.stdout.strip() == "[]"
