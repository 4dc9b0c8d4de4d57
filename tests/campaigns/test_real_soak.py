"""The whole thread on a real vLLM producer: launch, verdict, deaths, interrupts, tampering. One lane for all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sqlite3
import subprocess
from pathlib import Path

import pytest
from tiny_lane import Lane, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow]


@pytest.fixture(scope="module")
def lane(real_lane: Lane) -> Lane:
    return real_lane


@pytest.fixture(scope="module")
def passed(lane: Lane) -> subprocess.CompletedProcess[str]:
    """Attempt 1: a clean soak."""
    process = lane.launch()
    out, err = process.communicate(timeout=300)
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def verifies(lane: Lane) -> bool:
    return lane.run("ledger", "verify", "--home", str(lane.home)).returncode == 0


def last_attempt(lane: Lane) -> int:
    return len(list((lane.home / "receipts" / "tiny").glob("attempt-*")))


def test_a_clean_soak_passes_and_leaves_the_lane_as_it_was_found(
    lane: Lane, passed: subprocess.CompletedProcess[str]
) -> None:
    assert passed.returncode == 0, passed.stderr
    assert passed.stdout.splitlines()[0] == "PASS"
    document = lane.verdict(1)
    assert {item["name"]: item["outcome"] for item in document["criteria"]} == dict.fromkeys(
        ("six-acknowledged", "no-producer-death", "same-bytes", "control-differs", "rep-time"), "met"
    )
    assert lane.processes() == []
    assert verifies(lane)


@pytest.mark.usefixtures("passed")
def test_every_rep_has_intent_admission_and_handoff_and_none_may_be_written_again(lane: Lane) -> None:
    # Eight handoffs (six reps, two controls) and one intent more for the ritual.
    assert [len(lane.receipts(1, kind)) for kind in ("intent", "admission", "handoff")] == [9, 8, 8]
    assert {path.stat().st_mode & 0o777 for path in lane.receipts(1, "handoff")} == {0o444}


@pytest.mark.usefixtures("passed")
def test_a_fresh_process_prints_the_very_bytes_that_are_stored(lane: Lane) -> None:
    again = lane.run("campaign", "rejudge", "tiny/1", "--json", "--home", str(lane.home))
    assert again.returncode == 0
    assert json.loads(again.stdout) == lane.verdict(1)


@pytest.mark.usefixtures("passed")
def test_deleting_changing_or_swapping_a_receipt_ends_rejudge_with_status_5_and_its_name(lane: Lane) -> None:
    first, second = lane.receipts(1, "handoff")[2:4]
    original, other = first.read_bytes(), second.read_bytes()
    first.chmod(0o644)
    second.chmod(0o644)
    try:
        for change in ("deleted", "changed", "swapped"):
            if change == "deleted":
                first.unlink()
            elif change == "changed":
                first.write_bytes(original.replace(b"acknowledged", b"acknowledgeD"))
            else:
                first.write_bytes(other)
                second.write_bytes(original)
            answer = lane.run("campaign", "rejudge", "tiny/1", "--home", str(lane.home))
            assert answer.returncode == 5, change
            assert first.name in answer.stderr, change
            assert not verifies(lane), change
            first.write_bytes(original)
            second.write_bytes(other)
    finally:
        first.write_bytes(original)
        second.write_bytes(other)
        first.chmod(0o444)
        second.chmod(0o444)
    assert verifies(lane)


@pytest.mark.usefixtures("passed")
def test_dropped_triggers_and_a_changed_body_are_both_named(lane: Lane, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(lane.home, copy)
    database = sqlite3.connect(copy / "ledger.db")
    triggers = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'")]
    for name in triggers:
        database.execute(f'DROP TRIGGER "{name}"')
    wanted = "kind = 'receipt' AND body LIKE '%\"rep\":3%'"
    seq = database.execute(f"SELECT min(seq) FROM entry WHERE {wanted}").fetchone()[0]
    database.execute("UPDATE entry SET body = replace(body, '\"rep\":3', '\"rep\":4') WHERE seq = ?", (seq,))
    database.commit()
    database.close()
    answer = lane.run("ledger", "verify", "--home", str(copy))
    assert answer.returncode == 5
    assert f"entry {seq}" in answer.stdout
    assert all(name in answer.stdout for name in triggers)


@pytest.mark.usefixtures("passed")
def test_an_edited_spec_is_refused_with_the_difference_and_takes_no_number(lane: Lane, tmp_path: Path) -> None:
    edited = tmp_path / "tiny.toml"
    edited.write_text(lane.spec.read_text().replace("reps = 6", "reps = 7"))
    before = last_attempt(lane)
    answer = lane.run("campaign", "launch", str(edited), "--lane", str(lane.file), "--home", str(lane.home))
    assert answer.returncode == 2
    assert "-reps = 6" in answer.stderr
    assert "+reps = 7" in answer.stderr
    assert last_attempt(lane) == before


@pytest.mark.usefixtures("passed")
def test_a_lease_held_by_a_stranger_is_found_before_an_attempt_is_opened(lane: Lane) -> None:
    before = last_attempt(lane)
    holder = subprocess.Popen(
        ["flock", str(lane.folder / "lease.lock"), "sh", "-c", "echo held; read x"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    try:
        launch = lane.launch()
        _, err = launch.communicate(timeout=60)
        assert launch.returncode == 75
        assert str(holder.pid) in err or "flock" in err
        assert last_attempt(lane) == before
    finally:
        holder.communicate("x\n")


@pytest.mark.usefixtures("passed")
def test_a_producer_killed_by_hand_in_the_middle_fails_with_the_death_on_record(lane: Lane) -> None:
    attempt = last_attempt(lane) + 1
    launch = lane.launch()
    wait_for(lambda: bool(lane.receipts(attempt, "intent")), "the start of the producer")
    second = lane.launch()
    _, refused = second.communicate(timeout=60)
    wait_for(lambda: len(lane.receipts(attempt, "handoff")) >= 3, "the second rep")
    victim = lane.handoff(lane.receipts(attempt, "handoff")[0])["producer"]["pid"]
    os.kill(victim, signal.SIGKILL)
    out, err = launch.communicate(timeout=120)
    assert launch.returncode == 1, err
    assert out.splitlines()[0] == "FAIL"
    document = lane.verdict(attempt)
    deaths = next(item for item in document["criteria"] if item["name"] == "no-producer-death")
    assert deaths["outcome"] == "not_met"
    assert deaths["deaths"][0]["site"] == "signal"
    record = next(event for event in reversed(lane.events()) if event["kind"] == "death")
    assert (record["body"]["signal"], record["body"]["instance"]["pid"]) == (9, victim)
    assert document["ended"] == "complete"
    assert f"handoff {deaths['deaths'][0]['rep']} of 6" in out
    # While it ran, a second launch was refused and told who holds the lane.
    assert second.returncode == 75
    assert f"tiny/{attempt}" in refused
    assert lane.processes() == []


@pytest.mark.usefixtures("passed")
@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_closes_the_attempt_as_interrupted(lane: Lane, number: signal.Signals, status: int) -> None:
    attempt = last_attempt(lane) + 1
    launch = lane.launch()
    wait_for(lambda: len(lane.receipts(attempt, "handoff")) >= 2, "the first rep")
    launch.send_signal(number)
    out, err = launch.communicate(timeout=60)
    assert launch.returncode == status, err
    document = lane.verdict(attempt)
    assert (document["ended"], document["verdict"]) == ("interrupted", "INCONCLUSIVE")
    assert "INCONCLUSIVE" in out
    assert lane.processes() == []


@pytest.mark.usefixtures("passed")
def test_an_orchestrator_that_was_killed_is_lost_and_the_next_launch_judges_it_and_passes(lane: Lane) -> None:
    attempt = last_attempt(lane) + 1
    launch = lane.launch()
    wait_for(lambda: len(lane.receipts(attempt, "handoff")) >= 3, "the second rep")
    launch.kill()
    launch.communicate()
    status = lane.run("campaign", "status", "--home", str(lane.home)).stdout
    line = next(line for line in status.splitlines() if line.startswith(f"tiny/{attempt} "))
    assert "LOST" in line
    assert "RUNNING" not in status
    # Its journal is not taken in yet: what the ledger holds so far is too little for more.
    assert lane.run("campaign", "rejudge", f"tiny/{attempt}", "--home", str(lane.home)).returncode == 3
    following = lane.launch()
    _, err = following.communicate(timeout=300)
    assert following.returncode == 0, err
    # Its receiver finished the handoff that it was in: the producer did not lose it in the middle of a send.
    document = lane.verdict(attempt)
    assert (document["ended"], document["verdict"]) == ("abandoned", "INCONCLUSIVE")
    assert next(item for item in document["criteria"] if item["name"] == "no-producer-death")["deaths"] in (None, [])
    assert lane.verdict(attempt + 1)["verdict"] == "PASS"
    assert lane.processes() == []
    assert verifies(lane)
