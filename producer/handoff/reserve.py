"""The buffer that a receiver reserves for one handoff, never handed out with bytes of an earlier one.

Filled at memory speed: 1 MiB of BLAKE3's extended output over the receiver's nonce is made once and copied
over the whole buffer. No producer can know it before HELLO_ACK, and no payload equals it by chance, so that
a range that was never written cannot give the right root. It happens before OPENED, outside the timed window.
"""

from __future__ import annotations

import mmap
from typing import Final

PATTERN_LABEL: Final = b"soakledger/reserve/1\n"
PATTERN_BYTES: Final = 1024 * 1024


def pattern(nonce: bytes) -> bytes:
    """1 MiB that only this nonce gives."""
    from blake3 import blake3

    return blake3(PATTERN_LABEL + nonce).digest(length=PATTERN_BYTES)


class Reserve:
    """Anonymous memory of ``size`` bytes, given back to the system at once when it is released."""

    def __init__(self, size: int, nonce: bytes) -> None:
        """Raises OSError or ValueError when the memory is not to be had."""
        # Private: shared anonymous memory is a file to the kernel and is filled at two thirds of the speed. No huge
        # pages: asked for them, the kernel tidies memory first, which took up to ten seconds a gigabyte.
        self._map = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        self.view = memoryview(self._map)
        block = pattern(nonce)
        for start in range(0, size, PATTERN_BYTES):
            self.view[start : start + PATTERN_BYTES] = block[: size - start]

    def __len__(self) -> int:
        return len(self._map)

    def reader(self) -> memoryview | None:
        """A view that outlives ``release``, or None when the memory was given back meanwhile."""
        try:
            return memoryview(self._map)
        except ValueError:
            return None

    def release(self) -> None:
        """Give the memory back. Views that a reader still holds keep it until they are gone."""
        self.view.release()
        try:
            self._map.close()
        except BufferError:
            pass  # a `show --bytes` is still reading; the last view frees it
