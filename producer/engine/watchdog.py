"""A watchdog that fires while C code holds the GIL (FACTS section 1: a Python thread of 1 s fired after 5 s there).

``timer_create`` with SIGEV_THREAD lets the kernel's timer start a thread of libc in plain C functions. Two timers: at
the deadline ``puts`` writes the one line of reason to stderr; shortly after, ``_exit(75)`` ends the process, also when
the first thread is stuck on a lock of stdio.
"""

from __future__ import annotations

import contextlib
import ctypes
import ctypes.util
import os
import sys
import time
from collections.abc import Iterator
from typing import Any, Final

from producer.engine.deaths import EXIT_TEMPFAIL

_SIGEV_THREAD: Final = 2
_IONBF: Final = 2
_EXIT_AFTER_NS: Final = 500_000_000
"""Long enough for the first timer's thread to be scheduled on a crowded host: a death without its line says less."""


class _Sigevent(ctypes.Structure):
    _fields_ = (
        ("value", ctypes.c_void_p),
        ("signo", ctypes.c_int),
        ("notify", ctypes.c_int),
        ("function", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("padding", ctypes.c_byte * 32),
    )


class _Timespec(ctypes.Structure):
    _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))


class _Itimerspec(ctypes.Structure):
    _fields_ = (("interval", _Timespec), ("value", _Timespec))


@contextlib.contextmanager
def armed(seconds: float, reason: str) -> Iterator[None]:
    """End this process with status 75 and ``reason`` on stderr unless the block is left within ``seconds``."""
    watchdog = Watchdog(seconds, reason)
    try:
        yield
    finally:
        watchdog.disarm()


class Watchdog:
    """Two native timers, armed from construction until ``disarm``."""

    def __init__(self, seconds: float, reason: str) -> None:
        if sys.platform != "linux":
            raise OSError("the native watchdog needs Linux")
        self._libc = ctypes.CDLL(None, use_errno=True)
        _stdout_is_stderr(self._libc)
        # Kept alive by this object: the timer's thread reads it when nothing else in the process can run.
        self._line = ctypes.create_string_buffer(" ".join(reason.split()).encode("utf-8", "replace"))
        due = int(seconds * 1e9)
        self._due_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME) + due
        self._timers = [
            self._timer(self._libc.puts, ctypes.addressof(self._line), due),
            self._timer(self._libc._exit, EXIT_TEMPFAIL, due + _EXIT_AFTER_NS),
        ]

    def disarm(self) -> None:
        """Take both timers away: a disarmed watchdog never fires. Past the deadline it has, and this never returns."""
        timers, self._timers = self._timers, []
        if timers and time.clock_gettime_ns(time.CLOCK_BOOTTIME) >= self._due_ns:
            # Its line stands on stderr already. What came back a moment too late came too late.
            time.sleep(10 * _EXIT_AFTER_NS / 1e9)
            os._exit(EXIT_TEMPFAIL)
        for timer in timers:
            self._libc.timer_delete(timer)

    def _timer(self, function: Any, value: int, due_ns: int) -> ctypes.c_void_p:
        event = _Sigevent(value=value, notify=_SIGEV_THREAD, function=ctypes.cast(function, ctypes.c_void_p).value)
        timer = ctypes.c_void_p()
        # CLOCK_BOOTTIME: a host that slept past the deadline wakes up late, not patient.
        if self._libc.timer_create(time.CLOCK_BOOTTIME, ctypes.byref(event), ctypes.byref(timer)):
            raise OSError(ctypes.get_errno(), "timer_create failed")
        when = _Itimerspec(_Timespec(0, 0), _Timespec(due_ns // 10**9, due_ns % 10**9))
        if self._libc.timer_settime(timer, 0, ctypes.byref(when), None):
            raise OSError(ctypes.get_errno(), "timer_settime failed")
        return timer


def _stdout_is_stderr(libc: ctypes.CDLL) -> None:
    """C's ``stdout`` becomes the stream behind ``stderr``, unbuffered, so that ``puts`` writes there at once."""
    stderr = ctypes.c_void_p.in_dll(libc, "stderr").value
    ctypes.c_void_p.in_dll(libc, "stdout").value = stderr
    libc.setvbuf(ctypes.c_void_p(stderr), None, _IONBF, ctypes.c_size_t(0))
