"""Floor 2: what is remembered. An append-only, signed, verifiable record of entries in SQLite."""
