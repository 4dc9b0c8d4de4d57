"""Two implementations of docs/formats/wire.md meet: ours, and one written from the page alone.

`wire_client` and `wire_receiver` import nothing of ours; this file alone knows both. What either end must refuse is
asked of both with the same bytes, so that a difference in what they understand the page to say shows here.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import os
import re
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
import wire_client as client_end
import wire_receiver as receiver_end
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from wire_client import Client, Enrolled, Range, in_pieces, prompt_sha256, random_payloads
from wire_receiver import Lane, Limits, Receiver, Session

from producer.handoff import keepalive as our_keepalive
from producer.handoff import receiver as our_receiver
from producer.handoff import sender as our_sender
from producer.handoff.enrollment import ProducerSide, ReceiverAddress, ReceiverConfig, ReceiverTimes, SenderTimes
from producer.handoff.errors import CODES, RefusedError
from producer.handoff.errors import WireError as OurWireError
from producer.handoff.manifest import KVGeometry, LayerGeometry, expected_tensors
from receipts.clock import HostClock

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PAGE = ROOT / "docs" / "formats" / "wire.md"
SIGNING_KEY = bytes(range(64, 96))
PUBLIC_KEY = Ed25519PrivateKey.from_private_bytes(SIGNING_KEY).public_key().public_bytes_raw()

FULL_SMALL = {"kv_heads": 2, "head_size": 8}
SMALL = {"dtype": "bfloat16", "layers": [FULL_SMALL, {**FULL_SMALL, "window": 4}]}
FULL_LARGE = {"kv_heads": 4, "head_size": 64}
LARGE = {"dtype": "bfloat16", "layers": [FULL_LARGE, FULL_LARGE, {**FULL_LARGE, "window": 256}, FULL_LARGE]}
LARGE_TOKENS = 1_500
"""6 tensors of 1,500 tokens and 2 of 256, 512 bytes each: 4.9 MB."""
TOKENS = tuple(range(100, 110))


# --- one enrollment, held by all four ends ----------------------------------------------------------------------------


def enrollment(work_dir: Path, geometry: dict[str, Any]) -> dict[str, Any]:
    return {
        "lane": "interop",
        "identity": "sha256:" + "1a" * 32,
        "cache_identity": "sha256:" + "2b" * 32,
        "mode": "native",
        "receiver": "there",
        "handoff_key": bytes(range(32)).hex(),
        "private_key": SIGNING_KEY.hex(),
        "public_key": PUBLIC_KEY.hex(),
        "geometry": geometry,
        "memory_limit_bytes": 8 * 1024 * 1024,
        "work_dir": str(work_dir),
    }


def our_geometry(geometry: dict[str, Any]) -> KVGeometry:
    layers = tuple(
        LayerGeometry("window" if "window" in e else "full", e.get("window"), e["kv_heads"], e["head_size"], 0)
        for e in geometry["layers"]
    )
    return KVGeometry(layers, geometry["dtype"])


def our_side(told: dict[str, Any]) -> ProducerSide:
    return ProducerSide(
        lane=told["lane"],
        identity=told["identity"],
        cache_identity=told["cache_identity"],
        mode=told["mode"],
        receiver=told["receiver"],
        receiver_public_key=bytes.fromhex(told["public_key"]),
        handoff_key=bytes.fromhex(told["handoff_key"]),
        geometry=our_geometry(told["geometry"]),
    )


def our_config(told: dict[str, Any], times: ReceiverTimes | None = None) -> ReceiverConfig:
    return ReceiverConfig(
        name=told["receiver"],
        lane=told["lane"],
        address="127.0.0.1",
        port=0,
        work_dir=Path(told["work_dir"]),
        memory_limit_bytes=told["memory_limit_bytes"],
        handoff_key=bytes.fromhex(told["handoff_key"]),
        signing_key=Ed25519PrivateKey.from_private_bytes(bytes.fromhex(told["private_key"])),
        identity=told["identity"],
        cache_identity=told["cache_identity"],
        mode=told["mode"],
        geometry=our_geometry(told["geometry"]),
        clock=HostClock(told["receiver"]),
        times=times or ReceiverTimes(handshake_s=10, silence_s=10, write_s=5, drain_s=2),
    )


def lane_of(told: dict[str, Any], work_dir: Path) -> Lane:
    path = work_dir / "lane.json"
    path.write_text(json.dumps(told), "utf-8")
    return Lane.load(path)


@contextlib.contextmanager
def our_receiver_thread(config: ReceiverConfig) -> Iterator[int]:
    stop, ready = threading.Event(), threading.Event()
    port: list[int] = []

    def on_ready(host: str, number: int) -> None:
        assert host == "127.0.0.1"
        port.append(number)
        ready.set()

    thread = threading.Thread(target=lambda: our_receiver.serve(config, ready=on_ready, stop=stop))
    thread.start()
    try:
        assert ready.wait(20), "our receiver did not come up"
        yield port[0]
    finally:
        stop.set()
        thread.join(20)
        assert not thread.is_alive(), "our receiver did not stop"


@contextlib.contextmanager
def process(*words: str) -> Iterator[int]:
    """A receiver in a process of its own, which serves until its standard input ends."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        [sys.executable, *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT
    ) as child:
        assert child.stdin is not None
        assert child.stdout is not None
        try:
            yield json.loads(child.stdout.readline())["port"]
        finally:
            child.stdin.close()
            try:
                child.wait(20)
            except subprocess.TimeoutExpired:
                child.kill()
                raise
    assert child.returncode == 0


# --- both senders behind one face -------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Result:
    root: str
    tensors_root: str
    sig: str
    nonces: tuple[str, str]


class RefusedWith(Exception):
    """How a sender failed, whichever it was."""

    def __init__(self, code: str, named: bool, first_difference: int | None = None) -> None:
        super().__init__(code)
        self.code = code
        self.named = named
        self.first_difference = first_difference


FAST = SenderTimes(connect_s=10, handshake_s=10, session_s=60, ping_s=0.05, silence_s=10)
Send = Callable[..., Result]


def ours_sends(
    told: dict[str, Any], port: int, token_ids: Sequence[int], payloads: Sequence[bytes], handoff_id: str | None = None
) -> Result:
    side = our_side(told)
    described = expected_tensors(side.geometry, len(token_ids))
    tensors = [(item, memoryview(data)) for item, data in zip(described, payloads, strict=True)]
    address = ReceiverAddress("127.0.0.1", port)
    size = sum(map(len, payloads))
    try:
        with our_sender.connect(side, address, size, clock=HostClock("here"), times=FAST) as opened:
            done = opened.send(
                handoff_id or os.urandom(16).hex(), prompt_sha256(token_ids), len(token_ids), tensors, None
            )
    except RefusedError as error:
        raise RefusedWith(error.code, True, error.first_difference) from error
    except OurWireError as error:
        raise RefusedWith(error.code, error.code in CODES) from error
    return Result(done.root, done.tensors_root, done.signature, (done.nonce_p, done.nonce_r))


def theirs_sends(
    told: dict[str, Any], port: int, token_ids: Sequence[int], payloads: Sequence[bytes], handoff_id: str | None = None
) -> Result:
    enrolled = Enrolled.from_json(told)
    try:
        with Client(enrolled, ("127.0.0.1", port), session_s=60) as client:
            done = client.hand_over(token_ids, payloads, handoff_id=handoff_id)
    except client_end.WireError as error:
        first = None
        if error.digests:
            own = [client_end.blake3_name(data) for data in payloads]
            first = next((n for n, pair in enumerate(zip(own, error.digests, strict=True)) if pair[0] != pair[1]), None)
        raise RefusedWith(error.code, True, first) from error
    return Result(done.root, done.tensors_root, done.sig, (done.nonce_p, done.nonce_r))


SENDERS: dict[str, Send] = {"our-sender": ours_sends, "independent-client": theirs_sends}


@pytest.fixture(params=list(SENDERS))
def send(request: pytest.FixtureRequest) -> Send:
    return SENDERS[request.param]


def code_of(send: Send, told: dict[str, Any], port: int, payloads: Sequence[bytes] | None = None) -> str:
    """The name of the error a sender ends in. An ACK that it accepts fails the test."""
    with pytest.raises(RefusedWith) as failed:
        send(told, port, TOKENS, payloads or small_payloads(told))
    assert failed.value.named, failed.value.code
    return failed.value.code


def small_payloads(told: dict[str, Any], seed: int = 5) -> list[bytes]:
    return random_payloads(Enrolled.from_json(told).geometry.descriptions(len(TOKENS)), seed)


# --- (1) and (2): a good handoff, each with the other -----------------------------------------------------------------


def signature_is_good(
    told: dict[str, Any], result: Result, handoff_id: str, token_ids: Sequence[int], size: int
) -> None:
    message = {name: told[name] for name in ("lane", "receiver", "identity", "cache_identity", "mode")} | {
        "handoff_id": handoff_id,
        "prompt_sha256": prompt_sha256(token_ids),
        "root": result.root,
        "total_bytes": size,
        "nonce_p": result.nonces[0],
        "nonce_r": result.nonces[1],
    }
    key = Ed25519PrivateKey.from_private_bytes(SIGNING_KEY).public_key()
    signature = base64.b64decode(result.sig.removeprefix("ed25519:"), validate=True)
    key.verify(signature, b"soakledger/ack/1\n" + client_end.canonical(message))


def test_the_independent_client_hands_megabytes_in_many_ranges_to_our_receiver_in_a_process(tmp_path: Path) -> None:
    told = enrollment(tmp_path / "work", LARGE)
    (tmp_path / "lane.json").write_text(json.dumps(told), "utf-8")
    enrolled = Enrolled.from_json(told)
    tensors = enrolled.geometry.descriptions(LARGE_TOKENS)
    payloads = random_payloads(tensors, 11)
    handoff_id = os.urandom(16).hex()
    ranges = in_pieces(tensors, 400)
    assert len(ranges) == 6 * 4 + 2
    with (
        process(str(HERE / "test_interop.py"), str(tmp_path / "lane.json")) as port,
        Client(enrolled, ("127.0.0.1", port), session_s=60) as client,
    ):
        tokens = range(LARGE_TOKENS)
        done = client.hand_over(tokens, lambda: payloads, ranges=ranges, handoff_id=handoff_id, pings=3)
    assert done.pongs == 3
    record = json.loads((tmp_path / "work" / "admissions" / f"{handoff_id}.json").read_bytes())
    assert (record["root"], record["sig"], record["total_bytes"]) == (done.root, done.sig, done.total_bytes)
    assert record["nonces"] == {"p": done.nonce_p, "r": done.nonce_r}
    assert done.total_bytes == sum(map(len, payloads)) > 4_000_000


@pytest.mark.parametrize("where", ["thread", "process"])
def test_our_sender_hands_megabytes_to_the_independent_receiver(tmp_path: Path, where: str) -> None:
    told = enrollment(tmp_path / "work", LARGE)
    lane = lane_of(told, tmp_path)
    payloads = random_payloads(Enrolled.from_json(told).geometry.descriptions(LARGE_TOKENS), 12)
    handoff_id = os.urandom(16).hex()
    tokens = range(LARGE_TOKENS)
    if where == "process":
        with process(str(HERE / "wire_receiver.py"), "--config", str(tmp_path / "lane.json")) as port:
            done = ours_sends(told, port, tokens, payloads, handoff_id)
    else:
        with Receiver(lane) as there:
            done = ours_sends(told, there.port, tokens, payloads, handoff_id)
            there.wait_for("ack")
            assert there.held[handoff_id] == (done.root, bytearray(b"".join(payloads)))
    record = json.loads((tmp_path / "work" / "admissions" / f"{handoff_id}.json").read_bytes())
    assert (record["root"], record["sig"]) == (done.root, done.sig)
    signature_is_good(told, done, handoff_id, tokens, sum(map(len, payloads)))


def test_the_same_payload_has_the_same_roots_by_every_pair_of_ends(tmp_path: Path) -> None:
    seen = set()
    for name, sends in SENDERS.items():
        told = enrollment(tmp_path / f"o-{name[:8]}", LARGE)
        payloads = random_payloads(Enrolled.from_json(told).geometry.descriptions(LARGE_TOKENS), 13)
        tokens = range(LARGE_TOKENS)
        handoff_id = os.urandom(16).hex()
        with our_receiver_thread(our_config(told)) as port:
            done = sends(told, port, tokens, payloads, handoff_id)
            signature_is_good(told, done, handoff_id, tokens, sum(map(len, payloads)))
            seen.add((done.root, done.tensors_root))
        with Receiver(replace(lane_of(told, tmp_path), work_dir=tmp_path / f"t-{name[:8]}")) as there:
            done = sends(told, there.port, tokens, payloads, handoff_id)
            signature_is_good(told, done, handoff_id, tokens, sum(map(len, payloads)))
            seen.add((done.root, done.tensors_root))
    assert len(seen) == 1


def test_the_independent_client_as_a_process_is_acknowledged_by_our_receiver(tmp_path: Path) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    (tmp_path / "lane.json").write_text(json.dumps(told), "utf-8")
    with our_receiver_thread(our_config(told)) as port:
        words = [str(HERE / "wire_client.py"), "--config", str(tmp_path / "lane.json"), "--port", str(port)]
        ran = subprocess.run([sys.executable, *words], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    done = json.loads(ran.stdout)
    record = json.loads((tmp_path / "work" / "admissions" / f"{done['handoff_id']}.json").read_bytes())
    assert record["root"] == done["root"]


# --- (3): the vector of section 9 -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def vector() -> dict[str, Any]:
    found = re.search(r"^## 9\..*?```json\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    assert found is not None
    told: dict[str, Any] = json.loads(found.group(1))
    return told


def test_the_pages_keys_digests_manifest_and_root_are_recomputed(vector: dict[str, Any]) -> None:
    key = bytes.fromhex(vector["handoff_key"])
    salt = bytes.fromhex(vector["nonce_p"] + vector["nonce_r"])
    assert client_end.handoff_key_id(key) == vector["handoff_key_id"]
    assert client_end.hkdf(key, salt, b"KVH2 p2r").hex() == vector["key_p2r"]
    assert client_end.hkdf(key, salt, b"KVH2 r2p").hex() == vector["key_r2p"]
    private = Ed25519PrivateKey.from_private_bytes(bytes.fromhex(vector["receiver_private_key"]))
    assert private.public_key().public_bytes_raw().hex() == vector["receiver_public_key"]
    assert prompt_sha256(vector["token_ids"]) == vector["prompt_sha256"]
    geometry = client_end.Geometry("bfloat16", (client_end.LayerShape(1, 2),))
    tensors = geometry.descriptions(2)
    begin = next(json.loads(frame["header"]) for frame in vector["frames"] if frame["type"] == "BEGIN")
    assert begin["tensors"] == tensors
    made = client_end.sums(vector["prompt_sha256"], 2, tensors, [bytes(range(8)), bytes(range(8, 16))])
    assert made.digests == vector["tensor_digests"]
    assert made.tensors_root == vector["tensors_root"]
    assert made.manifest.decode("utf-8") == vector["manifest"]
    assert made.root == vector["root"]
    signature = private.sign(vector["ack_message"].encode("utf-8"))
    assert "ed25519:" + base64.b64encode(signature).decode("ascii") == vector["sig"]


@dataclass
class Recorded:
    """A socket's face that gives what the peer of the vector would say, and keeps what is said to it."""

    coming: bytearray
    said: bytearray = field(default_factory=bytearray)

    def settimeout(self, seconds: float) -> None:
        pass

    def sendall(self, data: bytes) -> None:
        self.said += data

    def recv(self, size: int) -> bytes:
        piece = bytes(self.coming[:size])
        del self.coming[:size]
        return piece

    def recv_into(self, view: memoryview) -> int:
        piece = self.recv(len(view))
        view[: len(piece)] = piece
        return len(piece)

    def shutdown(self, how: int) -> None:
        pass

    def close(self) -> None:
        pass


def frame_bytes(frame: dict[str, str]) -> bytes:
    return bytes.fromhex(frame["prefix"]) + frame["header"].encode("ascii") + bytes.fromhex(frame.get("body", ""))


PRODUCERS = {"HELLO", "OPEN", "BEGIN", "LAYER", "END"}
EXAMPLES = -5
"""Where the frames outside the transcript begin."""


def client_on(line: Recorded, told: dict[str, Any], monkeypatch: pytest.MonkeyPatch, nonce_p: str) -> Client:
    """The independent client without a network."""
    monkeypatch.setattr(Client, "__post_init__", lambda _self: None)
    monkeypatch.setattr(Client, "_readable", lambda _self: False)
    client = Client(Enrolled.from_json(told), ("", 0), nonce_p=bytes.fromhex(nonce_p))
    client.earlier = hashlib.sha256()
    client.deadline = client.step_ends = time.monotonic() + 60
    client.pongs = client.pongs_owed = 0
    client.keeping, client.frame_ends = False, float("inf")
    client.socket = line  # type: ignore[assignment]
    return client


def test_the_independent_client_says_the_pages_producer_frames_byte_for_byte(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    session = vector["frames"][:EXAMPLES]
    coming = bytearray().join(frame_bytes(frame) for frame in session if frame["type"] not in PRODUCERS)
    line = Recorded(coming)
    told = {**vector_lane(vector), "public_key": vector["receiver_public_key"]}
    client = client_on(line, told, monkeypatch, vector["nonce_p"])
    done = client.hand_over(
        vector["token_ids"],
        [bytes(range(8)), bytes(range(8, 16))],
        ranges=[Range(0, 0, 1), Range(0, 1, 1), Range(1, 0, 2)],
        handoff_id="0123456789abcdef0123456789abcdef",
    )
    assert bytes(line.said) == b"".join(frame_bytes(frame) for frame in session if frame["type"] in PRODUCERS)
    assert done.message.decode("utf-8") == vector["ack_message"]
    assert (done.root, done.sig) == (vector["root"], vector["sig"])


def test_the_independent_receiver_says_the_pages_receiver_frames_byte_for_byte(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    session = vector["frames"][:EXAMPLES]
    coming = bytearray().join(frame_bytes(frame) for frame in session if frame["type"] in PRODUCERS)
    line = Recorded(coming)
    lane = lane_of(
        {
            **vector_lane(vector),
            "private_key": vector["receiver_private_key"],
            "memory_limit_bytes": 1024,
            "work_dir": str(tmp_path / "work"),
        },
        tmp_path,
    )
    with Receiver(lane) as there:
        end = Session(there, line)  # type: ignore[arg-type]
        end.nonce_r = bytes.fromhex(vector["nonce_r"])
        end.run()
    assert bytes(line.said) == b"".join(frame_bytes(frame) for frame in session if frame["type"] not in PRODUCERS)
    told = {frame["type"]: frame["t"] for frame in session if frame["type"] in ("OPEN", "END")}
    assert {kind: t.hex() for kind, t in end.transcripts.items()} == told


def test_the_pages_example_frames_are_what_the_independent_ends_encode(vector: dict[str, Any]) -> None:
    for frame in vector["frames"][EXAMPLES:]:
        header = frame["header"].encode("ascii")
        assert client_end.canonical(json.loads(header)) == header
        assert receiver_end.jcs(json.loads(header)).encode("utf-8") == header
        prefix = client_end.PREFIX.pack(b"KVH2", 2, client_end.TYPES[frame["type"]], len(header), 0)
        assert prefix.hex() == frame["prefix"]


def test_the_independent_client_refuses_the_pages_frames_with_the_pages_codes(
    vector: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    told = {**vector_lane(vector), "public_key": vector["receiver_public_key"]}
    for frame in refused_of(vector, client_end.FIELDS):
        client = client_on(Recorded(bytearray(frame_bytes(frame))), told, monkeypatch, vector["nonce_p"])
        with pytest.raises(client_end.WireError) as failed:
            client.expect(frame["type"])
        assert (failed.value.code, failed.value.theirs) == (frame["code"], False), frame


def test_the_independent_receiver_refuses_the_pages_frames_with_the_pages_codes(
    vector: dict[str, Any], tmp_path: Path
) -> None:
    told = {**vector_lane(vector), "private_key": vector["receiver_private_key"], "memory_limit_bytes": 1024}
    with Receiver(lane_of(told | {"work_dir": str(tmp_path / "work")}, tmp_path)) as there:
        for frame in refused_of(vector, {receiver_end.NAME[kind] for kind in receiver_end.ASKED}):
            end = Session(there, Recorded(bytearray(frame_bytes(frame))))  # type: ignore[arg-type]
            with pytest.raises(receiver_end.Fault) as failed:
                end.take(client_end.TYPES[frame["type"]])
            assert failed.value.code == frame["code"], frame


BY_PREFIX = {"bad_magic", "bad_version", "unknown_type", "header_too_large", "body_not_allowed", "body_too_large"}


def refused_of(vector: dict[str, Any], kinds: Collection[str]) -> list[dict[str, str]]:
    """The page's refused frames that an end gets as far as refusing with their own code."""
    found = [frame for frame in vector["refused"] if frame["type"] in kinds or frame["code"] in BY_PREFIX]
    assert len(found) >= 12
    return found


def test_the_pages_admission_record_is_canonical_and_its_signature_is_the_acks(vector: dict[str, Any]) -> None:
    text = vector["admission_record"].encode("utf-8")
    record = json.loads(text)
    assert receiver_end.jcs(record).encode("utf-8") + b"\n" == text
    message = json.loads(vector["ack_message"].removeprefix("soakledger/ack/1\n"))
    assert {name: record[name] for name in message if name in record} == {
        name: value for name, value in message.items() if name in record
    }
    assert record["sig"] == vector["sig"]
    assert [base64.b64decode(sig[8:], validate=True) for sig in vector["sig_refused"][:3]] == 3 * [
        base64.b64decode(vector["sig"][8:])
    ], "the first three say the same bytes to a loose decoder"


def vector_lane(vector: dict[str, Any]) -> dict[str, Any]:
    return {
        "lane": "vector",
        "identity": vector["identity"],
        "cache_identity": vector["cache_identity"],
        "mode": "native",
        "receiver": "there",
        "handoff_key": vector["handoff_key"],
        "geometry": {"dtype": "bfloat16", "layers": [{"kv_heads": 1, "head_size": 2}]},
    }


# --- (4): a receiver that did not keep the bytes ----------------------------------------------------------------------


@pytest.mark.parametrize("cheat", [name for name in receiver_end.CHEATS if name != "early"])
def test_a_receiver_that_kept_nothing_cannot_acknowledge(tmp_path: Path, cheat: str, send: Send) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    with Receiver(lane_of(told, tmp_path), session=receiver_end.CHEATS[cheat]) as there:
        assert code_of(send, told, there.port) == "root_differs"
        there.wait_for("ack")  # it did try


def test_an_acknowledgement_before_end_is_refused(tmp_path: Path, send: Send) -> None:
    # Seen between LAYERs it may not come now; seen only after END it is an ACK of another root.
    told = enrollment(tmp_path / "work", SMALL)
    with Receiver(lane_of(told, tmp_path), session=receiver_end.Early) as there:
        assert code_of(send, told, there.port) in ("unexpected_frame", "root_differs")


def test_a_cheat_in_its_own_process_cannot_acknowledge_megabytes_to_our_sender(tmp_path: Path) -> None:
    told = enrollment(tmp_path / "work", LARGE)
    (tmp_path / "lane.json").write_text(json.dumps(told), "utf-8")
    payloads = random_payloads(Enrolled.from_json(told).geometry.descriptions(LARGE_TOKENS), 14)
    words = ("--config", str(tmp_path / "lane.json"), "--cheat", "zeros")
    with process(str(HERE / "wire_receiver.py"), *words) as port, pytest.raises(RefusedWith) as failed:
        ours_sends(told, port, range(LARGE_TOKENS), payloads)
    assert failed.value.code == "root_differs"


def old_ack_of(told: dict[str, Any], tmp_path: Path, send: Send, seed: int) -> dict[str, Any]:
    """An ACK that was good once, as the honest receiver sent it."""
    lane = replace(lane_of(told, tmp_path), work_dir=tmp_path / "before")
    with Receiver(lane) as there:
        send(told, there.port, TOKENS, small_payloads(told, seed))
        ack: dict[str, Any] = json.loads(there.wait_for("ack"))
    return ack


def test_an_old_acknowledgement_of_another_prompt_is_refused(tmp_path: Path, send: Send) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    old = old_ack_of(told, tmp_path, send, seed=6)
    with Receiver(lane_of(told, tmp_path), session=receiver_end.replaying(old)) as there:
        assert code_of(send, told, there.port) == "root_differs"


def test_an_old_acknowledgement_of_the_same_bytes_is_refused_by_its_mac(tmp_path: Path, send: Send) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    old = old_ack_of(told, tmp_path, send, seed=5)
    with Receiver(lane_of(told, tmp_path), session=receiver_end.replaying(old)) as there:
        assert code_of(send, told, there.port) == "bad_mac"


def test_an_old_signature_under_a_fresh_mac_is_refused(tmp_path: Path, send: Send) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    old = old_ack_of(told, tmp_path, send, seed=5)
    del old["mac"]  # made anew for this session
    with Receiver(lane_of(told, tmp_path), session=receiver_end.replaying(old)) as there:
        assert code_of(send, told, there.port) == "bad_signature"


# --- (5): what a sender refuses of a receiver -------------------------------------------------------------------------


Change = Callable[[dict[str, Any]], dict[str, Any]]


def saying(kind: int, change: Change, *, sealed: bool = True) -> type[Session]:
    """An honest receiver but for one header: changed before its mac is made, or after (`sealed` False)."""

    class Changed(Session):
        def frame(self, kind_: int, header: dict[str, Any], root: str = "") -> bytes:
            if kind_ == kind and sealed:
                header = change(header)
            if kind_ != kind or sealed:
                return super().frame(kind_, header, root)
            whole = super().frame(kind_, header, root)
            raw = receiver_end.jcs(change(json.loads(whole[20:]))).encode("utf-8")
            return receiver_end.HEAD.pack(b"KVH2", 2, kind, len(raw), 0) + raw

    return Changed


def sending(kind: int, change: Callable[[bytes], bytes]) -> type[Session]:
    """An honest receiver but for the bytes of one frame."""

    class Raw(Session):
        def outgoing(self, kind_: int, frame: bytes) -> bytes:
            return change(frame) if kind_ == kind else frame

    return Raw


def prefixed(
    raw: bytes, *, magic: bytes = b"KVH2", version: int = 2, kind: int | None = None, body: int = 0, header: int = -1
) -> bytes:
    number = receiver_end.HEAD.unpack(raw[:20])[2] if kind is None else kind
    length = len(raw) - 20 if header < 0 else header
    return receiver_end.HEAD.pack(magic, version, number, length, body) + raw[20:]


def reheaded(kind: int, text: str, body: int = 0) -> bytes:
    raw = text.encode("utf-8", "surrogatepass")
    return receiver_end.HEAD.pack(b"KVH2", 2, kind, len(raw), body) + raw


def without(name: str) -> Change:
    return lambda header: {key: value for key, value in header.items() if key != name}


def with_(**members: Any) -> Change:
    return lambda header: {**header, **members}


R = receiver_end
OTHER_KEY = "ed25519:" + base64.b64encode(bytes(64)).decode("ascii")
LOOSE = "ed25519:" + "A" * 85 + "B=="
"""64 zero bytes to a loose decoder, as OTHER_KEY, with an unused bit set."""
BAD_RECEIVERS: dict[str, tuple[type[Session], str]] = {
    "an extra field in HELLO_ACK": (saying(R.HELLO_ACK, with_(extra=1)), "unknown_field"),
    "an extra field in OPENED": (saying(R.OPENED, with_(extra=1)), "unknown_field"),
    "an extra field in ACK": (saying(R.ACK, with_(extra=1)), "unknown_field"),
    "a HELLO_ACK without nonce": (saying(R.HELLO_ACK, without("nonce")), "missing_field"),
    "an OPENED without reserved": (saying(R.OPENED, without("reserved")), "missing_field"),
    "an ACK without sig": (saying(R.ACK, without("sig")), "missing_field"),
    "an ACK without mac": (saying(R.ACK, without("mac"), sealed=False), "missing_field"),
    "a nonce in upper case": (saying(R.HELLO_ACK, with_(nonce="AB" * 32)), "bad_field"),
    "a reserved that is text": (saying(R.OPENED, with_(reserved="640")), "bad_field"),
    "a reserved that is true": (saying(R.OPENED, with_(reserved=True)), "bad_field"),
    "a sig of 63 bytes": (
        saying(R.ACK, with_(sig="ed25519:" + base64.b64encode(bytes(63)).decode("ascii"))),
        "bad_field",
    ),
    "a sig without padding": (saying(R.ACK, with_(sig=OTHER_KEY.rstrip("="))), "bad_field"),
    "another receiver's name under a good mac": (saying(R.HELLO_ACK, with_(receiver="elsewhere")), "wrong_receiver"),
    "a HELLO_ACK with another mac": (saying(R.HELLO_ACK, with_(mac="0" * 64), sealed=False), "bad_mac"),
    "a HELLO_ACK whose nonce was changed": (saying(R.HELLO_ACK, with_(nonce="0" * 64), sealed=False), "bad_mac"),
    "an OPENED of another size": (saying(R.OPENED, with_(reserved=1)), "bad_reserved"),
    "an ACK with another mac": (saying(R.ACK, with_(mac="0" * 64), sealed=False), "bad_mac"),
    "an ACK with another signature": (saying(R.ACK, with_(sig=OTHER_KEY)), "bad_signature"),
    "an ACK whose signature was changed after its mac": (saying(R.ACK, with_(sig=OTHER_KEY), sealed=False), "bad_mac"),
    "OPENED in HELLO_ACK's place": (
        sending(R.HELLO_ACK, lambda _: reheaded(4, '{"reserved":640}')),
        "unexpected_frame",
    ),
    "HELLO_ACK in OPENED's place": (sending(R.OPENED, lambda raw: prefixed(raw, kind=2)), "unexpected_frame"),
    "ACK in OPENED's place": (sending(R.OPENED, lambda raw: prefixed(raw, kind=8)), "unexpected_frame"),
    "OPENED in ACK's place": (sending(R.ACK, lambda raw: prefixed(raw, kind=4)), "unexpected_frame"),
    "END in ACK's place": (sending(R.ACK, lambda raw: prefixed(raw, kind=7)), "unexpected_frame"),
    "ABORT in ACK's place": (sending(R.ACK, lambda raw: prefixed(raw, kind=10)), "unexpected_frame"),
    "another magic": (sending(R.HELLO_ACK, lambda raw: prefixed(raw, magic=b"KVH1")), "bad_magic"),
    "another version": (sending(R.OPENED, lambda raw: prefixed(raw, version=3)), "bad_version"),
    "type 13": (sending(R.ACK, lambda raw: prefixed(raw, kind=13)), "unknown_type"),
    "type 0": (sending(R.HELLO_ACK, lambda raw: prefixed(raw, kind=0)), "unknown_type"),
    "a header of 65,537 bytes": (sending(R.OPENED, lambda raw: prefixed(raw, header=65_537)), "header_too_large"),
    "a NACK's header over 4 MiB": (
        sending(R.ACK, lambda raw: prefixed(raw, kind=9, header=4_194_305)),
        "header_too_large",
    ),
    "a body on ACK": (sending(R.ACK, lambda raw: prefixed(raw, body=1)), "body_not_allowed"),
    "a body over 64 MiB": (sending(R.ACK, lambda raw: prefixed(raw, kind=6, body=67_108_865)), "body_too_large"),
    "a header with a space": (sending(R.OPENED, lambda _: reheaded(4, '{"reserved": 640}')), "not_canonical"),
    "a number 640.0": (sending(R.OPENED, lambda _: reheaded(4, '{"reserved":640.0}')), "not_canonical"),
    "a key twice": (sending(R.OPENED, lambda _: reheaded(4, '{"reserved":640,"reserved":640}')), "bad_header"),
    "an array": (sending(R.OPENED, lambda _: reheaded(4, "[640]")), "bad_header"),
    "a number over 2^53": (sending(R.OPENED, lambda _: reheaded(4, '{"reserved":9007199254740992}')), "bad_header"),
    "no header at all": (sending(R.OPENED, lambda _: reheaded(4, "")), "bad_header"),
    "a NACK of an unknown code": (
        sending(R.OPENED, lambda _: reheaded(9, '{"code":"out-of-tea","reason":"so"}')),
        "out-of-tea",
    ),
    "a NACK with an extra field": (
        sending(R.OPENED, lambda _: reheaded(9, '{"code":"busy","extra":1,"reason":"so"}')),
        "unknown_field",
    ),
    "a NACK of bytes_differ without digests": (
        sending(R.OPENED, lambda _: reheaded(9, '{"code":"bytes_differ","reason":"so"}')),
        "missing_field",
    ),
    "a NACK of another code with digests": (
        sending(R.OPENED, lambda _: reheaded(9, f'{{"code":"busy","digests":["blake3:{"0" * 64}"],"reason":"so"}}')),
        "unknown_field",
    ),
    "a sig of another spelling": (saying(R.ACK, with_(sig=LOOSE)), "bad_field"),
    "a body over 64 MiB on ACK": (sending(R.ACK, lambda raw: prefixed(raw, body=67_108_865)), "body_not_allowed"),
    "an array with a space": (sending(R.OPENED, lambda _: reheaded(4, "[ 640]")), "bad_header"),
    "a number of 1e16": (sending(R.OPENED, lambda _: reheaded(4, '{"reserved":1e16}')), "bad_header"),
    "a number of 1e-7": (sending(R.OPENED, lambda _: reheaded(4, '{"reserved":1e-7}')), "bad_field"),
    "a PONG before OPENED": (sending(R.OPENED, lambda raw: reheaded(12, "{}") + raw), "unexpected_frame"),
    "a PONG that nobody asked for": (sending(R.ACK, lambda raw: reheaded(12, "{}") + raw), "unexpected_frame"),
    "a PING from a receiver": (sending(R.ACK, lambda raw: reheaded(11, "{}") + raw), "unexpected_frame"),
    "a NACK without reason": (sending(R.OPENED, lambda _: reheaded(9, '{"code":"busy"}')), "missing_field"),
    "a NACK with 2,001 characters": (
        sending(R.OPENED, lambda _: reheaded(9, json.dumps({"code": "busy", "reason": "x" * 2001}).replace(" ", ""))),
        "bad_field",
    ),
    "half a frame": (sending(R.ACK, lambda raw: raw[:30]), "short_frame"),
    "nothing": (sending(R.ACK, lambda _: b""), "peer_gone"),
}


@pytest.mark.parametrize("case", list(BAD_RECEIVERS))
def test_a_receiver_out_of_order_is_refused_by_name(tmp_path: Path, case: str, send: Send) -> None:
    session, code = BAD_RECEIVERS[case]
    told = enrollment(tmp_path / "work", SMALL)
    with Receiver(lane_of(told, tmp_path), session=session) as there:
        if code == "out-of-tea":
            with pytest.raises(RefusedWith) as failed:
                send(told, there.port, TOKENS, small_payloads(told))
            assert failed.value.code == code
        else:
            assert code_of(send, told, there.port) == code


def test_a_byte_changed_on_the_way_is_named_by_its_tensor(tmp_path: Path, send: Send) -> None:
    class Flipped(Session):
        def keep(self, at: memoryview) -> None:
            super().keep(at)
            if self.offsets[2] == self.offsets[1] + self.tensors[1]["bytes"] and self.reached[2] == 6:
                self.buffer[self.offsets[2]] ^= 1

    told = enrollment(tmp_path / "work", SMALL)
    with Receiver(lane_of(told, tmp_path), session=Flipped) as there, pytest.raises(RefusedWith) as failed:
        send(told, there.port, TOKENS, small_payloads(told))
    assert (failed.value.code, failed.value.first_difference) == ("bytes_differ", 2)
    assert not (tmp_path / "work" / "admissions").exists()


# --- (5) and (6): what a receiver refuses of a sender -----------------------------------------------------------------


@dataclass(frozen=True)
class There:
    told: dict[str, Any]
    port: int

    def client(self, **changes: Any) -> Client:
        enrolled = Enrolled.from_json(self.told)
        return Client(replace(enrolled, **changes), ("127.0.0.1", self.port), session_s=60)


@contextlib.contextmanager
def either(
    which: str, told: dict[str, Any], tmp_path: Path, seconds: dict[str, float] | None = None
) -> Iterator[There]:
    limits: dict[str, Any] = dict(seconds or {})
    if which == "our-receiver":
        times = replace(ReceiverTimes(handshake_s=10, silence_s=10, write_s=5, drain_s=2), **limits)
        with our_receiver_thread(our_config(told, times)) as port:
            yield There(told, port)
    else:
        with Receiver(lane_of(told, tmp_path), limits=replace(Limits(silence_s=10), **limits)) as there:
            yield There(told, there.port)


RECEIVERS = ["our-receiver", "independent-receiver"]


@pytest.fixture(params=RECEIVERS)
def there(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[There]:
    with either(request.param, enrollment(tmp_path / "work", SMALL), tmp_path) as there:
        yield there


def nacked(client: Client, *expected: str) -> client_end.WireError:
    """The NACK that the receiver owes; anything else fails the test."""
    with pytest.raises(client_end.WireError) as failed:
        client.expect(*expected)
    assert failed.value.theirs, failed.value
    return failed.value


TENSORS = client_end.Geometry("bfloat16", (client_end.LayerShape(2, 8), client_end.LayerShape(2, 8, 4))).descriptions(
    10
)
SIZE = sum(tensor["bytes"] for tensor in TENSORS)
ROW = 32


def opened(client: Client, size: int = SIZE) -> None:
    client.hello(size)
    client.open()


def begun(client: Client, handoff_id: str | None = None) -> None:
    opened(client)
    client.begin(handoff_id or os.urandom(16).hex(), prompt_sha256(TOKENS), 10, TENSORS, SIZE)


def begin_header(**changes: Any) -> dict[str, Any]:
    return {
        "handoff_id": "0" * 32,
        "prompt_sha256": prompt_sha256(TOKENS),
        "n_tokens": 10,
        "tensors": TENSORS,
        "total_bytes": SIZE,
    } | changes


def described(**changes: Any) -> dict[str, Any]:
    return begin_header(tensors=[{**TENSORS[0], **changes}, *TENSORS[1:]])


def hello_with(change: Change) -> Callable[[Client], None]:
    return lambda client: client.send("HELLO", change(client.hello_header(SIZE)))


def respelled(change: Callable[[str], str]) -> Callable[[Client], None]:
    """A HELLO that says the same in other bytes."""

    def run(client: Client) -> None:
        text = client_end.canonical(client.hello_header(SIZE)).decode("utf-8")
        assert change(text) != text
        client.write(reheaded(1, change(text)))

    return run


def raw(*pieces: bytes) -> Callable[[Client], None]:
    return lambda client: client.write(b"".join(pieces))


def after(step: Callable[[Client], None], *then: Callable[[Client], None]) -> Callable[[Client], None]:
    def run(client: Client) -> None:
        for each in (step, *then):
            each(client)

    return run


def says(kind: str, header: dict[str, Any], body: bytes = b"") -> Callable[[Client], None]:
    return lambda client: client.send(kind, header, body)


def hello(client: Client) -> None:
    client.hello(SIZE)


def layer(tensor: int, first: int, count: int, size: int | None = None) -> Callable[[Client], None]:
    return says(
        "LAYER", {"tensor": tensor, "first_token": first, "count": count}, bytes(count * ROW if size is None else size)
    )


def every_layer(client: Client) -> None:
    for number, tensor in enumerate(TENSORS):
        client.layer(Range(number, tensor["first_token"], tensor["tokens"]), bytes(tensor["bytes"]))


def zero_root() -> str:
    return client_end.sums(prompt_sha256(TOKENS), 10, TENSORS, [bytes(t["bytes"]) for t in TENSORS]).root


def ends(root: str) -> Callable[[Client], None]:
    return lambda client: client.end(root)


def deep(levels: int) -> str:
    return '{"a":' * levels + "1" + "}" * levels


BAD_CLIENTS: dict[str, tuple[Callable[[Client], None], str]] = {
    "an extra field in HELLO": (hello_with(with_(extra=1)), "unknown_field"),
    "a HELLO without mode": (hello_with(without("mode")), "missing_field"),
    "a HELLO of text bytes": (hello_with(with_(bytes="1280")), "bad_field"),
    "a HELLO of no bytes": (hello_with(with_(bytes=0)), "bad_field"),
    "a HELLO of true bytes": (hello_with(with_(bytes=True)), "bad_field"),
    "a HELLO of a third mode": (hello_with(with_(mode="both")), "bad_field"),
    "a lane in upper case": (hello_with(with_(lane="Interop")), "bad_field"),
    "a lane that ends in a line feed": (hello_with(with_(lane="interop\n")), "bad_field"),
    "another lane": (hello_with(with_(lane="other")), "not_enrolled"),
    "another identity": (hello_with(with_(identity="sha256:" + "0" * 64)), "not_enrolled"),
    "another cache identity": (hello_with(with_(cache_identity="sha256:" + "0" * 64)), "not_enrolled"),
    "the other mode": (hello_with(with_(mode="exact")), "not_enrolled"),
    "more than the memory limit": (hello_with(with_(bytes=8 * 1024 * 1024 + 1)), "too_large"),
    "a HELLO with a space": (respelled(lambda text: text.replace(",", ", ", 1)), "not_canonical"),
    "a HELLO with a line feed": (respelled(lambda text: text + "\n"), "not_canonical"),
    "a HELLO with keys out of order": (
        respelled(lambda text: json.dumps(dict(reversed(json.loads(text).items())), separators=(",", ":"))),
        "not_canonical",
    ),
    "a HELLO with an escaped letter": (
        respelled(lambda text: text.replace("interop", "\\u0069nterop")),
        "not_canonical",
    ),
    "a HELLO of 1280.0 bytes": (
        respelled(lambda text: text.replace(f'"bytes":{SIZE}', f'"bytes":{SIZE}.0')),
        "not_canonical",
    ),
    "a HELLO with a key twice": (raw(reheaded(1, '{"lane":"a","lane":"a"}')), "bad_header"),
    "keys that are one after NFC": (raw(reheaded(1, '{"\u0041\u030a":1,"\u00c5":1}')), "bad_header"),
    "a HELLO with a space and without its fields": (raw(reheaded(1, '{"lane": "interop"}')), "not_canonical"),
    "a HELLO that is no JSON": (raw(reheaded(1, "{")), "bad_header"),
    "a HELLO that is text": (raw(reheaded(1, '"HELLO"')), "bad_header"),
    "a HELLO in Latin-1": (raw(prefixed(bytes(20) + b'{"lane":"\xe9"}', kind=1)), "bad_header"),
    "a lone surrogate": (raw(reheaded(1, '{"lane":"\\ud800"}')), "bad_header"),
    "NaN": (raw(reheaded(1, '{"bytes":NaN}')), "bad_header"),
    "65 levels": (raw(reheaded(1, deep(65))), "bad_header"),
    "thousands of levels": (raw(reheaded(1, "[" * 60_000)), "bad_header"),
    "64 levels of an unknown field": (raw(reheaded(1, deep(64))), "unknown_field"),
    "another magic": (raw(prefixed(bytes(20), magic=b"KVH1", kind=1)), "bad_magic"),
    "HTTP": (raw(b"GET / HTTP/1.1\r\nHost: there\r\n\r\n"), "bad_magic"),
    "version 1": (raw(prefixed(bytes(20), version=1, kind=1)), "bad_version"),
    "type 0": (raw(prefixed(bytes(20), kind=0)), "unknown_type"),
    "type 13": (raw(prefixed(bytes(20), kind=13)), "unknown_type"),
    "a HELLO's header of 65,537 bytes": (raw(prefixed(bytes(20), kind=1, header=65_537)), "header_too_large"),
    "a BEGIN's header over 4 MiB": (raw(prefixed(bytes(20), kind=5, header=4_194_305)), "header_too_large"),
    "a BEGIN of 4 MiB before HELLO": (raw(prefixed(bytes(20), kind=5, header=4_194_304)), "unexpected_frame"),
    "a body on HELLO": (raw(prefixed(bytes(20), kind=1, header=2, body=1)), "body_not_allowed"),
    "a body over 64 MiB on HELLO": (
        raw(prefixed(bytes(20), kind=1, header=2, body=67_108_865)),
        "body_not_allowed",
    ),
    "an array with a space": (raw(reheaded(1, "[ ]")), "bad_header"),
    "a number of 1e16": (raw(reheaded(1, '{"bytes":1e16}')), "bad_header"),
    "a number of 1e-7 in an unknown field": (raw(reheaded(1, '{"extra":1e-7}')), "unknown_field"),
    "a number of 0.00001 in an unknown field": (raw(reheaded(1, '{"extra":0.00001}')), "unknown_field"),
    "a LAYER of 64 MiB before HELLO": (raw(prefixed(bytes(20), kind=6, header=2, body=67_108_864)), "unexpected_frame"),
    "a LAYER over 64 MiB": (raw(prefixed(bytes(20), kind=6, header=2, body=67_108_865)), "body_too_large"),
    "OPEN first": (raw(reheaded(3, '{"mac":"' + "0" * 64 + '"}')), "unexpected_frame"),
    "ABORT first": (raw(reheaded(10, '{"code":"cancelled","reason":""}')), "unexpected_frame"),
    "PING first": (raw(reheaded(11, "{}")), "unexpected_frame"),
    "a receiver's frame from a producer": (raw(reheaded(12, "{}")), "unexpected_frame"),
    "HELLO twice": (after(hello, lambda c: c.send("HELLO", c.hello_header(SIZE))), "unexpected_frame"),
    "PING before OPEN": (after(hello, says("PING", {})), "unexpected_frame"),
    "BEGIN before OPEN": (after(hello, says("BEGIN", begin_header())), "unexpected_frame"),
    "OPEN with a zero mac": (after(hello, raw(reheaded(3, '{"mac":"' + "0" * 64 + '"}'))), "bad_mac"),
    "OPEN without mac": (after(hello, raw(reheaded(3, "{}"))), "missing_field"),
    "OPEN twice": (after(opened, lambda c: c.send("OPEN", {})), "unexpected_frame"),
    "LAYER before BEGIN": (after(opened, layer(0, 0, 1)), "unexpected_frame"),
    "END before BEGIN": (after(opened, ends(zero_root())), "unexpected_frame"),
    "NACK from a producer": (after(opened, says("NACK", {"code": "busy", "reason": ""})), "unexpected_frame"),
    "OPENED from a producer": (after(opened, raw(reheaded(4, '{"reserved":1}'))), "unexpected_frame"),
    "an ABORT with digests": (
        after(opened, raw(reheaded(10, f'{{"code":"cancelled","digests":["blake3:{"0" * 64}"],"reason":""}}'))),
        "unknown_field",
    ),
    "PONG after BEGIN": (after(begun, says("PONG", {})), "unexpected_frame"),
    "PONG from a producer": (after(opened, says("PONG", {})), "unexpected_frame"),
    "a PING with a field": (after(opened, says("PING", {"n": 1})), "unknown_field"),
    "BEGIN twice": (after(begun, says("BEGIN", begin_header())), "unexpected_frame"),
    "an extra field in BEGIN": (after(opened, says("BEGIN", begin_header(extra=1))), "unknown_field"),
    "an extra member of a tensor": (after(opened, says("BEGIN", described(extra=1))), "unknown_field"),
    "a tensor of a sixth part": (after(opened, says("BEGIN", described(part="q"))), "bad_field"),
    "a tensor of nine dimensions": (after(opened, says("BEGIN", described(shape=[1] * 9))), "bad_field"),
    "no tensors": (after(opened, says("BEGIN", begin_header(tensors=[]))), "bad_field"),
    "a handoff id in upper case": (after(opened, says("BEGIN", begin_header(handoff_id="A" * 32))), "bad_field"),
    "a tensor of another dtype": (after(opened, says("BEGIN", described(dtype="float16"))), "geometry_differs"),
    "a tensor in another order": (
        after(opened, says("BEGIN", described(order="kv_head,token,head_dim"))),
        "geometry_differs",
    ),
    "an order of an undefined name": (
        after(opened, says("BEGIN", described(order="token,kv_head,dim"))),
        "geometry_differs",
    ),
    "an order of nine names": (after(opened, says("BEGIN", described(order="a,b,c,d,e,f,g,h,i"))), "bad_field"),
    "an order with a space": (after(opened, says("BEGIN", described(order="token, kv_head, head_dim"))), "bad_field"),
    "a latent tensor": (after(opened, says("BEGIN", described(part="latent"))), "geometry_differs"),
    "a tensor of an undefined dtype": (after(opened, says("BEGIN", described(dtype="float8"))), "geometry_differs"),
    "a tensor that is a number": (after(opened, says("BEGIN", begin_header(tensors=[*TENSORS, 1]))), "bad_field"),
    "a bad handoff id and an unknown member of a tensor": (
        after(opened, says("BEGIN", described(extra=1) | {"handoff_id": "0"})),
        "bad_field",
    ),
    "a bad total and an unknown member of a tensor": (
        after(opened, says("BEGIN", described(extra=1) | {"total_bytes": 0})),
        "bad_field",
    ),
    "another total and another dtype": (
        after(opened, says("BEGIN", described(dtype="float16") | {"total_bytes": SIZE - 1})),
        "size_differs",
    ),
    "one byte more, as HELLO asked, than the tensors have": (
        after(lambda c: opened(c, SIZE + 1), says("BEGIN", begin_header(total_bytes=SIZE + 1))),
        "size_differs",
    ),
    "one byte more, as HELLO asked, and another number of tokens": (
        after(lambda c: opened(c, SIZE + 1), says("BEGIN", begin_header(total_bytes=SIZE + 1, n_tokens=11))),
        "geometry_differs",
    ),
    "a tensor too few": (after(opened, says("BEGIN", begin_header(tensors=TENSORS[:-1]))), "geometry_differs"),
    "V before K": (
        after(opened, says("BEGIN", begin_header(tensors=[TENSORS[1], TENSORS[0], *TENSORS[2:]]))),
        "geometry_differs",
    ),
    "another number of tokens": (after(opened, says("BEGIN", begin_header(n_tokens=11))), "geometry_differs"),
    "2^53-1 tokens": (after(opened, says("BEGIN", begin_header(n_tokens=2**53 - 1))), "geometry_differs"),
    "another total": (after(opened, says("BEGIN", begin_header(total_bytes=SIZE - 1))), "size_differs"),
    "HELLO's bytes larger than BEGIN's": (
        after(lambda c: opened(c, SIZE + 1), says("BEGIN", begin_header())),
        "size_differs",
    ),
    "an extra field in LAYER": (
        after(begun, says("LAYER", {"tensor": 0, "first_token": 0, "count": 1, "extra": 1}, bytes(ROW))),
        "unknown_field",
    ),
    "a LAYER of no tokens": (
        after(begun, says("LAYER", {"tensor": 0, "first_token": 0, "count": 0}, b"")),
        "bad_field",
    ),
    "an unknown tensor": (after(begun, layer(4, 0, 1)), "unknown_tensor"),
    "a range twice": (after(begun, layer(0, 0, 2), layer(0, 0, 2)), "range_overlap"),
    "a range one token early": (after(begun, layer(0, 0, 2), layer(0, 1, 2)), "range_overlap"),
    "a range one token late": (after(begun, layer(0, 0, 2), layer(0, 3, 2)), "range_gap"),
    "a range that does not start at the start": (after(begun, layer(0, 1, 2)), "range_gap"),
    "a window's range before the window": (after(begun, layer(2, 0, 1)), "range_overlap"),
    "a range past the end": (after(begun, layer(0, 0, 11)), "range_beyond"),
    "a range of 2^53-1 tokens": (after(begun, layer(0, 0, 2**53 - 1, 1)), "range_beyond"),
    "a body too short": (after(begun, layer(0, 0, 2, 2 * ROW - 1)), "short_body"),
    "no body": (after(begun, layer(0, 0, 2, 0)), "short_body"),
    "a body too long": (after(begun, layer(0, 0, 2, 2 * ROW + 1)), "long_body"),
    "END before any LAYER": (after(begun, ends(zero_root())), "range_missing"),
    "END before the last token": (after(begun, layer(0, 0, 9), ends(zero_root())), "range_missing"),
    "LAYER after the end of its tensor": (after(begun, layer(0, 0, 10), layer(0, 10, 1)), "range_beyond"),
    "END of another root": (after(begun, every_layer, ends("blake3:" + "0" * 64)), "bytes_differ"),
    "END with a field": (
        after(begun, every_layer, raw(reheaded(7, '{"extra":1,"mac":"' + "0" * 64 + '"}'))),
        "unknown_field",
    ),
}


@pytest.mark.parametrize("case", list(BAD_CLIENTS))
def test_a_client_out_of_order_is_refused_by_name(there: There, case: str) -> None:
    act, code = BAD_CLIENTS[case]
    with there.client() as client:
        try:
            act(client)
        except client_end.WireError as error:  # the NACK was there before the last step was written
            assert error.theirs, error
            assert error.code == code
        else:
            assert nacked(client, "ACK").code == code
    assert not list(Path(there.told["work_dir"]).glob("admissions/*.json"))


def test_a_client_with_another_key_refuses_and_is_refused(there: There) -> None:
    with there.client(handoff_key=bytes(32)) as client:
        with pytest.raises(client_end.WireError) as failed:
            client.hello(SIZE)
        assert (failed.value.code, failed.value.theirs) == ("bad_mac", False)
        client.send("OPEN", {})  # and if it went on all the same
        assert nacked(client, "OPENED").code == "bad_mac"


@pytest.mark.parametrize("changed", ["lane", "identity", "cache_identity", "mode"])
def test_a_client_of_another_enrollment_is_refused_by_name(there: There, changed: str) -> None:
    other = {"lane": "other", "mode": "exact"}.get(changed, "sha256:" + "0" * 64)
    with there.client(**{changed: other}) as client, pytest.raises(client_end.WireError) as failed:
        client.hand_over(TOKENS, small_payloads(there.told))
    assert (failed.value.code, failed.value.theirs) == ("not_enrolled", True)


def test_a_client_that_wants_another_receiver_says_nothing_of_the_prompt(there: There) -> None:
    with there.client(receiver="elsewhere") as client, pytest.raises(client_end.WireError) as failed:
        client.hand_over(TOKENS, small_payloads(there.told))
    assert (failed.value.code, failed.value.theirs) == ("wrong_receiver", False)


def test_a_client_that_expects_another_signer_refuses_the_acknowledgement(there: There) -> None:
    other = Ed25519PrivateKey.generate().public_key().public_bytes_raw()
    with there.client(public_key=other) as client, pytest.raises(client_end.WireError) as failed:
        client.hand_over(TOKENS, small_payloads(there.told))
    assert (failed.value.code, failed.value.theirs) == ("bad_signature", False)


def test_a_handoff_id_is_admitted_once(there: There) -> None:
    payloads = small_payloads(there.told)
    with there.client() as client:
        client.hand_over(TOKENS, payloads, handoff_id="ab" * 16)
    with there.client() as client, pytest.raises(client_end.WireError) as failed:
        client.hand_over(TOKENS, payloads, handoff_id="ab" * 16)
    assert (failed.value.code, failed.value.theirs) == ("replayed", True)


def test_a_known_handoff_id_is_refused_before_any_payload(there: There) -> None:
    with there.client() as client:
        client.hand_over(TOKENS, small_payloads(there.told), handoff_id="ab" * 16)
    with there.client() as client:
        begun(client, "ab" * 16)
        assert nacked(client, "ACK").code == "replayed"


def test_a_known_handoff_id_is_looked_at_after_the_tensors(there: There) -> None:
    with there.client() as client:
        client.hand_over(TOKENS, small_payloads(there.told), handoff_id="ab" * 16)
    with there.client() as client:
        opened(client)
        client.send("BEGIN", described(dtype="float16") | {"handoff_id": "ab" * 16})
        assert nacked(client, "ACK").code == "geometry_differs"


def test_a_record_that_appears_before_the_end_refuses_the_handoff_as_replayed(there: There) -> None:
    folder = Path(there.told["work_dir"]) / "admissions"
    with there.client() as client:
        begun(client, "ab" * 16)
        every_layer(client)
        client.ping()
        client.pong()  # BEGIN was found good
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{'ab' * 16}.json").write_text("another's", "utf-8")
        client.end(zero_root())
        assert nacked(client, "ACK").code == "replayed"
    assert (folder / f"{'ab' * 16}.json").read_text("utf-8") == "another's"


def test_a_byte_changed_after_its_digest_is_refused_with_the_receivers_digests(there: There) -> None:
    payloads = [bytes(tensor["bytes"]) for tensor in TENSORS]
    with there.client() as client:
        begun(client)
        for number, tensor in enumerate(TENSORS):
            body = payloads[number] if number != 1 else b"\x01" + payloads[number][1:]
            client.layer(Range(number, tensor["first_token"], tensor["tokens"]), body)
        client.end(zero_root())
        refused = nacked(client, "ACK")
    assert refused.code == "bytes_differ"
    own = [client_end.blake3_name(data) for data in payloads]
    assert [got == made for got, made in zip(refused.digests, own, strict=True)] == [True, False, True, True]


def test_a_second_producer_is_told_busy_and_the_first_goes_on(there: There) -> None:
    with there.client() as first, there.client() as second:
        opened(first)
        second.hello(SIZE)
        second.send("OPEN", {})
        assert nacked(second, "OPENED").code == "busy"
        first.begin("cd" * 16, prompt_sha256(TOKENS), 10, TENSORS, SIZE)
        every_layer(first)
        first.end(zero_root())
        first.acknowledgement("cd" * 16, prompt_sha256(TOKENS), zero_root(), SIZE)


def test_the_slot_is_free_again_before_the_acknowledgement(there: There) -> None:
    for number in range(3):
        with there.client() as client:
            client.hand_over(TOKENS, small_payloads(there.told, seed=number))


def test_an_abort_frees_the_slot(there: There) -> None:
    with there.client() as first:
        begun(first)
        first.send("ABORT", {"code": "engine_failed", "reason": "raised in layer 3"})
        with pytest.raises(client_end.WireError) as ended:
            first.expect("ACK")  # the receiver closes, and says nothing more
        assert ended.value.code == "peer_gone"
    with there.client() as second:
        second.hand_over(TOKENS, small_payloads(there.told))


def test_an_abort_between_hello_ack_and_open_is_heard(there: There) -> None:
    with there.client() as client:
        client.hello(SIZE)
        client.send("ABORT", {"code": "cancelled", "reason": ""})
        with pytest.raises(client_end.WireError) as ended:
            client.expect("OPENED")
    assert ended.value.code == "peer_gone"


def test_pings_between_layers_are_each_answered(there: There) -> None:
    with there.client() as client:
        begun(client, "ef" * 16)
        for number, tensor in enumerate(TENSORS):
            client.ping()
            client.layer(Range(number, tensor["first_token"], tensor["tokens"]), bytes(tensor["bytes"]))
        client.ping()
        client.end(zero_root())
        client.acknowledgement("ef" * 16, prompt_sha256(TOKENS), zero_root(), SIZE)
    assert client.pongs == len(TENSORS) + 1


def test_a_frame_cut_short_is_told_when_the_way_back_is_open(there: There) -> None:
    with there.client() as client:
        begun(client)
        client.write(reheaded(6, '{"count":1,"first_token":0,"tensor":0}', ROW)[:40])
        client.socket.shutdown(socket.SHUT_WR)
        assert nacked(client, "ACK").code == "short_frame"


def last_word_of(client: Client, word: str) -> None:
    """A session up to the receiver's last word, and that word read."""
    begun(client, "ab" * 16)
    if word == "ABORT":
        client.send("ABORT", {"code": "cancelled", "reason": ""})
    elif word == "NACK":
        client.write(reheaded(6, '{"count":1,"first_token":0,"tensor":0}', ROW + 1))
        assert nacked(client, "ACK").code == "long_body"
    else:
        every_layer(client)
        client.end(zero_root())
        client.acknowledgement("ab" * 16, prompt_sha256(TOKENS), zero_root(), SIZE)


@pytest.mark.parametrize("word", ["ACK", "NACK", "ABORT"])
def test_after_the_last_word_the_receiver_ends_its_side_and_reads_on(there: There, word: str) -> None:
    with there.client() as client:
        last_word_of(client, word)
        assert client.socket.recv(1) == b""
        for _ in range(8):  # a reset would end this
            client.socket.sendall(bytes(1_048_576))
    with there.client() as client:
        opened(client)  # the slot was free before the end could be seen


def test_what_follows_end_is_discarded_unread(there: There) -> None:
    with there.client() as client:
        begun(client, "ab" * 16)
        every_layer(client)
        end = client.encode("END", {}, sealed_with=zero_root())
        client.write(end + reheaded(11, "{}") + reheaded(10, '{"code":"cancelled","reason":""}') + b"no frame at all")
        client.acknowledgement("ab" * 16, prompt_sha256(TOKENS), zero_root(), SIZE)
        assert client.socket.recv(1) == b""
    assert len(list(Path(there.told["work_dir"]).glob("admissions/*.json"))) == 1


def test_an_end_between_two_frames_is_an_abort_without_a_word(there: There) -> None:
    with there.client() as client:
        begun(client)
        client.socket.shutdown(socket.SHUT_WR)
        assert client.socket.recv(1) == b""
    with there.client() as client:
        opened(client)


def test_pings_may_wait_for_their_pongs_together(there: There) -> None:
    with there.client() as client:
        opened(client)
        for _ in range(3):
            client.ping()
        client.begin("ab" * 16, prompt_sha256(TOKENS), 10, TENSORS, SIZE)
        client.ping()
        every_layer(client)
        client.ping()
        client.end(zero_root())
        client.acknowledgement("ab" * 16, prompt_sha256(TOKENS), zero_root(), SIZE)
        assert (client.pongs, client.pongs_owed) == (5, 0)


@pytest.mark.slow
def test_the_oldest_of_seventeen_strangers_is_closed_without_a_word(there: There) -> None:
    with contextlib.ExitStack() as stack:
        holder = stack.enter_context(there.client())
        opened(holder)
        strangers = []
        for _ in range(16):
            strangers.append(stack.enter_context(there.client()))
            strangers[-1].hello(SIZE)
        seventeenth = stack.enter_context(there.client())
        seventeenth.hello(SIZE)
        assert strangers[0].socket.recv(1) == b""
        for kept in (*strangers[1:], seventeenth):
            kept.send("OPEN", {})
            assert nacked(kept, "OPENED").code == "busy"
        holder.begin("ab" * 16, prompt_sha256(TOKENS), 10, TENSORS, SIZE)
        every_layer(holder)
        holder.end(zero_root())
        holder.acknowledgement("ab" * 16, prompt_sha256(TOKENS), zero_root(), SIZE)


def test_the_independent_client_waits_for_the_handshake_no_longer_than_its_limit(tmp_path: Path) -> None:
    enrolled = Enrolled.from_json(enrollment(tmp_path, SMALL))
    with (
        socket.create_server(("127.0.0.1", 0)) as mute,
        Client(enrolled, mute.getsockname(), session_s=5, handshake_s=0.2) as client,
        pytest.raises(client_end.WireError) as failed,
    ):
        client.hello(SIZE)
    assert (failed.value.code, time.monotonic() < client.deadline) == ("deadline", True)


def test_half_a_pong_is_waited_for_no_longer_than_a_frame_may_take(
    tmp_path: Path, send: Send, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_end, "FRAME_S", 0.2)
    monkeypatch.setattr(our_keepalive, "_FRAME_S", 0.2)
    told = enrollment(tmp_path / "work", SMALL)
    with Receiver(lane_of(told, tmp_path), session=sending(R.PONG, lambda raw: raw[:5])) as there:
        if send is theirs_sends:
            with Client(Enrolled.from_json(told), ("127.0.0.1", there.port), session_s=10) as client:
                opened(client)
                client.ping()
                with pytest.raises(client_end.WireError) as failed:
                    client.pong()
                assert (failed.value.code, time.monotonic() < client.deadline) == ("deadline", True)
            return
        address = ReceiverAddress("127.0.0.1", there.port)
        with our_sender.connect(our_side(told), address, SIZE, clock=HostClock("here"), times=FAST) as ours:
            finish = time.monotonic() + 10
            while ours.alive and time.monotonic() < finish:
                time.sleep(0.01)
            with pytest.raises(OurWireError) as seen:
                ours.check()
            assert seen.value.code == "deadline"


def test_the_independent_client_waits_for_opened_no_longer_than_its_limit(tmp_path: Path) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    with (
        Receiver(lane_of(told, tmp_path), session=sending(R.OPENED, lambda _: b"")) as there,
        Client(Enrolled.from_json(told), ("127.0.0.1", there.port), session_s=5, handshake_s=0.2) as client,
        pytest.raises(client_end.WireError) as failed,
    ):
        opened(client)
    assert (failed.value.code, time.monotonic() < client.deadline) == ("deadline", True)


@pytest.mark.parametrize("which", RECEIVERS)
def test_a_silent_producer_loses_the_slot(tmp_path: Path, which: str) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    with either(which, told, tmp_path, {"silence_s": 0.3}) as there, there.client() as client:
        opened(client)
        assert nacked(client, "ACK").code == "stale_slot"


@pytest.mark.parametrize("which", RECEIVERS)
def test_a_stranger_who_says_nothing_is_told_handshake_timeout(tmp_path: Path, which: str) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    with either(which, told, tmp_path, {"handshake_s": 0.3}) as there, there.client() as client:
        assert nacked(client, "HELLO_ACK").code == "handshake_timeout"


@pytest.mark.parametrize("which", RECEIVERS)
def test_an_eviction_makes_room_and_leaves_its_record(tmp_path: Path, which: str) -> None:
    told = enrollment(tmp_path / "work", SMALL) | {"memory_limit_bytes": 2 * SIZE}
    names = [f"{number:032x}" for number in range(3)]
    with either(which, told, tmp_path) as there:
        for name in names:
            with there.client() as client:
                client.hand_over(TOKENS, small_payloads(told), handoff_id=name)
    work_dir = Path(told["work_dir"])
    assert sorted(path.stem for path in (work_dir / "admissions").glob("*.json")) == names
    assert [path.stem for path in (work_dir / "evictions").glob("*.json")] == names[:1]


@pytest.mark.parametrize("which", RECEIVERS)
def test_both_receivers_leave_records_of_the_same_form(tmp_path: Path, which: str) -> None:
    told = enrollment(tmp_path / "work", SMALL)
    started_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    with either(which, told, tmp_path) as there, there.client() as client:
        done = client.hand_over(TOKENS, small_payloads(told))
        ended_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    path = tmp_path / "work" / "admissions" / f"{done.handoff_id}.json"
    text = path.read_bytes()
    record = json.loads(text)
    assert client_end.canonical(record) + b"\n" == text
    assert path.stat().st_mode & 0o777 == 0o444
    asked = "v lane receiver host boot_id clock handoff_id prompt_sha256 root total_bytes nonces sig first_byte_ns"
    assert set(record) == {*asked.split(), "admitted_ns"}
    assert record["v"] == 1
    assert (record["host"], record["receiver"], record["clock"]) == ("there", "there", "boottime")
    assert record["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()
    stamps = (record["first_byte_ns"], record["admitted_ns"])
    assert all(re.fullmatch("0|[1-9][0-9]*", stamp) for stamp in stamps)
    assert started_ns < int(stamps[0]) <= int(stamps[1]) < ended_ns


def serve_ours(path: Path) -> None:
    """This file as a process: our receiver, until standard input ends."""
    stop = threading.Event()

    def wait() -> None:
        sys.stdin.read()
        stop.set()

    threading.Thread(target=wait, daemon=True).start()
    config = our_config(json.loads(path.read_text("utf-8")))
    our_receiver.serve(config, ready=lambda _, port: print(json.dumps({"port": port}), flush=True), stop=stop)


if __name__ == "__main__":
    serve_ours(Path(sys.argv[1]))
