"""Judging from a real ledger: the same bytes again, whatever was appended behind what was judged."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
from pathlib import Path
from typing import NoReturn

import pytest
from judged import Attempt
from judged_ledger import clean_attempt, new_ledger, put, refs, verdicts

from campaigns import cli, judging
from ledger.audit import verify
from ledger.entry import Ref
from ledger.store import Draft, Ledger
from receipts import canonical
from receipts.errors import EvidenceError, InputError

FOLDER = "receipts/soak-n12/attempt-0001"


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "cfg"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    return new_ledger(tmp_path)


def test_the_tree_is_told_at_the_last_judged_entry_also_when_others_stand_behind_it(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, str]] = []

    def judge(views: list[judging.EntryView], *_: object, tree_root: str, **__: object) -> dict[str, object]:
        seen.append((views[-1].seq, tree_root))
        return {"receipts": {"to_seq": views[-1].seq, "tree_root": tree_root}}

    monkeypatch.setattr(judging, "judge", judge)
    ledger.append("deviation", "", {"campaign": None, "attempt": None, "what": "x", "text": "y", "evidence": {}})
    ledger.append("schema", "", {"note": "an entry that no judge reads"})
    first = judging.compute(ledger, "c", 1, ledger.size() - 1)
    again = judging.compute(ledger, "c", 1, int(first["receipts"]["to_seq"]))
    assert json.dumps(first) == json.dumps(again)
    assert seen[0] == (1, ledger.root_at(2))


def test_gaps_and_doubles_in_a_stages_numbers_are_named() -> None:
    attempt = Attempt()
    attempt.clean()
    attempt.close()
    entries = [entry for entry in attempt.entries if not (entry.kind == "receipt" and entry.data["n"] == 7)]
    assert judging.check_numbers(entries, 1) == ["stage soak: receipt 7 is missing"]
    assert judging.check_numbers(attempt.entries, 1) == []


# A verdict that was begun and not finished


class Killed(BaseException):
    """The process ends here."""


def killed_at_the_entry(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Store a verdict and die when its file stands and its entry does not."""

    def die(_: object) -> NoReturn:
        raise Killed

    with monkeypatch.context() as patch, pytest.raises(Killed):
        patch.setattr(ledger, "_append", die)
        judging.store_verdict(ledger, "soak-n12", 1)


def test_the_file_of_a_verdict_that_was_killed_before_its_entry_is_taken_up(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ledger, clean_attempt())
    killed_at_the_entry(ledger, monkeypatch)
    assert verify(ledger.home).orphans == (f"{FOLDER}/SOAK_VERDICT.json",)
    judged = judging.store_verdict(ledger, "soak-n12", 1)
    assert judged.document["verdict"] == "PASS"
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.json"]
    report = verify(ledger.home)
    assert report.ok and not report.orphans
    assert judging.rejudge(ledger, "soak-n12", 1) == judged


def test_a_verdicts_file_that_says_something_else_stays_an_orphan_and_bars_nothing(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(ledger, clean_attempt())
    killed_at_the_entry(ledger, monkeypatch)
    ledger.append(
        "deviation", "soak-n12/1", {"campaign": "soak-n12", "attempt": 1, "what": "clock", "text": "", "evidence": {}}
    )
    judging.store_verdict(ledger, "soak-n12", 1)
    killed_at_the_entry(ledger, monkeypatch)
    ledger.append(
        "deviation", "soak-n12/1", {"campaign": "soak-n12", "attempt": 1, "what": "clock", "text": "", "evidence": {}}
    )
    judging.store_verdict(ledger, "soak-n12", 1)
    # The names go on behind files as well as behind entries.
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.2.json", "SOAK_VERDICT.4.json"]
    report = verify(ledger.home)
    assert report.ok
    assert report.orphans == (f"{FOLDER}/SOAK_VERDICT.3.json", f"{FOLDER}/SOAK_VERDICT.json")


def test_a_link_in_a_verdicts_place_is_not_taken_for_its_file(ledger: Ledger, tmp_path: Path) -> None:
    put(ledger, clean_attempt())
    (ledger.home.path / FOLDER / "SOAK_VERDICT.json").symlink_to(tmp_path / "nowhere")
    judging.store_verdict(ledger, "soak-n12", 1)
    assert list(refs(verdicts(ledger))) == ["SOAK_VERDICT.2.json"]


# What rejudge looks at before it believes a verdict


@pytest.fixture
def judged(ledger: Ledger) -> Ledger:
    """A ledger with one attempt, whole and judged PASS."""
    put(ledger, clean_attempt())
    assert judging.store_verdict(ledger, "soak-n12", 1).document["verdict"] == "PASS"
    return ledger


def refused(ledger: Ledger) -> str:
    """What rejudge says against the evidence."""
    with pytest.raises(EvidenceError) as caught:
        judging.rejudge(ledger, "soak-n12", 1)
    return str(caught.value)


def test_judging_again_gives_the_stored_bytes(judged: Ledger) -> None:
    (stored,) = verdicts(judged)
    assert stored.ref is not None
    again = judging.rejudge(judged, "soak-n12", 1)
    assert canonical.file_bytes(again.document) == (judged.home.path / stored.ref.path).read_bytes()
    assert again.entry == stored


def rewritten(ledger: Ledger, seq: int) -> None:
    """Change a recorded receipt with its file, hash and ref, and leave node table and chain as they were."""
    entry = ledger.entry(seq)
    data = entry.data | {"body": entry.data["body"] | {"prompt_tokens": 7}}
    written = canonical.file_bytes(data)
    assert entry.ref is not None
    path = ledger.home.path / entry.ref.path
    path.chmod(0o644)
    path.write_bytes(written)
    body = canonical.dumps(entry.leaf | {"data": data, "ref": Ref.of(entry.ref.path, written).document()})
    with contextlib.closing(sqlite3.connect(ledger.home.ledger_db, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER entry_no_update")
        row = (body.decode(), hashlib.sha256(b"\0" + body).hexdigest(), seq)
        connection.execute("UPDATE entry SET body = ?, leaf_hash = ? WHERE seq = ?", row)


def test_a_receipt_rewritten_with_its_file_under_an_old_node_table_is_named(
    judged: Ledger, capsys: pytest.CaptureFixture[str]
) -> None:
    head = judged.head()
    receipts = [entry for entry in judged.entries(kinds={"receipt"}) if entry.data["kind"] == "handoff"]
    rewritten(judged, receipts[3].seq)
    assert judged.head() == head
    assert f"the hash of entry {receipts[3].seq} is not the one that this entry names" in refused(judged)
    assert cli.run(["campaign", "rejudge", "soak-n12/1", "--home", str(judged.home.path)]) == 5
    assert f"entry {receipts[3].seq + 1}: " in capsys.readouterr().err


def test_a_verdict_that_no_checkpoint_covers_any_more_is_not_believed(judged: Ledger) -> None:
    (stored,) = verdicts(judged)
    (judged.home.checkpoints / f"{stored.seq + 1}.checkpoint").unlink()
    with contextlib.closing(sqlite3.connect(judged.home.ledger_db, isolation_level=None)) as connection:
        connection.execute("DROP TRIGGER checkpoint_no_delete")
        connection.execute("DELETE FROM checkpoint WHERE tree_size > ?", (stored.seq,))
    assert f"entry {stored.seq}: no checkpoint by the ledger's own key covers this verdict" in refused(judged)


def test_a_verdict_over_other_entries_than_these_is_refused(ledger: Ledger) -> None:
    put(ledger, clean_attempt())
    document = judging.compute(ledger, "soak-n12", 1, ledger.size() - 1)
    document["receipts"] = document["receipts"] | {"tree_root": "sha256:" + "e" * 64}
    ledger.record("verdict", "soak-n12/1", f"{FOLDER}/SOAK_VERDICT.json", document)
    assert "the entries are not those that this verdict was given over" in refused(ledger)


def announced(change: dict[str, str], *, rep: int = 3) -> Attempt:
    """A clean attempt whose reps were announced as a runner does; the intent of ``rep`` says something else."""
    plain, attempt = clean_attempt(closed=False), Attempt()
    handoffs = {
        (item.data["case"], item.data["run"], item.data["rep"]): item.data["body"]
        for item in plain.entries
        if item.kind == "receipt" and item.data["kind"] == "handoff"
    }
    for entry in plain.entries[len(attempt.entries) :]:
        place = (entry.data["case"], entry.data["run"], entry.data["rep"])
        if entry.data["kind"] == "admission":
            body = {key: handoffs[place][key] for key in ("handoff_id", "prompt_sha256")}
            body |= {"action": "handoff", "at_ns": str(plain.started)}
            attempt.receipt("intent", place, body | (change if place == (None, 1, rep) else {}))
        attempt.receipt(entry.data["kind"], place, dict(entry.data["body"]))
    attempt.at = plain.at
    attempt.close()
    return attempt


def test_handoffs_that_are_those_of_their_intents_are_whole(ledger: Ledger) -> None:
    put(ledger, announced({}))
    assert judging.rejudge(ledger, "soak-n12", 1).document["verdict"] == "PASS"


@pytest.mark.parametrize(
    ("key", "other"), [("handoff_id", "f" * 32), ("prompt_sha256", "sha256:" + "f" * 64)], ids=["id", "prompt"]
)
def test_a_handoff_that_is_not_the_one_of_its_intent_is_broken_evidence_and_named(
    ledger: Ledger, key: str, other: str, capsys: pytest.CaptureFixture[str]
) -> None:
    put(ledger, announced({key: other}))
    said = refused(ledger)
    (named,) = [line for line in said.splitlines() if key in line]
    assert re.search(r"soak-n12/attempt-0001/soak/\d{6}-handoff: ", named)
    assert f"announced {other} (entry " in named
    assert cli.run(["campaign", "rejudge", "soak-n12/1", "--home", str(ledger.home.path)]) == 5
    assert named.strip() in capsys.readouterr().err


def test_a_rep_that_was_announced_and_done_again_is_held_against_its_own_intent() -> None:
    attempt = Attempt()
    for handoff_id in ("a" * 32, "b" * 32):
        body = {"handoff_id": handoff_id, "prompt_sha256": "sha256:" + "1" * 64}
        attempt.receipt("intent", (None, 1, 1), body | {"action": "handoff"})
        attempt.receipt("handoff", (None, 1, 1), body)
    receipts = [entry for entry in attempt.entries if entry.kind == "receipt"]
    assert judging.check_intents(receipts) == []
    receipts[1], receipts[3] = receipts[3], receipts[1]
    assert len(judging.check_intents(receipts)) == 2


def test_an_attempt_that_is_not_there_is_said_to_be_none(judged: Ledger) -> None:
    with pytest.raises(InputError, match="there is no attempt soak-n12/2"):
        judging.rejudge(judged, "soak-n12", 2)


def test_a_stored_verdict_that_judging_does_not_give_is_refused(ledger: Ledger) -> None:
    """Well formed, with its file and under the right evaluator, and yet no judge's."""
    put(ledger, clean_attempt())
    document = judging.compute(ledger, "soak-n12", 1, ledger.size() - 1)
    ledger.record("verdict", "soak-n12/1", f"{FOLDER}/SOAK_VERDICT.json", document | {"ended": "interrupted"})
    assert "judging again gives another document than the stored verdict" in refused(ledger)


def test_a_verdict_of_another_evaluator_is_not_compared_but_named(ledger: Ledger) -> None:
    put(ledger, clean_attempt())
    document = judging.compute(ledger, "soak-n12", 1, ledger.size() - 1)
    document["evaluator"] = document["evaluator"] | {"source_sha256": "sha256:" + "e" * 64}
    ledger.record("verdict", "soak-n12/1", f"{FOLDER}/SOAK_VERDICT.json", document)
    # Nothing is wrong with the evidence: it is this release that cannot say.
    with pytest.raises(InputError, match="the evidence is whole, but its verdict is by the evaluator sha256:eee"):
        judging.rejudge(ledger, "soak-n12", 1)


@pytest.mark.parametrize("name", ["soak/000004-admission.json", "SOAK_VERDICT.json"])
def test_a_missing_a_changed_and_a_linked_file_are_each_named(judged: Ledger, name: str, tmp_path: Path) -> None:
    path = judged.home.path / FOLDER / name
    data = path.read_bytes()
    path.unlink()
    assert f"{FOLDER}/{name}: No such file or directory (entry " in refused(judged)
    path.write_bytes(data.replace(b"soak-n12", b"soak-n13"))
    assert f"{FOLDER}/{name}: entry " in refused(judged)
    assert ", the file has sha256:" in refused(judged)
    path.unlink()
    (tmp_path / "same").write_bytes(data)
    path.symlink_to(tmp_path / "same")
    assert f"{FOLDER}/{name}: Too many levels of symbolic links" in refused(judged)


def test_a_link_in_place_of_the_attempts_folder_is_not_followed(judged: Ledger, tmp_path: Path) -> None:
    folder = judged.home.path / FOLDER
    folder.rename(tmp_path / "moved")
    folder.symlink_to(tmp_path / "moved")
    assert f"{FOLDER}/SOAK_VERDICT.json: Not a directory" in refused(judged)


def test_a_receipt_or_verdict_whose_entry_names_no_file_is_a_fault(judged: Ledger) -> None:
    (stored,) = verdicts(judged)
    last = list(judged.entries(kinds={"receipt"}))[-1]
    drafts = [
        Draft("receipt", last.subject, last.data | {"n": last.data["n"] + 1}),
        Draft("verdict", stored.subject, stored.data),
    ]
    bare, verdict = judged._append(lambda _: drafts)  # the door refuses them; somebody else's release may not
    said = refused(judged)
    for entry in (bare, verdict):
        assert f"{entry.subject}: entry {entry.seq} names no file for its document" in said


def test_a_path_that_leaves_the_home_is_a_fault_and_not_opened(judged: Ledger) -> None:
    last = list(judged.entries(kinds={"receipt"}))[-1]
    data = last.data | {"n": last.data["n"] + 1}
    judged.append("receipt", last.subject, data, Ref.of("receipts/../../same", canonical.file_bytes(data)))
    assert "'receipts/../../same' is no path below the evidence home" in refused(judged)


def test_a_gap_in_a_stages_numbers_ends_a_rejudge(ledger: Ledger) -> None:
    attempt = clean_attempt()
    attempt.entries[-1].data["stages"][-1]["last_n"] += 1
    put(ledger, attempt)
    # One intent and fourteen handoffs with their admissions are 29 receipts.
    assert "stage soak: receipt 30 is missing" in refused(ledger)
