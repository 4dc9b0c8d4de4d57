"""Which evaluator this is: the digest of the source that judges (DESIGN section 10)."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Final

from receipts import canonical

SOURCES: Final = (
    "receipts/canonical.py",
    "receipts/metrics.py",
    "campaigns/spec.py",
    "campaigns/criteria.py",
    "campaigns/statistics.py",
    "campaigns/verdict.py",
)


@functools.cache
def source_sha256() -> str:
    """SHA-256 of RFC 8785 {path: sha256} of the six files that decide a verdict."""
    root = Path(__file__).resolve().parent.parent
    return canonical.sha256(canonical.dumps({name: canonical.sha256((root / name).read_bytes()) for name in SOURCES}))
