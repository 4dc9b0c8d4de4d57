"""What is refused before anything runs: other files, other modes, unregistered specs, homes that cannot be written."""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from real_lane import Campaign, finish, other_lane_file, run_with
from tiny_lane import ROOT, Lane, wait_for

pytestmark = [pytest.mark.vllm, pytest.mark.slow, pytest.mark.usefixtures("nothing_left")]

WEIGHTS = "model.safetensors"


@dataclass(frozen=True)
class Damaged:
    """A lane file of the same lane whose checkpoint folder is a copy that a test may damage."""

    lane: Lane
    file: Path
    checkpoint: Path

    @property
    def weights(self) -> Path:
        return self.checkpoint / WEIGHTS

    def damage(self, how: str) -> None:
        data = (ROOT / "build" / "checkpoints" / "tiny-nvfp4" / WEIGHTS).read_bytes()
        self.weights.unlink(missing_ok=True)
        if how == "truncated":
            self.weights.write_bytes(data[:-1])
        elif how == "edited":
            self.weights.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))


@pytest.fixture
def damaged(real_lane: Lane, tmp_path: Path) -> Iterator[Damaged]:
    checkpoint = tmp_path / "checkpoint"
    shutil.copytree(ROOT / "build" / "checkpoints" / "tiny-nvfp4", checkpoint)
    file = other_lane_file(real_lane, "damaged", checkpoint)
    yield Damaged(real_lane, file, checkpoint)
    file.unlink()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("how", ["truncated", "edited", "missing"])
def test_a_checkpoint_file_that_is_not_the_enrolled_one_is_named_with_both_digests(damaged: Damaged, how: str) -> None:
    enrolled = sha256(damaged.weights)
    damaged.damage(how)
    start = damaged.lane.run("producer", "start", "--lane", str(damaged.file))
    assert start.returncode == 1
    assert WEIGHTS in start.stderr
    assert enrolled in start.stderr
    assert ("found nothing" if how == "missing" else sha256(damaged.weights)) in start.stderr
    assert "Traceback" not in start.stderr
    assert not (damaged.lane.work / "startup-receipt.json").exists()
    assert damaged.lane.processes() == []
    last = damaged.lane.events()[-1]
    assert (last["kind"], last["body"]["status"]) == ("failed_start", 1)


def test_a_launch_on_an_edited_checkpoint_stops_before_any_action_and_is_no_verdict_on_the_lane(
    damaged: Damaged,
) -> None:
    campaign = Campaign(damaged.lane, "edited").write()
    campaign.register()
    damaged.damage("edited")
    launch = campaign.launch(lane_file=damaged.file)
    assert launch.returncode == 3, launch.stderr
    assert launch.stdout.splitlines()[0] == "INCONCLUSIVE"
    assert WEIGHTS in launch.stderr
    assert campaign.verdict()["ended"] == "precondition"
    assert not list((damaged.lane.home / "receipts" / "edited" / "attempt-0001").glob("soak/*"))
    assert {item["outcome"] for item in campaign.verdict()["criteria"]} == {"invalid"}
    assert "expected None" not in launch.stderr
    page = damaged.lane.run("report", "verdict", "edited/1", "--home", str(damaged.lane.home)).stdout
    assert "None was observed." in page
    assert WEIGHTS in page
    assert damaged.lane.processes() == []


@pytest.mark.parametrize(("value", "word"), [("2", "exactly 0 or 1"), ("", "exactly 0 or 1"), ("1", "not built yet")])
def test_an_exactness_that_is_not_built_is_refused_by_name(real_lane: Lane, value: str, word: str) -> None:
    start = run_with(
        real_lane, {"MUSER_NVFP4_EXACT": value}, "campaigns.cli", "producer", "start", "--lane", str(real_lane.file)
    )
    assert start.returncode == 1
    assert "MUSER_NVFP4_EXACT" in start.stderr
    assert word in start.stderr
    assert real_lane.processes() == []


def test_a_spec_that_was_never_registered_is_refused_and_takes_no_number(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "unregistered").write()
    launch = campaign.launch()
    assert launch.returncode == 2
    assert "never registered" in launch.stderr
    assert "soakledger campaign register" in launch.stderr
    assert campaign.attempts() == 0
    status = real_lane.run("campaign", "status", "--home", str(real_lane.home))
    assert "unregistered/" not in status.stdout


def test_a_prompt_outside_the_vocabulary_is_the_specs_fault_and_not_the_lanes(real_lane: Lane) -> None:
    campaign = Campaign(real_lane, "outside").write(high=1025)  # ids 3 .. 1024; the tiny model knows 0 .. 1023
    campaign.register()
    launch = campaign.launch()
    assert launch.returncode == 2, launch.stderr
    assert "id 1024 is outside the vocabulary of 1024" in launch.stderr
    assert campaign.attempts() == 0


@pytest.fixture
def small_disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A file system of its own, of 48 MiB or as many as the test's parameter says."""
    if os.geteuid() != 0:
        pytest.skip("mounting a file system needs root")
    folder = tmp_path / "disk"
    folder.mkdir()
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={getattr(request, 'param', 48)}m", "tmpfs", str(folder)], check=False
    )
    if made.returncode != 0:
        pytest.skip("no file system may be mounted here")
    yield folder
    subprocess.run(["umount", "--lazy", str(folder)], check=True)


@pytest.mark.root
@pytest.mark.parametrize("state", ["nearly full", "full", "read-only"])
def test_a_home_that_cannot_be_written_fails_before_an_attempt_is_opened(
    real_lane: Lane, small_disk: Path, state: str
) -> None:
    campaign = Campaign(real_lane, "homes").write()
    campaign.register()
    home = small_disk / "evidence"
    shutil.copytree(real_lane.home, home)
    if state == "full":
        fill(small_disk)
    elif state == "read-only":
        subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    ledger = sha256(home / "ledger.db")
    launch = campaign.launch(home)
    assert launch.returncode == 2, launch.stderr
    assert str(home) in launch.stderr
    assert "Traceback" not in launch.stderr
    assert len(launch.stderr.strip().splitlines()) <= 2  # what and where, and what to do next
    assert campaign.attempts(home) == 0
    assert sha256(home / "ledger.db") == ledger
    assert real_lane.processes() == []


def fill(disk: Path) -> Path:
    """Take every byte that is free."""
    path = disk / "filler"
    with path.open("wb", buffering=0) as filler:
        for size in (1 << 20, 1 << 12):
            with pytest.raises(OSError, match="No space"):
                while True:
                    filler.write(bytes(size))
    return path


@pytest.mark.root
@pytest.mark.parametrize("small_disk", [400], indirect=True)
def test_a_disk_that_fills_during_a_run_leaves_nothing_running_and_an_attempt_that_the_next_launch_closes(
    real_lane: Lane, small_disk: Path
) -> None:
    campaign = Campaign(real_lane, "fills").write(reps=150)
    home = small_disk / "evidence"  # a ledger of its own: of a copy this machine would remember the longer history
    for words in (("lane", "enroll", "--lane", str(real_lane.file)), ("campaign", "register", str(campaign.spec))):
        assert real_lane.run(*words, "--home", str(home)).returncode == 0
    receipts = home / "receipts/fills/attempt-0001/soak"
    launch = campaign.start(home)
    wait_for(lambda: len(list(receipts.glob("*-handoff.json"))) > 1, "the second rep")
    filler = fill(small_disk)
    ended = finish(launch)
    assert ended.returncode == 2, ended.stderr
    assert "Traceback" not in ended.stderr
    assert "could not be closed: it stays open, and the next launch closes it as abandoned" in ended.stderr
    last = ended.stderr.strip().splitlines()[-1]
    assert last.startswith(f"soakledger: {home}") and "full" in last
    assert real_lane.processes() == []
    filler.unlink()
    assert "LOST" in real_lane.run("campaign", "status", "--home", str(home)).stdout
    again = campaign.launch(home)
    assert again.returncode == 0, again.stderr
    assert "fills/1 was lost; it is closed now and judged INCONCLUSIVE" in again.stderr
    assert real_lane.run("campaign", "rejudge", "fills/1", "--home", str(home)).returncode == 3
    assert real_lane.run("ledger", "verify", "--home", str(home)).returncode == 0
