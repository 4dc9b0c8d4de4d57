"""An attempt that its preflight would end for want of space gets no number."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from campaigns.stages import preflight
from receipts.errors import HomeError


def test_a_disk_below_the_floor_of_preflight_is_refused_before_an_attempt_is_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = {"bytes": preflight.DISK_FLOOR_BYTES - 1}
    monkeypatch.setattr(shutil, "disk_usage", lambda _: SimpleNamespace(free=free["bytes"]))
    with pytest.raises(HomeError, match="255 MiB are free on this disk, and an attempt wants 256") as caught:
        preflight.require_disk(tmp_path)
    assert str(tmp_path) in str(caught.value)
    free["bytes"] += 1
    preflight.require_disk(tmp_path)
    assert list(tmp_path.iterdir()) == []
