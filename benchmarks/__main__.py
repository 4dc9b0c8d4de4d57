"""Every benchmark in turn, one table: figure, bound, reached or not, and the machine (``make bench``).

``python -m benchmarks [NAME ...]``. Each runs in a process of its own, so that none pays for another's
imports or memory. Status 0 when every bound was reached, 1 when one was not or a benchmark failed.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from pathlib import Path

from benchmarks.figures import Figure, figures_of

FOLDER = Path(__file__).resolve().parent
NOT_BENCHMARKS = {"__init__", "__main__", "figures"}


def names() -> list[str]:
    """The benchmarks that are here: the modules of this folder that answer to ``--json``."""
    modules = (path for path in sorted(FOLDER.glob("*.py")) if path.stem not in NOT_BENCHMARKS)
    return [path.stem for path in modules if '"--json"' in path.read_text(encoding="utf-8")]


def machine() -> str:
    """CPU model, cores, kernel and Python on one line."""
    model = platform.processor() or platform.machine()
    information = Path("/proc/cpuinfo")
    if information.exists():
        lines = information.read_text(encoding="utf-8").splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
    system = f"{platform.system()} {platform.release()}"
    return f"{model}, {os.cpu_count()} cores\n{system}, Python {platform.python_version()}"


def row(figure: Figure) -> str:
    """One line of the table, at most 80 columns."""
    value = "—" if figure.value is None else f"{figure.value:.3g}"
    bound = "" if figure.bound is None else f"{figure.op} {figure.bound:g}"
    return f"  {figure.name:<40.40} {value:>9} {figure.unit:<5} {bound:<9} {figure.reached}"


def measured(name: str) -> list[Figure] | str:
    """The figures of benchmark ``name``, or in one line why there are none."""
    command = [sys.executable, "-m", f"benchmarks.{name}", "--json"]
    run = subprocess.run(command, check=False, cwd=FOLDER.parent, stdout=subprocess.PIPE, text=True)
    try:
        # The status says whether its bounds were reached, which the figures say too; only their absence is a failure.
        return figures_of(name, json.loads(run.stdout))
    except (ValueError, KeyError, TypeError) as error:
        return f"no figures (status {run.returncode}, {type(error).__name__})"


def main(wanted: list[str]) -> int:
    known = names()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        print(f"benchmarks: no {', '.join(unknown)}; there are {', '.join(known)}", file=sys.stderr)
        return 2
    print(machine())
    all_reached = True
    for name in wanted or known:
        started = time.monotonic()
        found = measured(name)
        print(f"{name} ({time.monotonic() - started:.0f} s)", flush=True)
        if isinstance(found, str):
            print(f"  {found}")
            all_reached = False
            continue
        for figure in found:
            print(row(figure), flush=True)
            all_reached = all_reached and figure.reached != "NO"
    print("every bound reached" if all_reached else "NOT every bound reached")
    return 0 if all_reached else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
