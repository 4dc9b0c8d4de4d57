"""``lane enroll``: keys made once, each end its own copies, a second time nothing changes."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from producer import enrollment, identity
from producer.lane import Lane, LaneConfig
from producer.sample_lane import write_loopback_lane
from receipts import canonical
from receipts.errors import IdentityError, InputError

TEMPLATE = b"{{ messages }}"
LAYER = {"attention": "full", "window": None, "kv_heads": 2, "head_size": 64, "kv_group": 0}


@pytest.fixture
def lane(tmp_path: Path) -> Lane:
    """A loopback lane whose producer is enrolled: an identity document and a checkpoint with a template."""
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    (checkpoint / "chat_template.jinja").write_bytes(TEMPLATE)
    write_loopback_lane(tmp_path / "lane.toml", checkpoint)
    document = {
        "format": identity.FORMAT,
        "mode": "native",
        "chat_template": {"bytes": len(TEMPLATE), "sha256": canonical.sha256(TEMPLATE)},
        "geometry": {"kv_dtype": "bfloat16", "layers": [LAYER]},
    }
    (tmp_path / "identity.json").write_bytes(canonical.file_bytes(document))
    return LaneConfig.load(tmp_path / "lane.toml")


def test_both_ends_get_the_same_handoff_key_and_nobody_else_may_read_any_key(lane: Lane) -> None:
    enrollment.enroll(lane)
    signing = lane.receiver.enrolled / "receiver-signing.key"
    assert lane.producer.key.read_bytes() == lane.receiver.key.read_bytes()
    assert len(lane.producer.key.read_bytes()) == 32
    assert {path.stat().st_mode & 0o777 for path in (lane.producer.key, lane.receiver.key, signing)} == {0o600}


def test_enrolling_twice_changes_nothing(lane: Lane) -> None:
    first = enrollment.enroll(lane)
    second = enrollment.enroll(lane)
    assert len(first.made) == 6  # two handoff keys, signing key, identity, template, public key
    assert second.made == ()
    assert second.moved == ()
    assert second.data == first.data


def test_the_public_key_that_the_producer_keeps_is_the_receivers(lane: Lane) -> None:
    data = enrollment.enroll(lane).data
    side = enrollment.producer_side(lane, identity.read(lane.producer.identity))
    config = enrollment.receiver_config(lane)
    assert side.receiver_public_key == config.signing_key.public_key().public_bytes_raw()
    assert data.receiver_public_key == "ed25519:" + base64.b64encode(side.receiver_public_key).decode()
    assert (side.identity, side.cache_identity) == (config.identity, config.cache_identity)
    assert data.cache_identity == identity.cache_identity("native", data.identity_sha256)


def test_a_new_identity_moves_the_receivers_copy_aside_and_keeps_the_keys(lane: Lane) -> None:
    before = enrollment.enroll(lane)
    document = identity.read(lane.producer.identity) | {"lane": "another"}
    lane.producer.identity.write_bytes(canonical.file_bytes(document))
    after = enrollment.enroll(lane)
    assert [old.name for old, _ in after.moved] == ["identity.json"]
    assert all(new.exists() for _, new in after.moved)
    assert after.data.receiver_public_key == before.data.receiver_public_key
    assert after.data.identity_sha256 != before.data.identity_sha256


def test_a_receiver_whose_own_template_was_edited_does_not_start(lane: Lane) -> None:
    enrollment.enroll(lane)
    copy = lane.receiver.enrolled / "chat_template.jinja"
    copy.write_bytes(b"{{ other }}")
    with pytest.raises(IdentityError, match=r"chat template: enrolled .*, found "):
        enrollment.receiver_config(lane)


def test_ends_with_different_keys_are_refused_by_name(lane: Lane) -> None:
    enrollment.enroll(lane)
    lane.receiver.key.write_bytes(b"x" * 32)
    with pytest.raises(IdentityError, match="different handoff keys"):
        enrollment.enroll(lane)


def test_a_key_that_others_may_read_or_that_is_too_short_is_refused(lane: Lane) -> None:
    enrollment.enroll(lane)
    lane.receiver.key.chmod(0o640)
    with pytest.raises(InputError, match="may be read by its owner only"):
        enrollment.receiver_config(lane)
    lane.receiver.key.chmod(0o600)
    lane.receiver.key.write_bytes(b"x" * 31)
    with pytest.raises(InputError, match="this file 31"):
        enrollment.receiver_config(lane)


def test_without_an_enrolled_producer_the_message_says_what_to_run(lane: Lane) -> None:
    lane.producer.identity.unlink()
    with pytest.raises(InputError, match="producer enroll"):
        enrollment.enroll(lane)


@pytest.mark.parametrize(
    "spelling", ["A" * 42 + "B=", "A" * 43, "A" * 43 + "==", "A" * 42 + "A=\n=", "A" * 42 + "-=", "", "A" * 40]
)
def test_a_public_key_has_one_spelling(spelling: str) -> None:
    assert enrollment.public_key_bytes("ed25519:" + "A" * 43 + "=\n") == bytes(32)
    with pytest.raises(InputError):
        enrollment.public_key_bytes("ed25519:" + spelling)
    with pytest.raises(InputError):
        enrollment.public_key_bytes("A" * 43 + "=")
