"""What the lane says is input: whatever it says, the rep gets its receipt, and never a better class than it earned."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from campaigns.handoffs import Asked, handoff_body
from ledger.entry import MAX_DOCUMENT_BYTES
from producer.client import Reply
from receipts import canonical
from receipts.kinds import Failure, Instance, Span

IDENTITY = "sha256:" + "1" * 64
HANDOFF = "0" * 32
SPAN = Span(
    host="here", boot_id="b", clock="boottime", started_ns="1", ended_ns="2", awake_start_ns="1", awake_end_ns="2"
)
STANDING = {
    "instance": {"host": "here", "boot_id": "b", "pid": 5, "start_ticks": "7"},
    "identity": IDENTITY,
    "cache_identity": IDENTITY,
    "mode": "native",
}


@pytest.fixture
def attempt(tmp_path: Path) -> Any:
    (tmp_path / "admissions").mkdir()
    lane = SimpleNamespace(receiver=SimpleNamespace(work_dir=tmp_path), path=SimpleNamespace(transfer="after"))
    return SimpleNamespace(lane=lane, clock=SimpleNamespace(clock="boottime"), blobs=None, ledger=None)


def asked(reply: Reply, *, alive: bool = True) -> Asked:
    return Asked(HANDOFF, IDENTITY, 5, reply, SPAN, Instance(host="here", boot_id="b", pid=5, start_ticks="7"), alive)


def answer(**changes: Any) -> Reply:
    plain = {"v": 1, "status": "error", "outcome": "no_ack", "error": {"code": "x", "text": "y"}, "producer": STANDING}
    return Reply("answer", plain | changes)


BAD = {
    "no outcome": Reply("answer", {"v": 1, "status": "ok"}),
    "an outcome that nobody knows": answer(outcome="odd"),
    "a code that is none": answer(error={"code": "Bad\nCode " * 90, "text": None}),
    "an error that is a text": answer(error="failed"),
    "a negative count": answer(producer=STANDING | {"rss_bytes": -1}),
    "a producer without an instance": answer(producer={"pid": 5}),
    "a producer that is a list": answer(producer=[1]),
    "acknowledged, and nothing of it": answer(outcome="acknowledged", error=None, acknowledgement=[]),
    "an acknowledgement that is a number": answer(outcome="acknowledged", error=None, acknowledgement=7),
}


@pytest.mark.parametrize("name", BAD)
def test_an_answer_that_is_none_makes_an_errored_rep_that_is_written_down(attempt: Any, name: str) -> None:
    """It says nothing: so how the rep ended is what was seen of the producer."""
    for alive, outcome, code in ((True, "no_ack", "bad-answer"), (False, "died", "producer-died")):
        body, admission = handoff_body(attempt, asked(BAD[name], alive=alive))
        assert body.error is not None
        assert (body.outcome, body.error.code) == (outcome, code)
        assert admission is None


@pytest.mark.parametrize("alive", [True, False])
def test_an_answer_that_is_one_stands_also_when_its_producer_died_behind_it(attempt: Any, alive: bool) -> None:
    """The death is the journal's to tell, and is counted from there."""
    error = {"code": "bytes-differ", "text": "tensor 3"}
    body, _ = handoff_body(attempt, asked(answer(error=error), alive=alive))
    assert (body.outcome, body.error) == ("no_ack", Failure(**error))
    assert body.producer is not None
    body, _ = handoff_body(attempt, asked(answer(outcome="acknowledged", error=None), alive=alive))
    assert body.error is not None
    assert (body.outcome, body.error.code) == ("no_ack", "no-admission-record")


def test_without_an_answer_nothing_of_the_producer_was_observed(attempt: Any) -> None:
    body, _ = handoff_body(attempt, asked(Reply("closed", text="gone"), alive=False))
    assert (body.outcome, body.producer, body.receiver) == ("died", None, None)


@pytest.mark.parametrize("outcome", ["acknowledged", "no_ack"])
def test_an_admission_record_that_cannot_be_read_is_named_and_admits_nothing(attempt: Any, outcome: str) -> None:
    (attempt.lane.receiver.work_dir / "admissions" / f"{HANDOFF}.json").write_bytes(b'{"v":1,')
    error = None if outcome == "acknowledged" else {"code": "bytes-differ", "text": "tensor 3"}
    body, admission = handoff_body(attempt, asked(answer(outcome=outcome, error=error)))
    assert admission is None
    assert body.outcome == "no_ack"
    assert body.error is not None
    assert body.error.code == ("bad-admission-record" if outcome == "acknowledged" else "bytes-differ")


def test_a_traceback_of_a_megabyte_fits_into_a_receipt_with_both_its_ends(attempt: Any) -> None:
    text = "RuntimeError: " + "\x1b[31m" * 200_000 + " the last line"
    body, _ = handoff_body(attempt, asked(answer(error={"code": "engine", "text": text})))
    assert body.error is not None
    assert body.error.text.startswith("RuntimeError: ")
    assert body.error.text.endswith(" the last line")
    assert "bytes left out" in body.error.text
    assert len(canonical.dumps(body.document())) < MAX_DOCUMENT_BYTES


@pytest.mark.parametrize(
    ("ending", "alive", "outcome"),
    [
        ("not_listening", True, "refused"),
        ("closed", True, "no_ack"),
        ("bad_answer", True, "no_ack"),
        ("deadline", True, "wedged"),
        ("interrupted", True, "interrupted"),
        ("not_listening", False, "died"),
        ("closed", False, "died"),
        ("deadline", False, "died"),
    ],
)
def test_only_what_nobody_listened_to_is_refused_and_what_lives_and_says_nothing_is_not(
    attempt: Any, ending: Any, alive: bool, outcome: str
) -> None:
    """Refused says that nothing of the prompt left the producer (docs/formats/receipts.md)."""
    body, _ = handoff_body(attempt, asked(Reply(ending, text="x"), alive=alive))
    assert body.outcome == outcome
