"""Example programs for async_orch; they use its public names only."""
