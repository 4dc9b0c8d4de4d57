"""What commands show: tables, differences, other people's text, and names by which things are found again."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest
from test_command_line import soakledger

from campaigns.cli import GROUPS

pytestmark = pytest.mark.slow  # a process a question

SHIPPED = Path(__file__).parents[2] / "campaigns/specs/soak-n12.toml"
ESCAPE = "\x1b"


def own_spec(folder: Path, *changes: tuple[str, str]) -> Path:
    """The shipped spec under the id ``mine``, with ``changes``."""
    text = SHIPPED.read_text("utf-8").replace('id = "soak-n12"', 'id = "mine"', 1)
    for old, new in changes:
        assert old in text
        text = text.replace(old, new, 1)
    path = folder / "spec.toml"
    path.write_text(text, encoding="utf-8")
    return path


def ok(folder: Path, *words: str) -> str:
    answer = soakledger(*words, cwd=folder)
    assert answer.returncode == 0, answer.stderr
    return answer.stdout


@pytest.mark.parametrize("words", [[], *([name] for name in sorted(GROUPS))])
def test_what_a_command_does_is_said_whole_in_its_list(words: list[str], tmp_path: Path) -> None:
    listed = ok(tmp_path, *words, "--help").partition("Commands:")[2]
    assert listed
    assert "..." not in listed


def test_a_registered_spec_is_found_again_by_its_id_when_its_file_is_gone(tmp_path: Path) -> None:
    path = own_spec(tmp_path)
    raw = path.read_text("utf-8")
    ok(tmp_path, "campaign", "register", str(path))
    path.unlink()
    assert ok(tmp_path, "campaign", "show", "mine") == raw
    listed = ok(tmp_path, "campaign", "list").splitlines()
    (row,) = [line.split() for line in listed if line.startswith("mine ")]
    assert (row[1:3], row[-2:]) == (["entry", "1"], ["none", "yet"])
    launch = soakledger("campaign", "launch", "mine", "--lane", "nowhere.toml", cwd=tmp_path)
    assert launch.returncode == 2
    assert "nowhere.toml" in launch.stderr


def test_a_reason_that_says_nothing_is_refused_before_a_home_is_made(tmp_path: Path) -> None:
    answer = soakledger("campaign", "register", "soak-n12", "--reason", " ", cwd=tmp_path)
    assert (answer.returncode, answer.stderr) == (2, "soakledger: --reason: an empty reason says nothing\n")
    assert not (tmp_path / "evidence").exists()


def test_a_changed_spec_is_told_in_one_line_and_as_a_difference_and_an_amendment_is_marked(tmp_path: Path) -> None:
    ok(tmp_path, "campaign", "register", str(own_spec(tmp_path)))
    path = own_spec(tmp_path, ("value = 3.0", "value = 2.5"))
    answer = soakledger("campaign", "register", str(path), cwd=tmp_path)
    assert answer.returncode == 2
    lines = answer.stderr.splitlines()
    assert lines[0] == "  changed: criterion.burst-floor.value 3 -> 2.5"
    assert {"  -value = 3.0", "  +value = 2.5"} <= set(lines)
    assert lines[-1].startswith(
        f"soakledger: {path}: mine is registered with another text or another meaning (entry 1)"
    )
    amended = soakledger("campaign", "register", str(path), "--reason", "the link is slower", cwd=tmp_path)
    assert amended.returncode == 0
    assert amended.stderr.splitlines() == [
        "weaker than entry 1: criterion.burst-floor.value: >= 3 -> >= 2.5",
        "soakledger: no attempt of a weaker registration can end better than DEVIATION",
    ]
    log = ok(tmp_path, "ledger", "log", "--kind", "registration").splitlines()
    assert [line.split()[2:] for line in log if "registration" in line] == [
        ["registration", "mine"],
        ["registration", "mine", "(amended,", "weaker)"],
    ]
    none = soakledger("ledger", "log", "--kind", "claim", cwd=tmp_path)
    assert (none.returncode, none.stdout) == (0, "")
    assert none.stderr == "soakledger: no entry of the 3 matches; there are genesis, registration\n"


def test_a_number_below_zero_is_told_for_what_it_is(tmp_path: Path) -> None:
    answer = soakledger("ledger", "show", "-1", cwd=tmp_path)
    assert answer.returncode == 2
    assert "-1" in answer.stderr.splitlines()[-1]
    assert "Traceback" not in answer.stderr


@pytest.mark.parametrize(
    "words",
    [
        ["campaign", "status", "--home", f"a{ESCAPE}[31mb"],
        ["campaign", "show", f"no{ESCAPE}[2J"],
        ["campaign", f"no{ESCAPE}[2J"],
        ["lane", "show", "--lane", f"no{ESCAPE}[2J.toml"],
        ["lane", "init", f"made{ESCAPE}[2J"],
        ["ledger", "log", "--home", "a\nsoakledger: PASS"],
    ],
)
def test_what_a_terminal_would_obey_is_shown_and_never_passed_on(words: list[str], tmp_path: Path) -> None:
    answer = soakledger(*words, cwd=tmp_path)
    told = answer.stdout + answer.stderr
    assert ESCAPE not in told
    assert "\\x1b" in told or "\\x0a" in told
    assert not any(line.startswith("soakledger: PASS") for line in told.splitlines())


def test_a_document_is_as_it_is_in_a_pipe_and_harmless_on_a_terminal(tmp_path: Path) -> None:
    turned = "\u202e"
    path = own_spec(tmp_path, ("Twelve consecutive", f"{turned}Twelve consecutive"))
    assert ok(tmp_path, "campaign", "show", str(path)) == path.read_text("utf-8")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "campaigns.cli", "campaign", "show", str(path)]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stdout=theirs, cwd=tmp_path, env=environment) as process:
        os.close(theirs)
        shown = b""
        try:
            while part := os.read(ours, 1 << 16):
                shown += part
        except OSError:  # what a terminal says when its last writer is gone
            pass
        os.close(ours)
    assert process.returncode == 0
    assert turned not in shown.decode("utf-8")
    assert "\\u202eTwelve consecutive" in shown.decode("utf-8")


@pytest.mark.parametrize("words", [[], ["campaign"], ["ledger"]])
def test_a_bare_command_shows_its_help_and_says_what_is_missing(words: list[str], tmp_path: Path) -> None:
    answer = soakledger(*words, cwd=tmp_path)
    assert answer.returncode == 2
    assert answer.stderr.splitlines()[-1] == "soakledger: a command is missing"
    assert answer.stderr.startswith(ok(tmp_path, *words, "--help").rstrip())
    assert "\\x0a" not in answer.stderr


def test_a_misspelt_registered_id_is_answered_with_it(tmp_path: Path) -> None:
    ok(tmp_path, "campaign", "register", str(own_spec(tmp_path)))
    near = soakledger("campaign", "show", "mien", cwd=tmp_path)
    assert (near.returncode, "did you mean 'mine'?" in near.stderr) == (2, True)
    far = soakledger("campaign", "show", "qqqqqqqqqq", cwd=tmp_path)
    assert "; registered: mine" in far.stderr


def test_a_home_without_a_ledger_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    answer = soakledger("campaign", "list", "--home", "nowhere", cwd=tmp_path)
    assert answer.returncode == 0
    assert answer.stderr.endswith("nowhere: there is no ledger here yet\n")
