"""A loopback lane file for one machine: what ``lane init`` writes and the sample campaign runs on."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

TEMPLATE: Final = """\
# A lane: one producer, one receiver, the path between them. Relative paths are relative to this file.
schema = "soakledger/lane/1"
name = "loopback"

[host.here]
control = "local"
address = "127.0.0.1"
interface = "lo"

[producer]
host = "here"
runtime = "process"
key = "producer-handoff.key"        # the enrolled HMAC key, 0600; the receiver has its own copy
work_dir = "work"                   # producer.sock, startup receipt, stale artefacts, journal, logs
checkpoint = {checkpoint}
identity = "identity.json"          # written by `producer enroll`, frozen
lease = "/tmp/ferrite.gpu.lock"
watchdog_s = 900
kv_cache_memory_bytes = 1073741824  # 1-8 GiB
context_tokens = 8192
chunk_tokens = 1024
threads = {threads}

[receiver]
host = "here"
work_dir = "receiver-work"          # admissions/
memory_limit_bytes = 2147483648
enrolled = "enrolled/"              # the receiver's own copies: identity, template, signing key
producer_mode = "native"
key = "handoff.key"

[orchestrator]
host = "here"

[ports]
handoff = 47900
probe = 47901
control = 47902

[path]
kind = "loopback"
transfer = "after"
"""
DEFAULT_CHECKPOINT: Final = "checkpoints/smollm2-135m-nvfp4"


def loopback_lane(checkpoint: Path | None = None) -> str:
    """The text of the sample lane; threads are what this process may use."""
    threads = len(os.sched_getaffinity(0))
    place = DEFAULT_CHECKPOINT if checkpoint is None else str(checkpoint.absolute())
    return TEMPLATE.format(checkpoint=_toml_text(place), threads=threads)


def write_loopback_lane(path: Path, checkpoint: Path | None = None) -> bool:
    """Write the sample lane to ``path`` unless it is there; says whether it did."""
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    except FileExistsError:
        return False
    with os.fdopen(descriptor, "w", encoding="utf-8") as file:
        file.write(loopback_lane(checkpoint))
    return True


def _toml_text(value: str) -> str:
    import json

    return json.dumps(value, ensure_ascii=False)  # a JSON string is a TOML basic string
