"""The commands of ``async-orch``: one module each, with `HELP`, `add_arguments` and `run`.

A command's module imports what is slow to import when it runs, so that ``async-orch --help`` waits for none of it.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COMMANDS"]

COMMANDS: Final = {
    "analyze": "show where the steps' time went and what bounds them",
    "compare": "say what changed from one log to another",
    "check": "hold a log against limits, for CI",
    "whatif": "predict other settings from measured stage times",
    "estimate": "say what overlap would bring, from the times of a step",
    "report": "write one HTML page with the timeline, the figures and the bubbles",
    "trace": "write the timeline for Perfetto, or as [STRACE] lines",
    "bench": "measure what the engine costs and reaches on this machine",
    "backends": "show which backends are installed, which work here, and why not",
}
"""Names of the commands, in the order of the help text, and what each does; `async_orch._commands.NAME` holds it."""
