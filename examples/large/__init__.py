"""A decode step of a large model as the host sees it: its task graph, without weights and without arithmetic."""
