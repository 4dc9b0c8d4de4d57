"""Exact statistics in integers and fractions (DESIGN section 10). Pure; scipy is the oracle of the tests."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from fractions import Fraction
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


Series = Sequence[tuple[int, Fraction]]
"""(rep, value) of one run, the reps ascending and none twice."""

_PLAIN_BITS: Final = 256
_COUNTED_AT_ONCE: Final = 512


def theil_sen(runs: Sequence[Series]) -> Fraction | None:
    """Median of the slopes of every two points of one run, per rep, over all runs; None without two in any run.

    Exact. Points of different runs make no slope: what lies between two runs is no rep.
    """
    pairs = sum(len(run) * (len(run) - 1) // 2 for run in runs)
    if pairs == 0:
        return None
    slopes = _Slopes(runs)
    upper = slopes.ranked(pairs // 2)
    return upper if pairs % 2 else (slopes.ranked(pairs // 2 - 1) + upper) / 2


class _Slopes:
    """Every slope of two points of one run, found by rank without making them all.

    A thousand reps have half a million slopes, a hundred thousand five thousand million. How many are below a bound is
    counted in n log n steps instead: the slope of i < j is below b exactly where y_j - b·x_j < y_i - b·x_i, so it is
    the number of inversions of y - b·x. The bound is then halved in on the rank that is wanted.

    Values are integers in units of 1/``unit``: exact ones where the values have a common denominator of reasonable
    size (durations, sizes, counts), else cut down to 256 bits behind the point (rates; the common denominator of
    a thousand bursts has 9,000 digits), and the few slopes within the error of the cut are compared as fractions.
    A slope's key is its floor in units of 2^-``shift``, fine enough that different slopes of exact values,
    whose denominators are at most the longest distance of two reps, have different keys.
    """

    def __init__(self, runs: Sequence[Series]) -> None:
        self.runs = [run for run in runs if len(run) > 1]
        common = math.lcm(*(value.denominator for run in self.runs for _, value in run))
        self.is_exact = common.bit_length() <= _PLAIN_BITS
        self.unit = common if self.is_exact else 1 << _PLAIN_BITS
        self.longest = max(run[-1][0] - run[0][0] for run in self.runs)
        self.shift = 2 * self.longest.bit_length()
        self.scaled = [[(rep, self._cut(value) << self.shift) for rep, value in run] for run in self.runs]

    def ranked(self, rank: int) -> Fraction:
        """The slope of that rank, from 0."""
        key = self._key_of_rank(rank)
        if self.is_exact:
            middle = Fraction(2 * key + 1, 2 << self.shift)
            # The one fraction in [key, key + 1) / 2^shift with such a denominator: any other lies further away.
            return middle.limit_denominator(self.longest) / self.unit
        # Cutting moved each slope by less than one unit: the one that is wanted has a key this near.
        low, high = key - (2 << self.shift), key + (3 << self.shift)
        return sorted(self._between(low, high))[rank - self._below(low)]

    def _cut(self, value: Fraction) -> int:
        return value.numerator * self.unit // value.denominator

    def _key_of_rank(self, rank: int) -> int:
        values = [value for run in self.scaled for _, value in run]
        spread = max(values) - min(values) + 1
        low, high = -spread, spread
        while low < high:
            middle = (low + high) // 2
            if self._below(middle + 1) > rank:
                high = middle
            else:
                low = middle + 1
        return low

    def _below(self, key: int) -> int:
        """How many slopes have a smaller key."""
        return sum(_inversions(_sheared(run, key))[0] for run in self.scaled)

    def _between(self, low: int, high: int) -> Iterator[Fraction]:
        """The exact slopes of the pairs with low ≤ key < high: in order at the one bound and not at the other."""
        for run, scaled in zip(self.runs, self.scaled, strict=True):
            at_low, at_high = _sheared(scaled, low), _sheared(scaled, high)
            passed: list[int] = []
            for there in sorted(range(len(run)), key=lambda index: (at_low[index], index)):
                place = len(passed)
                while place and at_high[passed[place - 1]] > at_high[there]:
                    place -= 1
                    here = passed[place]
                    yield (run[there][1] - run[here][1]) / (run[there][0] - run[here][0])
                passed.insert(place, there)


def _sheared(run: Sequence[tuple[int, int]], key: int) -> list[int]:
    return [value - key * rep for rep, value in run]


def _inversions(values: list[int]) -> tuple[int, list[int]]:
    """How many pairs stand in falling order, and the values in rising order."""
    if len(values) > _COUNTED_AT_ONCE:
        middle = len(values) // 2
        left_count, left = _inversions(values[:middle])
        right_count, right = _inversions(values[middle:])
        across = sum(len(left) - bisect_right(left, value) for value in right)
        return left_count + right_count + across, sorted(left + right)
    count = 0
    passed: list[int] = []
    for value in values:
        place = bisect_right(passed, value)
        count += len(passed) - place
        passed.insert(place, value)
    return count, passed


def nearest_rank(values: Sequence[Fraction | float], rank: int) -> Fraction | float:
    """The ``rank``-th smallest value, counted from 1."""
    return sorted(values)[rank - 1]
