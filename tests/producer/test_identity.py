"""The identity document: every file counts, and a difference is named with both sides."""

from __future__ import annotations

import hashlib
import importlib.metadata
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from producer import identity
from receipts import canonical
from receipts.errors import FaultsError, IdentityError, InputError


def sha256(data: bytes) -> str:
    return "sha256:" + hashlib.sha256(data).hexdigest()


def test_the_cache_identity_is_the_one_of_the_format_page() -> None:
    # SHA-256 of "soakledger/cache/1\nnative\nsha256:000…0", worked out with sha256sum.
    expected = hashlib.sha256(b"soakledger/cache/1\nnative\nsha256:" + 64 * b"0").hexdigest()
    found = identity.cache_identity("native", "sha256:" + 64 * "0")
    assert found == f"sha256:{expected}"
    assert found in (Path(__file__).parents[2] / "docs/formats/identity.md").read_text()


def test_exact_and_native_caches_of_one_producer_have_different_names() -> None:
    same = "sha256:" + 64 * "1"
    assert identity.cache_identity("native", same) != identity.cache_identity("exact", same)


def test_the_identity_is_the_digest_of_the_canonical_document() -> None:
    assert identity.digest({"b": 1, "a": "x"}) == sha256(b'{"a":"x","b":1}')


def test_every_differing_field_is_named_with_both_sides() -> None:
    enrolled = {"a": {"x": 1, "y": [1, 2]}, "b": "same", "gone": True}
    found = {"a": {"x": 2, "y": [1, 2]}, "b": "same", "new": None}
    assert [str(item) for item in identity.differences(enrolled, found)] == [
        "a.x: enrolled 1, found 2",
        "gone: enrolled true, found nothing",
        "new: enrolled nothing, found null",
    ]


def test_only_the_half_that_was_recomputed_is_compared() -> None:
    identity.require_equal({"a": 1, "later": 2}, {"a": 1}, where="identity.json")
    with pytest.raises(IdentityError, match="a: enrolled 1, found 2"):
        identity.require_equal({"a": 1}, {"a": 2}, where="identity.json")


def test_a_checkpoint_lists_every_file_with_bytes_and_digest(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    (tmp_path / "config.json").write_bytes(b"{}")
    assert identity.checkpoint_files(tmp_path) == {
        "repository": None,
        "revision": None,
        "total_bytes": 9,
        "files": {
            "config.json": {"sha256": sha256(b"{}"), "bytes": 2},
            "model.safetensors": {"sha256": sha256(b"weights"), "bytes": 7},
        },
    }


def test_a_changed_and_a_truncated_checkpoint_file_are_named_with_both_digests(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"weights")
    enrolled = {"checkpoint": identity.checkpoint_files(tmp_path)}
    (tmp_path / "model.safetensors").write_bytes(b"weight")
    with pytest.raises(IdentityError) as refusal:
        identity.require_equal(enrolled, {"checkpoint": identity.checkpoint_files(tmp_path)}, where="identity.json")
    text = str(refusal.value)
    assert "model.safetensors" in text
    assert sha256(b"weights") in text
    assert sha256(b"weight") in text


def test_a_link_in_a_checkpoint_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"x")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "real")
    with pytest.raises(FaultsError, match=r"model\.safetensors: a checkpoint holds regular files only"):
        identity.checkpoint_files(tmp_path)


def test_a_missing_checkpoint_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="build-checkpoint"):
        identity.checkpoint_files(tmp_path / "nowhere")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A distribution ``vllm`` of two files and one bytecode file, as pip would have installed it."""
    package = tmp_path / "vllm"
    package.mkdir()
    (package / "engine.py").write_bytes(b"answer = 42\n")
    (package / "kernel.so").write_bytes(b"\x7fELF")
    info = tmp_path / "vllm-0.32.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0\n")
    rows = [
        f"vllm/{name},sha256={urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b'=').decode()},{len(data)}"
        for name, data in (("engine.py", b"answer = 42\n"), ("kernel.so", b"\x7fELF"))
    ]
    (info / "RECORD").write_text("\n".join([*rows, "vllm/__pycache__/engine.pyc,,", "vllm-0.32.0.dist-info/RECORD,,"]))
    distribution = importlib.metadata.PathDistribution(info)
    monkeypatch.setattr(identity, "_found", lambda _package: distribution)
    yield package


def test_every_file_of_the_engine_is_hashed_and_bytecode_is_not(installed: Path) -> None:
    found = identity._distribution("vllm", None)
    table = {"vllm/engine.py": sha256(b"answer = 42\n"), "vllm/kernel.so": sha256(b"\x7fELF")}
    assert found == {
        "distribution": "vllm",
        "version": "0.32.0",
        "commit": None,
        "files": 2,
        "files_sha256": canonical.sha256(canonical.dumps(table)),
    }
    assert installed.is_dir()


def test_one_edited_source_file_of_the_engine_is_named_with_both_digests(installed: Path) -> None:
    (installed / "engine.py").write_bytes(b"answer = 43\n")
    with pytest.raises(IdentityError) as refusal:
        identity._distribution("vllm", None)
    text = str(refusal.value)
    assert "vllm/engine.py" in text
    assert sha256(b"answer = 42\n") in text
    assert sha256(b"answer = 43\n") in text


def test_a_missing_file_of_the_engine_is_named(installed: Path) -> None:
    (installed / "kernel.so").unlink()
    with pytest.raises(IdentityError, match=r"vllm/kernel\.so: missing"):
        identity._distribution("vllm", None)
