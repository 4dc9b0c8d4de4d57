"""The whole sample campaign in one go: checkpoint, lane, enrollment, registration, attempt, verdict, report.

``make soak`` runs it after the installation. Every step leaves alone what is there already, so a second
run, also after a kill, makes the next attempt of the same registration. Ends with the status that
``campaign launch`` gave, which it also prints: make itself turns any failure into 2.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
CAMPAIGN = "soak-n12"
VERDICTS = {0: "PASS", 1: "FAIL", 3: "INCONCLUSIVE", 4: "DEVIATION"}
"""The statuses that a verdict gives; 1 is also that of a lane that could not be run, which leaves no verdict."""
PASSED_ON = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Places:
    """Where this run finds and leaves its things; paths are shown as they are passed."""

    python: Path
    home: Path
    lane: Path
    checkpoint: Path

    @classmethod
    def of(cls, environ: dict[str, str]) -> Places:
        return cls(
            python=ROOT / ".venv" / "bin" / "python",
            home=Path(environ.get("SOAKLEDGER_HOME") or "evidence"),
            lane=Path("lane/lane.toml"),
            checkpoint=Path("lane/checkpoints/smollm2-135m-nvfp4"),
        )


def steps(places: Places) -> list[tuple[str, list[str]]]:
    """Name and arguments of ``soakledger`` of each step up to and including the launch."""
    home, lane = ["--home", str(places.home)], ["--lane", str(places.lane)]
    return [
        ("build the sample checkpoint", ["producer", "build-checkpoint", str(places.checkpoint)]),
        ("write the lane file", ["lane", "init", str(places.lane.parent)]),
        ("enroll the producer", ["producer", "enroll", *lane, "--renew"]),
        ("enroll the lane", ["lane", "enroll", *lane, *home]),
        ("register the campaign", ["campaign", "register", CAMPAIGN, *lane, *home]),
        ("launch the campaign", ["campaign", "launch", CAMPAIGN, *lane, *home]),
    ]


class Children:
    """Runs one child at a time and gives it the signals that come to us; none outlives us."""

    def __init__(self) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        self.signal: int | None = None

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Pass signals on while the block runs."""
        before = {number: signal.signal(number, self._pass_on) for number in PASSED_ON}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def run(self, command: Sequence[str]) -> int:
        """Run ``command`` to its end; a child ended by signal n gives 128 + n."""
        if self.signal is not None:
            return 128 + self.signal
        # A process group of its own: a Ctrl-C reaches the child once, from here, and not from the terminal too.
        with subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.DEVNULL, process_group=0, preexec_fn=_end_with_parent
        ) as self._child:
            status = self._child.wait()
        self._child = None
        return 128 - status if status < 0 else status

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self.signal = number
        child = self._child
        if child is not None and child.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                child.send_signal(number)


def _end_with_parent() -> None:
    """A soak.py that was killed outright must not leave a campaign running unseen (Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


def main() -> int:
    """Run every step; returns the launch's status, or that of the step that failed."""
    places = Places.of(dict(os.environ))
    children = Children()
    with children.listening():
        judged, status = _run_steps(places, children)
        if judged and children.signal is None:
            report_status = _report(places, children)
            demo_status = _demo(places, children)
            status = status or report_status or demo_status
    if children.signal is not None and status == 0:
        status = 128 + children.signal
    say(f"make soak: status {status}{f' ({VERDICTS[status]})' if judged and status in VERDICTS else ''}")
    return status


def _run_steps(places: Places, children: Children) -> tuple[bool, int]:
    """Every step up to the launch, stopping at the first that fails: whether the launch was judged, and the status."""
    todo = steps(places)
    known = verdicts(places)
    for number, (name, arguments) in enumerate(todo, 1):
        say(f"\n[{number}/{len(todo)}] {name}")
        begun = time.monotonic()
        status = children.run(_soakledger(places, arguments))
        took_s = time.monotonic() - begun
        if number == len(todo):
            say(f"campaign launch ended with status {status} after {took_s:.0f} s")
            return status in VERDICTS and verdicts(places) != known, status
        if status != 0:
            say(f"      {name}: status {status} after {took_s:.1f} s; stopped here")
            return False, status
        say(f"      done in {took_s:.1f} s")
    raise AssertionError("the last step returns")


def verdicts(places: Places) -> set[Path]:
    """The verdict documents of the campaign that lie in the home."""
    return set((ROOT / places.home / "receipts" / CAMPAIGN).glob("attempt-*/SOAK_VERDICT*.json"))


def _report(places: Places, children: Children) -> int:
    """Write both pages, print their paths and the newest signed tree head."""
    home = ["--home", str(places.home)]
    say("\nThe report:")
    # A page an attempt, under the attempt's own name: the next attempt replaces none.
    attempts = sorted((ROOT / places.home / "receipts" / CAMPAIGN).glob("attempt-*"))
    for fmt in ("html", "md"):
        page = places.home / "reports" / CAMPAIGN / f"{attempts[-1].name}.{fmt}"
        (ROOT / page).parent.mkdir(parents=True, exist_ok=True)
        arguments = ["report", "verdict", CAMPAIGN, "--format", fmt, "-o", str(page), *home]
        status = children.run(_soakledger(places, arguments))
        if status != 0:
            say(f"report verdict: status {status}")
            return status
    newest = newest_checkpoint(ROOT / places.home / "checkpoints")
    if newest is not None:
        say(f"\nThe ledger's checkpoint ({newest.name}):")
        say(newest.read_text(encoding="utf-8").rstrip())
    return 0


def newest_checkpoint(folder: Path) -> Path | None:
    """The ``<size>.checkpoint`` with the greatest size, None where there is none."""
    sized = [(int(path.stem), path) for path in folder.glob("*.checkpoint") if path.stem.isdecimal()]
    return max(sized)[1] if sized else None


def _demo(places: Places, children: Children) -> int:
    say("")
    return children.run([str(places.python), str(ROOT / "scripts" / "demo_tamper.py"), "--home", str(places.home)])


def _soakledger(places: Places, arguments: Sequence[str]) -> list[str]:
    return [str(places.python), "-m", "campaigns.cli", *arguments]


def say(text: str) -> None:
    """One line for the person who watches, before anything that a child says next."""
    print(text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
