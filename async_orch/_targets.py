"""Where records go: a file of JSON lines, a structlog logger, a callable."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from async_orch._records import RecordsLost, RecordTarget, Turns
from async_orch.exceptions import ConfigurationError
from async_orch.logs import StepRecord, encode_lines

__all__ = ["targets_for"]


class FileTarget:
    """JSON lines appended to a file. Lines are whole: each write ends with a newline.

    After a failed write (a full disk, a closed pipe) the writer warns once, counts what did not get out, and goes on
    trying.
    """

    lets_go = True

    def __init__(self, path: Path) -> None:
        try:
            self._file = open(path, "ab", buffering=0, opener=_open_at_once)  # noqa: SIM115 - Path.open has no opener
        except (OSError, ValueError) as exc:  # ValueError: a null byte in the name
            why = exc.strerror if isinstance(exc, OSError) else exc
            raise ConfigurationError(f"step_log={str(path)!r} cannot be opened for writing: {why}") from exc
        self.name = str(path)
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
            except OSError:
                self._torn = self._torn or len(view) != len(data)
                raise
            view = view[written:]
        self._torn = False

    def close(self) -> None:
        self._file.close()


def _open_at_once(path: str, flags: int) -> int:
    """Open without waiting: a named pipe that nobody reads would hold the event loop until somebody does."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


class LoggerTarget:
    """Each record as one event of a structlog logger, whose processors run on the writer's thread."""

    name = "structlog logger"
    lets_go = False

    def __init__(self, logger: Any) -> None:
        self._logger = logger

    def write(self, records: Sequence[StepRecord]) -> None:
        _each(self._write_one, records)

    def _write_one(self, record: StepRecord) -> None:
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

    lets_go = False

    def __init__(self, function: Callable[[StepRecord], object]) -> None:
        self._function = function
        self.name: str = getattr(function, "__qualname__", None) or type(function).__name__

    def write(self, records: Sequence[StepRecord]) -> None:
        _each(self._function, records)

    def write_event(self, event: dict[str, Any]) -> None:
        """Functions get step records only."""

    def close(self) -> None:
        """Nothing is buffered here."""


def _each(take: Callable[[StepRecord], object], records: Sequence[StepRecord]) -> None:
    """Give ``take`` every record, also after it raised for one. Raises `RecordsLost` at the end if it did."""
    failed, last = 0, None
    turns = Turns()
    for record in records:
        try:
            take(record)
        except BaseException as exc:  # noqa: BLE001 - counted and reported by the writer
            failed, last = failed + 1, exc
        turns.look()
    if last is not None:
        raise RecordsLost(failed) from last


def targets_for(step_log: Any, observers: Sequence[Callable[[StepRecord], object]]) -> list[RecordTarget]:
    """The targets that the options name. Raises `ConfigurationError` for what is none."""
    targets: list[RecordTarget] = []
    if step_log == "":
        raise ConfigurationError("step_log='' names no file; pass a path, a structlog logger or a callable, or None")
    for function in (step_log, *observers):
        if inspect.iscoroutinefunction(function):
            raise ConfigurationError(f"{function!r} is async; records are given to plain functions, on a thread")
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
