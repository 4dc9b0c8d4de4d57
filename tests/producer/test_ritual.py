"""The ritual's end of a producer: on command, on record, and in any case."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producer import ritual
from producer.host import linux
from producer.journal import Journal
from receipts.clock import HostClock
from receipts.errors import HomeError, LaneError
from receipts.events import StartEvent
from receipts.kinds import Document, Instance

CLOCK = HostClock("here")


def lane_of(folder: Path) -> Any:
    return SimpleNamespace(name="loopback", producer=SimpleNamespace(work_dir=folder, lease=folder / "gpu.lock"))


@pytest.fixture
def standing() -> Iterator[subprocess.Popen[bytes]]:
    """A process that stands for a resident producer."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
    yield process
    process.kill()
    process.wait()


def test_a_stop_is_on_record_before_the_signal_is_sent(tmp_path: Path, standing: subprocess.Popen[bytes]) -> None:
    instance = linux.instance_of(standing.pid, "here")
    ritual.stop(lane_of(tmp_path), CLOCK, instance, "a test")
    assert standing.wait(10) == -15
    ((record, _),) = Journal(tmp_path, "loopback", CLOCK).read()
    assert (record.kind, record.body["why"], record.body["instance"]) == ("stop", "a test", instance.document())


def test_a_stop_that_cannot_be_journalled_ends_the_producer_all_the_same(
    tmp_path: Path, standing: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: Journal, __: Document) -> None:
        raise HomeError("no space left on device", where=str(tmp_path))

    monkeypatch.setattr(Journal, "append", full)
    with pytest.raises(HomeError, match="no space left"):
        ritual.stop(lane_of(tmp_path), CLOCK, linux.instance_of(standing.pid, "here"), "a test")
    assert standing.wait(10) == -15


def test_the_ritual_first_writes_the_death_that_nobody_wrote(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Producer, keeper and orchestrator were gone together; the next start is the first to look."""
    gone = Instance(host="here", boot_id=CLOCK.boot_id, pid=7, start_ticks="999999999999")
    sha = "sha256:" + 64 * "0"
    journal = Journal(tmp_path, "loopback", CLOCK)
    journal.append(
        StartEvent(instance=gone, startup_receipt_sha256=sha, identity=sha, cache_identity=sha, mode="native")
    )

    def no_start(*_: object) -> None:
        raise LaneError("as far as this test goes")

    monkeypatch.setattr(ritual, "require_built", lambda _: None)
    monkeypatch.setattr(ritual.process, "start", no_start)
    lane = lane_of(tmp_path)
    lane.socket = tmp_path / "producer.sock"
    with pytest.raises(LaneError, match="as far as"):
        ritual.start(lane, CLOCK)
    records = [record for record, _ in journal.read()]
    assert [record.kind for record in records] == ["start", "death", "ritual"]
    assert (records[1].body["instance"], records[1].body["observed_by"]) == (gone.document(), "ritual")
    assert int(records[0].at_ns) < int(records[1].body["died_ns"]) <= int(records[1].at_ns)
