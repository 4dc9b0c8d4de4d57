from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from producer.lane import MAX_SOCKET_PATH_BYTES, Control, Lane, LaneConfig, parse_control, require_built
from receipts.errors import FaultsError

TEXT = """schema = "soakledger/lane/1"
name = "loopback"
[host.here]
control = "local"
address = "127.0.0.1"
interface = "lo"
[producer]
host = "here"
runtime = "process"
key = "producer-handoff.key"
work_dir = "work"
checkpoint = "checkpoints/tiny"
identity = "identity.json"
kv_cache_memory_bytes = 1073741824
context_tokens = 8192
chunk_tokens = 1024
threads = 2
[receiver]
host = "here"
work_dir = "receiver-work"
memory_limit_bytes = 2147483648
enrolled = "enrolled/"
producer_mode = "native"
key = "handoff.key"
[orchestrator]
host = "here"
[ports]
handoff = 47900
probe = 47901
control = 47902
[path]
kind = "loopback"
transfer = "after"
"""
CONTAINER = f"""[container]
engine = "podman"
name = "p"
image_id = "sha256:{"0" * 64}"
"""


def load(folder: Path, text: str = TEXT) -> Lane:
    (folder / "lane.toml").write_text(text, "utf-8")
    return LaneConfig.load(folder / "lane.toml")


def test_paths_are_relative_to_the_file_and_defaults_are_the_chapters(tmp_path: Path) -> None:
    lane = load(tmp_path)
    assert lane.producer.work_dir == tmp_path / "work"
    assert lane.receiver.enrolled == tmp_path / "enrolled"
    assert lane.socket == tmp_path / "work/producer.sock"
    assert (lane.producer.watchdog_s, str(lane.producer.lease)) == (900, "/tmp/ferrite.gpu.lock")
    assert lane.supervisor.max_consecutive_failures == 3
    assert lane.sha256 == "sha256:" + hashlib.sha256(TEXT.encode()).hexdigest()


def test_the_ways_to_command_a_host_are_three() -> None:
    assert parse_control("ssh:producer-1") == Control("ssh", alias="producer-1")
    assert parse_control("tls:[fe80::1]:47902") == Control("tls", address="fe80::1", port=47902)
    for text in ("ssh:", "ssh:-oProxyCommand=x", "tls:a:0", "tls:a:65536", "telnet:x"):
        with pytest.raises(ValueError):
            parse_control(text)


@pytest.mark.parametrize(
    ("old", "new", "told"),
    [
        ("= 1073741824", "= 1073741823", "must be at least 1073741824"),
        ("= 1073741824", "= 8589934593", "must be at most 8589934592"),
        ("threads = 2", "threads = 2\nwatchdog_s = 0", "must be greater than 0"),
        ("probe = 47901", "probe = 47900", "already taken by ports.handoff"),
        ("probe = 47901", "probe = 65536", "must be at most 65535"),
        ('host = "here"\nruntime', 'host = "her"\nruntime', "did you mean 'here'?"),
        ('"process"', '"container"', "needs the table [container]"),
        ('kind = "loopback"', 'kind = "wired"', "different hosts"),
        ('address = "127.0.0.1"', 'address = "localhost"', "is not an IP address"),
        ('key = "handoff.key"', 'key = "producer-handoff.key"', "each end has a copy of its own"),
        ("[path]", "[supervisor]\nmax_consecutive_failures = 0\n[path]", "must be at least 1, not 0"),
        ("[path]", "[supervisor]\nmax_consecutive_failures = 11\n[path]", "must be at most 10"),
        ("[path]", "[supervisor]\nstable_after_s = 0\n[path]", "must be at least 1"),
    ],
)
def test_a_lane_is_refused_with_a_line_that_says_why(tmp_path: Path, old: str, new: str, told: str) -> None:
    assert old in TEXT
    with pytest.raises(FaultsError) as caught:
        load(tmp_path, TEXT.replace(old, new, 1))
    assert any(told in line for line in caught.value.faults), caught.value.faults


def test_a_wired_lane_says_the_negotiated_rate_of_both_ends(tmp_path: Path) -> None:
    hosts = "".join(
        f'[host.{name}]\ncontrol = "ssh:{name}"\naddress = "192.0.2.{n}"\ninterface = "en0"\n'
        for n, name in enumerate(("mac", "gx10"), 10)
    )
    text = TEXT.replace('[host.here]\ncontrol = "local"\naddress = "127.0.0.1"\ninterface = "lo"\n', hosts)
    text = text.replace('host = "here"', 'host = "gx10"', 1).replace('host = "here"', 'host = "mac"')
    text = text.replace('kind = "loopback"', 'kind = "wired"')
    with pytest.raises(FaultsError) as caught:
        load(tmp_path, text)
    assert [line.split(": ")[1] for line in caught.value.faults] == [
        "host.mac.negotiated_mbps", "host.gx10.negotiated_mbps",
    ]  # fmt: skip
    load(tmp_path, text.replace('"en0"\n', '"en0"\nnegotiated_mbps = 10000\n'))


def test_a_socket_path_that_the_system_cannot_take_is_refused_with_its_length(tmp_path: Path) -> None:
    room = MAX_SOCKET_PATH_BYTES - len(str(tmp_path)) - len("/") - len("/producer.sock")
    load(tmp_path, TEXT.replace('work_dir = "work"', f'work_dir = "{"w" * room}"'))
    with pytest.raises(FaultsError, match=f"has a path of {MAX_SOCKET_PATH_BYTES + 1} bytes"):
        load(tmp_path, TEXT.replace('work_dir = "work"', f'work_dir = "{"w" * (room + 1)}"'))


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('runtime = "process"', 'runtime = "container"', "producer.runtime: container is not built yet"),
        ('transfer = "after"', 'transfer = "streaming"', "path.transfer: streaming is not built yet"),
    ],
)
def test_what_this_release_does_not_do_is_not_enrolled_as_if_it_did(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    require_built(load(tmp_path))
    lane = load(tmp_path, TEXT.replace(old, new) + (CONTAINER if "container" in new else ""))
    with pytest.raises(FaultsError, match=said):
        require_built(lane)
