"""Digests in threads: a tensor's bytes in their order, and a thread that fails is said to have failed."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from blake3 import blake3

from producer.handoff.hashing import BATCH_BYTES, HashThreads


class Broken:
    """A hasher that cannot."""

    def update(self, _: memoryview) -> None:
        raise MemoryError("no room for a digest")


def test_pieces_of_two_tensors_that_come_in_turns_are_digested_in_their_own_order() -> None:
    pieces = [bytes([index]) * (BATCH_BYTES // 3) for index in range(12)]
    hashers = [blake3(), blake3()]
    with HashThreads() as threads:
        for index, piece in enumerate(pieces):
            threads.update(index % 2, hashers[index % 2], memoryview(piece))
        threads.finish()
    assert [item.digest() for item in hashers] == [blake3(b"".join(pieces[k::2])).digest() for k in range(2)]


class Noting:
    """A hasher that notes which threads came."""

    def __init__(self) -> None:
        self.threads: set[int] = set()
        self.pieces: list[int] = []

    def update(self, piece: memoryview) -> None:
        self.threads.add(threading.get_ident())
        self.pieces.append(piece[0])


def test_all_pieces_of_a_tensor_are_one_threads_and_two_tensors_have_two() -> None:
    hashers: list[Any] = [Noting(), Noting()]
    with HashThreads() as threads:
        for index in range(20):
            for tensor in range(2):
                threads.update(tensor, hashers[tensor], memoryview(bytes([index]) * (BATCH_BYTES // 2)))
        threads.finish()
    assert [len(item.threads) for item in hashers] == [1, 1]
    assert hashers[0].threads.isdisjoint(hashers[1].threads)
    assert all(item.pieces == list(range(20)) for item in hashers)


def test_a_thread_that_fails_is_named_by_its_own_error_and_not_as_wrong_bytes() -> None:
    with HashThreads() as threads, pytest.raises(MemoryError, match="no room for a digest"):
        threads.update(1, Broken(), memoryview(b"x"))  # type: ignore[arg-type]
        threads.finish()


def test_leaving_after_another_error_keeps_that_error() -> None:
    with pytest.raises(KeyError), HashThreads() as threads:
        threads.update(0, Broken(), memoryview(b"x"))  # type: ignore[arg-type]
        raise KeyError("what really happened")
