"""The exact mode: integer dots that are the same on every machine. Not built yet; asking for it is refused by name."""

from __future__ import annotations

from typing import NoReturn

from receipts.errors import InputError


def open_exact() -> NoReturn:
    """Raises InputError: the exact producer is not built yet."""
    raise InputError("the exact producer is not built yet", next_step='set producer_mode = "native"')
