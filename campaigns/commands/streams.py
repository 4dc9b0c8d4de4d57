"""Standard streams that a command outlives: closed from the start, closed half-way, or on a full disk.

What a command does (a launch that runs for hours, a verdict that is stored) must not hang on whether somebody still
reads what it says. Its exit status says how it ended; output that was lost is told where anybody can still hear it.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from typing import TextIO

from receipts.visible import on_terminal


class Steady(io.TextIOWrapper):
    """A text stream that swallows what can no longer be written and remembers why.

    Whatever a command says passes ``write``, and with it every path, name and file of somebody else's in it: what a
    terminal would obey is made visible there.
    """

    trouble: OSError | None = None

    def write(self, text: str) -> int:
        self._write(on_terminal(text))
        return len(text)

    def write_moving(self, text: str) -> None:
        """Write a line of ours with the bytes that move a terminal's cursor; foreign text in it is safe already."""
        self._write(text)

    def write_document(self, raw: bytes) -> None:
        """Write a UTF-8 document: byte for byte into a file or a pipe, made visible on a terminal."""
        if self.isatty():
            self.write(raw.decode("utf-8").replace("\r\n", "\n"))
        elif self.trouble is None:
            self.flush()
            try:
                self.buffer.write(raw)
            except OSError as error:
                self._give_up(error)

    def _write(self, text: str) -> None:
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
        # A terminal of few letters gets an escape for the rest, and no traceback.
        errors="backslashreplace",
        line_buffering=stream.line_buffering,
        write_through=stream.write_through,
    )


def put(text: str = "", *, err: bool = False, end: str = "\n") -> None:
    """Print ``text`` and send it off at once. What a terminal would obey is made visible; click would leave it out."""
    stream = sys.stderr if err else sys.stdout
    stream.write(on_terminal(text) + end)
    stream.flush()


def put_wrapped(line: str, width: int) -> None:
    """Print a line on standard error: as it is into a file or a pipe, between words on a terminal of ``width``."""
    if sys.stderr.isatty():
        from templates.columns import wrapped

        line = "\n".join(wrapped(line, width))
    put(line, err=True)


def put_document(raw: bytes) -> None:
    """Print a UTF-8 document of somebody else's on standard output, as it is written."""
    if isinstance(sys.stdout, Steady):
        sys.stdout.write_document(raw)
    else:
        sys.stdout.write(on_terminal(raw.decode("utf-8")))
