"""A handoff over real sockets: what a good one leaves behind at both ends."""

from __future__ import annotations

from pathlib import Path

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

from producer.handoff import ack, inspection, sender
from producer.handoff.enrollment import ReceiverAddress
from producer.handoff.errors import RefusedError, WireError
from producer.handoff.manifest import KVGeometry
from producer.handoff.sender import Acknowledgement
from receipts import canonical
from receipts.clock import HostClock
from receipts.errors import BusyError, LaneError

CLOCK = HostClock("here")


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
        return opened.send(
            name or handoff_id(), PROMPT, data.n_tokens, data.tensors, data.digests if given else None
        )


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


def test_the_admission_record_is_canonical_and_signed_over_eleven_fields(tmp_path: Path) -> None:
    data = payload()
    with receiver_thread(receiver_config(tmp_path)) as address:
        result = hand_off(address, data)
    raw = (tmp_path / "admissions" / f"{result.handoff_id}.json").read_bytes()
    record = canonical.parse(raw)
    assert raw == canonical.file_bytes(record)
    assert sorted(record) == sorted(
        "v lane receiver host boot_id clock handoff_id prompt_sha256 root total_bytes nonces sig first_byte_ns "
        "admitted_ns".split()
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
    assert (result.socket.interface, result.socket.congestion) == ("lo", "reno")
    assert shown.socket == {**shown.socket, "peer": result.socket.local, "congestion": "reno"}
