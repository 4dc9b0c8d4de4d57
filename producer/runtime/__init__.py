"""How the producer's process is started, watched and ended."""
