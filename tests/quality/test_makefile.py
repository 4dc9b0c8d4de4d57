"""What make offers, the order of the soak, and the forged copy that has to be found out (QUALITY 2)."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest

from scripts import demo_tamper, soak

ROOT = Path(__file__).resolve().parent.parent.parent
needs_make = pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")


def make(*words: str) -> subprocess.CompletedProcess[str]:
    """Run make as a person would: these tests are often run by make themselves, and it would tell its child so."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    return subprocess.run(["make", *words], check=True, cwd=ROOT, capture_output=True, text=True, env=own)


@needs_make
def test_make_help_names_every_target_within_80_columns() -> None:
    run = make("help")
    for target in ("soak", "test", "test-fast", "lint", "bench", "clean-venv"):
        assert f"make {target} " in run.stdout
    assert all(len(line) <= 80 for line in run.stdout.splitlines())


@needs_make
@pytest.mark.parametrize("target", ["soak", "test", "test-fast", "lint", "bench"])
def test_either_command_works_first_because_each_target_sets_up(target: str) -> None:
    run = make("-n", target)
    assert run.stdout.splitlines()[0] == "python3 scripts/bootstrap.py"


def test_the_readme_starts_with_the_two_commands() -> None:
    lines = [line.strip() for line in (ROOT / "README.md").read_text(encoding="utf-8").splitlines() if line.strip()]
    assert lines[1].startswith("make soak ")
    assert lines[2].startswith("make test ")


def test_the_readme_lists_every_exit_status_of_the_command_line() -> None:
    from campaigns.commands import exits

    text = (ROOT / "README.md").read_text(encoding="utf-8")
    rows = [line.split("|")[1] for line in text.splitlines() if line.startswith("|")]
    listed = {int(part) for row in rows for part in row.split(",") if part.strip().isdecimal()}
    assert listed == set(exits.MEANING)


def test_the_soak_registers_before_it_launches_and_enrolls_before_it_registers() -> None:
    order = [" ".join(arguments[:2]) for _, arguments in soak.steps(soak.Places.of({}))]
    assert order == [
        "producer build-checkpoint", "lane init", "producer enroll", "lane enroll", "campaign register",
        "campaign launch",
    ]  # fmt: skip


def test_every_command_of_the_soak_exists_and_knows_its_options() -> None:
    import click

    from campaigns.cli import root

    for _, arguments in soak.steps(soak.Places.of({})):
        group = root.get_command(click.Context(root), arguments[0])
        assert isinstance(group, click.Group)
        command = group.commands[arguments[1]]
        known = {option for parameter in command.params for option in parameter.opts}
        assert {word for word in arguments if word.startswith("--")} <= known


def test_the_newest_checkpoint_is_the_one_over_most_entries(tmp_path: Path) -> None:
    for name in ("9.checkpoint", "10.checkpoint", "2.checkpoint", "notes.checkpoint"):
        (tmp_path / name).touch()
    assert soak.newest_checkpoint(tmp_path) == tmp_path / "10.checkpoint"
    assert soak.newest_checkpoint(tmp_path / "missing") is None


@pytest.mark.parametrize("judged", [False, True])
def test_a_launch_that_left_no_verdict_is_not_reported_as_a_fail(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], judged: bool
) -> None:
    monkeypatch.setattr(soak, "ROOT", tmp_path)
    old = tmp_path / "evidence/receipts/soak-n12/attempt-0001/SOAK_VERDICT.json"
    new = old.parents[1] / "attempt-0002" / old.name
    old.parent.mkdir(parents=True)
    old.touch()
    called = []

    def run(_self: soak.Children, command: list[str]) -> int:
        called.append(command)
        if "launch" not in command:
            return 0
        if judged:
            new.parent.mkdir()
            new.touch()
        return 1

    monkeypatch.setattr(soak.Children, "run", run)
    monkeypatch.delenv("SOAKLEDGER_HOME", raising=False)
    assert soak.main() == 1
    assert any("report" in command for command in called) == judged
    assert capsys.readouterr().out.rstrip().endswith("status 1 (FAIL)" if judged else "status 1")


def test_a_failed_step_stops_the_soak_with_its_status(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[str] = []

    def run(_self: soak.Children, command: list[str]) -> int:
        ran.append(" ".join(command[3:5]))
        return 1 if "enroll" in command else 0

    monkeypatch.setattr(soak.Children, "run", run)
    assert soak.main() == 1
    assert ran == ["producer build-checkpoint", "lane init", "producer enroll"]


def test_a_sigterm_reaches_the_child_and_the_status_says_so(tmp_path: Path) -> None:
    program = tmp_path / "drive.py"
    program.write_text(
        "import os, signal, sys, threading\n"
        f"sys.path.insert(0, {str(ROOT)!r})\n"
        "from scripts import soak\n"
        "ready, write = os.pipe(); os.set_inheritable(write, True)\n"
        "def end(): os.read(ready, 1); os.kill(os.getpid(), signal.SIGTERM)\n"
        "threading.Thread(target=end, daemon=True).start()\n"
        "child = 'import os, time; os.write(1, b\"x\"); time.sleep(60)'\n"
        "os.dup2(write, 1)\n"
        "children = soak.Children()\n"
        "with children.listening():\n"
        "    status = children.run([sys.executable, '-c', child])\n"
        "sys.exit(status if children.signal == signal.SIGTERM else 99)\n"
    )
    run = subprocess.run([sys.executable, str(program)], check=False, timeout=50)
    assert run.returncode == 143


@pytest.fixture
def registered_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small real ledger: a genesis and a registration."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    home = tmp_path / "evidence"
    command = [sys.executable, "-m", "campaigns.cli", "campaign", "register", "soak-n12", "--home", str(home)]
    subprocess.run(command, check=True, cwd=ROOT, capture_output=True)
    return home


def _files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.slow
def test_the_demo_names_the_forged_entry_and_leaves_ledger_and_mark_as_they_were(
    registered_home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    marks = Path(os.environ["XDG_STATE_HOME"])
    before = _files(registered_home), _files(marks)
    assert demo_tamper.main(["--home", str(registered_home)]) == 0
    told = capsys.readouterr().out
    assert "entry 1 (soak-n12)" in told
    assert "  status 5\n" in told
    assert "The real ledger: status 0, it verifies" in told
    assert (_files(registered_home), _files(marks)) == before


def test_the_forger_changes_exactly_one_byte_and_puts_the_triggers_back(registered_home: Path) -> None:
    database = registered_home / "ledger.db"

    def read() -> tuple[list[bytes], set[str]]:
        connection = sqlite3.connect(database)
        bodies = [row[0].encode() for row in connection.execute("SELECT body FROM entry ORDER BY seq")]
        triggers = {row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")}
        connection.close()
        return bodies, triggers

    old_bodies, old_triggers = read()
    forgery = demo_tamper.forge(database)
    new_bodies, new_triggers = read()
    differing = [
        (seq, offset)
        for seq, (old, new) in enumerate(zip(old_bodies, new_bodies, strict=True))
        for offset, (a, b) in enumerate(zip(old, new, strict=True))
        if a != b
    ]
    assert differing == [(forgery.seq, forgery.offset)]
    assert new_triggers == old_triggers != set()


@pytest.mark.slow
def test_the_demo_fails_when_the_real_ledger_does_not_verify(registered_home: Path) -> None:
    demo_tamper.forge(registered_home / "ledger.db")
    assert demo_tamper.main(["--home", str(registered_home)]) == 1


def test_the_demo_without_a_ledger_says_so_and_makes_none(tmp_path: Path) -> None:
    assert demo_tamper.main(["--home", str(tmp_path / "evidence")]) == 1
    assert not (tmp_path / "evidence").exists()


@pytest.mark.slow
@pytest.mark.parametrize(("variable", "status"), [("1", 1), ("", 0)])
def test_a_skip_is_a_failure_where_skips_are_forbidden(tmp_path: Path, variable: str, status: int) -> None:
    shutil.copy(ROOT / "tests" / "conftest.py", tmp_path / "conftest.py")
    (tmp_path / "test_it.py").write_text("import pytest\ndef test_it():\n    pytest.skip('no chromium here')\n")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-c", "/dev/null", str(tmp_path)]
    environment = {**os.environ, "SOAKLEDGER_NO_SKIPS": variable}
    run = subprocess.run(command, check=False, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert run.returncode == status, run.stdout
