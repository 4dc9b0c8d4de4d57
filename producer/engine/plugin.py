"""The entry point of group ``vllm.general_plugins``: makes NVFP4 runnable on a CPU, for our producer only.

vLLM calls it in every process of every program on the machine, so it does nothing unless our producer set its
variable, and it imports neither torch nor vLLM until it knows.
"""

from __future__ import annotations

import os
from typing import Final

ACTIVE_VARIABLE: Final = "SOAKLEDGER_PRODUCER"
"""Set to ``1`` by our producer before it imports vLLM; anything else leaves vLLM alone."""


def register() -> None:
    """Offer our NVFP4 kernels to vLLM on the CPU platform, once however often it is called.

    Both are offered; each refuses unless it is the one that ``SOAKLEDGER_NVFP4_MATMUL`` or the CPU chooses, so that
    vLLM's own selection and log name the class. Raises InputError on an unknown value of that variable.
    """
    if os.environ.get(ACTIVE_VARIABLE) != "1":
        return
    from vllm.model_executor.kernels import linear
    from vllm.platforms.interface import PlatformEnum

    from producer.engine.kernel import KERNELS, chosen_matmul

    chosen_matmul()
    offered = linear._POSSIBLE_NVFP4_KERNELS.get(PlatformEnum.CPU, [])
    for kernel in KERNELS:
        if kernel not in offered:
            linear.register_linear_kernel(kernel, PlatformEnum.CPU, "nvfp4")
