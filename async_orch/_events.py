"""Rare events, through structlog, and only where the application has configured it.

An unconfigured structlog prints every event to standard output; a library must stay silent then.
"""

from __future__ import annotations

import sys
from typing import Any, Literal

__all__ = ["emit"]

Level = Literal["debug", "info", "warning", "error"]


def emit(level: Level, event: str, **fields: Any) -> None:
    """Log ``event`` to the structlog logger ``async_orch``; does nothing while structlog is not configured."""
    if "structlog" not in sys.modules:
        return  # nobody can have configured it, and importing it takes longer than importing the engine
    import structlog  # noqa: PLC0415 - see above

    if structlog.is_configured():
        logger: Any = structlog.get_logger("async_orch")
        getattr(logger, level)(event, **fields)
