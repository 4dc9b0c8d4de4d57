"""NVFP4 against hand-worked values and against vLLM's own reference functions."""

from __future__ import annotations

from fractions import Fraction

import pytest

torch = pytest.importorskip("torch")

from producer.checkpoint import nvfp4  # noqa: E402 - after the check that torch is there

pytestmark = pytest.mark.vllm


@pytest.fixture(scope="module")
def reference():
    return pytest.importorskip("vllm.model_executor.layers.quantization.utils.nvfp4_emulation_utils")


def bits(tensor):
    return tensor.view({2: torch.int16, 4: torch.int32}[tensor.element_size()])


def sample(rows, columns, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(rows, columns, generator=generator) * torch.rand(rows, 1, generator=generator) * 9


def one_group(values):
    """A group whose scale is exactly 1 under divisor 1: its largest magnitude is 6."""
    assert len(values) <= 15
    return torch.tensor([[6.0, *values, *[0.0] * (15 - len(values))]])


# --- elements and ties ---------------------------------------------------------------------------------------------


def test_every_tie_goes_to_the_even_code():
    quantised = nvfp4.quantise(one_group([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0]), torch.tensor([1.0]))
    assert nvfp4.unpack(quantised.packed)[0, 1:8].tolist() == [0, 2, 2, 4, 4, 6, 6]


def test_negative_ties_mirror_the_positive_ones():
    quantised = nvfp4.quantise(one_group([-0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0]), torch.tensor([1.0]))
    assert nvfp4.unpack(quantised.packed)[0, 1:8].tolist() == [0, 10, 10, 12, 12, 14, 14]


def test_just_beside_a_tie_the_nearer_value_wins():
    low, high = 0.25 + 1e-6, 2.5 + 1e-5
    quantised = nvfp4.quantise(one_group([low, 0.75 - 1e-6, high, 5.0 + 1e-5]), torch.tensor([1.0]))
    assert nvfp4.unpack(quantised.packed)[0, 1:5].tolist() == [1, 1, 5, 7]


def test_every_code_survives_quantising_what_it_stands_for():
    values = [0.5, 1.0, 1.5, 2.0, 3.0, 4.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0]
    quantised = nvfp4.quantise(one_group(values), torch.tensor([1.0]))
    assert nvfp4.unpack(quantised.packed)[0].tolist() == [7, 1, 2, 3, 4, 5, 6, 9, 10, 11, 12, 13, 14, 15, 0, 0]
    assert nvfp4.dequantise(quantised, torch.float32)[0, :14].tolist() == [6.0, *values]


def test_the_even_element_lies_in_the_low_nibble():
    assert nvfp4.pack(torch.tensor([[1, 2, 15, 8]], dtype=torch.uint8)).tolist() == [[0x21, 0x8F]]


def test_unpack_undoes_pack_for_every_pair_of_codes():
    codes = torch.tensor([[low, high] for low in range(16) for high in range(16)], dtype=torch.uint8)
    assert torch.equal(nvfp4.unpack(nvfp4.pack(codes)), codes)


def test_a_group_of_zeros_stays_zero_beside_a_group_that_is_not():
    x = torch.cat((torch.zeros(1, 16), one_group([3.0])), dim=1)
    assert torch.equal(nvfp4.dequantise(nvfp4.quantise(x, torch.tensor([1.0])), torch.float32), x)


# --- scales --------------------------------------------------------------------------------------------------------


def test_the_divisor_maps_the_largest_magnitude_onto_the_largest_scale():
    assert nvfp4.global_divisor(2.0).tolist() == [1344.0]  # 448 × 6 ÷ 2
    quantised = nvfp4.quantise(torch.tensor([[2.0] + [0.0] * 15]), nvfp4.global_divisor(2.0))
    assert quantised.scale.float().tolist() == [[448.0]]
    assert nvfp4.unpack(quantised.packed)[0, 0] == 7


@pytest.mark.parametrize("amax", [0.0, -1.0, float("inf"), float("nan")])
def test_a_magnitude_without_a_scale_is_refused(amax):
    with pytest.raises(ValueError, match="no NVFP4 scale"):
        nvfp4.global_divisor(amax)


@pytest.mark.parametrize("shape", [(2, 24), (16,), (1, 2, 16)])
def test_a_shape_that_is_not_whole_groups_is_refused(shape):
    with pytest.raises(ValueError, match="multiple of 16"):
        nvfp4.quantise(torch.ones(shape), torch.tensor([1.0]))


# --- against vLLM --------------------------------------------------------------------------------------------------


def test_quantise_agrees_with_vllms_reference(reference):
    x = sample(48, 160)
    divisor = nvfp4.global_divisor(float(x.abs().max()))
    values, scales = reference.ref_nvfp4_quant(x.clone(), divisor, 16)
    quantised = nvfp4.quantise(x, divisor)
    assert torch.equal(reference.break_fp4_bytes(quantised.packed, torch.float32), values)
    assert torch.equal(quantised.scale.float(), scales.reshape(48, 10))


def test_rounding_agrees_with_vllms_cast_on_a_fine_grid(reference):
    grid = torch.arange(-6 * 64, 6 * 64 + 1, dtype=torch.float32) / 64  # holds every tie exactly
    expected = reference.cast_to_fp4(grid.clone())
    rows = torch.cat([one_group(part.tolist()) for part in grid.split(15)])
    found = nvfp4.dequantise(nvfp4.quantise(rows, torch.tensor([1.0])), torch.float32)[:, 1:].flatten()[: len(grid)]
    assert torch.equal(found, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_dequantise_gives_vllms_bits(reference, dtype):
    quantised = nvfp4.quantise(sample(32, 96), torch.tensor([77.7]))
    expected = reference.dequantize_to_dtype(
        quantised.packed, quantised.scale, 1.0 / quantised.divisor, dtype, 16, swizzle=False
    )
    assert torch.equal(bits(nvfp4.dequantise(quantised, dtype)), bits(expected))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize("divisor", [0.37, 12.5, 3011.0])
def test_activations_come_back_with_vllms_bits(reference, dtype, divisor):
    x = sample(33, 176).to(dtype)
    x[0, :16] = 0.0
    x[1, :4] = -0.0
    x[2, :16] *= 1e-6  # its scale underflows to zero
    x[3, :16] *= 1e6  # its scale saturates
    expected = reference.ref_nvfp4_quant_dequant(x.clone(), torch.tensor(divisor), 16)
    assert torch.equal(bits(nvfp4.quantise_dequantise(x, torch.tensor(divisor), dtype)), bits(expected))


def test_activations_are_not_written_over():
    x = sample(4, 32)
    before = x.clone()
    nvfp4.quantise_dequantise(x, torch.tensor(10.0), torch.float32)
    assert torch.equal(x, before)


# --- exact arithmetic ----------------------------------------------------------------------------------------------


def largest(columns):
    """Every element as large as the format allows: code 7 under scale 448."""
    packed = torch.full((1, columns // 2), 0x77, dtype=torch.uint8)
    scale = torch.full((1, columns // 16), 448.0).to(torch.float8_e4m3fn)
    return nvfp4.Quantised(packed, scale, torch.tensor([1.0]))


def test_the_bound_by_hand_holds_at_the_split_and_breaks_above_it():
    element = 12 * 448 * 512
    assert element == 2_752_512
    assert element**2 == 7_576_322_310_144
    assert 1024 * element**2 < 2**53 < 1189 * element**2
    assert nvfp4.EXACT_SPLIT == 1024


def test_the_largest_dot_of_one_split_is_exact():
    assert nvfp4.scaled_integers(largest(16)).unique().tolist() == [2_752_512.0]
    assert nvfp4.exact_dot(largest(1024), largest(1024)).item() == 7_758_154_045_587_456


def test_a_dot_beyond_two_to_the_53_is_exact_where_one_float64_matmul_is_not():
    a, b = largest(4096), largest(4096)
    # One odd unit in the first element: code 1 (½) under scale 2⁻⁹ is the smallest factor there is.
    b.packed[0, :8] = 0x01
    b.scale[0, 0] = 2.0**-9
    b.packed[0, 1:8] = 0
    a.packed[0, 0] = 0x71
    a.scale[0, 0] = 2.0**-9
    expected = 4080 * 2_752_512**2 + 1
    assert expected > 2**53
    assert nvfp4.exact_dot(a, b).item() == expected
    assert int((nvfp4.scaled_integers(a) @ nvfp4.scaled_integers(b).t()).item()) != expected


def test_the_exact_dot_equals_python_integers_and_the_dequantised_values():
    a = nvfp4.quantise(sample(3, 2064, seed=1), torch.tensor([40.0]))
    b = nvfp4.quantise(sample(2, 2064, seed=2), torch.tensor([8.0]))
    left, right = ([[int(v) for v in row] for row in nvfp4.scaled_integers(q).tolist()] for q in (a, b))
    found = nvfp4.exact_dot(a, b)
    for m, row in enumerate(left):
        for n, column in enumerate(right):
            exact = sum(x * y for x, y in zip(row, column, strict=True))
            assert found[m, n].item() == exact
            true = Fraction(exact) / 2**20 / 40 / 8
            near = torch.dot(nvfp4.dequantise(a, torch.float64)[m], nvfp4.dequantise(b, torch.float64)[n]).item()
            assert abs(float(true) - near) <= 1e-4 * max(1.0, abs(near))


def test_the_exact_dot_does_not_depend_on_the_order_of_k():
    a, b = (nvfp4.quantise(sample(4, 3072, seed=s), torch.tensor([20.0])) for s in (3, 4))
    order = torch.randperm(3072 // 16, generator=torch.Generator().manual_seed(5))

    def shuffled(q):
        packed = q.packed.view(4, -1, 8)[:, order].reshape(4, -1)
        return nvfp4.Quantised(packed, q.scale.float()[:, order].to(torch.float8_e4m3fn), q.divisor)

    assert torch.equal(nvfp4.exact_dot(a, b), nvfp4.exact_dot(shuffled(a), shuffled(b)))


def test_dots_of_different_k_are_refused():
    with pytest.raises(ValueError, match="K differs"):
        nvfp4.exact_dot(largest(16), largest(32))
