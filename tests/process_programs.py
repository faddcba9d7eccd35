"""Programs that worker processes build; in a module of their own, since each worker imports it."""

from __future__ import annotations

import fcntl
import os
import signal
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from async_orch import Built, Device, Layout, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream
from async_orch.graph import GraphBuilder, KernelTable, execute
from tests.programs import Square, square

__all__ = [
    "Acts",
    "Fades",
    "Graphs",
    "Greets",
    "Order",
    "Refuses",
    "Sized",
    "Unpicklable",
    "UnreadableError",
    "Whence",
    "wait_for_lock",
]


@dataclass(frozen=True)
class Order:
    """A step that tells its build what to do."""

    value: int
    act: str = ""
    file: str = ""


class UnreadableError(Exception):
    """Can be pickled, and not read back: its constructor wants more than pickle gives it."""

    def __init__(self, what: str, code: int) -> None:
        super().__init__(f"{what} ({code})")


class Unpicklable(Exception):
    """Holds what cannot be pickled."""

    def __init__(self) -> None:
        super().__init__("holds a lock")
        self.lock = threading.Lock()


def wait_for_lock(path: str) -> None:
    """Wait until whoever locked a file lets it go; what a build that must not return yet does."""
    with Path(path).open() as file:
        fcntl.flock(file, fcntl.LOCK_EX)


class Acts(StepProgram[Any, int]):
    """Squares an `Order`'s value, after doing what it says."""

    slot = Square.slot

    def __init__(self) -> None:
        self.tries: dict[int, int] = {}
        self.device: Device | None = None

    def open(self, device: Device) -> None:
        self.device = device

    def build(self, step: Any, image: Any) -> int | None:
        getattr(self, f"_{step.act}", _nothing)(step)
        image.value[0] = step.value
        return None

    def launch(self, step: Any, slot: Slot, stream: Stream) -> int | None:
        stream.launch(square, slot.image, slot.workspace, slot.output)
        return None

    def collect(self, step: Any, output: ByteArray) -> int:
        return int(output.view(np.int64)[0])

    def _raise(self, step: Order) -> None:
        try:
            int("seven")
        except ValueError as exc:
            raise ArithmeticError(f"no number for {step.value}") from exc

    def _unreadable(self, step: Order) -> NoReturn:
        raise UnreadableError("cannot", 3)

    def _unpicklable(self, step: Order) -> NoReturn:
        raise Unpicklable

    def _exit(self, step: Order) -> NoReturn:
        raise SystemExit(3)

    def _die(self, step: Order) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _hang_up(self, step: Order) -> NoReturn:
        """Close the channel, and live on."""
        for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - names are numbers
            try:
                if os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115 - no path
                    os.close(int(name))
            except FileNotFoundError:
                continue  # the folder's own descriptor
        while True:
            signal.pause()

    def _shout(self, step: Order) -> NoReturn:
        raise ArithmeticError("x" * 2_000_000)

    def _leave(self, step: Order) -> NoReturn:
        os._exit(5)

    def _wait(self, step: Order) -> None:
        wait_for_lock(step.file)

    def _spin(self, step: Order) -> None:
        while step.act:
            pass

    def _once(self, step: Order) -> None:
        """Fail the first time only; the worker remembers it."""
        count = self.tries[step.value] = self.tries.get(step.value, 0) + 1
        if count == 1:
            raise ArithmeticError("the first time")

    def _die_once(self, step: Order) -> None:
        """Die if the file is not there yet."""
        if not os.path.exists(step.file):  # noqa: PTH110 - once
            with open(step.file, "w", encoding="ascii"):  # noqa: PTH123 - a mark
                pass
            os.kill(os.getpid(), signal.SIGKILL)

    def _gone(self, step: Order) -> None:
        raise RuntimeError("the device's memory is not here" if self.device is None else "it is")


def _nothing(step: Order) -> None:
    """What a build does besides."""


class Whence(Square):
    """Gives the process id that built each step, and says how often it was made."""

    def build(self, step: int, image: Any) -> int | None:
        image.value[0] = os.getpid()
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_same, slot.image, slot.output)
        return None


def _same(image: ByteArray, output: ByteArray) -> None:
    output[:8] = image[:8]


class Greets(Square):
    """Its state travels; what it opens does not have to."""

    def __init__(self, base: int) -> None:
        super().__init__()
        self.base = base

    def open(self, device: Device) -> None:
        super().open(device)
        self.lock = threading.Lock()  # from here on it cannot be pickled

    def build(self, step: int, image: Any) -> int | None:
        image.value[0] = step + self.base
        return None


class Refuses(Square):
    """Can be pickled, and cannot be made anew."""

    def __setstate__(self, state: Any) -> None:
        raise RuntimeError("no licence in this process")


class Sized(StepProgram[int, int]):
    """A step of n fills an image of n bytes; its output is their sum."""

    slot = SlotSpec(image_nbytes=64, output_nbytes=8)

    def sizes(self, step: int) -> SlotSpec | None:
        return SlotSpec(image_nbytes=step, output_nbytes=8)

    def build(self, step: int, image: ByteArray) -> int | None:
        if image.nbytes != step:
            raise ValueError(f"{image.nbytes} B of image for a step of {step}")
        image[:] = 3
        return step

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_total, slot.image, step, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view(np.int64)[0])


def _total(image: ByteArray, count: int, output: ByteArray) -> None:
    output[:8].view(np.int64)[0] = int(image[:count].sum(dtype=np.int64))


def _double(x: Any, y: Any) -> None:
    np.multiply(x, 2, out=y)


class Graphs(StepProgram[int, list[int]]):
    """Builds a task graph with a `GraphBuilder` that each worker makes for itself."""

    slot = SlotSpec(image=Layout(graph=("u1", (4096,))), output_nbytes=32)

    def __init__(self) -> None:
        self.table = KernelTable()
        self.table.add("double", _double, outputs=(1,))
        self.builder: GraphBuilder | None = None

    def build(self, step: int, image: Any) -> Built:
        if self.builder is None:
            self.builder = GraphBuilder(None, self.table, {"output": 32})
        builder = self.builder
        builder.reset(image.graph)
        x = builder.put(np.arange(4, dtype=np.int64) + step)
        builder.task("double", x, builder.tensor("output", 0, (4,), np.int64))
        nbytes = builder.finish()
        return Built(nbytes, nbytes)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(self._execute, slot.image, slot.output)
        return None

    def _execute(self, image: ByteArray, output: ByteArray) -> None:
        execute(image, {"output": output}, self.table)

    def collect(self, step: int, output: ByteArray) -> list[int]:
        values: list[int] = output.view(np.int64).tolist()
        return values


class Fades(Acts):
    """Can be made once: the next process finds that it is too late."""

    def __init__(self, mark: str) -> None:
        super().__init__()
        self.mark = mark

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        with open(self.mark, "x", encoding="ascii"):  # noqa: PTH123 - fails if it exists
            pass
