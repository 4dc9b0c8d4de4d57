"""The largest activation that each linear layer sees on a few prompts: what ``input_global_scale`` is made of.

With one constant scale for all layers the sample model answers rubbish (FACTS section 1).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Final

from torch import Tensor

from producer.checkpoint.llama import LlamaGeometry, observe_prompt
from producer.checkpoint.manifest import Progress

KEPT_BITS: Final = 8
"""Significant bits kept of a calibrated maximum. Rounded up, so that nothing seen is clipped by the rounding."""

CONVERSATIONS: Final = (
    "What is the capital of France?",
    "Explain in three sentences why the sky is blue during the day and red at sunset.",
    "Write a short Python function that returns the n-th Fibonacci number, and say how fast it is.",
    "A train leaves at 14:05 and arrives at 17:50. How long is the journey? Show your steps.",
    "Translate into French: “The results are written down before anyone looks at them.”",
    "Summarise: The river rose for nine days. On the tenth the bridge was closed, the mill stopped, and the town "
    "sent its boats upstream. Nobody had written down how high the water stood in the year of the great flood, so "
    "nobody could say whether the old wall would hold. It held, by the width of a hand.",
)
"""Real prompts, put through the chat template."""


def input_maxima(
    geometry: LlamaGeometry, weights: Mapping[str, Tensor], prompts: Sequence[Sequence[int]], *, progress: Progress
) -> dict[str, float]:
    """Largest magnitude of each fused group's input over all prompts, rounded up to 8 bits, by group name.

    The rounding makes the result independent of threads and instruction set: the float64 forward passes differ by
    about 1e-13 there, a kept value by 4e-3.
    """
    maxima: dict[str, float] = {}

    def observe(name: str, inputs: Tensor) -> None:
        maxima[name] = max(maxima.get(name, 0.0), float(inputs.abs().max()))

    for done, tokens in enumerate(prompts):
        progress("calibrating on prompts", done, len(prompts))
        observe_prompt(geometry, weights, tokens, observe)
    progress("calibrating on prompts", len(prompts), len(prompts))
    return {name: rounded_up(value) for name, value in maxima.items()}


def rounded_up(value: float) -> float:
    """The smallest number of 8 significant bits that is not below ``value``."""
    mantissa, exponent = math.frexp(value)
    return math.ldexp(math.ceil(math.ldexp(mantissa, KEPT_BITS)), exponent - KEPT_BITS)
