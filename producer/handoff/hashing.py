"""Digesting in a thread of its own while the socket's thread goes on receiving: BLAKE3 lets go of the GIL."""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from blake3 import blake3


class HashThread:
    """Updates hashers in the order of ``update``; entered by the session, which ends it however it ends."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[blake3, memoryview] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="hash", daemon=True)

    def __enter__(self) -> HashThread:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.finish()

    def update(self, hasher: blake3, data: memoryview) -> None:
        """Digest ``data``, which must not change any more. Returns at once."""
        self._work.put((hasher, data))

    def finish(self) -> None:
        """Wait until everything is digested. Nothing can be added after it."""
        if self._thread.is_alive():
            self._work.put(None)
            self._thread.join()

    def _run(self) -> None:
        while (item := self._work.get()) is not None:
            hasher, data = item
            hasher.update(data)
