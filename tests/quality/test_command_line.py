"""Qualities 1, 4, 9, 12: help, statuses, streams; one process a question, as a user would ask it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from campaigns.cli import GROUPS
from campaigns.commands import exits

pytestmark = pytest.mark.slow  # a process a question

HEAVY = ("torch", "vllm", "sqlalchemy", "numpy", "scipy", "matplotlib", "cryptography", "pydantic", "rich")


def soakledger(*words: str, cwd: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run the command in a home of its own."""
    root = Path(__file__).parents[2]
    place = cwd or root
    known = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "XDG_CONFIG_HOME": str(place / "cfg"),
             "XDG_STATE_HOME": str(place / "state")}  # fmt: skip
    return subprocess.run(
        [sys.executable, "-m", "campaigns.cli", *words],
        capture_output=True,
        text=True,
        cwd=place,
        env=known | environ,
        check=False,
    )


@pytest.mark.parametrize("words", [[], *([name] for name in sorted(GROUPS))])
def test_help_imports_nothing_heavy(words: list[str]) -> None:
    program = (
        "import sys, json; from campaigns.cli import run; "
        f"status = run({[*words, '--help']!r}); "
        f"print(json.dumps([status, [name for name in {HEAVY!r} if name in sys.modules]]), file=sys.stderr)"
    )
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(answer.stderr.splitlines()[-1]) == [0, []]


def test_help_names_every_exit_status() -> None:
    text = soakledger("--help").stdout
    for status, meaning in exits.MEANING.items():
        assert str(status) in text
        assert meaning.split(",")[0] in " ".join(text.split())


def test_no_line_of_help_is_wider_than_forty_columns_where_the_terminal_is() -> None:
    for words in ([], ["campaign"], ["ledger"], ["producer"], ["campaign", "launch"]):
        text = soakledger(*words, "--help", COLUMNS="40").stdout
        wide = [line for line in text.splitlines() if len(line) > 40 and len(line.split()) > 1]
        assert wide == []


@pytest.mark.parametrize(
    "words",
    [
        ["nonsense"],
        ["campaign", "nonsense"],
        ["campaign", "show", "soak-n13"],
        ["campaign", "launch", "soak-n12", "--lane", "nowhere.toml"],
        ["lane", "show", "--lane", "nowhere.toml"],
        ["producer", "serve", "--lane", "nowhere.toml"],
        ["receiver", "serve", "--lane", "nowhere.toml"],
        ["ledger", "log"],
        ["report", "verdict", "soak-n12"],
        ["producer", "build-checkpoint", "out", "--bf16"],
    ],
)
def test_a_mistake_of_the_users_is_one_message_and_status_2(words: list[str], tmp_path: Path) -> None:
    answer = soakledger(*words, cwd=tmp_path)
    assert answer.returncode == 2
    assert "Traceback" not in answer.stderr
    assert answer.stderr.strip()
    assert answer.stdout == ""


def test_a_misspelt_campaign_is_answered_with_the_nearest_one(tmp_path: Path) -> None:
    assert "soak-n12" in soakledger("campaign", "show", "soak-n13", cwd=tmp_path).stderr


@pytest.mark.parametrize(
    "words",
    [["ledger", "log"], ["ledger", "verify"], ["campaign", "status"], ["campaign", "list"], ["ledger", "reproject"]],
)
def test_reading_a_home_that_is_not_there_never_creates_it(words: list[str], tmp_path: Path) -> None:
    soakledger(*words, "--home", "home", cwd=tmp_path)
    assert not (tmp_path / "home").exists()


def test_a_missing_ledger_does_not_verify_and_says_so(tmp_path: Path) -> None:
    answer = soakledger("ledger", "verify", "--home", "home", cwd=tmp_path)
    assert answer.returncode == 5
    assert "no ledger" in answer.stdout + answer.stderr


def test_a_registration_is_frozen_and_a_second_time_changes_nothing(tmp_path: Path) -> None:
    first = soakledger("campaign", "register", "soak-n12", cwd=tmp_path)
    again = soakledger("campaign", "register", "soak-n12", cwd=tmp_path)
    assert (first.returncode, again.returncode) == (0, 0)
    assert first.stdout.splitlines()[1:] == again.stdout.splitlines()[1:]
    assert "is registered already, entry 1" in again.stdout
    log = soakledger("ledger", "log", cwd=tmp_path).stdout
    header, _day, *entries = log.splitlines()
    assert header.split() == ["seq", "UTC", "kind", "subject"]
    assert [line.split()[2] for line in entries] == ["genesis", "registration"]
    assert soakledger("ledger", "verify", cwd=tmp_path).returncode == 0


def test_the_last_line_on_stderr_names_the_reason(tmp_path: Path) -> None:
    soakledger("campaign", "register", "soak-n12", cwd=tmp_path)
    answer = soakledger("report", "verdict", "soak-n12", cwd=tmp_path)
    assert answer.returncode == 2
    assert "no attempt" in answer.stderr.splitlines()[0]


def test_a_reader_that_closed_early_gets_no_traceback(tmp_path: Path) -> None:
    root = Path(__file__).parents[2]
    command = f"{sys.executable} -m campaigns.cli campaign schema | head -1; echo ${{PIPESTATUS[0]}}"
    answer = subprocess.run(
        ["bash", "-c", command],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(root)},
        check=True,
    )
    assert answer.stdout.splitlines() == ["{", "0"]
    assert answer.stderr == ""


def test_three_planted_faults_give_three_lines_and_the_ledger_stays_as_it_was(tmp_path: Path) -> None:
    soakledger("campaign", "register", "soak-n12", cwd=tmp_path)
    before = (tmp_path / "evidence/ledger.db").read_bytes()
    text = soakledger("campaign", "show", "soak-n12", cwd=tmp_path).stdout
    for right, wrong in (
        ("family =", "famly ="),
        ("fresh_start =", "fresh_strat ="),
        ('source = "seeded"', 'source = "seded"'),
    ):
        text = text.replace(right, wrong, 1)
    (tmp_path / "broken.toml").write_text(text)
    answer = soakledger("campaign", "register", "broken.toml", cwd=tmp_path)
    lines = answer.stderr.strip().splitlines()
    assert answer.returncode == 2
    assert len(lines) == 3, lines
    for line, near in zip(lines, ("family", "fresh_start", "seeded"), strict=True):
        assert "broken.toml:" in line
        assert near in line
    assert (tmp_path / "evidence/ledger.db").read_bytes() == before


CLOSED = "import os, sys; os.close(int(sys.argv[1])); os.execv(sys.executable, [sys.executable, *sys.argv[2:]])"


@pytest.mark.parametrize("descriptor", ["0", "1", "2"])
def test_a_stream_that_is_closed_from_the_start_changes_no_status_and_no_evidence(
    descriptor: str, tmp_path: Path
) -> None:
    root = Path(__file__).parents[2]
    environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(root), "XDG_CONFIG_HOME": str(tmp_path / "cfg"),
               "XDG_STATE_HOME": str(tmp_path / "state")}  # fmt: skip
    for words, status in (
        (("--help",), 0),
        (("campaign", "register", "soak-n12", "--home", "home"), 0),
        (("ledger", "verify", "--home", "home"), 0),
        (("ledger", "log", "--home", "nowhere"), 2),
    ):
        command = [sys.executable, "-c", CLOSED, descriptor, "-m", "campaigns.cli", *words]
        done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environ, check=False)
        assert (words, done.returncode) == (words, status)
        assert "Traceback" not in done.stderr
    assert soakledger("ledger", "verify", "--home", "home", cwd=tmp_path).returncode == 0


def test_output_on_a_full_disk_is_told_and_a_verification_keeps_its_status(tmp_path: Path) -> None:
    assert soakledger("campaign", "register", "soak-n12", "--home", "home", cwd=tmp_path).returncode == 0
    root = Path(__file__).parents[2]
    environ = os.environ | {"PYTHONPATH": str(root), "XDG_STATE_HOME": str(tmp_path / "state")}
    for words, status in ((("ledger", "log"), 2), (("ledger", "verify"), 0)):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                [sys.executable, "-m", "campaigns.cli", *words, "--home", "home"],
                stdout=full, stderr=subprocess.PIPE, text=True, cwd=tmp_path, env=environ, check=False,
            )  # fmt: skip
        assert (words, done.returncode) == (words, status)
        assert done.stderr.splitlines()[-1] == "soakledger: the output could not be written: No space left on device"


@pytest.mark.parametrize(
    "words",
    [
        ["ledger", "log", "--home", "x" * 300],
        ["ledger", "show", "99999999999999999999", "--home", "home"],
        ["ledger", "log", "--kind", "\udcff", "--home", "home"],
        ["lane", "init", "/dev/null"],
        ["lane", "init", "y" * 300],
        ["producer", "build-checkpoint", "z" * 300, "--tiny"],
    ],
)
def test_a_path_or_number_that_the_system_refuses_is_one_message_and_status_2(words: list[str], tmp_path: Path) -> None:
    assert soakledger("campaign", "register", "soak-n12", "--home", "home", cwd=tmp_path).returncode == 0
    done = soakledger(*words, cwd=tmp_path)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3


def test_a_registration_that_could_not_be_signed_is_not_made(tmp_path: Path) -> None:
    register = ("campaign", "register", "soak-n12", "--home", "home")
    assert soakledger("ledger", "log", "--home", "home", cwd=tmp_path).returncode == 2
    other = tmp_path / "other.toml"
    text = (Path(__file__).parents[2] / "campaigns/specs/soak-n12.toml").read_text()
    other.write_text(text.replace('"soak-n12"', '"soak-other"'))
    assert soakledger(*register, cwd=tmp_path).returncode == 0
    before = soakledger("ledger", "log", "--home", "home", cwd=tmp_path).stdout
    (key,) = (tmp_path / "cfg").rglob("*.key")
    key.unlink()
    refused = soakledger("campaign", "register", str(other), "--home", "home", cwd=tmp_path)
    assert refused.returncode == 2
    assert "key" in refused.stderr
    assert soakledger("ledger", "log", "--home", "home", cwd=tmp_path).stdout == before
