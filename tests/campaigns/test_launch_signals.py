"""A launch that is told to end, by a signal, while it starts its producer and in the middle of a rep."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
from typing import Any

import pytest
from real_lane import Campaign, finish, producer_log
from tiny_lane import Lane, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]


def two_seconds_ns() -> int:
    """Two seconds on an idle machine; longer by as much as more processes want to run than there are CPUs."""
    crowd = os.getloadavg()[0] / (os.cpu_count() or 1)
    return int(2e9 * max(1.0, crowd))


def leaf(lane: Lane, kind: str, subject: str) -> dict[str, Any]:
    """The data of the one entry of this kind and subject."""
    with sqlite3.connect(f"file:{lane.home / 'ledger.db'}?mode=ro", uri=True) as database:
        (row,) = database.execute("SELECT body FROM entry WHERE kind = ? AND subject = ?", (kind, subject)).fetchall()
    data: dict[str, Any] = json.loads(row[0])["data"]
    return data


def test_a_hang_up_in_a_rep_closes_within_two_seconds_with_what_there_is(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "hangup").write(reps=50, tokens=1000, fresh_start=True)
    campaign.register()
    launch = campaign.start()
    wait_for(lambda: len(campaign.receipts("handoff")) >= 2, "the second rep")
    busy = campaign.start()
    refused = finish(busy, 60)
    launch.send_signal(signal.SIGHUP)
    done = finish(launch, 60)
    assert done.returncode == 129, done.stderr
    assert "INCONCLUSIVE" in done.stdout
    close = leaf(real_lane, "attempt_close", "hangup/1")
    assert (close["ended"], close["signal"]) == ("interrupted", "SIGHUP")
    last = campaign.receipts("handoff")[-1]["body"]
    assert int(close["at_ns"]) - int(last["runner"]["ended_ns"]) < two_seconds_ns()
    document = campaign.verdict()
    assert (document["ended"], document["verdict"]) == ("interrupted", "INCONCLUSIVE")
    reps = campaign.criterion("all-acknowledged")["reps"]
    assert reps["measured"] >= 2
    assert reps["measured"] + reps["missing"] == 50
    assert real_lane.processes() == []
    page = real_lane.run("report", "verdict", "hangup/1", "--home", str(real_lane.home))
    assert page.returncode == 0
    assert "INCONCLUSIVE" in page.stdout
    # The launch that came in between was refused, and told which process, which attempt, and for how long.
    assert refused.returncode == 75
    assert f"pid {launch.pid} " in refused.stderr
    assert "hangup/1" in refused.stderr
    assert "running for" in refused.stderr
    assert campaign.attempts() == 1


def test_a_signal_while_the_producer_loads_leaves_no_producer_and_no_death(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "early").write(reps=1, fresh_start=True)
    campaign.register()
    before = len(real_lane.events())
    launch = campaign.start()
    wait_for(lambda: len(real_lane.events()) > before and "loading the engine" in producer_log(real_lane), "the load")
    launch.send_signal(signal.SIGTERM)
    done = finish(launch, 60)
    assert done.returncode == 143, done.stderr
    document = campaign.verdict()
    assert (document["ended"], document["verdict"]) == ("interrupted", "INCONCLUSIVE")
    assert campaign.receipts("handoff") == []
    assert real_lane.processes() == []
    # It was a commanded stop: neither a death nor a failed start.
    assert [event["kind"] for event in real_lane.events()[before:]] == ["ritual", "stop"]
    lease = real_lane.run("producer", "status", "--lane", str(real_lane.file)).stdout
    assert "lease    free" in lease
