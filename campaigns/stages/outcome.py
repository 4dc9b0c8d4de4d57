"""What a stage tells the runner when it is over."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class StageOutcome:
    """``done``: the stage reached its own end, a run that a death ended included."""

    ending: Literal["done", "precondition", "interrupted", "aborted"]
    reason: str | None = None
