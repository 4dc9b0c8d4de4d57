"""What the launch tests do with the real lane of ``tiny_lane.py``: small specs, raw requests, a standing producer."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tiny_lane import Lane, wait_for

from producer import client
from receipts.prompts import prompt_sha256, seeded_token_ids

LOW, HIGH = 3, 500
"""Ids of the tests' prompts."""

SPEC = """\
schema = "soakledger/campaign/1"
id = "{campaign}"
family = "{campaign}"
title = {title}
question = "Does it hold?"
not_covered = ["anything but the thread"]

[[stage]]
name = "preflight"
kind = "preflight"

[[stage]]
name = "soak"
kind = "soak"
fresh_start = {fresh_start}
runs = 1
reps = {reps}
rep_deadline_s = {rep_deadline_s}
watchdog_s = {watchdog_s}
prompt = {{source = "seeded", seed = 20260823, tokens = {tokens}, id_range = [3, {high}]}}

[[criterion]]
name = "all-acknowledged"
stage = "soak"
metric = "handoff.acknowledged"
aggregate = "sum"
op = "=="
value = {reps}

[[criterion]]
name = "no-producer-death"
stage = "soak"
metric = "producer.deaths"
aggregate = "sum"
op = "=="
value = 0

[[criterion]]
name = "rep-time"
stage = "soak"
metric = "handoff.total_s"
aggregate = "max"
op = "<="
value = {rep_time_s}
"""


@dataclass(frozen=True)
class Campaign:
    """A small campaign on one lane: its spec file, and launches of it."""

    lane: Lane
    name: str

    @property
    def spec(self) -> Path:
        return self.lane.folder / f"{self.name}.toml"

    def write(
        self,
        *,
        reps: int = 2,
        tokens: int = 64,
        fresh_start: bool = False,
        rep_deadline_s: int = 60,
        watchdog_s: int = 30,
        rep_time_s: int = 60,
        high: int = HIGH,
        title: str = "A few short handoffs",
    ) -> Campaign:
        """Write the spec, which replaces an earlier one of this name."""
        text = SPEC.format(
            campaign=self.name,
            title=json.dumps(title),
            fresh_start=str(fresh_start).lower(),
            reps=reps,
            tokens=tokens,
            rep_deadline_s=rep_deadline_s,
            watchdog_s=watchdog_s,
            rep_time_s=rep_time_s,
            high=high,
        )
        self.spec.write_text(text, encoding="utf-8")
        return self

    def register(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = self.lane.run("campaign", "register", str(self.spec), "--home", str(self.lane.home), *words)
        assert done.returncode == 0, done.stderr
        return done

    def start(self, home: Path | None = None, lane_file: Path | None = None) -> subprocess.Popen[str]:
        """Begin a launch and return at once."""
        place, file = home or self.lane.home, lane_file or self.lane.file
        return self.lane.start("campaign", "launch", str(self.spec), "--lane", str(file), "--home", str(place))

    def launch(self, home: Path | None = None, lane_file: Path | None = None) -> subprocess.CompletedProcess[str]:
        return finish(self.start(home, lane_file))

    def attempts(self, home: Path | None = None) -> int:
        return len(list(((home or self.lane.home) / "receipts" / self.name).glob("attempt-*")))

    def receipts(self, kind: str, attempt: int = 1, stage: str = "soak") -> list[dict[str, Any]]:
        """Receipts of one kind in the order in which they were written."""
        folder = self.lane.home / "receipts" / self.name / f"attempt-{attempt:04d}" / stage
        return [json.loads(path.read_bytes()) for path in sorted(folder.glob(f"*-{kind}.json"))]

    def verdict(self, attempt: int = 1) -> dict[str, Any]:
        folder = self.lane.home / "receipts" / self.name / f"attempt-{attempt:04d}"
        document: dict[str, Any] = json.loads((folder / "SOAK_VERDICT.json").read_bytes())
        return document

    def criterion(self, name: str, attempt: int = 1) -> dict[str, Any]:
        found: dict[str, Any] = next(item for item in self.verdict(attempt)["criteria"] if item["name"] == name)
        return found


def finish(process: subprocess.Popen[str], timeout_s: float = 240) -> subprocess.CompletedProcess[str]:
    """Wait for a command that ``Lane.start`` began."""
    try:
        out, err = process.communicate(timeout=timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


def start_producer(lane: Lane) -> int:
    """Start the producer by the ritual; returns its pid."""
    done = lane.run("producer", "start", "--lane", str(lane.file))
    assert done.returncode == 0, done.stderr
    return ready_pid(lane)


def ready_pid(lane: Lane) -> int:
    receipt = json.loads((lane.work / "startup-receipt.json").read_bytes())
    pid: int = receipt["instance"]["pid"]
    return pid


@contextlib.contextmanager
def receiving(lane: Lane) -> Iterator[subprocess.Popen[str]]:
    """A receiver of this lane that somebody else started and that listens."""
    process = lane.start("receiver", "serve", "--lane", str(lane.file))
    try:
        assert process.stderr is not None
        assert "receiver listens" in process.stderr.readline()
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGCONT)
            process.terminate()
        process.communicate(timeout=20)


def a_request(tokens: int = 64, seed: int = 1, **changes: Any) -> dict[str, Any]:
    """A request of this lane that the producer must serve; ``changes`` replace members."""
    prompt = {"source": "seeded", "seed": seed, "tokens": tokens, "id_range": [LOW, HIGH]}
    plain = {
        "v": 1,
        "op": "handoff",
        "handoff_id": secrets.token_hex(16),
        "prompt": prompt,
        "prompt_sha256": prompt_sha256(list(seeded_token_ids(seed, tokens, LOW, HIGH))),
        "receiver": "here",
        "watchdog_s": None,
        "used_by": None,
    }
    return plain | changes


def with_ids(ids: list[int]) -> dict[str, Any]:
    """A request whose prompt is exactly these ids, digest included."""
    return a_request(prompt={"source": "ids", "ids": ids}, prompt_sha256=prompt_sha256(ids))


def ask(lane: Lane, request: dict[str, Any], timeout_s: float = 60) -> dict[str, Any]:
    """One request to the producer and its answer. Fails when none comes."""
    reply = client.ask(lane.work / "producer.sock", request, timeout_s=timeout_s)
    assert reply.value is not None, (reply.ending, reply.text)
    return reply.value


def send_raw(lane: Lane, data: bytes) -> bytes:
    """Write ``data`` to producer.sock, end our side, and return everything that comes back."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(30)
        connection.connect(str(lane.work / "producer.sock"))
        with contextlib.suppress(OSError):  # a refused line is cut off while we still write
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
        answer = b""
        with contextlib.suppress(OSError):
            while piece := connection.recv(65536):
                answer += piece
        return answer


def deaths(lane: Lane, pid: int) -> list[dict[str, Any]]:
    """The deaths of one producer in the lane's journal."""
    records = [event["body"] for event in lane.events() if event["kind"] == "death"]
    return [body for body in records if body["instance"]["pid"] == pid]


def death_of(lane: Lane, pid: int) -> dict[str, Any]:
    """The one death of this producer, waited for: its keeper may write it a moment after the exit."""
    wait_for(lambda: bool(deaths(lane, pid)), f"the death of pid {pid} in the journal", 30)
    (only,) = deaths(lane, pid)
    return only


def producer_log(lane: Lane) -> str:
    """What the newest producer wrote to its stderr."""
    newest = max((lane.work / "logs").glob("producer-*.log"), key=lambda path: path.stat().st_mtime_ns)
    return newest.read_text(encoding="utf-8", errors="replace")


def end_of(process: subprocess.Popen[str], timeout_s: float = 30) -> tuple[int, str]:
    """Status and stderr of a command in the foreground that is about to end by itself."""
    done = finish(process, timeout_s)
    return done.returncode, done.stderr


def set_aside(lane: Lane, suffix: str) -> None:
    """Move a dead producer's artefacts out of the way by hand, as the ritual does."""
    for name in ("startup-receipt.json", "rope-cache.bin", "producer.sock"):
        if (lane.work / name).exists():
            (lane.work / name).rename(lane.work / f"{name}.{suffix}")


def run_with(lane: Lane, environment: dict[str, str], *words: str) -> subprocess.CompletedProcess[str]:
    """Run a Python module of ours with variables of the environment changed."""
    return subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        cwd=lane.folder,
        env=lane.environment() | environment,
        timeout=120,
        check=False,
    )


def other_lane_file(lane: Lane, name: str, checkpoint: Path) -> Path:
    """A lane file beside the lane's own that differs in its checkpoint alone."""
    text = lane.file.read_text()
    old = next(line for line in text.splitlines() if line.startswith("checkpoint = "))
    path = lane.file.with_name(f"{name}.toml")
    path.write_text(text.replace(old, f'checkpoint = "{checkpoint}"'))
    return path


def end_everything(lane: Lane) -> None:
    """End whatever a failed test left running on this lane: it must not be the next test's trouble."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            words = (folder / "cmdline").read_bytes().split(b"\0")
            if str(lane.file).encode() in words and int(folder.name) != os.getpid():
                os.kill(int(folder.name), signal.SIGKILL)
