"""Standard streams that a command outlives: closed from the start, closed half-way, or on a full disk.

What a command does (a launch that runs for hours, a verdict that is stored) must not hang on whether somebody still
reads what it says. Its exit status says how it ended; output that was lost is told where anybody can still hear it.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import Final, TextIO

_OBEYED: Final = [code for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"]
_SHOWN: Final = {code: f"\\x{code:02x}" for code in _OBEYED}


class Steady(io.TextIOWrapper):
    """A text stream that swallows what can no longer be written and remembers why."""

    trouble: OSError | None = None

    def write(self, text: str) -> int:
        """Write; what a terminal would obey and not show is shown: every text of a user's or a file's passes here."""
        if self.trouble is None:
            try:
                super().write(text.translate(_SHOWN))
            except OSError as error:
                self._give_up(error)
        return len(text)

    def write_moving(self, text: str) -> None:
        """Write our own line that moves on a terminal, with the bytes that move it."""
        if self.trouble is None:
            try:
                super().write(text)
            except OSError as error:
                self._give_up(error)

    def flush(self) -> None:
        if self.trouble is None:
            try:
                super().flush()
            except OSError as error:
                self._give_up(error)

    @property
    def lost_output(self) -> str | None:
        """Why output was lost, other than because its reader had enough."""
        if self.trouble is None or self.trouble.errno == errno.EPIPE:
            return None
        return self.trouble.strerror or str(self.trouble)

    def _give_up(self, error: OSError) -> None:
        self.trouble = error
        # The buffers still hold what could not leave: it goes nowhere, also when the interpreter flushes at exit.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, self.fileno())
        os.close(nowhere)


def make_steady() -> None:
    """Put steady streams in place of standard output and error, and something behind every closed descriptor.

    A file that is opened later must never get descriptor 1 or 2: whatever is printed then would be written into it.
    """
    for descriptor in (0, 1, 2):
        try:
            os.fstat(descriptor)
        except OSError:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != descriptor:
                os.dup2(opened, descriptor)
                os.close(opened)
    sys.stdout = _steady(sys.stdout, 1)
    sys.stderr = _steady(sys.stderr, 2)


def _steady(stream: TextIO | None, descriptor: int) -> TextIO:
    if stream is None:
        return Steady(os.fdopen(descriptor, "wb", closefd=False), encoding="utf-8", errors="backslashreplace")
    assert isinstance(stream, io.TextIOWrapper)
    return Steady(
        stream.buffer,
        encoding=stream.encoding,
        errors=stream.errors,
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )
