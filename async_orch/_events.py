"""Rare events: through structlog where the application has configured it, else through `logging`.

An unconfigured structlog prints every event to standard output, and `logging` without a handler prints warnings to
standard error; a library must stay silent then. So the logger has a `logging.NullHandler`, as libraries do.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, Literal

__all__ = ["emit", "enabled"]

Level = Literal["debug", "info", "warning", "error"]

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}
_logger = logging.getLogger("async_orch")
_logger.addHandler(logging.NullHandler())


def _structlog_configured() -> bool:
    if "structlog" not in sys.modules:
        return False  # nobody can have configured it, and importing it takes longer than importing the engine
    import structlog  # noqa: PLC0415 - see above

    return structlog.is_configured()


def enabled(level: Level = "info") -> bool:
    """Whether `emit` does anything at this level: for events that are dear to make."""
    return _structlog_configured() or _logger.isEnabledFor(_LEVELS[level])


def emit(level: Level, event: str, **fields: Any) -> None:
    """Log ``event`` to the logger ``async_orch``; silent while neither structlog nor `logging` is configured."""
    if _structlog_configured():
        import structlog  # noqa: PLC0415 - only once the application has imported it

        logger: Any = structlog.get_logger("async_orch")
        getattr(logger, level)(event, **fields)
    elif _logger.isEnabledFor(_LEVELS[level]):
        _logger.log(_LEVELS[level], "%s", _Line(event, fields))


class _Line:
    """An event as text, made only if a handler wants it."""

    __slots__ = ("_event", "_fields")

    def __init__(self, event: str, fields: dict[str, Any]) -> None:
        self._event = event
        self._fields = fields

    def __str__(self) -> str:
        return " ".join([self._event, *(f"{name}={value!r}" for name, value in self._fields.items())])
