"""What holds for every test: under SOAKLEDGER_NO_SKIPS=1 a skipped test is a failed one.

A skip means "this machine cannot say". In CI that answer is not good enough: `.ci/run` installs what the
tests need, so whatever is skipped there is a check that silently went away. Fixtures live with their tests.
"""

from __future__ import annotations

import os
import re
from collections.abc import Generator
from pathlib import Path

import pytest

NO_SKIPS_VARIABLE = "SOAKLEDGER_NO_SKIPS"
_ALL_NEED_VLLM = re.compile(r"^pytestmark = .*pytest\.mark\.vllm", re.MULTILINE)


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Where tests that need vLLM are not wanted, do not import modules that hold no others: torch alone takes longer
    to load than most of the fast tests take to run."""
    if "not vllm" not in config.option.markexpr or collection_path.suffix != ".py":
        return None
    return bool(_ALL_NEED_VLLM.search(collection_path.read_text(encoding="utf-8"))) or None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Turn the skip of a test into its failure. A test that is *expected* to fail stays what it is."""
    report = yield
    if os.environ.get(NO_SKIPS_VARIABLE) == "1" and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"{item.nodeid} was skipped, and {NO_SKIPS_VARIABLE}=1 forbids it: {call.excinfo}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The same for a whole module that skips itself while it is imported."""
    report = yield
    if os.environ.get(NO_SKIPS_VARIABLE) == "1" and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"{collector.nodeid} skipped itself, and {NO_SKIPS_VARIABLE}=1 forbids it"
    return report
