"""One TCP connection as a stream of frames: read and write under a limit, tuned and described.

A limit is asked before every system call, so that a peer that trickles one byte at a time meets a Deadline
just as a silent one does (a socket's own timeout starts anew with each call).
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from producer.handoff import frames
from producer.handoff.errors import FrameError, LinkError, SessionError
from producer.handoff.frames import Frame, FrameType

Congestion = Literal["auto", "reno", "system"]
"""``auto``: reno on loopback, where the usual BBR paces the stream (FACTS section 6), else the system's."""

SLICE_BYTES: Final = 1024 * 1024
_NS: Final = 1_000_000_000


class Limit(Protocol):
    """How long the next system call may wait, and what it is called when that was too long."""

    @property
    def code(self) -> str: ...

    def seconds(self) -> float: ...


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time that no trickle can move."""

    at_ns: int
    code: str = "deadline"

    @classmethod
    def after(cls, seconds: float, code: str = "deadline") -> Deadline:
        return cls(time.monotonic_ns() + int(seconds * _NS), code)

    def seconds(self) -> float:
        left = self.at_ns - time.monotonic_ns()
        if left <= 0:
            raise LinkError(self.code, "the time for this step has passed")
        return left / _NS

    def earlier(self, other: Deadline) -> Deadline:
        return self if self.at_ns <= other.at_ns else other


@dataclass(frozen=True)
class Silence:
    """The longest time without a byte."""

    limit_s: float
    code: str = "stale_slot"

    def seconds(self) -> float:
        return self.limit_s


@dataclass(frozen=True)
class SocketInfo:
    """What a receipt says of a connection's own end."""

    local: str
    peer: str
    interface: str
    congestion: str

    def document(self) -> dict[str, str]:
        return {
            "local": self.local,
            "peer": self.peer,
            "interface": self.interface,
            "congestion": self.congestion,
        }


class FrameStream:
    """Frames over one connected socket. Errors are FrameError and LinkError; counts bytes both ways."""

    def __init__(self, sock: socket.socket, *, interface: str, congestion: Congestion) -> None:
        self.sock = sock
        self.bytes_sent = 0
        self.bytes_received = 0
        tune(sock, congestion)
        self.info = describe(sock, interface)

    def read_frame(self, limit: Limit, allowed: Collection[FrameType]) -> Frame:
        """The next frame without its body. A type outside ``allowed`` is refused before its header is read."""
        prefix = frames.parse_prefix(self._read_exactly(frames.PREFIX.size, limit, at_boundary=True))
        if prefix.type not in allowed:
            raise SessionError("unexpected_frame", f"{prefix.type.name} may not come now")
        return frames.parse_frame(prefix, self._read_exactly(prefix.header_len, limit, at_boundary=False))

    def read_into(self, view: memoryview, limit: Limit) -> int:
        """Receive at least one byte of a body into ``view``. Returns the number of bytes."""
        count = self._receive(view, limit)
        if count == 0:
            raise FrameError("short_frame", "the connection ended inside a frame's body")
        return count

    def write(self, buffers: Sequence[bytes | memoryview], limit: Limit) -> None:
        """Send all of ``buffers`` in order, from their own memory."""
        pending = [memoryview(item) for item in buffers]
        while pending:
            try:
                self.sock.settimeout(limit.seconds())
                sent = self.sock.sendmsg(pending)
            except TimeoutError:
                raise LinkError(limit.code, "the other end takes no more bytes") from None
            except OSError as error:
                raise LinkError("peer_gone", f"sending failed: {error.strerror or error}") from None
            self.bytes_sent += sent
            pending = _rest(pending, sent)

    def has_input(self) -> bool:
        """Whether a byte, an end or an error waits to be read; never blocks."""
        try:
            self.sock.settimeout(0)
            self.sock.recv(1, socket.MSG_PEEK)
        except BlockingIOError:
            return False
        except OSError:
            return True
        return True

    def cut(self) -> None:
        """End the connection for both directions, from any thread: whoever waits on it wakes up."""
        with contextlib.suppress(OSError):
            self.sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.cut()
        self.sock.close()

    def close_after_drain(self, seconds: float) -> None:
        """Close so that what was sent arrives: unread bytes at close would make the kernel send a reset."""
        limit = Deadline.after(seconds)
        scratch = memoryview(bytearray(64 * 1024))
        with contextlib.suppress(OSError, LinkError):
            self.sock.shutdown(socket.SHUT_WR)
            while self._receive(scratch, limit):
                pass
        self.close()

    def _read_exactly(self, size: int, limit: Limit, *, at_boundary: bool) -> bytes:
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = self._receive(view[done:], limit)
            if count == 0:
                if at_boundary and done == 0:
                    raise LinkError("peer_gone", "the other end closed the connection")
                raise FrameError("short_frame", "the connection ended inside a frame")
            done += count
        return bytes(data)

    def _receive(self, view: memoryview, limit: Limit) -> int:
        try:
            self.sock.settimeout(limit.seconds())
            count = self.sock.recv_into(view)
        except TimeoutError:
            raise LinkError(limit.code, "nothing came within the limit") from None
        except OSError as error:
            raise LinkError("peer_gone", f"receiving failed: {error.strerror or error}") from None
        self.bytes_received += count
        return count


def tune(sock: socket.socket, congestion: Congestion) -> None:
    """Set what the wire wants of TCP, where the system lets us; what was reached is read back by ``describe``."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wants_reno = congestion == "reno" or (congestion == "auto" and is_loopback(sock.getsockname()[0]))
    if wants_reno and hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def describe(sock: socket.socket, interface: str) -> SocketInfo:
    """The socket's two ends and the congestion control that it really uses. Raises LinkError when it is gone."""
    try:
        return SocketInfo(_address(sock.getsockname()), _address(sock.getpeername()), interface, _congestion_of(sock))
    except OSError as error:
        raise LinkError("peer_gone", f"the connection is gone: {error.strerror or error}") from None


def is_loopback(host: str) -> bool:
    """Whether an address is one of this host's loopback addresses; a name is not resolved."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _congestion_of(sock: socket.socket) -> str:
    if not hasattr(socket, "TCP_CONGESTION"):
        return "unknown"
    return sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\x00").decode("ascii")


def _address(name: tuple[str, int]) -> str:
    host, port = name[0], name[1]
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _rest(pending: list[memoryview], sent: int) -> list[memoryview]:
    while pending and sent >= len(pending[0]):
        sent -= len(pending[0])
        pending = pending[1:]
    if pending and sent:
        pending = [pending[0][sent:], *pending[1:]]
    return pending
