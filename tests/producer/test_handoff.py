"""A handoff over real sockets: what a good one leaves behind at both ends."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest
from handoff_lane import (
    CACHE_IDENTITY,
    FAST,
    IDENTITY,
    PROMPT,
    SMALL,
    SMOLLM2,
    Payload,
    admitted,
    handoff_id,
    payload,
    producer_side,
    receiver_config,
    receiver_process,
    receiver_thread,
    signing_key,
)

from producer.handoff import ack, inspection, receiver, sender
from producer.handoff.enrollment import ReceiverAddress
from producer.handoff.errors import WireError
from producer.handoff.manifest import KVGeometry, LayerGeometry
from producer.handoff.sender import Acknowledgement
from producer.handoff.sending import PayloadSender
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import BusyError, LaneError

CLOCK = HostClock("here")
LARGE = KVGeometry((LayerGeometry("full", None, 3, 64, 0), LayerGeometry("full", None, 33, 128, 0)), "bfloat16")
"""8,192 tokens: K and V of 3 MiB (3 × 64 × 2 bytes a token), several slices; K and V of 66 MiB, several LAYERs."""


def hand_off(
    address: ReceiverAddress,
    data: Payload,
    geometry: KVGeometry = SMALL,
    *,
    given: bool = True,
    name: str | None = None,
) -> Acknowledgement:
    side = producer_side(geometry)
    with sender.connect(side, address, data.bytes, clock=CLOCK, times=FAST) as opened:
        opened.check()
        return opened.send(name or handoff_id(), PROMPT, data.n_tokens, data.tensors, data.digests if given else None)


@pytest.mark.parametrize("given", [True, False], ids=["digests-made-at-capture", "digests-made-in-the-window"])
def test_a_handoff_is_acknowledged_with_the_root_that_both_ends_computed(tmp_path: Path, given: bool) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path)) as address:
        result = hand_off(address, data, given=given)
        shown = inspection.show(tmp_path, result.handoff_id, payload=True)
    assert shown.payload == data.raw
    assert canonical.dumps(shown.manifest) == result.manifest
    assert result.root == canonical.blake3_digest(result.manifest)
    assert [item["digest"] for item in shown.manifest["tensors"]] == data.digests
    assert int(shown.admission["first_byte_ns"]) <= int(shown.admission["admitted_ns"]) <= result.ack_ns


@pytest.mark.parametrize("given", [True, False], ids=["digests-made-at-capture", "digests-made-in-the-window"])
def test_the_window_opens_before_the_first_tensor_byte_and_ends_when_the_ack_has_verified(
    tmp_path: Path, given: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    happened: list[str] = []
    moment = iter(range(1, 100))

    def stamp() -> int:
        happened.append("stamp")
        return next(moment)

    noted(monkeypatch, PayloadSender, "begin", happened, before=False)
    noted(monkeypatch, PayloadSender, "layers", happened, before=True)
    noted(monkeypatch, ack, "verify", happened, before=False)
    data = payload()
    theirs = iter(range(1, 100))
    config = receiver_config(tmp_path, clock=HostClock("here", stamp=lambda: next(theirs)))
    with receiver_thread(config) as address:
        side, clock = producer_side(), HostClock("here", stamp=stamp)
        with sender.connect(side, address, data.bytes, clock=clock, times=FAST) as opened:
            digests = data.digests if given else None
            result = opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, digests)
        record = inspection.show(tmp_path, result.handoff_id).admission
    assert (record["first_byte_ns"], record["admitted_ns"]) == ("1", "2")
    assert happened == ["begin", "stamp", "layers", "verify", "stamp"]
    assert (result.first_byte_ns, result.ack_ns) == (1, 2)


def noted(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, into: list[str], *, before: bool) -> None:
    """Have ``into`` say when ``owner.name`` was called, or when it had returned."""
    whole = getattr(owner, name)

    def noting(*args: Any) -> Any:
        if before:
            into.append(name)
        result = whole(*args)
        if not before:
            into.append(name)
        return result

    monkeypatch.setattr(owner, name, noting)


def test_the_admission_record_is_canonical_and_signed_over_eleven_fields(tmp_path: Path) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path)) as address:
        result = hand_off(address, data)
    raw = (tmp_path / "admissions" / f"{result.handoff_id}.json").read_bytes()
    record = canonical.parse(raw)
    assert raw == canonical.file_bytes(record)
    assert sorted(record) == sorted(
        [
            "v",
            "lane",
            "receiver",
            "host",
            "boot_id",
            "clock",
            "handoff_id",
            "prompt_sha256",
            "root",
            "total_bytes",
            "nonces",
            "sig",
            "first_byte_ns",
            "admitted_ns",
        ]
    )
    assert record["nonces"] == {"p": result.nonce_p, "r": result.nonce_r}
    statement = ack.AckStatement(
        "loopback", "here", IDENTITY, CACHE_IDENTITY, "native", result.handoff_id, PROMPT, result.root, 960,
        result.nonce_p, result.nonce_r,
    )  # fmt: skip
    ack.verify(statement, record["sig"], signing_key().public_key().public_bytes_raw())


def test_the_sample_models_47_megabytes_cross_to_another_process(tmp_path: Path) -> None:
    data = payload(SMOLLM2, 2048)
    assert data.bytes == 47_185_920
    with receiver_process(tmp_path, SMOLLM2) as running:
        result = hand_off(running.address, data, SMOLLM2)
        shown = inspection.show(tmp_path, result.handoff_id, payload=True)
    assert shown.payload == data.raw
    assert shown.bytes_received == result.bytes_sent > data.bytes
    # Observed, not repeated from a lane file: nobody told either end which interface this is.
    assert (result.socket.interface, result.socket.congestion) == ("lo", "reno")
    assert shown.socket == {**shown.socket, "peer": result.socket.local, "congestion": "reno"}


@pytest.mark.slow
@pytest.mark.parametrize("given", [True, False], ids=["digests-made-at-capture", "digests-made-in-the-window"])
def test_tensors_of_several_slices_and_of_several_layer_frames_cross_whole(tmp_path: Path, given: bool) -> None:
    data = payload(LARGE, 8192)
    assert [len(view) >> 20 for _, view in data.tensors] == [3, 3, 66, 66]
    with receiver_thread(receiver_config(tmp_path, LARGE, memory_limit_bytes=data.bytes)) as address:
        result = hand_off(address, data, LARGE, given=given)
        shown = inspection.show(tmp_path, result.handoff_id, payload=True)
    assert shown.payload == data.raw
    assert [item["digest"] for item in shown.manifest["tensors"]] == data.digests


def test_several_handoffs_follow_one_another_and_the_oldest_make_room(tmp_path: Path) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path, memory_limit_bytes=2 * data.bytes + 100)) as address:
        names = [hand_off(address, data).handoff_id for _ in range(3)]
        status = inspection.status(tmp_path)
        assert (status["held"], status["held_bytes"]) == (names[1:], 2 * data.bytes)
        with pytest.raises(LaneError, match="evicted"):
            inspection.show(tmp_path, names[0])
    record = canonical.parse((tmp_path / "evictions" / f"{names[0]}.json").read_bytes())
    assert (record["handoff_id"], record["total_bytes"]) == (names[0], 960)
    assert len(admitted(tmp_path)) == 3


def test_an_eviction_without_a_record_is_said_and_still_known(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path, memory_limit_bytes=data.bytes)) as address:
        first = hand_off(address, data).handoff_id
        (tmp_path / "evictions").rmdir()
        (tmp_path / "evictions").write_bytes(b"")  # nothing can be written there any more
        hand_off(address, data)
        with pytest.raises(LaneError, match=f"evicted: handoff {first} was evicted"):
            inspection.show(tmp_path, first)
    assert f"handoff {first} was evicted, but its eviction record could not be written" in capfd.readouterr().err


def test_equal_payloads_have_equal_roots_and_other_bytes_another_tensors_root(tmp_path: Path) -> None:
    with receiver_thread(receiver_config(tmp_path)) as address:
        one, same, other = (hand_off(address, payload(seed=seed)) for seed in (1, 1, 2))
    assert (one.root, one.tensors_root) == (same.root, same.tensors_root)
    assert one.tensors_root != other.tensors_root


def test_a_second_receiver_on_one_work_folder_is_refused(tmp_path: Path) -> None:
    config = receiver_config(tmp_path)
    with receiver_thread(config), pytest.raises(BusyError):
        receiver.serve(config, ready=lambda *_: None, stop=threading.Event())


def test_asking_where_no_receiver_runs_says_so(tmp_path: Path) -> None:
    with pytest.raises(LaneError, match="no receiver answers"):
        inspection.status(tmp_path)


def test_an_unknown_handoff_and_a_path_for_an_id_are_refused(tmp_path: Path) -> None:
    with receiver_thread(receiver_config(tmp_path)):
        for name in ("0" * 32, "../admissions/x", ""):
            with pytest.raises(LaneError, match="unknown"):
                inspection.show(tmp_path, name)


def test_a_used_handoff_cannot_be_sent_again(tmp_path: Path) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path)) as address:
        opened = sender.connect(producer_side(), address, data.bytes, clock=CLOCK, times=FAST)
        opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, None)
        with pytest.raises(WireError, match="closed"):
            opened.send(handoff_id(), PROMPT, data.n_tokens, data.tensors, None)


def test_a_record_that_cannot_be_made_durable_admits_nothing(tmp_path: Path) -> None:
    with receiver_thread(receiver_config(tmp_path)) as address:
        (tmp_path / "admissions").rmdir()
        (tmp_path / "admissions").write_bytes(b"in its place")
        with pytest.raises(WireError) as caught:
            hand_off(address, payload())
        assert caught.value.code == "record_failed"
        assert inspection.status(tmp_path)["held"] == []
