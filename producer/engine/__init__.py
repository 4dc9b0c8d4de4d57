"""The engine inside the producer: vLLM driven in-process, its KV captured, its progress watched."""
