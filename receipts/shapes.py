"""Whether what an entry records has the shape of its kind: what every reader of that kind relies on."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

from pydantic import ValidationError

from receipts.events import DeathEvent, JournalRecord
from receipts.kinds import BODIES, Document, Receipt
from receipts.leaves import (
    AttemptAbandoned,
    AttemptClose,
    AttemptOpen,
    Deviation,
    Enrollment,
    ProcessEvent,
    Registration,
)

LEAVES: Final[Mapping[str, type[Document]]] = MappingProxyType(
    {
        "registration": Registration,
        "attempt_open": AttemptOpen,
        "attempt_close": AttemptClose,
        "attempt_abandoned": AttemptAbandoned,
        "deviation": Deviation,
        "enrollment": Enrollment,
        "process_event": ProcessEvent,
    }
)
"""The model of each kind of entry that has one."""


def fault_of(kind: str, data: Any) -> str | None:
    """What of ``data`` does not fit the model of its kind; None when all does, or there is no model.

    A member that the model does not know is no fault: a later release may have written it.
    """
    model = LEAVES.get(kind)
    if model is None:
        return None
    fault = _misfit(model, data, "data")
    if fault is None and kind == "process_event":
        record = data["record"]
        fault = _misfit(JournalRecord, record, "data.record")
        if fault is None and record["kind"] == "death":  # the one body that judging and telling go by
            fault = _misfit(DeathEvent, record["body"], "data.record.body")
    return fault


def receipt_fault_of(data: Any) -> str | None:
    """The same for a receipt: its envelope, and its body where the kind is known."""
    fault = _misfit(Receipt, data, "data")
    if fault is None and data["kind"] in BODIES:
        fault = _misfit(BODIES[data["kind"]], data["body"], "data.body")
    return fault


def _misfit(model: type[Document], value: Any, path: str) -> str | None:
    try:
        model.model_validate_json(json.dumps(value))
    except ValidationError as error:
        for found in error.errors(include_url=False, include_input=False, include_context=False):
            if found["type"] != "extra_forbidden":
                where = path + "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in found["loc"])
                return f"{where}: {found['msg']}"
    return None
