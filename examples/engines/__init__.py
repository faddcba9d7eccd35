"""Engines that exist behind the orchestrator: three seams, each on a fake that shows misuse.

`docs/howto-existing-engine.md` goes through them.
"""
