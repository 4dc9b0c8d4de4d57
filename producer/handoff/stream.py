"""One TCP connection as a stream of frames: read and write under a limit, tuned and described.

A limit is asked before every system call, so that a peer that trickles one byte at a time meets a Deadline
just as a silent one does (a socket's own timeout starts anew with each call). The socket itself blocks, and the
kernel ends a call that waits too long: Python's own timeout costs two system calls more for each one.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol

from producer.handoff import frames
from producer.handoff.errors import FrameError, LinkError, SessionError
from producer.handoff.frames import Frame, FrameType
from producer.host import linux

Congestion = Literal["auto", "reno", "system"]
"""``auto``: reno on loopback, where the usual BBR paces the stream (FACTS section 6), else the system's."""

SLICE_BYTES: Final = 1024 * 1024
AHEAD_BYTES: Final = 4096
"""How much behind what was asked for is taken in the same system call: the next frame's prefix and header."""
_NS: Final = 1_000_000_000
_LONGEST_CALL_NS: Final = _NS
"""A longer wait is several calls, so that the kernel's timeout is set once and not for each of them."""
_SHORTEST_CALL_NS: Final = 1_000_000
_TIMEVAL: Final = struct.Struct("@ll")


class Limit(Protocol):
    """Until when something may wait that begins now, and what it is called when that was too long."""

    @property
    def code(self) -> str: ...

    def until_ns(self) -> int: ...


@dataclass(frozen=True)
class Deadline:
    """A point in monotonic time that no trickle can move."""

    at_ns: int
    code: str = "deadline"

    @classmethod
    def after(cls, seconds: float, code: str = "deadline") -> Deadline:
        return cls(time.monotonic_ns() + int(seconds * _NS), code)

    def until_ns(self) -> int:
        return self.at_ns

    def seconds(self) -> float:
        """What is left of it. Raises LinkError when that is nothing."""
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

    def until_ns(self) -> int:
        return time.monotonic_ns() + int(self.limit_s * _NS)


@dataclass(frozen=True)
class SocketInfo:
    """What a receipt says of a connection's own end."""

    local: str
    peer: str
    interface: str | None
    """The one that carries the local address, as this host names it; None where that is not known."""
    congestion: str

    def document(self) -> dict[str, str | None]:
        return {
            "local": self.local,
            "peer": self.peer,
            "interface": self.interface,
            "congestion": self.congestion,
        }


class FrameStream:
    """Frames over one connected socket. Errors are FrameError and LinkError; counts bytes both ways."""

    def __init__(self, sock: socket.socket, *, congestion: Congestion) -> None:
        self.sock = sock
        self.bytes_sent = 0
        self.bytes_received = 0
        self._ahead = memoryview(bytearray(AHEAD_BYTES))
        self._waiting = self._ahead[:0]
        self._timeouts_ns: dict[int, int] = {}
        sock.settimeout(None)
        tune(sock, congestion)
        self.info = describe(sock)

    def read_frame(self, limit: Limit, allowed: Sequence[FrameType]) -> Frame:
        """The next frame without its body. A type outside ``allowed`` is refused before its header is looked at."""
        prefix = frames.parse_prefix(self._read_exactly(frames.PREFIX.size, limit, at_boundary=True))
        if prefix.type not in allowed:
            raise SessionError("unexpected_frame", f"{prefix.type.name} may not come now")
        return frames.parse_frame(prefix, self._read_exactly(prefix.header_len, limit, at_boundary=False))

    def read_into(self, view: memoryview, limit: Limit) -> int:
        """Receive at least one byte, at most a slice, of what is left of a body. Returns the number of bytes."""
        if len(view) > SLICE_BYTES:
            count = self._receive(view[:SLICE_BYTES], limit, ahead=False)
        else:
            count = self._receive(view, limit, ahead=True)
        if count == 0:
            raise FrameError("short_frame", "the connection ended inside a frame's body")
        return count

    def write(self, buffers: Sequence[bytes | memoryview], limit: Limit) -> None:
        """Send all of ``buffers`` in order, from their own memory."""
        pending = [memoryview(item) for item in buffers]
        until_ns = limit.until_ns()
        while pending:
            sent = self._call(socket.SO_SNDTIMEO, limit, until_ns, lambda: self.sock.sendmsg(pending))  # noqa: B023
            self.bytes_sent += sent
            pending = _rest(pending, sent)

    def has_input(self) -> bool:
        """Whether a byte, an end or an error waits to be read; never blocks."""
        if self._waiting:
            return True
        try:
            self.sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
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
            while self._receive(scratch, limit, ahead=False):
                pass
        self.close()

    def _read_exactly(self, size: int, limit: Limit, *, at_boundary: bool) -> bytes:
        if size <= len(self._waiting):
            taken = bytes(self._waiting[:size])
            self._waiting = self._waiting[size:]
            return taken
        data = bytearray(size)
        view = memoryview(data)
        done = 0
        while done < size:
            count = self._receive(view[done:], limit, ahead=True)
            if count == 0:
                if at_boundary and done == 0:
                    raise LinkError("peer_gone", "the other end closed the connection")
                raise FrameError("short_frame", "the connection ended inside a frame")
            done += count
        return bytes(data)

    def _receive(self, view: memoryview, limit: Limit, *, ahead: bool) -> int:
        """Bytes into ``view``: first those that were taken ahead, else from the socket. 0 is the connection's end."""
        if self._waiting:
            count = min(len(view), len(self._waiting))
            view[:count] = self._waiting[:count]
            self._waiting = self._waiting[count:]
            return count
        buffers = [view, self._ahead] if ahead else [view]
        received = self._call(socket.SO_RCVTIMEO, limit, limit.until_ns(), lambda: self.sock.recvmsg_into(buffers)[0])
        self.bytes_received += received
        count = min(received, len(view))
        self._waiting = self._ahead[: received - count]
        return count

    def _call(self, option: int, limit: Limit, until_ns: int, step: Callable[[], int]) -> int:
        """``step``, again as often as the kernel ends it without a byte, until the limit. Raises LinkError."""
        sends = option == socket.SO_SNDTIMEO
        while True:
            left_ns = until_ns - time.monotonic_ns()
            if left_ns <= 0:
                raise LinkError(
                    limit.code, "the other end takes no more bytes" if sends else "nothing came within the limit"
                )
            try:
                self._end_call_after(option, left_ns)
                return step()
            except BlockingIOError:
                continue
            except OSError as error:
                what = "sending" if sends else "receiving"
                raise LinkError("peer_gone", f"{what} failed: {error.strerror or error}") from None

    def _end_call_after(self, option: int, left_ns: int) -> None:
        # Zero would be for ever.
        longest_ns = min(_LONGEST_CALL_NS, max(_SHORTEST_CALL_NS, left_ns))
        if self._timeouts_ns.get(option) != longest_ns:
            seconds, rest_ns = divmod(longest_ns, _NS)
            self.sock.setsockopt(socket.SOL_SOCKET, option, _TIMEVAL.pack(seconds, rest_ns // 1000))
            self._timeouts_ns[option] = longest_ns


def tune(sock: socket.socket, congestion: Congestion) -> None:
    """Set what the wire wants of TCP, where the system lets us; what was reached is read back by ``describe``."""
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    wants_reno = congestion == "reno" or (congestion == "auto" and is_loopback(sock.getsockname()[0]))
    if wants_reno and hasattr(socket, "TCP_CONGESTION"):
        with contextlib.suppress(OSError):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, b"reno")


def describe(sock: socket.socket) -> SocketInfo:
    """The socket's two ends and the congestion control that it really uses. Raises LinkError when it is gone."""
    try:
        local, peer = sock.getsockname(), sock.getpeername()
        return SocketInfo(_address(local), _address(peer), linux.interface_of(local[0]), _congestion_of(sock))
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
