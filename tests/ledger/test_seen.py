"""The last-seen mark under two processes: it only moves forward, and nobody reads half of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ledger import seen
from ledger.seen import Mark

PAUSED_WRITER = """
import os, sys
from ledger import seen
whole = os.pwrite
def paused(handle, data, offset):
    done = whole(handle, data[:int(sys.argv[2])], offset)
    print("halfway", flush=True)
    sys.stdin.readline()
    return done + whole(handle, data[done:], offset + done)
os.pwrite = paused
seen.advance(seen.Mark("a ledger", int(sys.argv[1]), "sha256:" + 64 * sys.argv[1][0]), os.environ, create=True)
"""
WRITER = """
import os, sys
from ledger import seen
print("here", flush=True)
seen.advance(seen.Mark("a ledger", int(sys.argv[1]), "sha256:" + 64 * sys.argv[1][0]), os.environ, create=True)
"""
READER = """
import os, sys
from ledger import seen
print("here", flush=True)
print(seen.read_mark("a ledger", os.environ), flush=True)
"""
MOMENT_S = 0.5
"""For whoever does not wait for its turn to be quicker than the one that has it."""


def mark(size: int) -> Mark:
    return Mark("a ledger", size, "sha256:" + 64 * str(size)[0])


def environ(folder: Path) -> dict[str, str]:
    root = str(Path(__file__).parents[2])
    return {**os.environ, "XDG_STATE_HOME": str(folder), "PYTHONPATH": root}


@contextmanager
def running(folder: Path, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    """A process that has said its first word."""
    command = [sys.executable, "-c", script, *arguments]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environ(folder), stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() in {"halfway\n", "here\n"}
        yield process


def ended(process: subprocess.Popen[str], told: str = "") -> str:
    """The rest of what it says, once it was told to go on."""
    said, _ = process.communicate(told, timeout=60)
    assert process.returncode == 0
    return said


def give_it_a_moment(process: subprocess.Popen[str]) -> None:
    try:
        process.wait(MOMENT_S)
    except subprocess.TimeoutExpired:
        pass


def test_of_two_processes_that_advance_the_mark_the_one_further_on_wins(tmp_path: Path) -> None:
    seen.advance(mark(10), environ(tmp_path), create=True)
    with running(tmp_path, PAUSED_WRITER, "20", "0") as slow, running(tmp_path, WRITER, "30") as quick:
        give_it_a_moment(quick)
        ended(slow, "go on\n")
        ended(quick)
    assert seen.read_mark("a ledger", environ(tmp_path)) == mark(30)


def test_a_mark_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    seen.advance(mark(10), environ(tmp_path), create=True)
    with running(tmp_path, PAUSED_WRITER, "20", "60") as slow, running(tmp_path, READER) as reader:
        give_it_a_moment(reader)
        ended(slow, "go on\n")
        assert ended(reader) == f"{mark(20)}\n"
