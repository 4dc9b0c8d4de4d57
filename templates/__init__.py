"""Floor 3: how it is told. Pages, plots and terminal output, rendered from the ledger alone."""
