"""What a running attempt tells the person who watches it. Never data: that goes to stdout when all is done."""

from __future__ import annotations

import os
import shutil
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol, TextIO

from receipts.visible import on_terminal, one_line
from templates.terminal import rep_line

_WIPED: Final = "\r\x1b[2K"
"""To the beginning of the terminal's line, which is wiped."""
_QUIET_S: Final = 5.0
"""How long a step may go on without a line where nothing can be overwritten."""


class Progress(Protocol):
    """Told of every step; must never raise and never slow a timed section."""

    def say(self, text: str) -> None: ...

    def hashing(self, what: str, done: int, total: int) -> None: ...

    def waiting(self, text: str) -> None: ...

    def running(self, text: str) -> None: ...

    def rep(self, envelope: dict[str, Any], reps: int) -> None: ...


@dataclass
class PlainProgress:
    """Lines on stderr; on a terminal a line that is overwritten for what moves."""

    stream: TextIO = field(default_factory=lambda: sys.stderr)
    loopback: bool = True
    _said_loopback: bool = False
    _moving: bool = False
    _last: float = field(default_factory=time.monotonic)

    def say(self, text: str) -> None:
        self._end_moving()
        self._write(f"{text}\n")

    def counting(self, what: str, done: int, total: int) -> None:
        """A step of known length: one line that moves on a terminal, one line at its end elsewhere."""
        self._move(f"  {what}: {done} of {total}", done >= total)

    def hashing(self, what: str, done: int, total: int) -> None:
        share = 100 * done // total if total else 100
        self._move(f"  hashing {what}: {share} % of {total / 1e6:.0f} MB", done == total)

    def waiting(self, text: str) -> None:
        self._move(f"  producer: {text}", False)

    def running(self, text: str) -> None:
        """What goes on inside a rep, where it leaves no trace: a log has the rep's own line."""
        if self._moves():
            self._move(f"  {text}", False)

    def rep(self, envelope: dict[str, Any], reps: int) -> None:
        if self.loopback and not self._said_loopback:
            self._said_loopback = True
            self.say("  rates are over loopback: they say nothing about a network")
        self.say(rep_line(envelope, reps))

    def _move(self, text: str, last: bool) -> None:
        if not self._moves():
            if last or time.monotonic() - self._last > _QUIET_S:
                self._last = time.monotonic()
                self._write(one_line(text, 78) + "\n")
            return
        if time.monotonic() - self._last < 0.1 and not last:
            return
        self._last = time.monotonic()
        self._moving = not last
        # What has come to its end stays: the next line of anybody's must not be glued to it.
        # A line that wraps could not be wiped by going back to its beginning.
        room = max(10, min(shutil.get_terminal_size((80, 24)).columns, 80) - 2)
        self._write_moving(_WIPED + one_line(text, room) + ("\n" if last else ""))

    def _moves(self) -> bool:
        """Whether a line can be overwritten where this is read."""
        return self.stream.isatty() and os.environ.get("TERM") != "dumb"

    def _end_moving(self) -> None:
        if self._moving:
            self._moving = False
            self._write_moving(_WIPED)

    def _write_moving(self, text: str) -> None:
        """A steady stream shows what a terminal would obey; here that is ours and meant."""
        self._put(getattr(self.stream, "write_moving", self.stream.write), text)

    def _write(self, text: str) -> None:
        self._put(self.stream.write, on_terminal(text))

    def _put(self, write: Callable[[str], object], text: str) -> None:
        try:
            write(text)
            self.stream.flush()
        except (OSError, ValueError):
            pass  # a closed terminal must not end an attempt
