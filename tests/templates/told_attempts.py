"""Six attempts as they may come about, each with a verdict document written by hand: nothing here is judged.

Figures worked out: a payload of 47,185,920 bytes is 377,487,360 bits, so a burst of 38, 40, 42 and 60 ms is
9.93387789…, 9.437184, 8.98779428… and 6.291456 Gbit/s.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from told import Attempt

Classes = tuple[int, int, int]
"""Measured, errored, missing."""


def criterion(
    name: str,
    outcome: str,
    bound: str,
    observed: tuple[str, str] | None,
    samples: tuple[int, int],
    classes: Classes,
    *,
    worst: tuple[int | None, str] | None = None,
    series: tuple[str, str, str, str] | None = None,
    deaths: list[dict[str, Any]] | None = None,
) -> dict[str, Any]:
    """A criterion of a verdict document. ``samples``: took part, expected; ``worst``: rep (None: the run), class."""
    measured, errored, missing = classes
    return {
        "name": name, "outcome": outcome, "bound": bound,
        "observed": None if observed is None else {"exact": observed[0], "shown": observed[1]},
        "expected_samples": samples[1], "samples": samples[0],
        "reps": {"measured": measured, "errored": errored, "untrusted": 0, "missing": missing},
        "worst_of": None if worst is None else {"case": None, "run": 1, "rep": worst[0], "class": worst[1]},
        "deaths": deaths,
        "series": None if series is None else dict(zip(("first", "last", "min", "max"), series, strict=True)),
    }  # fmt: skip


def passing() -> Attempt:
    """Twelve of twelve; the slowest burst is rep 5 with 42 ms, the longest rep 7 with 5.2 s."""
    attempt = Attempt(number=2, earlier=[{"campaign": "soak-n12", "attempt": 1, "verdict": "INCONCLUSIVE"}])
    attempt.preflight()
    attempt.start()
    attempt.rep(1, 60, control=True)
    for rep, burst_ms in enumerate([38, 38, 39, 38, 42, 38, 39, 38, 38, 38, 39, 38], 1):
        attempt.rep(rep, burst_ms, total_ms=5200 if rep == 7 else 5060)
    attempt.rep(2, 41, control=True)
    attempt.close(cleanup=(("receiver stopped", True, None), ("producer stopped", True, None)))
    full = ((12, 12), (12, 0, 0))
    attempt.verdict(
        "PASS",
        "complete",
        [
            criterion("twelve-acknowledged", "met", "== 12", ("12/1", "12"), *full),
            criterion("one-instance", "met", "== 1", ("1/1", "1"), *full),
            criterion("no-producer-death", "met", "== 0", ("0/1", "0"), *full),
            criterion("same-bytes", "met", "== 1", ("1/1", "1"), *full),
            criterion(
                "burst-floor", "met", ">= 3", ("196608/21875", "8.98779428"), *full, worst=(5, "measured"),
                series=("9.93387789", "9.93387789", "8.98779428", "9.93387789"),
            ),
            criterion("burst-drift", "met", ">= 4/5", ("1/1", "1"), (1, 1), (1, 0, 0), worst=(None, "measured")),
            criterion(
                "rep-time", "met", "<= 120", ("26/5", "5.2"), *full, worst=(7, "measured"),
                series=("5.06", "5.06", "5.06", "5.2"),
            ),
        ],
        {"failures": 0, "of": 12, "per_rep": "22.1", "runs_failed": 0, "runs": 1, "per_run": "95.0"},
    )  # fmt: skip
    return attempt


def failing() -> Attempt:
    """The producer's watchdog fires on the ninth of twelve (DESIGN's SOAK_VERDICT.json)."""
    attempt = Attempt(
        number=4,
        earlier=[
            {"campaign": "soak-n8", "attempt": 1, "verdict": "PASS"},
            {"campaign": "soak-n12", "attempt": 1, "verdict": "PASS"},
            {"campaign": "soak-n12", "attempt": 2, "verdict": "INCONCLUSIVE"},
            {"campaign": "soak-n12", "attempt": 3, "verdict": None},
        ],
    )
    attempt.preflight()
    attempt.start()
    attempt.rep(1, 40, control=True)
    for rep in range(1, 9):
        attempt.rep(rep, 38 if rep < 8 else 40)
    attempt.rep(9, None, outcome="died", total_ms=80_100, error=("producer-died", "the socket closed | no reply came"))
    attempt.death()
    attempt.close()
    eight = ((8, 12), (8, 1, 3))
    nine = ((9, 12), (8, 1, 3))
    ninth = (9, "errored")
    death = [{"rep": 9, "site": "watchdog", "status": 75, "injected": False}]
    attempt.verdict(
        "FAIL",
        "complete",
        [
            criterion("twelve-acknowledged", "not_met", "== 12", ("8/1", "8"), *nine, worst=ninth),
            criterion("one-instance", "invalid", "== 1", ("1/1", "1"), *eight),
            criterion("no-producer-death", "not_met", "== 0", ("1/1", "1"), *nine, deaths=death),
            criterion("same-bytes", "invalid", "== 1", ("1/1", "1"), *eight),
            criterion(
                "burst-floor", "not_met", ">= 3", None, *nine, worst=ninth,
                series=("9.93387789", "9.437184", "9.437184", "9.93387789"),
            ),
            criterion("burst-drift", "not_met", ">= 4/5", None, (1, 1), (0, 1, 0), worst=(None, "errored")),
            criterion(
                "rep-time", "not_met", "<= 120", None, *nine, worst=ninth, series=("5.06", "5.06", "5.06", "5.06"),
            ),
        ],
        {"failures": 1, "of": 9, "per_rep": "43.0", "runs_failed": 1, "runs": 1, "per_run": "100.0"},
    )  # fmt: skip
    return attempt


def interrupted() -> Attempt:
    """Ctrl-C in the fourth rep."""
    attempt = Attempt()
    attempt.preflight()
    attempt.start()
    attempt.rep(1, 40, control=True)
    for rep in range(1, 4):
        attempt.rep(rep, 40)
    attempt.rep(4, None, outcome="interrupted", total_ms=700, error=("interrupted", "SIGINT"))
    attempt.close("interrupted", signal="SIGINT", reason="during rep 4 of run 1")
    three = ((3, 12), (3, 0, 9))
    attempt.verdict(
        "INCONCLUSIVE",
        "interrupted",
        [
            criterion("twelve-acknowledged", "invalid", "== 12", ("3/1", "3"), *three),
            criterion("one-instance", "invalid", "== 1", ("1/1", "1"), *three),
            criterion("no-producer-death", "invalid", "== 0", ("0/1", "0"), *three),
            criterion("same-bytes", "invalid", "== 1", ("1/1", "1"), *three),
            criterion("burst-floor", "invalid", ">= 3", ("147456/15625", "9.437184"), *three, worst=(1, "measured")),
            criterion("burst-drift", "invalid", ">= 4/5", None, (0, 1), (0, 0, 1)),
            criterion("rep-time", "invalid", "<= 120", ("253/50", "5.06"), *three, worst=(1, "measured")),
        ],
        {"failures": 0, "of": 3, "per_rep": "63.2", "runs_failed": 0, "runs": 0, "per_run": None},
    )
    return attempt


def empty() -> Attempt:
    """A precondition failed: the identity on disk is another one, and no handoff was tried."""
    attempt = Attempt()
    attempt.preflight(failed="identity")
    attempt.close("precondition", reason="preflight failed: identity", cleanup=())
    bounds = [("twelve-acknowledged", "== 12"), ("one-instance", "== 1"), ("no-producer-death", "== 0"),
              ("same-bytes", "== 1"), ("burst-floor", ">= 3"), ("rep-time", "<= 120")]  # fmt: skip
    criteria = [criterion(name, "invalid", bound, None, (0, 12), (0, 0, 12)) for name, bound in bounds]
    criteria.insert(5, criterion("burst-drift", "invalid", ">= 4/5", None, (0, 1), (0, 0, 1)))
    attempt.verdict("INCONCLUSIVE", "precondition", criteria, None)
    return attempt


def deviating() -> Attempt:
    """Twelve of twelve, and yet: the rate fell to 19/30, the registration is weaker, a gap, a cleanup that failed."""
    weaker = ({"field": "criterion.burst-floor.value", "old": "6", "new": "3", "than_seq": "1"},)
    attempt = Attempt(weaker=weaker)
    attempt.preflight()
    attempt.start()
    attempt.rep(1, 40, control=True)
    for rep, burst_ms in enumerate([38, 38, 38, 40, 40, 40, 40, 40, 40, 60, 60, 60], 1):
        attempt.rep(rep, burst_ms)
    attempt.rep(2, 60, control=True)
    attempt.deviation("journal-gap", "record 30 of the journal is missing")
    attempt.close(cleanup=(("producer stopped", False, "pid 4711 is still there"),))
    full = ((12, 12), (12, 0, 0))
    attempt.verdict(
        "DEVIATION",
        "complete",
        [
            criterion("twelve-acknowledged", "met", "== 12", ("12/1", "12"), *full),
            criterion("one-instance", "met", "== 1", ("1/1", "1"), *full),
            criterion("no-producer-death", "met", "== 0", ("0/1", "0"), *full),
            criterion("same-bytes", "met", "== 1", ("1/1", "1"), *full),
            criterion("burst-floor", "met", ">= 3", ("98304/15625", "6.291456"), *full, worst=(10, "measured")),
            criterion(
                "burst-drift", "deviation", ">= 4/5", ("19/30", "0.633333333"), (1, 1), (1, 0, 0),
                worst=(None, "measured"),
            ),
            criterion("rep-time", "met", "<= 120", ("253/50", "5.06"), *full, worst=(1, "measured")),
        ],
        {"failures": 0, "of": 12, "per_rep": "22.1", "runs_failed": 0, "runs": 1, "per_run": "95.0"},
    )  # fmt: skip
    return attempt


def lost() -> Attempt:
    """Two reps, and then nothing: no close, no verdict."""
    attempt = Attempt()
    attempt.preflight()
    attempt.start()
    attempt.rep(1, 40, control=True)
    attempt.rep(1, 40)
    attempt.rep(2, 40)
    return attempt


ATTEMPTS: Final[dict[str, Callable[[], Attempt]]] = {
    "passing": passing,
    "failing": failing,
    "interrupted": interrupted,
    "empty": empty,
    "deviating": deviating,
    "lost": lost,
}
