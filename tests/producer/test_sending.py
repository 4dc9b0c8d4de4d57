"""What a producer says of how far it was when its send broke off."""

from __future__ import annotations

from typing import Any

import pytest
from handoff_lane import PROMPT, handoff_id, payload

from producer.handoff.errors import LinkError
from producer.handoff.keepalive import Pings
from producer.handoff.manifest import KVGeometry, LayerGeometry
from producer.handoff.sending import PayloadSender
from producer.handoff.session import SessionKeys, Transcript
from producer.handoff.stream import Deadline

TWO_MIB_EACH = KVGeometry((LayerGeometry("full", None, 2, 64, 0),), "bfloat16")
"""K and V, each 2 heads × 64 × 2 bytes × 8,192 tokens = 2 MiB: one batch, or two slices that are digested."""


class BreaksOff:
    """A stream that takes ``writes`` writes and no more."""

    def __init__(self, writes: int) -> None:
        self.left = writes

    def has_input(self) -> bool:
        return False

    def write(self, *_: Any) -> None:
        self.left -= 1
        if self.left < 0:
            raise LinkError("deadline", "no more")


@pytest.mark.parametrize(
    ("given", "writes", "complete"),
    [(True, 2, 1), (False, 2, 0), (False, 3, 1), (False, 4, 1)],
    ids=["one whole batch", "half a tensor", "one tensor", "one tensor and a half"],
)
def test_a_send_that_breaks_off_counts_the_tensors_that_left_whole(given: bool, writes: int, complete: int) -> None:
    data = payload(TWO_MIB_EACH, 8192)
    stream: Any = BreaksOff(writes)  # BEGIN is the first write
    sender = PayloadSender(
        stream, Transcript(), SessionKeys(bytes(32), bytes(32)), Deadline.after(60), data.tensors, Pings()
    )
    sender.begin(
        {"handoff_id": handoff_id(), "prompt_sha256": PROMPT, "n_tokens": data.n_tokens, "total_bytes": data.bytes}
    )
    with pytest.raises(LinkError, match=f"after {complete} of 2 tensors"):
        sender.layers(data.digests if given else None)
