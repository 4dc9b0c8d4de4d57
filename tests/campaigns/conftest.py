"""One enrolled tiny lane for all launch tests of a session: enrolling loads vLLM, which takes a while."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_lane import end_everything
from tiny_lane import Lane, make_lane


@pytest.fixture(scope="session")
def real_lane(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lane]:
    """A lane with a home of its own, enrolled and registered; nothing runs on it."""
    lane = make_lane(tmp_path_factory.mktemp("real"))
    yield lane
    end_everything(lane)


@pytest.fixture
def nothing_left(real_lane: Lane) -> Iterator[None]:
    """After a test that failed half-way, the lane is free again for the next one."""
    yield
    end_everything(real_lane)
