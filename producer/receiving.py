"""The receiver as a process of its own: ``python -m producer.receiving --lane lane.toml``."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from producer.enrollment import receiver_config
from producer.handoff import inspection, receiver
from producer.host import linux
from producer.interpreter import child_environment
from producer.lane import Lane, LaneConfig
from producer.runtime.process import log_tail, opened_log
from receipts.errors import LaneError, SoakledgerError


@dataclass(frozen=True)
class RunningReceiver:
    """A receiver that we started; ``stop`` ends it."""

    process: subprocess.Popen[str]

    def stop(self, grace_s: float = 5.0) -> None:
        """End it: after the handoff that it is in, or by force when that takes longer."""
        if not self.ends(grace_s):
            self.process.kill()
            self.process.wait()

    def ends(self, grace_s: float = 1.0) -> bool:
        """Tell it to end, and whether it did within the time. If not it finishes a handoff and ends by itself."""
        self.process.terminate()
        try:
            self.process.wait(grace_s)
        except subprocess.TimeoutExpired:
            return False
        return True


def is_serving(lane: Lane) -> bool:
    """Whether a receiver of this lane answers on its local socket."""
    return inspection.is_serving(lane.receiver.work_dir)


def start(lane: Lane) -> RunningReceiver:
    """Start a receiver in a session of its own and wait until it listens. Raises LaneError with its last words."""
    lane.receiver.work_dir.mkdir(parents=True, exist_ok=True)
    log = lane.receiver.work_dir / "receiver.log"
    with opened_log(log, "receiver") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "producer.receiving", "--lane", str(lane.source)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=output,
            text=True,
            start_new_session=True,
            env=child_environment(),
            # A receiver belongs to who started it: an orchestrator that was killed leaves none behind.
            preexec_fn=linux.end_with_parent,
        )
    assert process.stdout is not None
    line = process.stdout.readline()
    if not line:
        process.wait()
        tail = [f"| {item}" for item in log_tail(log, 6)]
        raise LaneError("the receiver did not start", where=str(log), details=tail)
    return RunningReceiver(process)


def serve(lane: Lane, announce: Any = None) -> None:
    """Serve until SIGTERM, SIGINT or SIGHUP. A handoff that is under way is finished first; a second Ctrl-C cuts it.

    A second SIGTERM does not: it also comes when whoever started this receiver, and told it to end, ends itself.
    """
    stop, cut = threading.Event(), threading.Event()

    def end(number: int, _frame: object) -> None:
        if stop.is_set() and number == signal.SIGINT:
            cut.set()
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, end)

    def ready(address: str, port: int) -> None:
        if announce:
            announce(address, port)

    receiver.serve(receiver_config(lane), ready=ready, stop=stop, cut=cut)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m producer.receiving", description=__doc__)
    parser.add_argument("--lane", type=Path, required=True)
    options = parser.parse_args(arguments)

    def announce(address: str, port: int) -> None:
        print(json.dumps({"address": address, "port": port, "pid": os.getpid()}), flush=True)

    status = 2
    try:
        lane = LaneConfig.load(options.lane)
        status = 1
        serve(lane, announce)
    except SoakledgerError as error:
        sys.stderr.write(f"soakledger receiver: {error}\n")
        return status
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
