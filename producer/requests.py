"""One JSON line in, one JSON line out: what may be asked of the resident on ``producer.sock``.

A request names a prompt by source and digest and an enrolled receiver by name; it never carries an address and
never an answer. Everything here is checked before the engine is touched.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import Field

from receipts import canonical
from receipts.errors import IdentityError, InputError
from receipts.kinds import Document, HandoffId, Ordinal
from receipts.names import AttemptName, Identifier, Sha256
from receipts.prompts import prompt_sha256, seeded_token_ids
from receipts.store import read_bounded

MAX_LINE_BYTES: Final = 8 << 20
"""A prompt of 131,072 ids in decimal fits; a 10 MB line does not."""
TOKENIZER: Final = "tokenizer.json"
MOST_TOKENIZER_BYTES: Final = 64 << 20
"""More than the tokenizer of any model has."""


class SeededPrompt(Document):
    source: Literal["seeded"]
    seed: Annotated[int, Field(ge=0)]
    tokens: Ordinal
    id_range: tuple[int, int]


class TextPrompt(Document):
    source: Literal["text"]
    text: str


class FilePrompt(Document):
    source: Literal["file"]
    path: str


class IdsPrompt(Document):
    source: Literal["ids"]
    ids: tuple[int, ...]


class HandoffRequest(Document):
    v: Literal[1]
    op: Literal["handoff"]
    handoff_id: HandoffId
    prompt: Annotated[SeededPrompt | TextPrompt | FilePrompt | IdsPrompt, Field(discriminator="source")]
    prompt_sha256: Sha256
    receiver: Identifier
    watchdog_s: Annotated[int, Field(ge=1)] | None
    """A shorter watchdog for this request; never above the lane's."""
    used_by: AttemptName | None
    """``<campaign>/<attempt>``, or null for use outside any campaign."""


class StatusRequest(Document):
    v: Literal[1]
    op: Literal["status"]


@dataclass(frozen=True)
class Limits:
    """What a prompt must fit: the context in tokens (one of them is for the generated token), the vocabulary."""

    context_tokens: int
    vocab_size: int
    tokenizer: bytes | None
    """The tokenizer file of the enrolled checkpoint, as it was when the producer started; None where it has none."""


def parse(line: bytes) -> HandoffRequest | StatusRequest:
    """The request of one line. Raises InputError naming what does not fit."""
    value = canonical.parse(line)
    op = value.get("op") if isinstance(value, dict) else None
    if op == "status":
        return StatusRequest.read(value)
    if op == "handoff":
        return HandoffRequest.read(value)
    raise InputError("a request has op `handoff` or `status`", where="$.op")


def prompt_ids(request: HandoffRequest, limits: Limits) -> list[int]:
    """The token ids of the request's prompt, checked against its digest, the context and the vocabulary."""
    prompt = request.prompt
    if isinstance(prompt, SeededPrompt):
        low, high = prompt.id_range
        if not 0 <= low < high:
            raise InputError(f"id_range [{low}, {high}) is empty or negative", where="$.prompt.id_range")
        _check_length(prompt.tokens, limits)  # before anything of that size is made
        ids = list(seeded_token_ids(prompt.seed, prompt.tokens, low, high))
    elif isinstance(prompt, IdsPrompt):
        ids = list(prompt.ids)
    else:
        ids = _tokenised(prompt, limits)
    _check_length(len(ids), limits)
    outside = next((item for item in ids if not 0 <= item < limits.vocab_size), None)
    if outside is not None:
        raise InputError(f"token id {outside} is outside the vocabulary of {limits.vocab_size}", where="$.prompt")
    found = prompt_sha256(ids)
    if found != request.prompt_sha256:
        raise InputError(f"the prompt has digest {found}, the request says {request.prompt_sha256}", where="$.prompt")
    return ids


def answer(value: dict[str, Any]) -> bytes:
    """A response as its line."""
    return canonical.file_bytes(value)


def enrolled_tokenizer(checkpoint: Path, files: Mapping[str, Any]) -> bytes | None:
    """The checkpoint's tokenizer file, if ``files`` of its enrolled identity have one; what came later is none.

    Raises IdentityError when it is not the enrolled one.
    """
    if TOKENIZER not in files:
        return None
    path = checkpoint / TOKENIZER
    try:
        data = read_bounded(path, MOST_TOKENIZER_BYTES)
    except OSError as error:
        raise InputError(f"the tokenizer cannot be read: {error.strerror}", where=str(path)) from None
    found, enrolled = canonical.sha256(data), files[TOKENIZER]["sha256"]
    if found != enrolled:
        raise IdentityError(
            f"the tokenizer is not the enrolled one: enrolled {enrolled}, found {found}", where=str(path)
        )
    return data


def tokenise(checkpoint: Path, text: str) -> list[int]:
    """Token ids of ``text`` by the checkpoint's own tokenizer file, without special tokens added."""
    path = checkpoint / TOKENIZER
    try:
        data = read_bounded(path, MOST_TOKENIZER_BYTES) if path.is_file() else None
    except OSError as error:
        raise InputError(f"the tokenizer cannot be read: {error.strerror}", where=str(path)) from None
    return _ids_of(data, text)


def _ids_of(tokenizer: bytes | None, text: str) -> list[int]:
    if tokenizer is None:
        raise InputError("this checkpoint has no tokenizer; use a seeded prompt or token ids", where=TOKENIZER)
    try:
        from tokenizers import Tokenizer
    except ImportError:
        raise InputError(
            "a text prompt needs the package tokenizers, which is not installed here",
            next_step="install the producer's extra (cpu or cuda), or use a seeded prompt",
        ) from None
    try:
        return list(Tokenizer.from_buffer(tokenizer).encode(text, add_special_tokens=False).ids)
    except Exception as error:  # the package raises nothing narrower
        raise InputError(f"the tokenizer cannot be used: {error}", where=TOKENIZER) from None


def _tokenised(prompt: TextPrompt | FilePrompt, limits: Limits) -> list[int]:
    if isinstance(prompt, TextPrompt):
        return _ids_of(limits.tokenizer, prompt.text)
    try:
        text = read_bounded(Path(prompt.path), MAX_LINE_BYTES).decode("utf-8")
    except (OSError, ValueError) as error:  # no UTF-8, or a NUL in its name
        raise InputError(f"the prompt file cannot be read: {error}", where=prompt.path) from None
    return _ids_of(limits.tokenizer, text)


def _check_length(tokens: int, limits: Limits) -> None:
    if tokens < 1:
        raise InputError("the prompt is empty", where="$.prompt")
    if tokens + 1 > limits.context_tokens:
        raise InputError(
            f"{tokens} prompt tokens and one generated pass the context of {limits.context_tokens}",
            where="$.prompt",
        )
