"""A campaign spec: stages to run and criteria to judge by (docs/formats/campaign-spec.md).

Pure, and part of the evaluator's digest: what a criterion means is here. What a spec is refused for before it may be
registered is in ``campaigns/refusals.py``, which needs the lines of the file.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema, field_validator

from receipts import canonical, prompts
from receipts.names import FreeText, Identifier, Statement, UnknownWordError, quoted

SCHEMA: Final = "soakledger/campaign/1"
UNBUILT_KINDS: Final = (
    "link_ceiling", "kill_recovery", "producer_swap", "latch", "ladder", "factor", "parity",
)  # fmt: skip
OPERATORS: Final = ("==", ">=", "<=", ">", "<")
MAX_REPS: Final = 100_000
_MAX_SECONDS: Final = 604_800
_PERCENTILE: Final = re.compile(r"p([1-9][0-9]?)")
_NAMED_AGGREGATES: Final = ("sum", "min", "max", "mean", "median", "distinct", "first", "last", "trend")


def exact_number(value: Any) -> Fraction:
    """A TOML number as a fraction, or one that is a fraction already. ValueError for all else, strings included."""
    if isinstance(value, Fraction):
        return value
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise ValueError(f"must be a number, not {_shown(value)}")
    number = Decimal(value) if isinstance(value, int) and value.bit_length() < 128 else value
    if not isinstance(number, Decimal) or not number.is_finite():
        raise ValueError("must be finite and below 10^18")
    if number and (number.adjusted() >= 18 or len(number.as_tuple().digits) > 40 or number.adjusted() < -18):
        raise ValueError("must be 0 or within 10^-18 and 10^18, with at most 40 digits")
    return Fraction(number)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return f"the string {quoted(value)}"
    if isinstance(value, bool):
        return str(value).lower()
    return "an array" if isinstance(value, list) else "a table" if isinstance(value, Mapping) else "a time"


def decimal_text(value: Fraction) -> str:
    """``value`` as the shortest plain decimal: 3, 0.8. ValueError where no finite decimal is equal to it."""
    places, scaled = 0, value
    while scaled.denominator != 1:
        if places == 80:
            raise ValueError(f"{value} has no finite decimal")
        scaled *= 10
        places += 1
    digits = str(abs(scaled.numerator)).rjust(places + 1, "0")
    text = f"{digits[:-places]}.{digits[-places:]}" if places else digits
    return f"-{text}" if value < 0 else text


def fraction_text(value: Fraction) -> str:
    """``12`` or ``4/5``."""
    return str(value.numerator) if value.denominator == 1 else f"{value.numerator}/{value.denominator}"


def _items(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


Exact = Annotated[Any, BeforeValidator(exact_number), WithJsonSchema({"type": "number"})]
Seconds = Annotated[int, Field(ge=1, le=_MAX_SECONDS)]
Repeats = Annotated[int, Field(ge=1, le=MAX_REPS)]
Tokens = Annotated[int, Field(ge=1, le=10_000_000)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class SeededPrompt(_Table):
    """Token ids drawn from SHA-256 of the seed, in ``id_range[0] <= id < id_range[1]``."""

    source: Literal["seeded"]
    seed: Annotated[int, Field(ge=0, le=2**53 - 1)]
    tokens: Tokens
    id_range: Annotated[tuple[int, ...], BeforeValidator(_items), Field(min_length=2, max_length=2)]

    @field_validator("id_range")
    @classmethod
    def _range(cls, value: tuple[int, ...]) -> tuple[int, ...]:
        if not 0 <= value[0] < value[1] <= 2**32:
            raise ValueError(f"[{value[0]}, {value[1]}] must be low < high within 0 and 2^32")
        return value


class TextPrompt(_Table):
    """A text that the lane's tokenizer turns into ids."""

    source: Literal["text"]
    text: Statement


class FilePrompt(_Table):
    """A UTF-8 file, relative to the spec, that the lane's tokenizer turns into ids."""

    source: Literal["file"]
    path: Statement


Prompt = Annotated[SeededPrompt | TextPrompt | FilePrompt, Field(discriminator="source")]
PromptReader = Callable[[TextPrompt | FilePrompt], Sequence[int]]
"""Gives the token ids of a text or file prompt; needs the lane's tokenizer."""


class PreflightStage(_Table):
    kind: Literal["preflight"]
    name: Identifier


class SoakStage(_Table):
    """``runs`` × ``reps`` consecutive handoffs of one prompt; a control before the first and after the last rep."""

    kind: Literal["soak"]
    name: Identifier
    fresh_start: bool = True
    runs: Repeats = 1
    reps: Repeats
    rep_deadline_s: Seconds
    watchdog_s: Seconds | None = None
    """None: the lane's own watchdog."""
    prompt: Prompt
    control: Prompt | None = None


class UnbuiltStage(BaseModel):
    """A kind that a later release runs; named so that it is refused by name and not as a typing error."""

    OFFERED: ClassVar[bool] = False
    """Nobody who mistyped a kind is pointed to one that can only be refused."""
    model_config = ConfigDict(extra="allow", frozen=True)
    kind: Literal["link_ceiling", "kill_recovery", "producer_swap", "latch", "ladder", "factor", "parity"]

    @field_validator("kind")
    @classmethod
    def _refuse(cls, value: str) -> str:
        raise ValueError(f"stage kind {quoted(value)} is not built yet")


Stage = Annotated[PreflightStage | SoakStage | UnbuiltStage, Field(discriminator="kind")]


class Criterion(_Table):
    """One pre-registered rule over receipts."""

    name: Identifier
    why: FreeText = ""
    stage: Identifier
    metric: Annotated[str, Field(min_length=1, max_length=128)]
    aggregate: str
    by: str | None = None
    op: Literal["==", ">=", "<=", ">", "<"]
    value: Exact
    include_control: bool = False
    deviate_to: Exact | None = None

    @field_validator("aggregate")
    @classmethod
    def _known_aggregate(cls, value: str) -> str:
        if value not in _NAMED_AGGREGATES and not _PERCENTILE.fullmatch(value):
            listed = f"{' | '.join(_NAMED_AGGREGATES)} | p1 … p99"
            raise UnknownWordError(f"{quoted(value)} is none of {listed}", _NAMED_AGGREGATES)
        return value

    @property
    def bound_text(self) -> str:
        """``== 12``, ``>= 4/5``: exact."""
        return f"{self.op} {fraction_text(self.value)}"


class CampaignSpec(_Table):
    """A whole spec. ``refusals.read_spec`` makes one from a file, ``criteria_of`` reads a registration."""

    schema_name: Literal["soakledger/campaign/1"] = Field(alias="schema")
    id: Identifier
    family: Identifier
    title: Statement
    question: Statement
    not_covered: Annotated[tuple[Statement, ...], BeforeValidator(_items), Field(min_length=1)]
    stages: Annotated[tuple[Stage, ...], BeforeValidator(_items), Field(min_length=1)] = Field(alias="stage")
    criteria: Annotated[tuple[Criterion, ...], BeforeValidator(_items), Field(min_length=1)] = Field(alias="criterion")

    def stage(self, name: str) -> PreflightStage | SoakStage:
        """The stage of that name. KeyError without one."""
        for stage in self.stages:
            if not isinstance(stage, UnbuiltStage) and stage.name == name:
                return stage
        raise KeyError(name)


def percentile_rank(aggregate: str, n: int) -> int | None:
    """Nearest rank, from 1, of ``pNN`` among ``n`` ascending samples: ceil(NN·n/100); None if it is no percentile."""
    match = _PERCENTILE.fullmatch(aggregate)
    return -(-int(match.group(1)) * n // 100) if match else None


def carries_percentile(aggregate: str, n: int) -> bool:
    """Whether ``n`` samples carry ``pNN``: its rank is neither the smallest nor the largest sample's."""
    rank = percentile_rank(aggregate, n)
    return rank is None or 1 < rank < n


def expected_samples(spec: CampaignSpec, criterion: Criterion, scope: str) -> int:
    """Samples that a criterion over a metric of ``scope`` (rep | run | stage) must see, summed over cases."""
    stage = spec.stage(criterion.stage)
    return samples_of(stage, scope, criterion.include_control)


def samples_of(stage: PreflightStage | SoakStage, scope: str, include_control: bool) -> int:
    """Samples that one stage gives: runs × reps (+ 2 × runs with controls), runs, or 1."""
    if not isinstance(stage, SoakStage) or scope == "stage":
        return 1
    return soak_samples(scope, stage.runs, stage.reps, with_controls=include_control and stage.control is not None)


def soak_samples(scope: str, runs: int, reps: int, *, with_controls: bool) -> int:
    """Samples of a soak for a metric of ``scope`` (rep | run)."""
    return runs if scope == "run" else runs * (reps + (2 if with_controls else 0))


def resolve(spec: CampaignSpec, read_prompt: PromptReader | None = None) -> dict[str, Any]:
    """The spec with every default written out, prompts by digest, decimals as strings; canonical JSON values.

    ``read_prompt`` is needed for text and file prompts; ValueError without it.
    """
    stages = []
    for stage in spec.stages:
        table = stage.model_dump(mode="python")
        if isinstance(stage, SoakStage):
            table["prompt"] = _resolved_prompt(stage.prompt, read_prompt)
            table["control"] = _resolved_prompt(stage.control, read_prompt) if stage.control else None
        stages.append(table)
    criteria = []
    for criterion in spec.criteria:
        table = criterion.model_dump(mode="python")
        table["value"] = decimal_text(criterion.value)
        table["deviate_to"] = None if criterion.deviate_to is None else decimal_text(criterion.deviate_to)
        criteria.append(table)
    return {
        "schema": SCHEMA,
        "id": spec.id,
        "family": spec.family,
        "title": spec.title,
        "question": spec.question,
        "not_covered": list(spec.not_covered),
        "stage": stages,
        "criterion": criteria,
        "abort_if": [],
    }


def _resolved_prompt(
    prompt: SeededPrompt | TextPrompt | FilePrompt, read_prompt: PromptReader | None
) -> dict[str, Any]:
    if isinstance(prompt, SeededPrompt):
        low, high = prompt.id_range
        token_ids: Sequence[int] = prompts.seeded_token_ids(prompt.seed, prompt.tokens, low, high)
        drawn: dict[str, Any] = {"seed": prompt.seed, "id_range": [low, high]}
    elif read_prompt is None:
        raise ValueError(f"a prompt from {prompt.source} needs the lane's tokenizer")
    else:
        token_ids, drawn = read_prompt(prompt), {}
    return {
        "source": prompt.source,
        "tokens": len(token_ids),
        "prompt_sha256": prompts.prompt_sha256(token_ids),
        **drawn,
    }


def resolved_sha256(resolved: Mapping[str, Any]) -> str:
    """``sha256:<hex>`` of RFC 8785 of a resolved spec."""
    return canonical.sha256(canonical.dumps(dict(resolved)))


def criteria_of(resolved: Mapping[str, Any]) -> tuple[Criterion, ...]:
    """The criteria of a resolved spec, in its order: what a judge needs from a registration alone."""
    return tuple(
        Criterion.model_validate({**table, **{key: _fraction(table[key]) for key in ("value", "deviate_to")}})
        for table in resolved["criterion"]
    )


def _fraction(text: str | None) -> Fraction | None:
    """The decimal string of a resolved spec: only here is a number written as text."""
    if text is not None and not re.fullmatch(r"-?[0-9]{1,40}(\.[0-9]{1,40})?", text):
        raise ValueError(f"{quoted(text)} is no plain decimal")
    return None if text is None else Fraction(text)


def json_schema() -> dict[str, Any]:
    """JSON Schema (2020-12) of a spec file, without the kinds that are not built."""
    schema = CampaignSpec.model_json_schema(by_alias=True)
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["$defs"].pop("UnbuiltStage")
    items = schema["properties"]["stage"]["items"]
    items["oneOf"] = [choice for choice in items["oneOf"] if not choice["$ref"].endswith("/UnbuiltStage")]
    items["discriminator"]["mapping"] = {
        kind: target for kind, target in items["discriminator"]["mapping"].items() if kind not in UNBUILT_KINDS
    }
    return schema
