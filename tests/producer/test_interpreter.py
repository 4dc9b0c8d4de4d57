"""The processes that run our overlay import source that can be hashed, and nothing else."""

from __future__ import annotations

import importlib._bootstrap_external as bootstrap  # type: ignore[import-not-found,unused-ignore]
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from producer import interpreter
from receipts.errors import IdentityError

ROOT = Path(__file__).parents[2]
NO_LANE = "/nowhere/lane.toml"


def forge(source: Path, text: str) -> Path:
    """A bytecode file in ``__pycache__`` whose header fits the untouched ``source`` and whose code is of ``text``."""
    status = source.stat()
    data = bootstrap._code_to_timestamp_pyc(compile(text, str(source), "exec"), int(status.st_mtime), status.st_size)
    path = source.parent / "__pycache__" / f"{source.stem}.{sys.implementation.cache_tag}.pyc"
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    return path


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    """Our overlay at another place, where its bytecode may be forged."""
    for name in ("producer", "receipts"):
        shutil.copytree(ROOT / name, tmp_path / "root" / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path / "root"


def run(words: list[str], environment: dict[str, str], folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *words], env=environment, cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )


def said_by(copied: Path, code: str, **more: str) -> str:
    """What a child with the environment that the copy makes prints on ``code``."""
    base = {"PATH": os.environ["PATH"], "PYTHONPATH": str(copied), "PYTHONPYCACHEPREFIX": os.devnull}
    asked = run(
        [
            "-c",
            "import json; from producer.interpreter import child_environment; print(json.dumps(child_environment()))",
        ],
        base | more,
        copied,
    )
    made: dict[str, str] = json.loads(asked.stdout)
    done = run(["-c", code], made, copied)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_forged_bytecode_that_fits_its_source_is_not_run(copied: Path) -> None:
    forge(copied / "producer/engine/__init__.py", "FORGED = True")
    asks = "import producer.engine as e; print(getattr(e, 'FORGED', False))"
    # A Python as anybody starts it runs it, so the forgery is a good one.
    assert run(["-c", asks], {"PYTHONPATH": str(copied)}, copied).stdout.strip() == "True"
    assert said_by(copied, asks) == "False"


def test_nothing_is_written_beside_the_source_nor_anywhere_else(copied: Path) -> None:
    assert said_by(copied, "import producer.engine, sys; print(producer.engine.__cached__)").startswith("/dev/null/")
    assert not list(copied.rglob("__pycache__"))


@pytest.mark.parametrize("place", ["a PYTHONPATH of others", "the working folder"])
def test_no_other_place_of_import_comes_along(copied: Path, tmp_path: Path, place: str) -> None:
    evil = copied.parent / "evil"
    evil.mkdir()
    for name in ("sitecustomize", "colorsys"):
        (evil / f"{name}.py").write_text("import sys; sys.evil = True")
    more = {"PYTHONPATH": f"{copied}:{evil}"} if place == "a PYTHONPATH of others" else {}
    folder = evil if place == "the working folder" else tmp_path
    made = interpreter.child_environment({**os.environ, **more})
    code = "import colorsys, sys; print(getattr(sys, 'evil', False))"
    assert run(["-c", code], {**made, "PYTHONPATH": str(copied)}, folder).stdout.strip() == "False"
    assert made["PYTHONPATH"] == str(ROOT)


def test_variables_of_the_interpreter_that_add_code_are_dropped_and_others_stay() -> None:
    made = interpreter.child_environment({"PYTHONHOME": "/evil", "PYTHONSTARTUP": "/evil", "PYTHONUTF8": "1", "A": "b"})
    assert (made.get("PYTHONHOME"), made.get("PYTHONSTARTUP"), made["PYTHONUTF8"], made["A"]) == (None, None, "1", "b")


def test_a_resident_that_is_started_bare_becomes_one_that_compiles_what_it_imports(copied: Path) -> None:
    """Stale bytecode of what it imports is not run: it begins again, in the same process, before it does anything."""
    forge(copied / "producer/lane.py", (ROOT / "producer/lane.py").read_text() + "\nraise SystemExit('stale bytecode')")
    words = ["-m", "producer.resident", "--lane", NO_LANE]
    stale = run(words, {"PYTHONPATH": str(copied)}, copied)
    assert "stale bytecode" in stale.stderr  # it is imported before anything of ours can say no
    forge(copied / "producer/lane.py", (ROOT / "producer/lane.py").read_text())
    forge(
        copied / "producer/interpreter.py",
        (ROOT / "producer/interpreter.py")
        .read_text()
        .replace("def faults", "import sys; print('first')\n\n\ndef faults"),
    )
    again = run(words, {"PYTHONPATH": str(copied)}, copied)
    assert (again.returncode, again.stdout) == (2, "first\n")  # the second one printed nothing: it came from source
    assert NO_LANE in again.stderr


def test_an_interpreter_that_cannot_be_made_clean_is_refused_and_does_not_begin_again_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("SOAKLEDGER_INTERPRETER_AGAIN", "1")
    monkeypatch.setattr(interpreter.sys, "pycache_prefix", None)
    with pytest.raises(IdentityError) as refusal:
        interpreter.enter("producer.resident", [])
    assert "bytecode is read from __pycache__" in str(refusal.value)


def loaded(monkeypatch: pytest.MonkeyPatch, name: str, **members: Any) -> None:
    module = ModuleType(name)
    spec = type("Spec", (), {"name": name, "cached": None, **members})
    module.__spec__ = spec  # type: ignore[assignment]
    monkeypatch.setitem(sys.modules, name, module)


def test_a_module_that_came_from_elsewhere_or_from_bytecode_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    base = tmp_path / "vllm"
    base.mkdir()
    cached = tmp_path / "x.pyc"
    cached.touch()
    loaded(monkeypatch, "vllmfake.good", origin=str(base / "good.py"), cached="/dev/null/good.pyc")
    interpreter.require_from_source(("vllmfake",), base)
    for name, members, word in (
        ("vllmfake.old", {"origin": str(base / "old.py"), "cached": str(cached)}, "may have been run in place of"),
        ("vllmfake.bare", {"origin": str(base / "bare.pyc")}, "bytecode without source"),
        ("vllmfake.away", {"origin": str(tmp_path / "away.py")}, "loaded from"),
    ):
        with monkeypatch.context() as here:
            loaded(here, name, **members)
            with pytest.raises(IdentityError, match=f"{name}: .*{word}"):
                interpreter.require_from_source(("vllmfake",), base)


def test_a_module_that_lies_beside_our_packages_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded(monkeypatch, "numpyfake", origin=str(tmp_path / "numpyfake.py"))
    interpreter.require_nothing_beside(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="numpyfake: loaded from"):
        interpreter.require_nothing_beside(tmp_path)
