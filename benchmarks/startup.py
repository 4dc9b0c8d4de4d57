"""How long a command takes to start, as a ratio in one run: ``python -m benchmarks.startup [--json]``.

``soakledger --help`` against ``python -c pass``, ``campaign list`` against ``python -c 'import sqlalchemy'``:
medians of five, the two sides of a ratio taking turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.figures import Figure

RUNS: Final = 5
HELP_LIMIT: Final = 6.0
LIST_LIMIT: Final = 2.0


def soakledger(*arguments: str) -> list[str]:
    """The installed command of this interpreter's venv, else the module it calls."""
    command = Path(sys.prefix) / "bin" / "soakledger"
    return [str(command), *arguments] if command.exists() else [sys.executable, "-m", "campaigns.cli", *arguments]


def ratio(command: Sequence[str], yardstick: Sequence[str], cwd: Path, runs: int = RUNS) -> tuple[float, float]:
    """Median of ``command`` ÷ median of ``yardstick``, and the command's median in ms. The first pair is warm-up."""
    pairs = [(_timed_ns(command, cwd), _timed_ns(yardstick, cwd)) for _ in range(runs + 1)][1:]
    ours, theirs = (statistics.median(side) for side in zip(*pairs, strict=True))
    return ours / theirs, ours / 1e6


def measure() -> list[Figure]:
    """Both ratios with their bounds, and the times behind them."""
    with tempfile.TemporaryDirectory() as empty:
        cwd = Path(empty)
        help_ratio, help_ms = ratio(soakledger("--help"), [sys.executable, "-c", "pass"], cwd)
        list_ratio, list_ms = ratio(soakledger("campaign", "list"), [sys.executable, "-c", "import sqlalchemy"], cwd)
    return [
        Figure("soakledger --help / python -c pass", help_ratio, "", "<=", HELP_LIMIT),
        Figure("soakledger --help", help_ms, "ms", "<=", None),
        Figure("campaign list / import sqlalchemy", list_ratio, "", "<=", LIST_LIMIT),
        Figure("campaign list", list_ms, "ms", "<=", None),
    ]


def _timed_ns(command: Sequence[str], cwd: Path) -> int:
    environment = {key: value for key, value in os.environ.items() if key != "SOAKLEDGER_HOME"}
    environment["PYTHONPATH"] = str(Path(__file__).resolve().parent.parent)
    started = time.perf_counter_ns()
    subprocess.run(command, check=True, cwd=cwd, env=environment, stdout=subprocess.DEVNULL)
    return time.perf_counter_ns() - started


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object instead of lines")
    as_json = parser.parse_args().json
    figures = measure()
    if as_json:
        print(json.dumps({"figures": [figure.document() for figure in figures]}))
    else:
        for figure in figures:
            print(f"{figure.name}: {figure.value:.3g} {figure.unit}".rstrip())
    return 0 if all(figure.reached != "NO" for figure in figures) else 1


if __name__ == "__main__":
    sys.exit(main())
