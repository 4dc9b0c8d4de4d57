"""The receiver's local socket: what it holds, and the bytes of one handoff, for programs of the same user.

One request a connection: a JSON line ``{"op": "status"}`` or ``{"op": "show", "handoff_id": …, "bytes": bool}``;
the answer is one JSON line, and after it the raw payload where bytes were asked for. JSON and raw bytes only.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from producer.handoff.admission import Admission, AdmissionStore
from producer.handoff.enrollment import ReceiverConfig
from producer.handoff.serving import Slot
from receipts import canonical
from receipts.errors import InputError, LaneError, SoakledgerError

SOCKET_NAME: Final = "receiver.sock"
MAX_SOCKET_PATH: Final = 103
"""Longest path of a Unix socket that macOS takes (FACTS section 8)."""
MAX_REQUEST_BYTES: Final = 4096
MAX_ANSWER_BYTES: Final = 16 * 1024 * 1024
LOCAL_TIMEOUT_S: Final = 10.0
LOCAL_BYTES_PER_S: Final = 100_000_000
"""Slowest reader of a payload that is waited for."""


@dataclass(frozen=True)
class Shown:
    """One admitted handoff as the receiver holds it. ``payload`` is None unless asked for."""

    admission: dict[str, Any]
    manifest: dict[str, Any]
    bytes_received: int
    socket: dict[str, str | None]
    payload: bytes | None


class InspectionServer:
    """Answers on ``<work_dir>/receiver.sock`` while entered."""

    def __init__(self, config: ReceiverConfig, store: AdmissionStore, slot: Slot) -> None:
        self._config = config
        self._store = store
        self._slot = slot
        self._path = socket_path(config.work_dir)
        self._thread = threading.Thread(target=self._serve, name="inspection", daemon=True)

    def __enter__(self) -> InspectionServer:
        self._path.unlink(missing_ok=True)  # ours by the lock on the folder: whoever bound it is gone
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o177)
        try:
            self._listener.bind(str(self._path))
        finally:
            os.umask(previous)
        self._listener.listen(8)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self._thread.join(timeout=LOCAL_TIMEOUT_S)
        self._path.unlink(missing_ok=True)

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with connection, contextlib.suppress(OSError):
                connection.settimeout(LOCAL_TIMEOUT_S)
                if peer_uid(connection) == os.getuid():
                    self._answer(connection)

    def _answer(self, connection: socket.socket) -> None:
        try:
            request = canonical.parse(_read_line(connection, MAX_REQUEST_BYTES))
        except InputError as error:
            return _send_line(connection, {"error": {"code": "bad_request", "text": error.what}})
        if not isinstance(request, dict):
            return _send_line(connection, {"error": {"code": "bad_request", "text": "not an object"}})
        if request == {"op": "status"}:
            return _send_line(connection, self._status())
        if request.get("op") == "show" and set(request) <= {"op", "handoff_id", "bytes"}:
            return self._show(connection, str(request.get("handoff_id")), request.get("bytes") is True)
        return _send_line(connection, {"error": {"code": "bad_request", "text": "op is status or show"}})

    def _status(self) -> dict[str, Any]:
        held = self._store.held()
        return {
            "lane": self._config.lane,
            "receiver": self._config.name,
            "pid": os.getpid(),
            "identity": self._config.identity,
            "cache_identity": self._config.cache_identity,
            "mode": self._config.mode,
            "memory_limit_bytes": self._config.memory_limit_bytes,
            "held_bytes": sum(len(item.reserve) for item in held),
            "held": [item.handoff_id for item in held],
            "producer": self._slot.holder,
        }

    def _show(self, connection: socket.socket, handoff_id: str, with_bytes: bool) -> None:
        admission = self._store.find(handoff_id)
        view = admission.reserve.reader() if admission is not None else None
        if admission is None or view is None:
            _send_line(connection, {"error": self._absent(handoff_id)})
            return
        _send_line(connection, _shown_document(admission, len(view) if with_bytes else 0))
        if with_bytes:
            connection.settimeout(LOCAL_TIMEOUT_S + len(view) / LOCAL_BYTES_PER_S)
            connection.sendall(view)

    def _absent(self, handoff_id: str) -> dict[str, str]:
        known = canonical_id(handoff_id)
        if known and self._store.was_evicted(handoff_id):
            return {"code": "evicted", "text": f"handoff {handoff_id} was evicted"}
        if known and self._store.was_admitted(handoff_id):
            return {"code": "not_held", "text": f"handoff {handoff_id} was admitted before this receiver started"}
        return {"code": "unknown", "text": "no such handoff"}


def status(work_dir: Path) -> dict[str, Any]:
    """What the receiver of ``work_dir`` says of itself. Raises LaneError when none is running."""
    with _asking(work_dir) as connection:
        _send_line(connection, {"op": "status"})
        return _answer_of(connection, work_dir)


def show(work_dir: Path, handoff_id: str, *, payload: bool = False) -> Shown:
    """One handoff that the receiver holds. Raises LaneError: not running, unknown, evicted, not held."""
    with _asking(work_dir) as connection:
        _send_line(connection, {"op": "show", "handoff_id": handoff_id, "bytes": payload})
        answer = _answer_of(connection, work_dir)
        data = _read_exactly(connection, answer["payload_bytes"]) if payload else None
    return Shown(answer["admission"], answer["manifest"], answer["bytes_received"], answer["socket"], data)


def is_serving(work_dir: Path) -> bool:
    """Whether a receiver answers in this work folder."""
    with contextlib.suppress(SoakledgerError, OSError):
        status(work_dir)
        return True
    return False


def socket_path(work_dir: Path) -> Path:
    """Where the socket of a work folder is. Raises InputError when the path is too long for one."""
    path = work_dir / SOCKET_NAME
    if len(os.fsencode(path)) > MAX_SOCKET_PATH:
        raise InputError(
            f"the path of the receiver's socket is longer than {MAX_SOCKET_PATH} bytes",
            where=str(path),
            next_step="choose a shorter work_dir for the receiver",
        )
    return path


def canonical_id(handoff_id: str) -> bool:
    """Whether this is a handoff id at all (32 lower-case hex): what is not never becomes part of a path."""
    return len(handoff_id) == 32 and set(handoff_id) <= set("0123456789abcdef")


def peer_uid(connection: socket.socket) -> int:
    """The user id of the other end of a Unix socket."""
    if sys.platform == "linux":
        credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
        return int(struct.unpack("3i", credentials)[1])
    # struct xucred of LOCAL_PEERCRED: version, uid, … (not run on a Mac)
    return int(struct.unpack("=II", connection.getsockopt(0, 1, 8))[1])


def _shown_document(admission: Admission, payload_bytes: int) -> dict[str, Any]:
    return {
        "admission": dict(admission.record),
        "manifest": canonical.parse(admission.manifest),
        "bytes_received": admission.bytes_received,
        "socket": dict(admission.socket),
        "payload_bytes": payload_bytes,
    }


@contextlib.contextmanager
def _asking(work_dir: Path) -> Iterator[socket.socket]:
    path = socket_path(work_dir)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LOCAL_TIMEOUT_S)
        try:
            connection.connect(str(path))
            yield connection
        except OSError as error:
            raise LaneError(
                f"no receiver answers here: {error.strerror or error}",
                where=str(path),
                next_step="start it with `soakledger receiver serve`",
            ) from None


def _answer_of(connection: socket.socket, work_dir: Path) -> dict[str, Any]:
    answer: dict[str, Any] = canonical.parse(_read_line(connection, MAX_ANSWER_BYTES))
    if "error" in answer:
        raise LaneError(f"{answer['error']['code']}: {answer['error']['text']}", where=str(socket_path(work_dir)))
    return answer


def _send_line(connection: socket.socket, document: dict[str, Any]) -> None:
    connection.sendall(canonical.file_bytes(document))


def _read_line(connection: socket.socket, limit_bytes: int) -> bytes:
    """One line, byte by byte beyond what is buffered nowhere: the payload follows it on the same socket."""
    data = bytearray()
    while len(data) <= limit_bytes:
        peeked = connection.recv(65536, socket.MSG_PEEK)
        end = peeked.find(b"\n")
        data += connection.recv(end + 1 if end >= 0 else len(peeked))
        if end >= 0:
            return bytes(data[:-1])
        if not peeked:
            break
    raise InputError("no line came, or it is too long", where=SOCKET_NAME)


def _read_exactly(connection: socket.socket, size: int) -> bytes:
    data = bytearray(size)
    view = memoryview(data)
    done = 0
    while done < size:
        count = connection.recv_into(view[done:])
        if count == 0:
            raise LaneError("the receiver closed its socket inside the payload", where=SOCKET_NAME)
        done += count
    return bytes(data)
