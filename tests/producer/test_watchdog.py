"""The native watchdog: it fires while C code holds the GIL, says why once, and lets go when it is disarmed."""

from __future__ import annotations

import subprocess
import sys
import time

import pytest

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="timer_create with SIGEV_THREAD")
pytestmark = linux_only

HOLD_THE_GIL = "import ctypes; ctypes.PyDLL(None).sleep(20)"
"""PyDLL keeps the GIL over the call: no Python thread runs meanwhile."""


def run(code: str) -> tuple[subprocess.CompletedProcess[str], float]:
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    return done, time.monotonic() - begun


def test_it_ends_the_process_with_75_and_one_line_while_the_gil_is_held() -> None:
    done, seconds = run(
        f"from producer.engine.watchdog import armed\nwith armed(0.5, 'no answer\\nwithin 0.5 s'):\n    {HOLD_THE_GIL}"
    )
    assert done.returncode == 75
    assert done.stderr == "no answer within 0.5 s\n"
    assert done.stdout == ""
    assert 0.5 <= seconds < 20


def test_it_does_not_fire_before_its_time() -> None:
    done, _ = run(
        "import time\nfrom producer.engine.watchdog import armed\n"
        "with armed(30, 'too early'):\n    time.sleep(0.3)\nprint('alive')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_a_disarmed_one_never_fires_also_when_the_block_raised() -> None:
    done, _ = run(
        "import time\nfrom producer.engine.watchdog import armed\n"
        "for _ in range(200):\n"
        "    try:\n"
        "        with armed(0.3, 'still armed'):\n            raise KeyError\n"
        "    except KeyError:\n        pass\n"
        "time.sleep(0.8)\nprint('alive')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "alive\n", "")


def test_the_second_of_two_armings_fires() -> None:
    done, _ = run(
        "from producer.engine.watchdog import armed\n"
        "with armed(5, 'first'):\n    pass\n"
        f"with armed(0.3, 'second'):\n    {HOLD_THE_GIL}"
    )
    assert (done.returncode, done.stderr) == (75, "second\n")


def test_a_block_that_is_left_after_the_deadline_does_not_save_the_process() -> None:
    done, _ = run(
        "import time\nfrom producer.engine.watchdog import armed\n"
        "with armed(0.3, 'late'):\n    time.sleep(0.5)\nprint('alive')"
    )
    assert (done.returncode, done.stdout, done.stderr) == (75, "", "late\n")
