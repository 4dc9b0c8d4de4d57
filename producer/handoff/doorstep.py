"""Connections that have said nothing yet: taken in as fast as they come, and none of them costs a thread.

A flood of silent connections fills the kernel's queue and keeps the producer out unless they are taken from it faster
than they come. So whoever has said nothing waits here, in one list; only the first byte gives a session.
"""

from __future__ import annotations

import selectors
import socket
import threading
import time
from collections.abc import Callable
from typing import Final

MOST_SILENT: Final = 256
"""Connections that wait here; the oldest of them is closed when one more comes."""
_POLL_S: Final = 0.05
_AT_ONCE: Final = 64
"""Connections that are taken in a row before those that wait are looked at."""


class Doorstep:
    """Accepts on ``listener`` and gives each connection that speaks, or whose time is over, to ``take``.

    ``take(socket, accepted_ns)`` is called in the thread that runs ``run``; the stamp is of ``time.monotonic_ns``.
    """

    def __init__(self, listener: socket.socket, take: Callable[[socket.socket, int], None], patience_s: float) -> None:
        self._listener = listener
        self._take = take
        self._patience_ns = int(patience_s * 1e9)
        self._selector = selectors.DefaultSelector()
        self._silent: dict[socket.socket, int] = {}
        """Since when each waits, the oldest first."""

    def run(self, stop: threading.Event) -> None:
        """Until ``stop``; whoever waits then is closed without a word."""
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        try:
            while not stop.is_set():
                for key, _ in self._selector.select(_POLL_S):
                    if key.fileobj is self._listener:
                        self._accept(stop)
                    elif isinstance(key.fileobj, socket.socket) and key.fileobj in self._silent:
                        self._look_at(key.fileobj)
                self._end_patience()
        finally:
            for sock in self._silent:
                sock.close()
            self._selector.close()

    def _accept(self, stop: threading.Event) -> None:
        for _ in range(_AT_ONCE):
            try:
                sock, _ = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:  # the peer was gone before accept
                continue
            except OSError:  # descriptors ran out for a moment
                stop.wait(_POLL_S)
                return
            self._welcome(sock)

    def _welcome(self, sock: socket.socket) -> None:
        """Who has spoken already, as a producer has, never waits behind those who have not."""
        now = time.monotonic_ns()
        said = _said(sock)
        if said is None:
            if len(self._silent) >= MOST_SILENT:
                oldest = next(iter(self._silent))
                self._forget(oldest)
                oldest.close()
            self._silent[sock] = now
            self._selector.register(sock, selectors.EVENT_READ)
        elif said:
            self._take(sock, now)
        else:
            sock.close()

    def _look_at(self, sock: socket.socket) -> None:
        said = _said(sock)
        if said is None:
            return
        since = self._forget(sock)
        if said:
            self._take(sock, since)
        else:
            sock.close()

    def _end_patience(self) -> None:
        """Whose time is over gets a session all the same: that tells it so."""
        end = time.monotonic_ns() - self._patience_ns
        for sock, since in list(self._silent.items()):
            if since > end:
                return
            self._forget(sock)
            self._take(sock, since)

    def _forget(self, sock: socket.socket) -> int:
        self._selector.unregister(sock)
        return self._silent.pop(sock)


def _said(sock: socket.socket) -> bool | None:
    """Whether a byte waits to be read; False for a connection that has ended, None while there is neither."""
    try:
        return bool(sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
    except BlockingIOError:
        return None
    except OSError:
        return False
