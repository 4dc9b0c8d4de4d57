"""The keeper: whoever starts it is told when it fails, and it writes down how its producer ended."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producer.runtime import process
from receipts.errors import LaneError


def lane_of(folder: Path) -> Any:
    return SimpleNamespace(
        name="loopback", source=folder / "lane.toml", producer=SimpleNamespace(host="here", work_dir=folder / "work")
    )


def test_a_keeper_that_dies_before_it_names_a_producer_is_a_lane_error_with_status_and_last_words(
    tmp_path: Path,
) -> None:
    log = tmp_path / "logs/producer.log"
    with pytest.raises(LaneError) as caught:
        process.start(lane_of(tmp_path), log)
    assert "keeper ended with status 1" in caught.value.what
    assert "lane.toml" in caught.value.what  # its own words: what could not be read
    assert caught.value.where == str(log)


def test_a_log_that_cannot_be_written_is_a_lane_error(tmp_path: Path) -> None:
    (tmp_path / "logs").write_text("a file where a folder is wanted")
    with pytest.raises(LaneError, match="log cannot be written"):
        process.start(lane_of(tmp_path), tmp_path / "logs/producer.log")
