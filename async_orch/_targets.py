"""Where records go: a file of JSON lines, a structlog logger, a callable."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from async_orch._events import emit
from async_orch._records import RecordTarget
from async_orch.exceptions import ConfigurationError
from async_orch.logs import StepRecord, encode_lines

__all__ = ["targets_for"]

HOLD_NS = 100_000
"""How long observers may keep the GIL before the writer offers it to others."""


class FileTarget:
    """JSON lines appended to a file. Lines are whole: each write ends with a newline.

    After a failed write (a full disk, a closed pipe) it warns once and goes on trying; what did not get out is
    counted by the writer.
    """

    def __init__(self, path: Path) -> None:
        try:
            self._file = path.open("ab", buffering=0)
        except OSError as exc:
            raise ConfigurationError(f"step_log={str(path)!r} cannot be opened for writing: {exc.strerror}") from exc
        self._path = path
        self._warned = False
        self._torn = False

    def write(self, records: Sequence[StepRecord]) -> None:
        self._write(encode_lines(records))

    def write_event(self, event: dict[str, Any]) -> None:
        self._write(msgspec.json.encode(event) + b"\n")

    def _write(self, data: bytes) -> None:
        if self._torn:
            # The last write stopped inside a line: begin a new one, so that only that line is lost.
            data = b"\n" + data
        view = memoryview(data)
        while view:
            try:
                written = self._file.write(view) or 0
            except OSError as exc:
                self._torn = self._torn or len(view) != len(data)
                if not self._warned:
                    self._warned = True
                    emit("warning", "step_log.failed", path=str(self._path), error=str(exc))
                raise
            view = view[written:]
        self._torn = False

    def close(self) -> None:
        self._file.close()


class LoggerTarget:
    """Each record as one event of a structlog logger, whose processors run on the writer's thread."""

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, records: Sequence[StepRecord]) -> None:
        for record in records:
            fields = msgspec.structs.asdict(record)
            event, level = fields.pop("event"), fields.pop("level")
            getattr(self._logger, level)(event, **fields)

    def write_event(self, event: dict[str, Any]) -> None:
        fields = dict(event)
        self._logger.info(fields.pop("event"), **fields)

    def close(self) -> None:
        """Nothing is buffered here."""


class CallableTarget:
    """Each record given to a function of the caller."""

    def __init__(self, function: Callable[[StepRecord], object]) -> None:
        self._function = function

    def write(self, records: Sequence[StepRecord]) -> None:
        let_go_at_ns = time.monotonic_ns() + HOLD_NS
        for record in records:
            self._function(record)
            if time.monotonic_ns() > let_go_at_ns:
                # An observer may take a while, and its neighbour on the loop should not wait for all of them.
                time.sleep(0)
                let_go_at_ns = time.monotonic_ns() + HOLD_NS

    def write_event(self, event: dict[str, Any]) -> None:
        """Functions get step records only."""

    def close(self) -> None:
        """Nothing is buffered here."""


def targets_for(step_log: Any, observers: Sequence[Callable[[StepRecord], object]]) -> list[RecordTarget]:
    """The targets that the options name. Raises `ConfigurationError` for what is none."""
    targets: list[RecordTarget] = []
    if isinstance(step_log, str | os.PathLike):
        targets.append(FileTarget(Path(step_log)))
    elif step_log is not None:
        if callable(getattr(step_log, "info", None)) and callable(getattr(step_log, "error", None)):
            targets.append(LoggerTarget(step_log))
        elif callable(step_log):
            targets.append(CallableTarget(step_log))
        else:
            raise ConfigurationError(
                f"step_log must be a path, a structlog logger or a callable, got {type(step_log).__name__}"
            )
    for observer in observers:
        if not callable(observer):
            raise ConfigurationError(f"observers must be callables, got {observer!r}")
        targets.append(CallableTarget(observer))
    return targets
