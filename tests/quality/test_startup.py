"""QUALITY 1: commands start at once, because help loads nothing that is heavy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import startup
from benchmarks.figures import Figure, figures_of
from campaigns.cli import GROUPS

ROOT = Path(__file__).resolve().parent.parent.parent
HEAVY = ("torch", "vllm", "sqlalchemy", "numpy", "scipy", "matplotlib")
NEEDLESS = ("shutil", "bz2", "lzma", "zlib", "json", "subprocess", "socket", "pydantic", "importlib.metadata")
"""Of the standard library and ours, what the root's help has no use for: each is a part of what a start costs."""


@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in sorted(GROUPS))], ids="-".join)
def test_help_loads_no_heavy_package(arguments: list[str]) -> None:
    code = (
        "import sys; from campaigns.cli import run; status = run(sys.argv[1:]); "
        f"print('LOADED', [name for name in {HEAVY!r} if name in sys.modules]); sys.exit(status)"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, *arguments], check=False, cwd=ROOT, capture_output=True, text=True
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.splitlines()[-1] == "LOADED []"


def test_the_roots_help_loads_nothing_that_it_has_no_use_for() -> None:
    code = (
        "import sys; before = set(sys.modules); from campaigns.cli import run; run(['--help']); "
        f"print('LOADED', [name for name in {NEEDLESS!r} if name in set(sys.modules) - before])"
    )
    run = subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT, capture_output=True, text=True)
    assert run.stdout.splitlines()[-1] == "LOADED []"


@pytest.mark.parametrize(("columns", "width"), [("40", 40), ("200", 80), ("0", 80), ("-5", 80), ("wide", 80)])
def test_help_is_as_wide_as_the_terminal_and_at_most_80(columns: str, width: int) -> None:
    environment = {**os.environ, "COLUMNS": columns, "PYTHONPATH": str(ROOT)}
    run = subprocess.run(
        [sys.executable, "-m", "campaigns.cli", "--help"], check=True, env=environment, capture_output=True, text=True
    )
    longest = max(len(line) for line in run.stdout.splitlines())
    assert width - 15 < longest <= width


@pytest.mark.slow
@pytest.mark.parametrize("arguments", [["--help"], *([name, "--help"] for name in sorted(GROUPS))], ids="-".join)
def test_help_takes_at_most_six_times_an_empty_python(arguments: list[str], tmp_path: Path) -> None:
    # A ratio of medians with its sides taking turns. Other work on the machine only ever adds to it, so the
    # best of three is nearest to what the command itself costs.
    command, empty = startup.soakledger(*arguments), [sys.executable, "-c", "pass"]
    ratios = (startup.ratio(command, empty, tmp_path)[0] for _ in range(3))
    assert any(found <= startup.HELP_LIMIT for found in ratios)


def test_a_figure_is_reached_exactly_at_its_bound_and_not_beyond() -> None:
    assert Figure("a", 6.0, "", "<=", 6.0).reached == "yes"
    assert Figure("a", 6.01, "", "<=", 6.0).reached == "NO"
    assert Figure("a", 0.5, "", ">=", 0.5).reached == "yes"
    assert Figure("a", 0.49, "", ">=", 0.5).reached == "NO"


def test_a_figure_that_was_not_measured_is_not_reached() -> None:
    assert Figure("a", None, "MiB", "<=", 64).reached == "NO"
    assert Figure("a", 1.0, "MiB", "<=", None).reached == "—"


def test_a_benchmark_hands_its_figures_on_unchanged() -> None:
    figure = Figure("capture", 0.013, "", "<=", 0.02)
    assert figures_of("any", {"figures": [figure.document()]}) == [figure]
