"""The identity document: every file counts, and a difference is named with both sides."""

from __future__ import annotations

import hashlib
import importlib.metadata
import sys
from base64 import urlsafe_b64encode
from collections.abc import Iterator
from pathlib import Path

import pytest

from producer import identity, importable
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


@pytest.mark.parametrize(
    "stray",
    ["engine/__init__.py", "extra.py", "engine.cpython-311-x86_64-linux-gnu.so", "engine.abi3.so", "extra.pyc"],
)
def test_a_file_that_no_list_has_and_that_could_be_imported_is_refused_by_name(installed: Path, stray: str) -> None:
    (installed / stray).parent.mkdir(exist_ok=True)
    (installed / "data.json").touch()
    (installed / "__pycache__").mkdir()
    (installed / "__pycache__/engine.cpython-311.pyc").touch()
    assert identity._distribution("vllm", None)["files"] == 2
    (installed / stray).touch()
    with pytest.raises(IdentityError, match=rf"vllm/{stray}: in no list"):
        identity._distribution("vllm", None)


def test_a_linked_folder_in_a_package_is_refused_by_name(installed: Path, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (installed / "engine").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(IdentityError, match="vllm/engine/: in no list"):
        identity._distribution("vllm", None)


def test_an_extension_beside_our_own_source_is_refused_by_name(tmp_path: Path) -> None:
    for name in identity.OVERLAY_PACKAGES:
        (tmp_path / name).mkdir()
        (tmp_path / name / "capture.py").touch()
    identity.overlay_digest(tmp_path)
    (tmp_path / "producer/capture.abi3.so").touch()
    with pytest.raises(IdentityError, match=r"producer/capture\.abi3\.so: in no list"):
        identity.overlay_digest(tmp_path)


def test_what_python_imports_by_itself_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    importable.require_no_customizer()
    monkeypatch.delitem(sys.modules, "usercustomize", raising=False)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "usercustomize.py").touch()
    with pytest.raises(IdentityError, match=r"usercustomize\.py: Python imports usercustomize by itself"):
        importable.require_no_customizer()


def test_a_pth_file_that_runs_code_is_part_of_the_identity_unless_a_record_has_it_so(tmp_path: Path) -> None:
    hook = b"import os; os.x = 1\n"
    (tmp_path / "paths.pth").write_bytes(b"/somewhere\n")
    (tmp_path / "hook.pth").write_bytes(hook)
    assert importable.startup_code([tmp_path]) == {"hook.pth": sha256(hook)}
    info = tmp_path / "hook-1.dist-info"
    info.mkdir()
    recorded = urlsafe_b64encode(hashlib.sha256(hook).digest()).rstrip(b"=").decode()
    (info / "RECORD").write_text(f"hook.pth,sha256={recorded},{len(hook)}\n")
    assert importable.startup_code([tmp_path]) == {}
    (tmp_path / "hook.pth").write_bytes(b"import evil\n")
    assert importable.startup_code([tmp_path]) == {"hook.pth": sha256(b"import evil\n")}


def test_this_python_itself_has_nothing_of_all_that() -> None:
    assert importable.startup_code() == {}
