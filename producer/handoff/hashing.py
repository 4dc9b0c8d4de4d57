"""Digesting in threads of their own while the socket's thread goes on receiving: BLAKE3 lets go of the GIL.

Two threads: a digest costs more CPU than a receive, and when the producer has sent its last byte its core is free for
what is still to be digested (benchmarks/wire.py). One tensor's bytes stay with one thread, in their order.
"""

from __future__ import annotations

import queue
import threading
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from blake3 import blake3

THREADS: Final = 2

BATCH_BYTES: Final = 2 * 1024 * 1024
"""A thread is woken for this much at once: each time it wakes it takes the interpreter from the socket's thread."""

_Batch = list["tuple[blake3, memoryview]"]


class HashThreads:
    """Updates hashers in the order of ``update``; entered by the session, which ends it however it ends."""

    def __init__(self) -> None:
        self._lanes = [_Lane() for _ in range(THREADS)]

    def __enter__(self) -> HashThreads:
        for lane in self._lanes:
            lane.thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._join()

    def update(self, tensor: int, hasher: blake3, data: memoryview) -> None:
        """Digest ``data`` of the tensor of that index; it must not change any more. Returns at once."""
        self._lanes[tensor % THREADS].add(hasher, data)

    def finish(self) -> None:
        """Wait until everything is digested. Nothing can be added after it. Raises what a thread failed with."""
        self._join()
        for lane in self._lanes:
            if lane.failure is not None:
                raise lane.failure

    def _join(self) -> None:
        for lane in self._lanes:
            lane.end()
        for lane in self._lanes:
            lane.thread.join()


class _Lane:
    """One thread and what waits for it."""

    def __init__(self) -> None:
        self._queue: queue.SimpleQueue[_Batch | None] = queue.SimpleQueue()
        self._batch: _Batch = []
        self._batch_bytes = 0
        self.failure: BaseException | None = None
        """What ended the thread early: its digests are wrong, and the bytes are not to blame."""
        self.thread = threading.Thread(target=self._run, name="hash", daemon=True)

    def add(self, hasher: blake3, data: memoryview) -> None:
        self._batch.append((hasher, data))
        self._batch_bytes += len(data)
        if self._batch_bytes >= BATCH_BYTES:
            self._pass_on()

    def end(self) -> None:
        self._pass_on()
        self._queue.put(None)

    def _pass_on(self) -> None:
        self._queue.put(self._batch)
        self._batch, self._batch_bytes = [], 0

    def _run(self) -> None:
        try:
            while (batch := self._queue.get()) is not None:
                for hasher, data in batch:
                    hasher.update(data)
        except BaseException as failure:
            self.failure = failure
