"""A Qwen3 decoder as an async_orch graph program, with a tiny trained checkpoint."""
