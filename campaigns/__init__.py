"""Floor 4: what is promised, how it is run and judged, and the command line."""
