"""The NVFP4 number format: E2M1 elements, an E4M3 scale for each 16 of them, one float32 divisor a tensor.

An element is ``e2m1 × scale ÷ divisor``. The rules are those of vLLM's reference functions
(``nvfp4_emulation_utils.py``: cast_to_fp4, ref_nvfp4_quant, dequantize_to_dtype), bit for bit, and of the
compressed-tensors layout ``nvfp4-pack-quantized`` (FACTS section 4): the per-tensor scale is stored as the
divisor ``448 × 6 ÷ amax``, two codes share a byte, the even one in the low nibble.

Tensors are ``[rows, K]`` with K a multiple of 16. Everything here runs on the CPU. Only PyTorch is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

GROUP: Final = 16
"""Elements that share one E4M3 scale."""
E2M1_VALUES: Final = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""The magnitudes of codes 0 to 7; bit 3 is the sign."""
E2M1_MAX: Final = 6.0
E4M3_MAX: Final = 448.0
EXACT_SPLIT: Final = 1024
"""Most elements of K whose exact products a float64 sum holds: 1,024 × 2,752,512² < 2⁵³ (FACTS section 4)."""
EXACT_UNIT: Final = 2.0**-20
"""What one unit of ``exact_dot`` is worth before the two divisors: each factor is in units of ½ × 2⁻⁹."""

_SIXTH: Final = 1 / E2M1_MAX
_EXPONENT_BITS: Final = 0x7F800000
_MAGIC: Final = 1.5 * 2.0**22
"""Adding and subtracting 1.5 × 2²³ × step rounds to a multiple of step, ties to even; the step is half the binade."""
_SCALE_UNITS: Final = 2.0**9
"""E4M3 values are multiples of 2⁻⁹."""
_MAX_CHUNKS: Final = (2**63 - 1) // (EXACT_SPLIT * (12 * 448 * 512) ** 2)


@dataclass(frozen=True, eq=False)
class Quantised:
    """One tensor: ``packed`` u8 ``[N, K/2]``, ``scale`` float8_e4m3fn ``[N, K/16]``, ``divisor`` f32 ``[1]``."""

    packed: Tensor
    scale: Tensor
    divisor: Tensor


def global_divisor(amax: float) -> Tensor:
    """The per-tensor divisor, float32 ``[1]``, that maps ``amax`` onto the largest scale times the largest element.

    Raises ValueError when ``amax`` is not a positive finite number: such a tensor has no scale.
    """
    if not 0.0 < amax < float("inf"):
        raise ValueError(f"a largest magnitude of {amax} gives no NVFP4 scale")
    return torch.tensor([E4M3_MAX * E2M1_MAX / amax], dtype=torch.float64).to(torch.float32)


def quantise(x: Tensor, divisor: Tensor) -> Quantised:
    """Quantise ``[N, K]`` floats, ties to even. Negative zero becomes code 0. Raises ValueError on a bad K."""
    rows, columns = _shape(x)
    values, scale = _rounded(x, divisor)
    codes = _codes(values.t().reshape(rows, columns))
    packed_scale = scale.reshape(rows, columns // GROUP).to(torch.float8_e4m3fn)
    return Quantised(pack(codes), packed_scale, divisor.reshape(1).to(torch.float32))


def dequantise(quantised: Quantised, dtype: torch.dtype) -> Tensor:
    """``[N, K]`` in ``dtype``: float32 ``e2m1 × (scale × (1 ÷ divisor))``, rounded once.

    The inversion comes first because compressed-tensors inverts the divisor at load time
    (``compressed_tensors_w4a4_nvfp4.py:110-118``) and the bits have to be those.
    """
    return dequantise_stored(quantised.packed, quantised.scale, 1.0 / quantised.divisor.to(torch.float32), dtype)


def dequantise_stored(packed: Tensor, scale: Tensor, multiplier: Tensor, dtype: torch.dtype) -> Tensor:
    """``dequantise`` on the tensors that vLLM holds after loading; ``multiplier`` is the inverted divisor."""
    values = torch.tensor(_SIGNED_VALUES)[unpack(packed).long()]
    rows, columns = values.shape
    steps = scale.to(torch.float32) * multiplier
    return (values.view(rows, columns // GROUP, GROUP) * steps.unsqueeze(-1)).reshape(rows, columns).to(dtype)


def quantise_dequantise(x: Tensor, divisor: Tensor, dtype: torch.dtype) -> Tensor:
    """What quantised activations ``[N, K]`` are worth, in ``dtype``; bit-equal to vLLM's ref_nvfp4_quant_dequant.

    vLLM's version makes some thirty passes, most of them masked, over groups of 16 that vectorise badly. Here the
    16 elements of a group are the outer axis, so each pass runs along all groups (docs/decisions/0002).
    """
    rows, columns = _shape(x)
    values, scale = _rounded(x, divisor)
    values.mul_(scale / divisor)
    result = torch.empty((rows, columns), dtype=dtype)
    result.view(-1, GROUP).t().copy_(values)
    return result


def pack(codes: Tensor) -> Tensor:
    """Codes ``[N, K]`` (uint8, 0 to 15) two a byte ``[N, K/2]``: even k in the low nibble."""
    return codes[:, 0::2] | (codes[:, 1::2] << 4)


def unpack(packed: Tensor) -> Tensor:
    """The codes ``[N, K]`` of ``pack``."""
    return torch.stack((packed & 0x0F, packed >> 4), dim=-1).reshape(packed.shape[0], -1)


def scaled_integers(quantised: Quantised) -> Tensor:
    """Doubled elements times scales in units of 2⁻⁹: float64 ``[N, K]`` that holds integers of at most 2,752,512."""
    doubled = torch.tensor(_SIGNED_VALUES, dtype=torch.float64)[unpack(quantised.packed).long()] * 2
    units = quantised.scale.to(torch.float64) * _SCALE_UNITS
    rows, columns = doubled.shape
    return (doubled.view(rows, columns // GROUP, GROUP) * units.unsqueeze(-1)).reshape(rows, columns)


def exact_dot(a: Quantised, b: Quantised) -> Tensor:
    """The exact integer products ``a @ b.T``, int64 ``[M, N]``, the same in any order, thread count or BLAS.

    The true value is the integer × 2⁻²⁰ ÷ (a.divisor × b.divisor). K is split so that every float64 partial sum
    stays below 2⁵³. Raises ValueError when the Ks differ or an int64 could overflow (K above 1.2 million).
    """
    left, right = scaled_integers(a), scaled_integers(b)
    if left.shape[1] != right.shape[1]:
        raise ValueError(f"K differs: {left.shape[1]} and {right.shape[1]}")
    if left.shape[1] > _MAX_CHUNKS * EXACT_SPLIT:
        raise ValueError(f"K = {left.shape[1]} could overflow 64 bits; at most {_MAX_CHUNKS * EXACT_SPLIT}")
    total = torch.zeros((left.shape[0], right.shape[0]), dtype=torch.int64)
    for start in range(0, left.shape[1], EXACT_SPLIT):
        part = slice(start, start + EXACT_SPLIT)
        total += torch.matmul(left[:, part], right[:, part].t()).to(torch.int64)
    return total


_SIGNED_VALUES: Final = (*E2M1_VALUES, *(-value for value in E2M1_VALUES))
_CODE_OF_DOUBLED: Final = (0, 1, 2, 3, 4, 0, 5, 0, 6, 0, 0, 0, 7)


def _shape(x: Tensor) -> tuple[int, int]:
    if x.ndim != 2 or x.shape[1] % GROUP:
        raise ValueError(f"shape {tuple(x.shape)} is not [rows, K] with K a multiple of {GROUP}")
    return x.shape[0], x.shape[1]


def _rounded(x: Tensor, divisor: Tensor) -> tuple[Tensor, Tensor]:
    """E2M1 values ``[16, groups]`` and their E4M3 scales ``[groups]``, both float32; the steps of ref_nvfp4_quant."""
    elements = torch.empty((GROUP, x.numel() // GROUP))
    elements.copy_(x.reshape(-1, GROUP).t())
    magnitude = elements.abs()
    scale = (divisor * (magnitude.amax(0) * _SIXTH)).clamp_(max=E4M3_MAX).to(torch.float8_e4m3fn).to(torch.float32)
    # + 0.0 turns −0.0 into +0.0, which is what the reference's sign(x) × |x| makes of it.
    elements.mul_(_reciprocal(scale * _reciprocal(divisor))).clamp_(-E2M1_MAX, E2M1_MAX).add_(0.0)
    return _cast_to_e2m1(elements, magnitude), scale


def _cast_to_e2m1(elements: Tensor, scratch: Tensor) -> Tensor:
    """Round values of at most 6 to E2M1, ties to even, keeping the sign of what rounds to zero; ``scratch`` is lost."""
    torch.abs(elements, out=scratch)
    # The binade of max(|x|, 1) is 1, 2 or 4 and the spacing of E2M1 there is half of it; below 1 it is 0.5 as well.
    scratch.clamp_min_(1.0).view(torch.int32).bitwise_and_(_EXPONENT_BITS)
    scratch.mul_(_MAGIC)
    return torch.add(elements, scratch).sub_(scratch).copysign_(elements)


def _reciprocal(x: Tensor) -> Tensor:
    # vLLM's get_reciprocal: a zero scale gives 1e-8, and such a group ends as zeros.
    return 1.0 / (x + (x == 0) * 1e8)


def _codes(values: Tensor) -> Tensor:
    magnitude = torch.tensor(_CODE_OF_DOUBLED, dtype=torch.uint8)[(values.abs() * 2).long()]
    return magnitude | ((values < 0).to(torch.uint8) << 3)
