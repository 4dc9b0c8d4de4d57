"""Registration and verdict are one entry each: what could not be one is refused before anything is written."""

from __future__ import annotations

import re
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from judged import SOAK_N12, Attempt
from judged_ledger import clean_attempt, new_ledger, put

from campaigns import cli, registry
from campaigns.refusals import read_spec
from campaigns.registration import Registered, register, require_registered
from campaigns.sizes import MAX_REASON_BYTES, ROOM_BYTES, verdict_bytes
from campaigns.spec import resolve
from ledger.entry import MAX_DOCUMENT_BYTES
from ledger.store import Ledger
from receipts import canonical
from receipts.errors import FaultsError, InputError

ONE_MORE = """
[[criterion]]
name = "{name}"
stage = "soak"
metric = "{metric}"
aggregate = "{aggregate}"
op = "{op}"
value = {value}
"""


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return new_ledger(tmp_path)


def with_more(count: int, **changed: Any) -> bytes:
    rule = {"metric": "handoff.total_s", "aggregate": "max", "op": "<=", "value": 120} | changed
    return SOAK_N12 + "".join(ONE_MORE.format(name=f"more-{n}", **rule) for n in range(count)).encode()


def filled(size: int) -> bytes:
    """A spec of ``size`` bytes of which most is a comment."""
    return SOAK_N12 + b"#" * (size - len(SOAK_N12) - 1) + b"\n"


def largest() -> int:
    """The largest such spec that is not refused."""
    low, high = len(SOAK_N12) + 1, MAX_DOCUMENT_BYTES
    while low + 1 < high:
        middle = (low + high) // 2
        try:
            read_spec(filled(middle), "s.toml")
        except FaultsError:
            high = middle
        else:
            low = middle
    return low


def registered(ledger: Ledger, text: bytes, folder: Path, reason: str | None = None) -> Registered:
    path = folder / "spec.toml"
    path.write_bytes(text)
    loaded = registry.find(str(path))
    return register(ledger, loaded, resolve(loaded.spec), reason)


# Registrations


def test_a_spec_is_refused_by_the_byte_with_its_size_and_the_bound_and_what_is_not_refused_registers(
    ledger: Ledger, tmp_path: Path
) -> None:
    size = largest()
    with pytest.raises(FaultsError, match=r"^s.toml:1: .* have 49153 bytes, and the most .* is 49152$"):
        read_spec(filled(size + 1), "s.toml")
    registered(ledger, SOAK_N12, tmp_path)
    longest = "é" * (MAX_REASON_BYTES // 2 - 1)
    amended = registered(ledger, filled(size), tmp_path, longest)
    assert (amended.fresh, amended.data.reason) == (True, longest)


def test_a_reason_that_is_too_long_is_refused_with_its_size(ledger: Ledger, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="the reason has 4098 bytes, and the most that is kept is 4096"):
        registered(ledger, SOAK_N12, tmp_path, "r" * 4096)
    assert ledger.size() == 1


def test_many_tokens_are_not_drawn_to_know_the_size(monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(
        "receipts.prompts.seeded_token_ids", lambda _seed, tokens, _low, _high: drawn.append(tokens) or [1] * tokens
    )
    read_spec(SOAK_N12.replace(b"tokens = 2048", b"tokens = 10000000"), "s.toml")
    assert set(drawn) == {1}


@pytest.mark.parametrize("command", [["campaign", "validate"], ["campaign", "register"]])
@pytest.mark.parametrize("spec", [filled(60_000), with_more(80)], ids=["text", "verdict"])
def test_a_refused_spec_is_status_2_with_size_and_bound_and_leaves_nothing_behind(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    spec: bytes,
    command: list[str],
) -> None:
    for variable in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "SOAKLEDGER_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    path = tmp_path / "large.toml"
    path.write_bytes(spec)
    assert cli.run([*command, str(path)]) == 2
    said = capsys.readouterr()
    assert re.search(r"\b\d{5} bytes, and the most that .* is \d{5}$", said.err.strip())
    assert said.out == ""
    assert list(tmp_path.iterdir()) == [path]


def test_an_amendment_that_is_weaker_in_more_places_than_an_entry_holds_is_refused_and_the_ledger_stays(
    ledger: Ledger, tmp_path: Path
) -> None:
    registered(ledger, with_more(30), tmp_path)
    for bound in range(121, 140):
        size = ledger.size()
        try:
            registered(ledger, with_more(30, value=bound), tmp_path, "looser")
        except InputError as error:
            assert re.search(r"weaker than the earlier registrations in \d+ places", str(error))
            assert ledger.size() == size
            return
        assert ledger.size() == size + 1
    pytest.fail("every one fitted")


# Verdicts


def longest_of(attempt: Attempt) -> int:
    return verdict_bytes(read_spec(attempt.spec, "s.toml"))


def test_a_verdict_on_a_thousand_reps_is_no_larger_than_one_on_twelve() -> None:
    thousand = Attempt(SOAK_N12.replace(b"reps = 12", b"reps = 1000").replace(b"value = 12\n", b"value = 1000\n"))
    thousand.clean(range(1, 1001))
    thousand.close()
    twelve = clean_attempt()
    sizes = [len(canonical.file_bytes(item.judge())) for item in (twelve, thousand)]
    assert sizes[1] - sizes[0] < 200
    assert sizes[1] < longest_of(thousand) < MAX_DOCUMENT_BYTES - ROOM_BYTES
    assert longest_of(thousand) - longest_of(twelve) < 200


def test_however_often_a_producer_dies_the_verdict_counts_all_of_it_and_keeps_to_its_bound() -> None:
    attempt = Attempt()
    attempt.start_run()
    for pid in range(200):
        attempt.death(pid=pid, site="engine_touched")
    attempt.rep(1)
    attempt.close()
    document = attempt.judge()
    deaths = next(item for item in document["criteria"] if item["name"] == "no-producer-death")
    assert len(deaths["deaths"]) == 64
    assert deaths["outcome"] == "not_met"
    assert len(canonical.file_bytes(document)) <= longest_of(attempt)


@pytest.mark.parametrize("aggregate", ["mean", "median", "trend", "p50", "min", "last"])
@pytest.mark.parametrize("metric", ["handoff.burst_gbps", "handoff.total_s", "handoff.payload_bytes"])
def test_an_exact_figure_keeps_to_its_bound(metric: str, aggregate: str) -> None:
    """Durations that share no factor make the longest fractions."""
    spec = SOAK_N12.replace(b"reps = 12", b"reps = 60").replace(b"value = 12\n", b"value = 60\n")
    value = {"handoff.burst_gbps": 1, "handoff.total_s": 9, "handoff.payload_bytes": 9}[metric]
    spec += ONE_MORE.format(name="more", metric=metric, aggregate=aggregate, op=">=", value=value).encode()
    attempt = Attempt(spec)
    attempt.start_run()
    for rep in range(1, 61):
        attempt.rep(rep, gbps=Fraction(10**6 + 7 * rep, 10**6 + 3 * rep * rep))
    attempt.close()
    document = attempt.judge()
    assert next(item for item in document["criteria"] if item["name"] == "more")["observed"] is not None
    assert len(canonical.file_bytes(document)) <= longest_of(attempt)


def opened_before(ledger: Ledger, count: int) -> None:
    """As many earlier attempts of the family, each as long as its name may be."""
    last = next(iter(ledger.entries(kinds={"attempt_open"})))
    name = "x" * 64
    ledger.append_many(
        ("attempt_open", f"{name}/{n}", last.data | {"campaign": name, "attempt": n}) for n in range(1, count + 1)
    )


def test_an_attempt_whose_verdict_would_not_fit_beside_its_family_is_not_opened(ledger: Ledger, tmp_path: Path) -> None:
    put(ledger, clean_attempt())
    path = tmp_path / "spec.toml"
    path.write_bytes(SOAK_N12)
    loaded = registry.find(str(path))
    resolved = resolve(loaded.spec)
    opened_before(ledger, 100)
    require_registered(ledger, loaded, resolved)
    opened_before(ledger, 400)
    with pytest.raises(InputError, match=r"could have \d+ bytes, .* is 49152: it names each of the 501 attempts"):
        require_registered(ledger, loaded, resolved)


def test_a_registered_spec_leaves_room_for_eighty_attempts_of_its_family() -> None:
    name = "x" * 64
    spec = read_spec(with_more(4), "s.toml")
    eighty = verdict_bytes(spec, earlier=[(name[:40], 1000)] * 80) - verdict_bytes(spec)
    assert eighty <= ROOM_BYTES
