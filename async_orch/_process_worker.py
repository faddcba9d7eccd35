"""What runs in a worker process: programs are made once, then images are built, one after the other."""

from __future__ import annotations

import contextlib
import ctypes
import io
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

from async_orch._nbytes import as_nbytes
from async_orch._process_errors import CallersUnpickler, describe
from async_orch._process_main import IMPORTED_NAME, CallersMain
from async_orch._process_wire import Answer, Build, Channel, Closed, Hello, MainModule, Ready, Refused, ToWorker
from async_orch._program import Built, StepProgram, image_view
from async_orch._shared_memory import map_shared
from async_orch.abc import ByteArray
from async_orch.exceptions import ConfigurationError

__all__ = ["run"]

_PR_SET_PDEATHSIG = 1

OOM_SCORE = 500
"""Added to the worker's badness when the system runs out of memory: it is to lose a worker rather than the server."""


def run(descriptor: int, parent_pid: int) -> None:
    """Serve until told to stop, or until nobody is left to serve. ``descriptor`` is the channel's socket."""
    _end_with(parent_pid)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; what it means the parent decides
    _volunteer_when_memory_is_short()
    channel: Channel[ToWorker] = Channel(socket.socket(fileno=descriptor), ToWorker)
    os.set_inheritable(descriptor, False)
    with contextlib.suppress(Closed):
        _serve(channel)
    # As the workers of multiprocessing leave: what was printed is kept, and nobody waits for an interpreter to be taken
    # apart.
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def _end_with(parent_pid: int) -> None:
    """Have the kernel kill this process when the thread that started it ends, which lives as long as its pool."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        raise SystemExit("the process that this worker was started for has gone")


def _volunteer_when_memory_is_short() -> None:
    try:
        Path("/proc/self/oom_score_adj").write_text(str(OOM_SCORE), encoding="ascii")
    except OSError:
        return  # a container may forbid it; then the system chooses as it always does


def _serve(channel: Channel[ToWorker]) -> None:
    hello, _ = channel.receive()
    if not isinstance(hello, Hello):
        return
    sys.argv[:] = map(os.fsdecode, hello.argv)
    builder = Builder(hello.main)
    for name, pickled in zip(hello.names, hello.programs, strict=True):
        try:
            builder.add(pickled)
        except BaseException as exc:  # noqa: BLE001 - whatever the caller's module raises is told to the caller
            channel.send(Refused(name, describe(exc)))
            return
    channel.send(Ready())
    while True:
        message, descriptors = channel.receive()
        if not isinstance(message, Build):
            return
        channel.send(builder.build(message, descriptors))


class _Unpickler(CallersUnpickler):
    """Finds what is defined in the caller's ``__main__``."""

    def __init__(self, data: bytes, main: CallersMain) -> None:
        super().__init__(io.BytesIO(data))
        self._main = main

    def find_class(self, module: str, name: str, /) -> Any:
        if module not in ("__main__", IMPORTED_NAME):
            return super().find_class(module, name)
        self._main.import_once()
        try:
            return super().find_class(module, name)
        except AttributeError as exc:
            raise ConfigurationError(
                f"{name} of the script that runs as __main__ is not there when a worker process imports it, which "
                f"does not run what stands behind 'if __name__ == \"__main__\":'; define {name} before that line, on "
                "the top level, or in a module"
            ) from exc


class Builder:
    """The programs of one worker, and the staging memory that it has mapped."""

    def __init__(self, main: MainModule) -> None:
        self._main = CallersMain(main)
        self._programs: list[StepProgram[Any, Any]] = []
        self._memory: dict[int, ByteArray] = {}
        self._views: dict[tuple[int, int], Any] = {}

    def add(self, pickled: bytes) -> None:
        """Make one more program."""
        program = _Unpickler(pickled, self._main).load()
        if not isinstance(program, StepProgram):
            raise ConfigurationError(f"its pickle gave a {type(program).__name__}, not a StepProgram")
        self._programs.append(program)

    def build(self, order: Build, descriptors: list[int]) -> Answer:
        """Build one step into its staging memory."""
        start_ns = time.monotonic_ns()
        try:
            view = self._view(order, descriptors)
            step = self._step(order.payload)
            start_ns = time.monotonic_ns()
            result = self._programs[order.program].build(step, view)
            end_ns = time.monotonic_ns()
            if result is None:
                return Answer(start_ns, end_ns)
            if isinstance(result, Built):
                return Answer(start_ns, end_ns, as_nbytes(result.nbytes), as_nbytes(result.sm_nbytes))
            return Answer(start_ns, end_ns, as_nbytes(result))
        except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            return Answer(start_ns, time.monotonic_ns(), failure=describe(exc))

    def _step(self, payload: bytes) -> Any:
        try:
            return _Unpickler(payload, self._main).load()
        except Exception as exc:
            what = f"the step could not be read in the worker process: {type(exc).__name__}: {exc}"
            raise ConfigurationError(what) from exc

    def _view(self, order: Build, descriptors: list[int]) -> Any:
        index = order.staging
        if index < 0:
            return None
        if order.fresh:
            descriptor = descriptors.pop()
            try:
                self._memory[index] = map_shared(descriptor, order.capacity)
            finally:
                os.close(descriptor)
            self._views = {key: view for key, view in self._views.items() if key[0] != index}
        program = self._programs[order.program]
        if program.slot.image is None:
            return self._memory[index][: order.nbytes]
        key = (index, order.program)
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = image_view(program, self._memory[index])
        return view
