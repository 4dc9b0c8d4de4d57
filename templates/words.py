"""How outcomes are worded, and what is said beside them. No figure is made here."""

from __future__ import annotations

from typing import Any, Final

MISSING: Final = "—"

OUTCOMES: Final = {"met": "met", "deviation": "deviates", "not_met": "not met", "invalid": "cannot be judged"}

ENDED: Final = {
    "complete": "every stage reached its end",
    "interrupted": "it was interrupted by a signal",
    "aborted": "it was ended on request",
    "abort_if": "a pre-registered limit ended it",
    "precondition": "a precondition failed before the producer was used",
    "abandoned": "its orchestrator is gone; it is judged with what it has",
}

MEANING: Final = {
    "PASS": "Every criterion registered before the run was met.",
    "FAIL": "At least one criterion registered before the run was not met.",
    "INCONCLUSIVE": "Too little was observed to say that the criteria were met, or not.",
    "DEVIATION": "No criterion failed, and something did not go as registered. It is kept as such and is no pass.",
}

NEXT_STEP: Final = {
    "FAIL": "Find the cause in the receipts, the journal and the producer's log; mend it; launch the same registration "
    "again. This failure stays beside whatever comes after it.",
    "INCONCLUSIVE": "Remove what cut the run short, and launch the same registration again. What was observed stays.",
    "DEVIATION": "Say with the figure what deviated wherever this run is cited. No root cause is established by it.",
}
THEATRE: Final = (
    "Theatre would be: launching until one attempt passes and citing only that one; lowering a bound after the fact; "
    "leaving out the rep that failed."
)
INDEPENDENCE: Final = "if handoffs were independent; a soak tests exactly where they may not be"
NOT_ANCHORED: Final = (
    "not anchored outside this ledger: proof of the order only to whoever trusts the holder of its signing key"
)
EMULATION: Final = "NVFP4 arithmetic is emulated on this CPU; these speeds say nothing of hardware that has FP4 units"


def deaths_sentence(deaths: list[dict[str, Any]], reps: int) -> list[str]:
    """One sentence a death: at which handoff, by which site or status."""
    return [
        f"died on handoff {item['rep']} of {reps}: {item['site'].replace('_', ' ')}"
        + (f", exit status {item['status']}" if item["status"] is not None else "")
        + (" (injected)" if item["injected"] else "")
        for item in deaths
    ]
