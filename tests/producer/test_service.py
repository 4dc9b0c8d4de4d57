"""The resident's loop without an engine: what is asked never ends it but at the three sites, and they always do."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from producer import service
from producer.requests import Limits
from receipts import canonical
from receipts.errors import HomeError
from receipts.prompts import prompt_sha256

pytestmark = pytest.mark.timeout(60)


class Ended(BaseException):
    """``die`` was called; in a test the process stays."""


@pytest.fixture
def resident(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    def end(site: str, reason: str) -> None:
        raise Ended(site, reason)

    monkeypatch.setattr(service, "die", end)
    lane = SimpleNamespace(producer=SimpleNamespace(work_dir=tmp_path, watchdog_s=60))
    return service.Service(
        lane=lane,  # type: ignore[arg-type]
        engine=SimpleNamespace(free_blocks=lambda: 1),  # type: ignore[arg-type]
        side=SimpleNamespace(receiver="here", identity="i", cache_identity="c", mode="native"),  # type: ignore[arg-type]
        limits=Limits(64, 500, None),
        clock=SimpleNamespace(stamp=lambda: 9, awake=lambda: 9),  # type: ignore[arg-type]
        journal=SimpleNamespace(head=lambda: SimpleNamespace(document=dict), append=lambda _: None),  # type: ignore[arg-type]
        instance=SimpleNamespace(document=dict),  # type: ignore[arg-type]
        lease=SimpleNamespace(is_on_path=lambda: True),  # type: ignore[arg-type]
        ready_ns=0,
    )


def asked(resident: Any, line: bytes) -> dict[str, Any]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.sendall(line)
        resident._answer(theirs)
        answer: dict[str, Any] = canonical.parse(ours.recv(1 << 16))
        return answer


def handoff(prompt: dict[str, Any]) -> bytes:
    return canonical.file_bytes(
        {
            "v": 1, "op": "handoff", "handoff_id": "0" * 32, "prompt": prompt, "prompt_sha256": prompt_sha256([1]),
            "receiver": "here", "watchdog_s": None, "used_by": None,
        }
    )  # fmt: skip


@pytest.mark.parametrize("tokenizer", [None, b"no tokenizer", b"{}"])
def test_a_prompt_that_cannot_be_read_is_refused_and_the_producer_lives_on(
    resident: Any, tmp_path: Path, tokenizer: bytes | None
) -> None:
    if tokenizer is not None:
        (tmp_path / "tokenizer.json").write_bytes(tokenizer)
    for prompt in ({"source": "file", "path": "a\0b"}, {"source": "text", "text": "hello"}):
        answer = asked(resident, handoff(prompt))
        assert (answer["outcome"], answer["engine_touched"], answer["error"]["code"]) == (
            "refused",
            False,
            "bad-request",
        )


def test_a_trickle_does_not_keep_the_others_out(resident: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "REQUEST_TIMEOUT_S", 0.3)
    ours, theirs = socket.socketpair()
    over = threading.Event()

    def trickle() -> None:
        while not over.wait(0.05):
            ours.send(b" ")

    with ours, theirs:
        thread = threading.Thread(target=trickle)
        thread.start()
        resident._answer(theirs)  # returns: the test's own limit is what would end it otherwise
        over.set()
        thread.join()


def test_a_journal_that_takes_no_record_ends_it_behind_its_answer(resident: Any) -> None:
    def full(*_: object) -> None:
        raise HomeError("disk full")

    resident._record = full
    ours, theirs = socket.socketpair()
    request = service.requests.parse(handoff({"source": "ids", "ids": [1]}))
    with ours, theirs, pytest.raises(Ended) as caught:
        resident._finish(theirs, service.Served("acknowledged", True, {}), request)
    assert caught.value.args[0] == "engine_touched"
    assert "the journal cannot be written: disk full" in caught.value.args[1]


@pytest.mark.parametrize("stderr", ["/dev/full", None], ids=["a full disk", "closed"])
def test_the_status_is_75_even_where_no_last_word_can_be_said(stderr: str | None) -> None:
    code = "from producer.engine.deaths import die; die('engine_touched', 'x')"
    if stderr is None:
        code = "import os; os.close(2); " + code
    with Path(stderr or os.devnull).open("wb") as stream:
        ended = subprocess.run([sys.executable, "-c", code], stderr=stream, check=False)
    assert ended.returncode == 75
