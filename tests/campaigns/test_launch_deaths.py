"""A producer that dies during a launch: each way of dying ends in FAIL, with the death and its site on record."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from real_lane import Campaign, death_of, finish, producer_log, ready_pid, receiving, start_producer
from tiny_lane import Lane, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

LONG = 4000
"""Tokens that the tiny model computes for seconds: time to act in the middle."""
REPS = 12
"""More than can pass before a busy machine lets a test act: which one dies is read from the receipts."""


def busy_producer(lane: Lane) -> int | None:
    """Pid of the living producer whose engine computes: it leaves its watchdog's last words just before it does."""
    try:
        pid = int(json.loads((lane.work / "watchdog-armed.json").read_bytes())["instance"]["pid"])
    except (OSError, ValueError):  # not there, or half written
        return None
    return pid if Path("/proc", str(pid)).exists() else None


def acted_within_a_prefill(lane: Lane, act: Callable[[], None]) -> bool:
    """Whether a prefill was met and acted on: it is held still meanwhile, or a slow machine would act behind it."""
    pid = busy_producer(lane)
    if pid is None:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, signal.SIGSTOP)
        met = busy_producer(lane) == pid
        if met:
            act()
        os.kill(pid, signal.SIGCONT)
        return met
    return True  # the act was its end


def launched_while(campaign: Campaign, act: Callable[[], None]) -> subprocess.CompletedProcess[str]:
    """Launch, and ``act`` while the engine computes a rep."""
    launch = campaign.start()
    try:
        wait_for(lambda: acted_within_a_prefill(campaign.lane, act), "a prefill")
        return finish(launch)
    finally:
        if launch.poll() is None:
            launch.terminate()
            launch.communicate(timeout=60)


def only_death(campaign: Campaign) -> dict[str, Any]:
    criterion = campaign.criterion("no-producer-death")
    assert criterion["outcome"] == "not_met"
    (death,) = criterion["deaths"]
    found: dict[str, Any] = death
    return found


def assert_failed(campaign: Campaign, launch: subprocess.CompletedProcess[str]) -> int:
    """FAIL with status 1: one rep died, all before it were measured, none behind it was observed. Gives the rep."""
    assert launch.returncode == 1, launch.stderr
    assert launch.stdout.splitlines()[0] == "FAIL"
    assert campaign.verdict()["ended"] == "complete"
    *passed, died = [receipt["body"]["outcome"] for receipt in campaign.receipts("handoff")]
    assert set(passed) <= {"acknowledged"}
    assert died != "acknowledged"
    reps = campaign.criterion("all-acknowledged")["reps"]
    assert reps == {"measured": len(passed), "errored": 1, "untrusted": 0, "missing": REPS - len(passed) - 1}
    assert reps["missing"] > 0, "the run went on to its last rep before anybody acted"
    return len(passed) + 1


def test_an_error_after_the_engine_was_touched_is_answered_first_and_then_ends_the_producer(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "vanished").write(reps=REPS, tokens=LONG)
    campaign.register()
    pid = start_producer(real_lane)
    with receiving(real_lane) as receiver:
        launch = launched_while(campaign, receiver.kill)
    rep = assert_failed(campaign, launch)
    # The answer came before the death: the receipt has the producer's own words, not "died".
    *_, receipt = campaign.receipts("handoff")
    assert receipt["body"]["outcome"] == "no_ack"
    assert receipt["body"]["error"]["text"]
    assert len(campaign.receipts("admission")) == rep - 1
    assert only_death(campaign) == {"rep": rep, "site": "engine_touched", "status": 75, "injected": False}
    death = death_of(real_lane, pid)
    assert (death["site"], death["status"], death["observed_by"]) == ("engine_touched", 75, "self")
    assert producer_log(real_lane).splitlines()[-1].startswith("soakledger producer: exit 75 (engine_touched): ")


def test_the_watchdog_ends_a_prefill_that_takes_too_long_with_75(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "watchdog").write(reps=REPS, tokens=LONG, watchdog_s=1, rep_deadline_s=60)
    campaign.register()
    pid = start_producer(real_lane)
    with receiving(real_lane) as receiver:
        # However fast the machine is, no acknowledgement comes: the receiver stands still, and its peer waits.
        launch = launched_while(campaign, lambda: receiver.send_signal(signal.SIGSTOP))
    rep = assert_failed(campaign, launch)
    *_, receipt = campaign.receipts("handoff")
    assert receipt["body"]["outcome"] == "died"
    assert only_death(campaign) == {"rep": rep, "site": "watchdog", "status": 75, "injected": False}
    death = death_of(real_lane, pid)
    assert (death["site"], death["status"], death["observed_by"]) == ("watchdog", 75, "keeper")
    assert "exit 75 (watchdog): no answer within 1 s" in producer_log(real_lane).splitlines()[-1]


def test_a_death_that_the_keeper_did_not_outlive_is_recorded_by_who_saw_it(real_lane: Lane) -> None:
    """The launch also finds what an earlier producer left, and takes nothing old for new (QUALITY 17)."""
    dead = ready_pid(real_lane)
    campaign = Campaign(real_lane, "unkept").write(reps=REPS, tokens=LONG)  # fresh_start = false, and none is ready
    campaign.register()

    def kill_both() -> None:
        pid = ready_pid(real_lane)
        os.kill(parent_of(pid), signal.SIGKILL)
        os.kill(pid, signal.SIGKILL)

    launch = launched_while(campaign, kill_both)
    rep = assert_failed(campaign, launch)
    assert only_death(campaign) == {"rep": rep, "site": "not_known", "status": None, "injected": False}
    (ritual,) = [receipt["body"] for receipt in campaign.receipts("ritual")]
    pid = ritual["instance"]["pid"]
    death = death_of(real_lane, pid)
    assert (death["status"], death["signal"], death["observed_by"]) == (None, None, "runner")
    assert real_lane.processes() == []
    assert pid != dead
    assert "startup-receipt.json" in {item["old"] for item in ritual["moved"]}
    assert ritual["removed"] == ["producer.sock"]
    for item in ritual["moved"]:  # nothing was deleted
        assert (real_lane.work / item["new"]).stat().st_size == item["bytes"]


def parent_of(pid: int) -> int:
    stat = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    return int(stat.rpartition(")")[2].split()[1])
