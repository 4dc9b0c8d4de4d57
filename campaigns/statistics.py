"""Exact statistics in integers and fractions (DESIGN section 10). Pure; scipy is the oracle of the tests."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction
from statistics import median
from typing import Final

CONFIDENCE: Final = Fraction(95, 100)
_THOUSAND: Final = 1000


def failure_rate_upper(failures: int, trials: int) -> str | None:
    """One-sided 95 % Clopper–Pearson upper bound on a failure rate, in per cent with one digit, rounded outward.

    The smallest p in steps of 0.1 % with P(X ≤ failures | p) ≤ 5 %: 0 of 8 → 31.3, 1 of 9 → 43.0. None without a
    trial; 100.0 when every trial failed.
    """
    if trials == 0:
        return None
    low, high = 0, _THOUSAND
    while low < high:
        middle = (low + high) // 2
        if failures < trials and _is_plausible(failures, trials, middle):
            low = middle + 1
        elif failures < trials:
            high = middle
        else:
            low = high
    return f"{low // 10}.{low % 10}"


def _is_plausible(failures: int, trials: int, per_mille: int) -> bool:
    """Whether P(X ≤ failures) > 5 % for a rate of ``per_mille`` / 1000 < 1, exactly.

    Each term C(n, k) pᵏ qⁿ⁻ᵏ is made from the one before by a division that leaves no rest: with powers and binomials
    made anew a thousand failures among ten thousand took 12 s.
    """
    other = _THOUSAND - per_mille
    every: int = _THOUSAND**trials
    term: int = other**trials
    ways = term
    for k in range(failures):
        term = term * ((trials - k) * per_mille) // ((k + 1) * other)
        ways += term
    alpha = 1 - CONFIDENCE
    return ways * alpha.denominator > alpha.numerator * every


def theil_sen(points: Sequence[tuple[int, Fraction]]) -> Fraction | None:
    """Median of the slopes of every pair of points, per rep; None under two points."""
    slopes = [
        (later - earlier) / (there - here)
        for index, (here, earlier) in enumerate(points)
        for there, later in points[index + 1 :]
    ]
    return median(slopes) if slopes else None


def nearest_rank(values: Sequence[Fraction | float], rank: int) -> Fraction | float:
    """The ``rank``-th smallest value, counted from 1."""
    return sorted(values)[rank - 1]
