"""Floor 2: what is exercised. The lane: a resident vLLM producer, a receiver, the path between them."""
