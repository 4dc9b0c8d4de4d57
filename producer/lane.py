"""A lane as its file says it: one producer, one receiver, the path between them (docs/formats/lane.md).

``LaneConfig.load(path)`` reads lane.toml strictly, reports every fault at once, and gives a ``Lane`` whose paths are
absolute: relative ones are relative to the file, never to the working directory.
"""

from __future__ import annotations

import ipaddress
import os
import re
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, WithJsonSchema

from receipts import canonical, lint
from receipts.errors import FaultsError
from receipts.names import Identifier, Sha256, quoted
from receipts.nearest import nearest
from receipts.toml_lines import KeyPath

SCHEMA: Final = "soakledger/lane/1"
SOCKET_NAME: Final = "producer.sock"
MAX_SOCKET_PATH_BYTES: Final = 103 if sys.platform == "darwin" else 107
"""``sun_path`` is 104 bytes on macOS and 108 on Linux, the ending NUL included."""

GIB: Final = 1 << 30
_MAX_COUNT: Final = 2**53 - 1


@dataclass(frozen=True)
class Control:
    """The way to command a host. ``alias`` is set for ssh, ``address`` and ``port`` for tls."""

    kind: Literal["local", "ssh", "tls"]
    alias: str | None = None
    address: str | None = None
    port: int | None = None


def parse_control(text: str) -> Control:
    """``local``, ``ssh:ALIAS`` or ``tls:ADDR:PORT`` (IPv6 in brackets). ValueError says what is allowed."""
    if text == "local":
        return Control("local")
    # An alias that begins with a dash would be read as an option by ssh.
    if match := re.fullmatch(r"ssh:([A-Za-z0-9_][A-Za-z0-9._@-]{0,252})", text):
        return Control("ssh", alias=match.group(1))
    if match := re.fullmatch(r"tls:(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9][A-Za-z0-9.-]*)):([0-9]{1,5})", text):
        port = int(match.group(3))
        if 1 <= port <= 65535:
            return Control("tls", address=match.group(1) or match.group(2), port=port)
        raise ValueError(f"port {port} is not within 1..65535")
    raise ValueError(f"{quoted(text)} is none of local | ssh:ALIAS | tls:ADDR:PORT")


def _control_text(text: str) -> str:
    parse_control(text)
    return text


def _address(text: str) -> str:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        raise ValueError(f"{quoted(text)} is not an IP address; a name could lead to another path") from None
    return text


def _interface(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._@:-]{0,14}", text) is None:
        raise ValueError(f"{quoted(text)} is not the name of a network interface")
    return text


def _path(value: Any) -> Path:
    if isinstance(value, Path):
        return value
    if not isinstance(value, str):
        raise ValueError("must be a path in quotes")
    if not value or "\0" in value:
        raise ValueError("is empty or holds a NUL byte")
    if value.startswith("~"):
        raise ValueError(f"{quoted(value)} begins with ~, which is not expanded: write the path out")
    return Path(value)


def _container_name(text: str) -> str:
    if re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,127}", text) is None:
        raise ValueError(f"{quoted(text)} is not a container name")
    return text


def _items(value: Any) -> Any:
    return tuple(value) if isinstance(value, list) else value


LanePath = Annotated[Path, BeforeValidator(_path), WithJsonSchema({"type": "string", "minLength": 1})]
Interface = Annotated[str, AfterValidator(_interface)]
Port = Annotated[int, Field(ge=1, le=65535)]
Seconds = Annotated[int, Field(gt=0, le=604_800)]
Count = Annotated[int, Field(ge=1, le=_MAX_COUNT)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True)


class Host(_Table):
    """A machine of the lane. ``negotiated_mbps`` is the link's state (10⁶ bit/s), not the port's capability."""

    control: Annotated[str, AfterValidator(_control_text)]
    address: Annotated[str, AfterValidator(_address)]
    interface: Interface
    negotiated_mbps: Annotated[int, Field(ge=1, le=10_000_000)] | None = None
    forbidden: Annotated[tuple[Interface, ...], BeforeValidator(_items)] = ()


class Producer(_Table):
    """The resident vLLM process and what it needs. Paths are absolute once loaded."""

    host: Identifier
    runtime: Literal["process", "container"]
    key: LanePath
    work_dir: LanePath
    checkpoint: LanePath
    identity: LanePath
    lease: LanePath = Path("/tmp/ferrite.gpu.lock")
    watchdog_s: Seconds = 900
    kv_cache_memory_bytes: Annotated[int, Field(ge=GIB, le=8 * GIB)]
    context_tokens: Count
    chunk_tokens: Count
    threads: Annotated[int, Field(ge=1, le=4096)]


class Receiver(_Table):
    """The process that admits handoffs, with its own enrolled copies."""

    host: Identifier
    work_dir: LanePath
    memory_limit_bytes: Count
    enrolled: LanePath
    producer_mode: Literal["native", "exact"]
    key: LanePath


class Orchestrator(_Table):
    """Where campaigns are run from."""

    host: Identifier


class Ports(_Table):
    handoff: Port
    probe: Port
    control: Port


class LinkPath(_Table):
    """The path between producer and receiver, and whether bytes leave after the prefill or during it."""

    kind: Literal["loopback", "wired"]
    transfer: Literal["after", "streaming"]


class Container(_Table):
    engine: Literal["podman", "docker"]
    name: Annotated[str, AfterValidator(_container_name)]
    image_id: Sha256


class Supervisor(_Table):
    """Limits of the supervisor. A latch that 10 failed starts do not set, or that an instant of readiness resets,
    is no latch: such limits are refused."""

    max_consecutive_failures: Annotated[int, Field(ge=1, le=10)] = 3
    backoff_s: Annotated[int, Field(ge=0, le=3600)] = 2
    backoff_cap_s: Annotated[int, Field(ge=0, le=86_400)] = 60
    stable_after_s: Annotated[int, Field(ge=1, le=86_400)] = 60


class LaneConfig(_Table):
    """lane.toml as written, except that paths are resolved when it comes from ``load``."""

    schema_name: Literal["soakledger/lane/1"] = Field(alias="schema")
    name: Identifier
    host: dict[Identifier, Host]
    producer: Producer
    receiver: Receiver
    orchestrator: Orchestrator
    ports: Ports
    path: LinkPath
    container: Container | None = None
    supervisor: Supervisor = Supervisor()

    @staticmethod
    def load(path: Path) -> Lane:
        """Read lane.toml. FaultsError with every fault at once; InputError where there is no such file."""
        document = lint.read_document(path)
        inspection = lint.inspect(document, LaneConfig)
        base = path.absolute().parent
        faults = [inspection.fault(where, what, meant) for where, what, meant in _refusals(inspection.data, base)]
        return _resolved(inspection.checked(faults), base, path.absolute(), document.raw)


@dataclass(frozen=True)
class Lane:
    """A loaded lane: every path absolute, ``sha256`` over the raw bytes of its file."""

    name: str
    hosts: Mapping[str, Host]
    producer: Producer
    receiver: Receiver
    orchestrator: Orchestrator
    ports: Ports
    path: LinkPath
    container: Container | None
    supervisor: Supervisor
    source: Path
    raw: bytes
    sha256: str

    @property
    def receiver_host(self) -> Host:
        return self.hosts[self.receiver.host]

    @property
    def socket(self) -> Path:
        """Where the producer takes requests."""
        return self.producer.work_dir / SOCKET_NAME


def require_built(lane: Lane) -> None:
    """Refuse what a lane file may say and this release does not do: it would be written down as if it were done.

    Raises FaultsError.
    """
    faults = []
    if lane.producer.runtime != "process":
        faults.append(f"{lane.source}: producer.runtime: {lane.producer.runtime} is not built yet; process is")
    if lane.path.transfer != "after":
        faults.append(f"{lane.source}: path.transfer: {lane.path.transfer} is not built yet; after is")
    if (mode := lane.receiver.producer_mode) != "native":
        faults.append(f"{lane.source}: receiver.producer_mode: {mode} is not built yet; native is")
    if faults:
        raise FaultsError(faults)


_PRODUCER_PATHS: Final = ("key", "work_dir", "checkpoint", "identity", "lease")
_RECEIVER_PATHS: Final = ("key", "work_dir", "enrolled")


def _resolved(config: LaneConfig, base: Path, source: Path, raw: bytes) -> Lane:
    return Lane(
        name=config.name,
        hosts=dict(config.host),
        producer=config.producer.model_copy(
            update={key: _absolute(base, getattr(config.producer, key)) for key in _PRODUCER_PATHS}
        ),
        receiver=config.receiver.model_copy(
            update={key: _absolute(base, getattr(config.receiver, key)) for key in _RECEIVER_PATHS}
        ),
        orchestrator=config.orchestrator,
        ports=config.ports,
        path=config.path,
        container=config.container,
        supervisor=config.supervisor,
        source=source,
        raw=raw,
        sha256=canonical.sha256(raw),
    )


def _absolute(base: Path, path: Path) -> Path:
    # Lexical on purpose: a symbolic link may be set right after load and is followed when the path is used.
    return Path(os.path.normpath(base / path))


_Refusal = tuple[KeyPath, str, str | None]


def _refusals(data: Mapping[str, Any], base: Path) -> Iterator[_Refusal]:
    """What is wrong between tables. Reads values that may be of any type: the model reports those itself."""
    yield from _host_refusals(data)
    yield from _path_refusals(data)
    yield from _file_refusals(data, base)
    ports = _table(data, "ports")
    taken: dict[int, str] = {}
    for key, port in ports.items():
        if isinstance(port, int) and port in taken:
            yield ("ports", key), f"port {port} is already taken by ports.{taken[port]}", None
        elif isinstance(port, int):
            taken[port] = key
    runtime = _table(data, "producer").get("runtime")
    if runtime == "container" and "container" not in data:
        yield ("producer", "runtime"), 'runtime = "container" needs the table [container]', None
    if runtime == "process" and "container" in data:
        yield ("container",), 'is only for runtime = "container"', None
    supervisor = _table(data, "supervisor")
    backoff, cap = supervisor.get("backoff_s", 2), supervisor.get("backoff_cap_s", 60)
    if isinstance(backoff, int) and isinstance(cap, int) and cap < backoff:
        yield (
            ("supervisor", "backoff_cap_s" if "backoff_cap_s" in supervisor else "backoff_s"),
            (f"backoff_cap_s {cap} is below backoff_s {backoff}"),
            None,
        )


def _host_refusals(data: Mapping[str, Any]) -> Iterator[_Refusal]:
    hosts = _table(data, "host")
    for role in ("producer", "receiver", "orchestrator"):
        name = _table(data, role).get("host")
        if isinstance(name, str) and hosts and name not in hosts:
            yield (role, "host"), f"{quoted(name)} is no host of this lane: {', '.join(hosts)}", nearest(name, hosts)
    for name, host in hosts.items():
        forbidden = host.get("forbidden") if isinstance(host, Mapping) else None
        if isinstance(forbidden, list) and host.get("interface") in forbidden:
            yield ("host", name, "forbidden"), f"forbids {quoted(str(host['interface']))}, the lane's interface", None


def _path_refusals(data: Mapping[str, Any]) -> Iterator[_Refusal]:
    kind = _table(data, "path").get("kind")
    ends = [_table(data, role).get("host") for role in ("producer", "receiver")]
    hosts = _table(data, "host")
    if not all(isinstance(end, str) and isinstance(hosts.get(end), Mapping) for end in ends):
        return
    if kind == "loopback" and ends[0] != ends[1]:
        yield ("path", "kind"), "a loopback path has producer and receiver on one host", None
    if kind == "wired" and ends[0] == ends[1]:
        yield ("path", "kind"), "a wired path has producer and receiver on different hosts", None
    for end in dict.fromkeys(str(end) for end in ends):
        host = hosts[end]
        if kind == "wired" and "negotiated_mbps" not in host:
            yield ("host", end, "negotiated_mbps"), "is required on a wired path: the link's state, in Mbit/s", None
        if kind == "loopback" and not _is_loopback(host.get("address")):
            yield ("host", end, "address"), "is no loopback address, but path.kind is loopback", None
        if kind == "wired" and _is_loopback(host.get("address"), unless=False):
            yield ("host", end, "address"), "is a loopback address, but path.kind is wired", None


def _file_refusals(data: Mapping[str, Any], base: Path) -> Iterator[_Refusal]:
    producer, receiver = _table(data, "producer"), _table(data, "receiver")
    work_dir = producer.get("work_dir")
    if isinstance(work_dir, str) and work_dir and "\0" not in work_dir:
        socket = _absolute(base, Path(work_dir)) / SOCKET_NAME
        length = len(os.fsencode(socket))
        if length > MAX_SOCKET_PATH_BYTES:
            yield (
                ("producer", "work_dir"),
                (
                    f"the socket {SOCKET_NAME} there has a path of {length} bytes; "
                    f"the system takes at most {MAX_SOCKET_PATH_BYTES}: choose a shorter folder"
                ),
                None,
            )
    if producer.get("host") != receiver.get("host"):
        return
    for key, what in (("key", "each end has a copy of its own"), ("work_dir", "each end has a folder of its own")):
        ours, theirs = producer.get(key), receiver.get(key)
        if (
            isinstance(ours, str)
            and isinstance(theirs, str)
            and _absolute(base, Path(ours)) == _absolute(base, Path(theirs))
        ):
            yield ("receiver", key), f"is the same as producer.{key}; {what}", None


def _is_loopback(address: Any, *, unless: bool = True) -> bool:
    """Whether ``address`` is one; ``unless`` where it is no address at all, which the model reports."""
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return unless


def _table(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    value = data.get(key)
    return value if isinstance(value, Mapping) else {}
