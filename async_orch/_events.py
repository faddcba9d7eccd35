"""Rare events, through structlog, and only where the application has configured it.

An unconfigured structlog prints every event to standard output; a library must stay silent then.
"""

from __future__ import annotations

from typing import Any, Literal

import structlog

__all__ = ["emit", "enabled"]

Level = Literal["debug", "info", "warning", "error"]


def enabled() -> bool:
    """Whether `emit` does anything: for events that are dear to make."""
    return structlog.is_configured()


def emit(level: Level, event: str, **fields: Any) -> None:
    """Log ``event`` to the structlog logger ``async_orch``; does nothing while structlog is not configured."""
    if enabled():
        logger: Any = structlog.get_logger("async_orch")
        getattr(logger, level)(event, **fields)
