"""Floor 1: what is written down. Canonical JSON, clocks, receipt kinds, metrics and their storage."""
