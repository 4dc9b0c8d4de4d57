"""SIGINT, SIGTERM and SIGHUP as a descriptor that anything waiting can watch, instead of an exception anywhere."""

from __future__ import annotations

import os
import signal
from types import FrameType, TracebackType
from typing import Any, Final, Self

SIGNALS: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Interrupts:
    """While entered, the three signals only mark this object and make ``descriptor`` readable for good."""

    def __init__(self) -> None:
        self.signal: signal.Signals | None = None
        self._read, self._write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._before: dict[signal.Signals, Any] = {}

    @property
    def descriptor(self) -> int:
        return self._read

    @property
    def name(self) -> str | None:
        return self.signal.name if self.signal else None

    def __bool__(self) -> bool:
        return self.signal is not None

    def __enter__(self) -> Self:
        for number in SIGNALS:
            self._before[number] = signal.signal(number, self._mark)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        os.close(self._read)
        os.close(self._write)

    def _mark(self, number: int, _frame: FrameType | None) -> None:
        if self.signal is None:
            self.signal = signal.Signals(number)
            os.write(self._write, b"!")
