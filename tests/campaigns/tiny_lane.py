"""A real loopback lane with the tiny NVFP4 checkpoint, enrolled once for all tests of a session; real vLLM."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
SPEC = """\
schema = "soakledger/campaign/1"
id = "tiny"
family = "tiny"
title = "A few handoffs of the tiny model"
question = "Does the whole thread hold?"
not_covered = ["anything but the thread"]

[[stage]]
name = "preflight"
kind = "preflight"

[[stage]]
name = "soak"
kind = "soak"
fresh_start = true
runs = 1
reps = 6
rep_deadline_s = 90
watchdog_s = 60
prompt = {source = "seeded", seed = 20260823, tokens = 1500, id_range = [3, 500]}
control = {source = "seeded", seed = 7, tokens = 1500, id_range = [3, 500]}

[[criterion]]
name = "six-acknowledged"
stage = "soak"
metric = "handoff.acknowledged"
aggregate = "sum"
op = "=="
value = 6

[[criterion]]
name = "no-producer-death"
stage = "soak"
metric = "producer.deaths"
aggregate = "sum"
op = "=="
value = 0

[[criterion]]
name = "same-bytes"
stage = "soak"
metric = "handoff.payload_root"
aggregate = "distinct"
by = "prompt_sha256"
op = "=="
value = 1

[[criterion]]
name = "control-differs"
stage = "soak"
metric = "handoff.tensors_root"
aggregate = "distinct"
include_control = true
op = "=="
value = 2

[[criterion]]
name = "rep-time"
stage = "soak"
metric = "handoff.total_s"
aggregate = "max"
op = "<="
value = 90
"""


@dataclass(frozen=True)
class Lane:
    """One enrolled lane below ``folder`` with a home of its own, and the command line on it."""

    folder: Path

    @property
    def file(self) -> Path:
        return self.folder / "lane" / "lane.toml"

    @property
    def home(self) -> Path:
        return self.folder / "evidence"

    @property
    def work(self) -> Path:
        return self.folder / "lane" / "work"

    @property
    def spec(self) -> Path:
        return self.folder / "tiny.toml"

    def environment(self) -> dict[str, str]:
        own = {"XDG_CONFIG_HOME": str(self.folder / "cfg"), "XDG_STATE_HOME": str(self.folder / "state")}
        return os.environ | own | {"PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"}

    def start(self, *words: str) -> subprocess.Popen[str]:
        """Begin a command and return at once."""
        return subprocess.Popen(
            [sys.executable, "-m", "campaigns.cli", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self.folder,
            env=self.environment(),
        )

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        process = self.start(*words)
        out, err = process.communicate(timeout=300)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def launch(self) -> subprocess.Popen[str]:
        return self.start("campaign", "launch", str(self.spec), "--lane", str(self.file), "--home", str(self.home))

    def receipts(self, attempt: int, kind: str) -> list[Path]:
        folder = self.home / "receipts" / "tiny" / f"attempt-{attempt:04d}" / "soak"
        return sorted(folder.glob(f"*-{kind}.json"))

    def verdict(self, attempt: int) -> dict[str, Any]:
        path = self.home / "receipts" / "tiny" / f"attempt-{attempt:04d}" / "SOAK_VERDICT.json"
        document: dict[str, Any] = json.loads(path.read_bytes())
        return document

    def handoff(self, path: Path) -> dict[str, Any]:
        body: dict[str, Any] = json.loads(path.read_bytes())["body"]
        return body

    def events(self) -> list[dict[str, Any]]:
        return [json.loads(path.read_bytes()) for path in sorted((self.work / "journal").glob("*.json"))]

    def processes(self) -> list[str]:
        """Command lines of whatever still runs on this lane."""
        found = []
        for folder in Path("/proc").glob("[0-9]*"):
            try:
                command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(self.file) in command and "campaigns.cli" not in command:
                found.append(command)
        return found


def wait_for(condition: Callable[[], bool], what: str, deadline_s: float = 120) -> None:
    """Return as soon as ``condition`` holds; a test that waits in vain fails with ``what``."""
    end = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < end, f"waited {deadline_s} s in vain for {what}"
        time.sleep(0.05)


def make_lane(folder: Path) -> Lane:
    """Build, enroll and register: everything up to the first launch."""
    lane = Lane(folder)
    checkpoint = ROOT / "build" / "checkpoints" / "tiny-nvfp4"
    for words in (
        ("producer", "build-checkpoint", str(checkpoint), "--tiny"),
        ("lane", "init", str(lane.file.parent), "--checkpoint", str(checkpoint)),
    ):
        done = lane.run(*words)
        assert done.returncode == 0, done.stderr
    text = lane.file.read_text()
    text = text.replace("/tmp/ferrite.gpu.lock", str(folder / "lease.lock")).replace("= 8192", "= 4096")
    for port, free in zip(("47900", "47901", "47902"), free_ports(3), strict=True):
        text = text.replace(port, str(free))
    lane.file.write_text(text)
    lane.spec.write_text(SPEC)
    for words in (
        ("producer", "enroll", "--lane", str(lane.file)),
        ("lane", "enroll", "--lane", str(lane.file), "--home", str(lane.home)),
        ("campaign", "register", str(lane.spec), "--home", str(lane.home)),
    ):
        done = lane.run(*words)
        assert done.returncode == 0, done.stderr
    return lane


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for item in sockets:
            item.bind(("127.0.0.1", 0))
        return [item.getsockname()[1] for item in sockets]
    finally:
        for item in sockets:
            item.close()


def kill(pid: int, number: signal.Signals) -> None:
    os.kill(pid, number)
