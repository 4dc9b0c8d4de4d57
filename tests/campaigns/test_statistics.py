"""The exact bounds and slopes, against DESIGN's figures, values worked out by hand, and scipy."""

from __future__ import annotations

from fractions import Fraction
from statistics import median

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from campaigns.statistics import failure_rate_upper, nearest_rank, theil_sen


@pytest.mark.parametrize(
    ("failures", "trials", "bound"),
    [
        (0, 8, "31.3"), (0, 12, "22.1"), (1, 9, "43.0"),  # a rep: DESIGN section 10
        (0, 1, "95.0"), (0, 3, "63.2"), (1, 1, "100.0"),  # a run
        (12, 12, "100.0"),
        (0, 299, "1.0"),  # the smallest clean n that says "at most 1 %": 0.99^299 = 0.0496
        (0, 298, "1.1"),  # 0.99^298 = 0.0501
    ],
)  # fmt: skip
def test_the_upper_bound_is_the_designs(failures: int, trials: int, bound: str) -> None:
    assert failure_rate_upper(failures, trials) == bound


def test_without_a_trial_there_is_no_bound() -> None:
    assert failure_rate_upper(0, 0) is None


@settings(max_examples=150, deadline=None)
@given(st.integers(1, 80), st.data())
def test_the_bound_is_scipys_rounded_up_to_a_tenth(trials: int, data: st.DataObject) -> None:
    beta = pytest.importorskip("scipy.stats").beta
    failures = data.draw(st.integers(0, trials))
    said = failure_rate_upper(failures, trials)
    assert said is not None
    exact = 100.0 if failures == trials else 100 * float(beta.ppf(0.95, failures + 1, trials - failures))
    assert exact - 1e-9 <= float(said) < exact + 0.1 + 1e-9


def test_a_thousand_failures_in_ten_thousand_are_bounded_without_making_each_power_anew() -> None:
    # scipy.stats.beta.ppf(0.95, 1001, 9000) = 0.10507…
    assert failure_rate_upper(1000, 10_000) == "10.6"


def test_a_straight_line_has_its_own_slope() -> None:
    assert theil_sen([[(rep, Fraction(7) - Fraction(rep, 2)) for rep in range(1, 13)]]) == Fraction(-1, 2)


def test_one_outlier_does_not_move_the_slope() -> None:
    # Slopes of 1, 2, 3, 100, 5 at 1…5: 1 1 33 1 | 1 49 1 | 97 1 | −95; the middle two of ten are 1 and 1.
    assert (
        theil_sen([[(1, Fraction(1)), (2, Fraction(2)), (3, Fraction(3)), (4, Fraction(100)), (5, Fraction(5))]]) == 1
    )


def test_one_point_has_no_slope() -> None:
    assert theil_sen([[(1, Fraction(3))]]) is None


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(-1000, 1000), min_size=2, max_size=14))
def test_the_slope_is_scipys(values: list[int]) -> None:
    theilslopes = pytest.importorskip("scipy.stats").theilslopes
    slope = theil_sen([[(rep, Fraction(value)) for rep, value in enumerate(values, 1)]])
    assert slope is not None
    assert float(slope) == pytest.approx(float(theilslopes(values, range(1, len(values) + 1))[0]), abs=1e-9)


def every_slope(runs: list[list[tuple[int, Fraction]]]) -> list[Fraction]:
    return [
        (later - earlier) / (there - here)
        for run in runs
        for index, (here, earlier) in enumerate(run)
        for there, later in run[index + 1 :]
    ]


SMALL = st.integers(-3, 3).map(Fraction)
"""Few values: many equal slopes, and many that differ."""
DURATIONS = st.integers(1, 10**12).map(lambda ns: Fraction(ns, 10**9))
RATES = st.integers(10**70, 10**71).map(lambda ns: Fraction(377_487_360, ns))
"""Values without a common denominator of reasonable size, as bursts are."""
NEAR = st.integers(0, 3).map(lambda step: 1 + Fraction(step, 3**200))
"""Values that differ behind any number of bits at which they might be cut."""

AT_THE_CUT = st.tuples(st.integers(0, 5), st.integers(0, 3)).map(
    lambda two: Fraction(two[0], 2**257) + Fraction(two[1], 3**300)
)
"""Values a bit or less apart at the last one that is kept: cutting them puts slopes in another order."""


@st.composite
def runs_of_points(draw: st.DrawFn) -> list[list[tuple[int, Fraction]]]:
    values = draw(st.sampled_from([SMALL, DURATIONS, RATES, NEAR, AT_THE_CUT, st.one_of(SMALL, RATES)]))
    reps = st.lists(st.integers(1, 40), max_size=9, unique=True).map(sorted)
    return [[(rep, draw(values)) for rep in draw(reps)] for _ in range(draw(st.integers(1, 3)))]


@pytest.mark.slow
@settings(max_examples=400, deadline=None)
@given(runs_of_points())
def test_the_trend_is_the_median_of_every_slope_made_one_by_one(runs: list[list[tuple[int, Fraction]]]) -> None:
    slopes = every_slope(runs)
    assert theil_sen(runs) == (median(slopes) if slopes else None)


@pytest.mark.slow
def test_a_long_run_is_counted_in_halves_and_still_exact() -> None:
    # Past the 512 values that are counted at once; cubes have no two equal slopes.
    run = [(rep, Fraction((rep * 7919) % 1301) ** 3) for rep in range(1, 701)]
    assert theil_sen([run]) == median(every_slope([run]))


def test_points_of_different_runs_make_no_slope() -> None:
    # Within each run the value rises by 1 a rep; the second run begins a thousand lower, on the same rep numbers.
    first = [(rep, Fraction(1000 + rep)) for rep in range(1, 4)]
    second = [(rep, Fraction(rep)) for rep in range(1, 4)]
    assert theil_sen([first, second]) == 1
    assert theil_sen([[(1, Fraction(1))], [(1, Fraction(2))]]) is None


def test_a_rank_is_counted_from_the_smallest() -> None:
    values = [Fraction(value) for value in (30, 10, 20)]
    assert [nearest_rank(values, rank) for rank in (1, 2, 3)] == [10, 20, 30]
