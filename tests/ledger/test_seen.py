"""The last-seen mark under two processes: it only moves forward, and nobody reads half of one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from ledger_samples import forge

from ledger import seen
from ledger.audit import verify
from ledger.home import EvidenceHome
from ledger.keys import key_path
from ledger.seen import Mark
from ledger.store import Ledger

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


def test_entries_that_came_past_the_machine_that_signs_are_told_of_until_it_writes_again(
    home: EvidenceHome, ledger: Ledger, reopen: Callable[..., Ledger], caplog: pytest.LogCaptureFixture
) -> None:
    ledger.append("noted", "", {"n": 1})
    assert not [line for line in verify(home).not_checked if "who wrote" in line]
    forge(ledger, "noted", {"n": 2})
    forge(ledger, "noted", {"n": 3})
    words = "who wrote entries 2 … 3 (2 of them): no checkpoint covers them"
    for _ in range(2):  # neither reading nor verifying takes them for seen
        report = verify(home)
        assert report.ok and report.not_checked[0].startswith(words)
        with reopen(read_only=True) as again:
            assert again.size() == 4
    assert words not in caplog.text
    with reopen() as again:
        assert words in caplog.text
        again.checkpoint()
    assert not [line for line in verify(home).not_checked if "who wrote" in line]


@pytest.mark.parametrize("lost", ["key", "mark"])
def test_a_machine_that_does_not_sign_or_never_wrote_tells_of_no_such_entries(
    home: EvidenceHome, ledger: Ledger, lost: str
) -> None:
    (key_path if lost == "key" else seen.mark_path)(ledger.origin, os.environ).unlink()
    forge(ledger, "noted", {"n": 1})
    report = verify(home)
    assert report.ok and not [line for line in report.not_checked if "who wrote" in line]
    assert any("no checkpoint covers them yet" in line for line in report.not_checked)
