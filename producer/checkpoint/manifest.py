"""The manifest beside a checkpoint that we built: what it is and each file's size and SHA-256."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from receipts import canonical
from receipts.errors import InputError
from receipts.store import read_bounded

MANIFEST_NAME: Final = "soakledger-checkpoint.json"
MANIFEST_FORMAT: Final = "soakledger/checkpoint/1"

Progress = Callable[[str, int, int], None]
"""``progress(step, done, total)``: ``step`` is for a person; ``done`` of ``total`` units of that step are behind us."""

_READ_BYTES: Final = 1 << 20
_MOST_MANIFEST_BYTES: Final = 16 << 20


@dataclass(frozen=True)
class CheckpointFile:
    """One file of a checkpoint; ``sha256`` is ``sha256:<64 hex>`` over its bytes."""

    bytes: int
    sha256: str


@dataclass(frozen=True)
class CheckpointManifest:
    """What a checkpoint is. ``repository`` and ``revision`` name its source, ``recipe`` how it was made from it."""

    repository: str
    revision: str
    recipe: str
    files: Mapping[str, CheckpointFile]

    @property
    def total_bytes(self) -> int:
        """Bytes of all listed files; the manifest itself is not among them."""
        return sum(file.bytes for file in self.files.values())

    def document(self) -> dict[str, Any]:
        return {
            "format": MANIFEST_FORMAT,
            "repository": self.repository,
            "revision": self.revision,
            "recipe": self.recipe,
            "total_bytes": self.total_bytes,
            "files": {name: {"bytes": file.bytes, "sha256": file.sha256} for name, file in self.files.items()},
        }


def describe(folder: Path, *, repository: str, revision: str, recipe: str) -> CheckpointManifest:
    """The manifest of the files that lie in ``folder`` now, by name."""
    names = sorted(path.name for path in folder.iterdir() if path.name != MANIFEST_NAME)
    files = {name: CheckpointFile((folder / name).stat().st_size, file_sha256(folder / name)) for name in names}
    return CheckpointManifest(repository, revision, recipe, files)


def read_manifest(folder: Path) -> CheckpointManifest:
    """Read ``folder``'s manifest. Raises InputError when it is missing or not one of ours."""
    path = folder / MANIFEST_NAME
    try:
        document = canonical.parse(read_bounded(path, _MOST_MANIFEST_BYTES))
    except OSError as error:
        raise InputError(
            f"the checkpoint has no readable manifest ({error.strerror})", where=str(path), next_step=_REBUILD
        ) from None
    except InputError as error:
        raise InputError(f"the manifest is damaged: {error.what}", where=f"{path} {error.where}") from None
    try:
        return _from_document(document)
    except (KeyError, TypeError, ValueError, AttributeError):
        raise InputError(f"not a manifest of format {MANIFEST_FORMAT}", where=str(path), next_step=_REBUILD) from None


def verify(folder: Path, manifest: CheckpointManifest, *, progress: Progress) -> None:
    """Re-hash every listed file. Raises InputError naming the first file that differs, with both digests.

    A file that is not listed is refused as well: vLLM reads whatever ``*.safetensors`` lies in the folder.
    """
    done = 0
    for name, expected in sorted(manifest.files.items()):
        path = folder / name
        progress(f"hashing {name}", done, manifest.total_bytes)
        try:
            found = CheckpointFile(path.stat().st_size, file_sha256(path))
        except OSError as error:
            raise InputError(
                f"file of the checkpoint cannot be read ({error.strerror}); expected {expected.sha256}",
                where=str(path),
                next_step=_REBUILD,
            ) from None
        if found != expected:
            raise InputError(
                f"file of the checkpoint differs: expected {expected.sha256} ({expected.bytes} bytes), "
                f"found {found.sha256} ({found.bytes} bytes)",
                where=str(path),
                next_step=_REBUILD,
            )
        done += expected.bytes
    progress("hashing", done, manifest.total_bytes)
    for path in sorted(folder.iterdir()):
        if path.name != MANIFEST_NAME and path.name not in manifest.files:
            raise InputError("file is not listed in the checkpoint's manifest", where=str(path), next_step=_REBUILD)


def file_sha256(path: Path) -> str:
    """``sha256:<64 hex>`` of a file, read in slices."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while piece := stream.read(_READ_BYTES):
            digest.update(piece)
    return "sha256:" + digest.hexdigest()


_REBUILD: Final = "move that folder aside and run `soakledger producer build-checkpoint` again"


def _from_document(document: Any) -> CheckpointManifest:
    if document["format"] != MANIFEST_FORMAT:
        raise ValueError("format")
    files = {name: CheckpointFile(int(item["bytes"]), str(item["sha256"])) for name, item in document["files"].items()}
    if not files or any(Path(name).name != name for name in files):
        raise ValueError("files")
    return CheckpointManifest(str(document["repository"]), str(document["revision"]), str(document["recipe"]), files)
