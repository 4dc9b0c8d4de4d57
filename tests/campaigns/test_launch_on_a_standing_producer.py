"""A producer and a receiver that somebody else started: launches use them, bad requests do not kill them.

The tests share one producer and run in order; the last one ends it. It runs in the foreground, so that its own exit
status and its own stderr are seen, not what a keeper says of them.
"""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from real_lane import (
    Campaign,
    a_request,
    ask,
    death_of,
    deaths,
    end_everything,
    end_of,
    ready_pid,
    receiving,
    run_with,
    send_raw,
    set_aside,
    with_ids,
)
from tiny_lane import Lane, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow]

VOCABULARY, CONTEXT = 1024, 4096
TITLE = "a red \x1b[31m word, a line\u2028separator, a next\u0085line"


@dataclass
class Standing:
    """The shared producer, in the foreground, and its receiver."""

    lane: Lane
    producer: subprocess.Popen[str]
    receiver: subprocess.Popen[str]

    @property
    def alive(self) -> bool:
        return self.producer.poll() is None


@pytest.fixture(scope="module")
def standing(real_lane: Lane) -> Iterator[Standing]:
    set_aside(real_lane, "before")
    producer = real_lane.start("producer", "serve", "--lane", str(real_lane.file))
    try:
        wait_for((real_lane.work / "startup-receipt.json").exists, "the startup receipt")
        with receiving(real_lane) as receiver:
            yield Standing(real_lane, producer, receiver)
    finally:
        end_everything(real_lane)
        producer.communicate(timeout=30)
        set_aside(real_lane, "after")


def handoffs_served(lane: Lane) -> int:
    return sum(1 for event in lane.events() if event["kind"] == "handoff")


def test_a_launch_uses_what_runs_and_leaves_it_running_and_no_title_breaks_the_terminal(standing: Standing) -> None:
    campaign = Campaign(standing.lane, "reuse").write(title=TITLE)
    campaign.register()
    launch = campaign.launch()
    assert launch.returncode == 0, launch.stderr
    assert [item["body"]["action"] for item in campaign.receipts("intent")] == ["reuse", "handoff", "handoff"]
    assert campaign.receipts("ritual") == []
    assert {item["body"]["producer"]["pid"] for item in campaign.receipts("handoff")} == {standing.producer.pid}
    assert standing.alive
    assert standing.receiver.poll() is None
    page = standing.lane.run("report", "verdict", "reuse/1", "--home", str(standing.lane.home))
    assert page.returncode == 0
    for text in (launch.stdout, launch.stderr, page.stdout):
        assert not {"\x1b", "\u2028", "\u0085"} & set(text)


@pytest.mark.usefixtures("standing")
def test_a_weaker_registration_needs_a_reason_and_never_gives_a_plain_pass(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "weaker").write(rep_time_s=50)
    campaign.register()
    campaign.write(rep_time_s=60)
    silent = real_lane.run("campaign", "register", str(campaign.spec), "--home", str(real_lane.home))
    assert silent.returncode == 2
    assert "--reason" in silent.stderr
    amended = campaign.register("--reason", "a slower machine")
    assert "<= 50 -> <= 60" in amended.stderr
    launch = campaign.launch()
    assert launch.returncode == 4, launch.stderr
    assert launch.stdout.splitlines()[0] == "DEVIATION"
    assert {item["outcome"] for item in campaign.verdict()["criteria"]} == {"met"}
    page = real_lane.run("report", "verdict", "weaker/1", "--home", str(real_lane.home)).stdout
    for text in (launch.stdout, page):
        plain = " ".join(text.replace("\\", "").split())
        assert "criterion.rep-time.value: <= 50 → <= 60" in plain
        assert "not anchored" in plain


def test_a_producer_that_stands_still_is_wedged_and_not_dead(standing: Standing) -> None:
    # The stopped process answers no timer either: what outlives deadline and watchdog is wedged.
    campaign = Campaign(standing.lane, "wedged").write(reps=1, rep_deadline_s=3, watchdog_s=2)
    campaign.register()
    standing.producer.send_signal(signal.SIGSTOP)
    try:
        launch = campaign.launch()
    finally:
        standing.producer.send_signal(signal.SIGCONT)
    assert launch.returncode == 1, launch.stderr
    (receipt,) = campaign.receipts("handoff")
    assert (receipt["body"]["outcome"], receipt["body"]["error"]["code"]) == ("wedged", "wedged")
    assert campaign.criterion("no-producer-death")["deaths"] is None
    assert "wedged" in launch.stdout
    assert ask(standing.lane, a_request())["status"] == "ok"
    assert standing.alive


BAD_REQUESTS: dict[str, tuple[dict[str, Any], str]] = {
    "an empty prompt": (with_ids([]), "empty"),
    "a prompt as long as the context": (a_request(tokens=CONTEXT), f"{CONTEXT}"),
    "a prompt of a billion tokens": (
        a_request(prompt={"source": "seeded", "seed": 1, "tokens": 10**9, "id_range": [3, 500]}),
        f"{CONTEXT}",
    ),
    "an id behind the vocabulary": (with_ids([3, VOCABULARY]), f"{VOCABULARY}"),
    "a negative id": (a_request(prompt={"source": "ids", "ids": [3, -1]}), "-1"),
    "another prompt's digest": (a_request(prompt_sha256=with_ids([3, 4])["prompt_sha256"]), "digest"),
    "a receiver that is not enrolled": (a_request(receiver="elsewhere"), "elsewhere"),
    "an address for a receiver": (a_request(receiver="127.0.0.1:47900"), "receiver"),
    "text without a tokenizer": (a_request(prompt={"source": "text", "text": "Bonjour"}), "tokenizer"),
    "a file that is not there": (a_request(prompt={"source": "file", "path": "/nowhere/prompt"}), "/nowhere/prompt"),
    "a member that nobody knows": (a_request(port=47900), "port"),
    "no watchdog at all": (a_request(watchdog_s=0), "watchdog_s"),
    "an operation that is none": (a_request(op="halt"), "op"),
}


@pytest.mark.parametrize("name", BAD_REQUESTS)
def test_a_bad_request_is_refused_before_the_engine_is_touched(standing: Standing, name: str) -> None:
    request, word = BAD_REQUESTS[name]
    served = handoffs_served(standing.lane)
    answer = ask(standing.lane, request)
    assert (answer["status"], answer["outcome"], answer["engine_touched"]) == ("error", "refused", False)
    assert word in answer["error"]["text"]
    assert handoffs_served(standing.lane) == served
    # The producer lives on and serves the next request, which also ends the row of errors.
    assert ask(standing.lane, a_request())["status"] == "ok"


GARBAGE = {
    "no JSON": b"GET / HTTP/1.1\n",
    "an array": b"[]\n",
    "a number that is none": b'{"v":NaN}\n',
    "a member twice": b'{"op":"status","op":"status","v":1}\n',
    "bytes that are no UTF-8": b'{"op":"\xff\xfe"}\n',
    "a deep nest": b"[" * 100_000 + b"\n",
}


@pytest.mark.parametrize("name", GARBAGE)
def test_garbage_is_answered_with_an_error_and_survived(standing: Standing, name: str) -> None:
    answer = send_raw(standing.lane, GARBAGE[name])
    assert b'"outcome":"refused"' in answer
    assert b'"engine_touched":false' in answer
    assert ask(standing.lane, a_request())["status"] == "ok"


SILENCE = {
    "nothing": b"",
    "half a line": b'{"v":1,"op":"hand',
    "nine million bytes without an end": b"x" * 9_000_000,
    "a line of nine million bytes": b"x" * 9_000_000 + b"\n",
}


def test_what_is_no_line_is_not_answered_and_never_counts(standing: Standing) -> None:
    for data in SILENCE.values():
        for _ in range(2):  # eight in a row: none of them may count towards the third error
            assert send_raw(standing.lane, data) == b""
    assert ask(standing.lane, a_request())["status"] == "ok"
    assert standing.alive


def test_a_second_start_says_who_holds_the_lease(standing: Standing) -> None:
    for module in (("campaigns.cli", "producer", "start"), ("producer.resident",)):
        second = run_with(standing.lane, {}, *module, "--lane", str(standing.lane.file))
        assert second.returncode == 1
        assert f"held by pid {standing.producer.pid} " in second.stderr
        assert "Traceback" not in second.stderr
    assert ready_pid(standing.lane) == standing.producer.pid
    assert standing.alive


def test_the_third_answered_error_in_a_row_ends_the_producer_with_75_and_one_line(standing: Standing) -> None:
    lane = standing.lane
    standing.receiver.terminate()
    standing.receiver.communicate(timeout=20)
    first = ask(lane, a_request())
    assert (first["outcome"], first["engine_touched"]) == ("refused", False)
    assert standing.alive
    assert send_raw(lane, b'{"half a line') == b""
    assert ask(lane, with_ids([]))["outcome"] == "refused"
    assert standing.alive
    assert ask(lane, with_ids([VOCABULARY]))["outcome"] == "refused"  # answered first, dead then
    status, stderr = end_of(standing.producer)
    assert status == 75
    last = stderr.splitlines()[-1]
    assert "exit 75 (third_error)" in last
    assert str(VOCABULARY) in last
    death = death_of(lane, standing.producer.pid)
    assert (death["site"], death["status"], death["observed_by"]) == ("third_error", 75, "self")


def test_a_bare_restart_over_what_a_dead_producer_left_fails_and_names_the_ritual(standing: Standing) -> None:
    if standing.alive:  # run by itself; else the third error before it was its end
        standing.producer.kill()
        standing.producer.wait()
    known = deaths(standing.lane, standing.producer.pid)
    before = {path.name: path.stat().st_mtime_ns for path in standing.lane.work.iterdir() if path.is_file()}
    bare = run_with(standing.lane, {}, "producer.resident", "--lane", str(standing.lane.file))
    assert bare.returncode == 1
    assert "startup-receipt.json" in bare.stderr
    assert "soakledger producer start" in bare.stderr
    after = {path.name: path.stat().st_mtime_ns for path in standing.lane.work.iterdir() if path.is_file()}
    assert after == before
    assert deaths(standing.lane, standing.producer.pid) == known
