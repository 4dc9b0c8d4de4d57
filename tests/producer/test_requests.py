"""What may be asked of the resident: everything wrong is refused before the engine is touched."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from producer import requests
from producer.requests import HandoffRequest, Limits, StatusRequest
from receipts import canonical
from receipts.errors import IdentityError, SoakledgerError
from receipts.prompts import prompt_sha256, seeded_token_ids

LIMITS = Limits(context_tokens=64, vocab_size=500, tokenizer=None)
IDS = [7, 8, 9]


def line(**changed: Any) -> bytes:
    value = {
        "v": 1,
        "op": "handoff",
        "handoff_id": "0" * 32,
        "prompt": {"source": "ids", "ids": IDS},
        "prompt_sha256": prompt_sha256(IDS),
        "receiver": "here",
        "watchdog_s": None,
        "used_by": None,
    }
    return json.dumps(value | changed).encode() + b"\n"


def ids_of(data: bytes) -> list[int]:
    request = requests.parse(data)
    assert isinstance(request, HandoffRequest)
    return requests.prompt_ids(request, LIMITS)


def test_a_prompt_by_ids_comes_out_as_it_went_in() -> None:
    assert ids_of(line()) == IDS


def test_a_seeded_prompt_is_made_here_and_checked_against_its_digest() -> None:
    ids = seeded_token_ids(28, 4, 3, 500)
    prompt = {"source": "seeded", "seed": 28, "tokens": 4, "id_range": [3, 500]}
    assert ids_of(line(prompt=prompt, prompt_sha256=prompt_sha256(ids))) == [75, 351, 241, 221]


def test_a_request_may_say_which_attempt_it_is_of() -> None:
    request = requests.parse(line(used_by="soak-n12/12"))
    assert isinstance(request, HandoffRequest)
    assert request.used_by == "soak-n12/12"


def test_status_is_a_request_of_its_own() -> None:
    assert isinstance(requests.parse(b'{"v":1,"op":"status"}\n'), StatusRequest)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"prompt": {"source": "ids", "ids": []}, "prompt_sha256": prompt_sha256([])}, "the prompt is empty"),
        ({"prompt": {"source": "ids", "ids": [1] * 64}}, "64 prompt tokens"),
        ({"prompt": {"source": "ids", "ids": [1, 500]}}, "token id 500 is outside the vocabulary of 500"),
        ({"prompt": {"source": "ids", "ids": [-1]}}, "token id -1 is outside"),
        ({"prompt_sha256": "sha256:" + "0" * 64}, "the prompt has digest"),
        (
            {"prompt": {"source": "seeded", "seed": 1, "tokens": 10**12, "id_range": [0, 2]}},
            "1000000000000 prompt tokens",
        ),
        ({"prompt": {"source": "seeded", "seed": 1, "tokens": 4, "id_range": [9, 9]}}, "is empty or negative"),
        ({"prompt": {"source": "text", "text": "hello"}}, "no tokenizer"),
        ({"prompt": {"source": "file", "path": "/nowhere/prompt.txt"}}, "cannot be read"),
        ({"prompt": {"source": "file", "path": "a\0b"}}, "cannot be read"),
    ],
)
def test_a_prompt_that_does_not_fit_is_refused_with_the_reason(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(SoakledgerError, match=said):
        ids_of(line(**changed))


@pytest.mark.parametrize(
    "data",
    [
        b"\n",
        b"garbage\n",
        b"[]\n",
        b'{"op":"unknown"}\n',
        b'{"v":1,"op":"status","more":1}\n',
        line(receiver="127.0.0.1:47900/x"),
        line(handoff_id="x"),
        line(watchdog_s=0),
        line(used_by="x" * 60_000),
        line(used_by="soak-n12"),
        line(used_by="soak-n12/0"),
        line(used_by="Soak/1"),
        line(used_by="soak-n12/1\n"),
        line(used_by=""),
        line(surprise=1),
        b'{"v":1,"v":1,"op":"status"}\n',
        b'{"v":NaN,"op":"status"}\n',
    ],
)
def test_what_is_no_request_is_refused_as_the_senders_mistake(data: bytes) -> None:
    with pytest.raises(SoakledgerError):
        requests.parse(data)


def a_tokenizer(word: str) -> bytes:
    """A tokenizer of one word, which it gives the id 7."""
    model = {"type": "WordLevel", "vocab": {word: 7, "?": 0}, "unk_token": "?"}
    return json.dumps(
        {"version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"}, "model": model}
    ).encode()


def test_text_is_made_ids_by_the_enrolled_tokenizer_whatever_lies_in_the_folder_by_now(tmp_path: Path) -> None:
    pytest.importorskip("tokenizers")
    data = a_tokenizer("hello")
    (tmp_path / "tokenizer.json").write_bytes(data)
    files = {"tokenizer.json": {"sha256": canonical.sha256(data), "bytes": len(data)}}
    limits = Limits(64, 500, requests.enrolled_tokenizer(tmp_path, files))
    (tmp_path / "tokenizer.json").write_bytes(a_tokenizer("other"))
    request = requests.parse(line(prompt={"source": "text", "text": "hello"}, prompt_sha256=prompt_sha256([7])))
    assert isinstance(request, HandoffRequest)
    assert requests.prompt_ids(request, limits) == [7]


def test_a_tokenizer_that_is_not_enrolled_is_none_and_one_that_is_another_is_refused(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes(a_tokenizer("hello"))
    assert requests.enrolled_tokenizer(tmp_path, {"config.json": {"sha256": "", "bytes": 2}}) is None
    with pytest.raises(IdentityError, match="not the enrolled one"):
        requests.enrolled_tokenizer(tmp_path, {"tokenizer.json": {"sha256": "sha256:" + 64 * "0", "bytes": 2}})
