"""What lies where a lane's own files should: pipes, devices, files blown up with holes. Told at once, never read on."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from test_enrollment import lane
from test_journal import NOTHING, journal

from campaigns.exclusive import LOCK, lane_held
from campaigns.registration import resolved_for
from campaigns.registry import LoadedSpec
from campaigns.spec import FilePrompt
from ledger.home import EvidenceHome
from producer import enrollment, ritual
from producer.engine.deaths import ARMED, site_of_status
from producer.instance import Artefacts
from producer.journal import Journal
from producer.lane import Lane
from producer.runtime.process import log_tail, opened_log
from receipts import canonical
from receipts.errors import EvidenceError, InputError, LaneError
from receipts.kinds import Instance
from receipts.store import BlobStore

__all__ = ["journal", "lane"]

pytestmark = pytest.mark.timeout(30)  # what hangs is the fault that is looked for

KINDS = ("pipe", "device", "holes")
WHY = "not a regular file|larger than"


def put(path: Path, kind: str) -> Path:
    """Put something in ``path``'s place that must not be read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(path, 0o600)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.touch(0o600)
        os.truncate(path, 1 << 40)
    return path


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_of_the_lane(lane: Lane, kind: str) -> None:
    enrollment.enroll(lane)
    put(lane.receiver.key, kind)
    with pytest.raises(InputError, match=WHY) as caught:
        enrollment.receiver_config(lane)
    assert str(lane.receiver.key) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_an_enrolled_copy_is_moved_aside_like_any_other_that_differs(lane: Lane, kind: str) -> None:
    enrollment.enroll(lane)
    put(lane.receiver.enrolled / "identity.json", kind)
    assert [old.name for old, _ in enrollment.enroll(lane).moved] == ["identity.json"]
    enrollment.receiver_config(lane)


def test_a_template_blown_up_with_holes(lane: Lane) -> None:
    path = put(lane.producer.checkpoint / "chat_template.jinja", "holes")
    with pytest.raises(InputError, match="larger than") as caught:
        enrollment.enroll(lane)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_record_of_the_journal(journal: Journal, kind: str) -> None:
    journal.append(NOTHING)
    journal.append(NOTHING)
    put(journal.path(2), kind)
    reads: list[Callable[[], object]] = [journal.head, lambda: list(journal.read()), lambda: list(journal.backwards())]
    for read in reads:
        with pytest.raises(OSError, match=WHY):
            read()


def test_a_name_in_the_journals_folder_that_is_no_record(journal: Journal, tmp_path: Path) -> None:
    journal.append(NOTHING)
    for name in ("1x.json", "00000009", "9.json"):
        (journal.folder / name).touch()
    fresh = Journal(tmp_path, journal.lane, journal.clock)
    assert fresh.head().n == 1


@pytest.mark.parametrize("kind", KINDS)
def test_the_files_that_a_start_of_the_producer_reads(lane: Lane, kind: str) -> None:
    artefacts = Artefacts.of(lane)
    put(artefacts.startup_receipt, kind)
    put(artefacts.work_dir / ARMED, kind)
    assert artefacts.ready_instance() is None
    nobody = Instance(host="here", boot_id="b", pid=7, start_ticks="9")
    assert site_of_status(75, artefacts.work_dir, nobody) == "not_known"
    with pytest.raises(InputError, match=WHY) as caught:
        ritual._move_aside(artefacts)
    assert str(artefacts.startup_receipt) in str(caught.value)


def test_a_log(tmp_path: Path) -> None:
    pipe = put(tmp_path / "pipe.log", "pipe")
    with pytest.raises(LaneError, match=r"the receiver's log cannot be written: not a regular file|No such device"):
        opened_log(pipe, "receiver")
    assert log_tail(pipe) == []
    holes = put(tmp_path / "holes.log", "holes")
    assert len(log_tail(holes)) == 1
    with opened_log(tmp_path / "new" / "a.log") as log:
        log.write(b"one\n")
    with opened_log(tmp_path / "new" / "a.log") as log:
        log.write(b"two\n")
    assert log_tail(tmp_path / "new" / "a.log") == ["one", "two"]


@pytest.mark.parametrize("kind", ["pipe", "device"])
def test_the_lock_of_the_lane(lane: Lane, kind: str) -> None:
    path = put(lane.producer.work_dir / LOCK, kind)
    with pytest.raises(InputError, match="no regular file") as caught, lane_held(lane, "soak"):
        pass
    assert str(path) in str(caught.value)


@pytest.mark.parametrize("kind", KINDS)
def test_a_prompt_file_of_a_spec(lane: Lane, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = put(tmp_path / "prompt.txt", kind)
    prompt = FilePrompt(source="file", path="prompt.txt")
    loaded = LoadedSpec(spec=None, raw=b"", source="spec.toml", folder=tmp_path)  # type: ignore[arg-type]
    monkeypatch.setattr("campaigns.registration.resolve", lambda _, read: read(prompt))
    with pytest.raises(InputError, match=WHY) as caught:
        resolved_for(loaded, lane)
    assert str(path) in str(caught.value)


def test_a_blob(tmp_path: Path) -> None:
    store = BlobStore(EvidenceHome(tmp_path).blobs)
    digest = store.put_bytes(b"what was seen")
    path = store.path(digest)
    shutil.move(path, path.with_suffix(".old"))
    put(path, "holes")
    with pytest.raises(EvidenceError, match="larger than any blob"):
        store.open(digest)
    assert canonical.sha256(b"what was seen") == digest
