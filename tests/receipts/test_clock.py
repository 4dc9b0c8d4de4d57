"""Stamps, boots and wall time."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from receipts import canonical
from receipts.clock import CLOCK_NAME, HostClock, utc_text


def test_wall_time_is_utc_with_milliseconds_cut_and_not_rounded() -> None:
    assert utc_text(datetime(2026, 11, 30, 20, 41, 7, 512_999, UTC)) == "2026-11-30T20:41:07.512Z"
    east = timezone(timedelta(hours=5, minutes=30))
    assert utc_text(datetime(2026, 12, 1, 2, 11, 7, 0, east)) == "2026-11-30T20:41:07.000Z"


def test_a_time_without_a_zone_is_refused() -> None:
    with pytest.raises(ValueError, match="zone"):
        utc_text(datetime(2026, 11, 30))


def test_a_block_names_host_boot_and_clock() -> None:
    block = HostClock("here").block()
    assert block == {"host": "here", "boot_id": HostClock("here").boot_id, "clock": CLOCK_NAME}
    assert len(block["boot_id"]) == 36


def test_the_stamp_counts_suspend_and_never_runs_behind_the_awake_stamp() -> None:
    clock = HostClock("here")
    awake = clock.awake()
    stamp = clock.stamp()
    assert stamp >= awake
    assert abs(stamp - time.clock_gettime_ns(time.CLOCK_BOOTTIME)) < 10**10


def test_200_days_of_uptime_are_past_the_safe_integers_and_travel_as_text() -> None:
    clock = HostClock("here", stamp=lambda: 200 * 86_400 * 10**9)
    assert clock.stamp() > canonical.MAX_SAFE_INTEGER
    assert canonical.dumps({"at_ns": str(clock.stamp())}) == b'{"at_ns":"17280000000000000"}'
