"""How verdicts, outcomes and endings are worded, and what is said beside them. No figure is made here."""

from __future__ import annotations

from typing import Final

from receipts.metrics import MOST_DEATHS

MISSING: Final = "—"
NO_VERDICT: Final = "NO VERDICT"

OUTCOMES: Final = {"met": "met", "deviation": "deviates", "not_met": "not met", "invalid": "cannot be judged"}
NOT_JUDGED: Final = "not judged"
"""The outcome of a criterion while the attempt has no verdict."""

ENDED: Final = {
    "complete": "every stage was gone through",
    "interrupted": "it was interrupted by a signal",
    "aborted": "it was broken off",
    "abort_if": "a pre-registered limit ended it",
    "precondition": "a precondition failed before the producer was used",
    "abandoned": "its orchestrator is gone; it is judged with what it has",
}

ENDED_EARLY: Final = "not every rep was reached, for a run is over when its producer is gone"
"""Said beside ``complete`` where reps are missing: the stage reached its end, the producer had reached its own."""

NOT_CLOSED: Final = {
    "running": "It is still running",
    "lost": "It was never closed: its orchestrator is gone",
    None: "It was never closed: it is running, or its orchestrator is lost",
}

MEANING: Final = {
    "PASS": "Every criterion registered before the run was met.",
    "FAIL": "At least one criterion registered before the run was not met.",
    "INCONCLUSIVE": "Too little was observed to say that the criteria were met, or not.",
    "DEVIATION": "No criterion failed, and something did not go as registered. It is kept as such and is no pass.",
    NO_VERDICT: "Nobody has judged this attempt yet.",
}

SITES: Final = {
    "watchdog": "watchdog",
    "engine_touched": "error after the engine was touched",
    "third_error": "third failed request in a row",
    "signal": "killed by a signal",
    "exit": "it exited without being told to",
    "not_known": "how is not known",
}

NEXT_STEP: Final = {
    "FAIL": "Find the cause in the receipts and events (soakledger ledger log --campaign {campaign} --attempt "
    "{attempt}) and in the producer's log (logs/ in the work folder that soakledger lane show names); mend it; launch "
    "the same registration again with soakledger campaign launch. This failure stays beside whatever comes after it.",
    "INCONCLUSIVE": "Remove what cut the run short, and launch the same registration again with soakledger campaign "
    "launch. What was observed stays.",
    "DEVIATION": "Say what deviated, a weaker registration included, wherever this run is cited. No root cause is "
    "established by it.",
    "running": "Wait for its end: campaign launch then tells its verdict. This is what was observed so far.",
    "lost": "soakledger campaign launch closes it as abandoned, judges it with what is there, and makes the next "
    "attempt. Until then nothing can be added to it.",
    NO_VERDICT: "soakledger campaign status says whether its orchestrator lives or is LOST; soakledger campaign "
    "rejudge {campaign}/{attempt} says what the receipts that are there amount to, and writes nothing.",
}
THEATRE: Final = (
    "Not a way out: launching until one attempt passes and citing only that one; lowering a bound after the fact; "
    "leaving out the rep that failed. That would only look like a pass."
)
INDEPENDENCE: Final = "if handoffs were independent; a soak tests exactly where they may not be"
DEATHS_CUT: Final = f"A verdict lists the first {MOST_DEATHS} deaths of a criterion and counts all of them."
NO_RATE: Final = "No registered handoff was observed to its end: nothing can be said of the failure rate."
NO_WHOLE_RUN: Final = "No whole run was observed: nothing can be said of the failure rate of runs."
NOT_ANCHORED: Final = "not anchored: proof only to whoever trusts the holder of the key"
ANCHORED: Final = "anchored outside this ledger before the attempt opened"
EMULATION: Final = "NVFP4 arithmetic is emulated on this CPU; these speeds say nothing of hardware that has FP4 units"
LOOPBACK: Final = "loopback"
LOOPBACK_MEANING: Final = (
    "Both ends are on one host: every throughput here is of loopback and says nothing of a network between two hosts"
)
REHEARSAL: Final = "This was a rehearsal, registered as one; it supports no claim."

CHECK_COMMANDS: Final = (
    "soakledger ledger verify --home HOME",
    "soakledger campaign rejudge {campaign}/{attempt} --home HOME",
    "soakledger ledger log --campaign {campaign} --attempt {attempt} --home HOME",
)
"""What a reader types against a copy of the evidence home, offline."""


def utc(moment: str | None) -> str:
    """A recorded time for people: ``2026-12-01 00:28:25.627 UTC``."""
    if moment is None:
        return MISSING
    return moment.replace("T", " ").removesuffix("Z") + " UTC" if moment.endswith("Z") else moment


def listed(items: list[str]) -> str:
    """``a``, ``a and b``, ``a, b and c``."""
    return items[0] if len(items) == 1 else ", ".join(items[:-1]) + f" and {items[-1]}"


def counted(count: int, one: str, many: str | None = None) -> str:
    """``1 rep``, ``12 reps``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
