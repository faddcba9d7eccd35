"""An OpenAI-compatible server over the paged Qwen3 programs: ``python -m examples.serve``."""
