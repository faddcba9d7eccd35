"""Small programs that many tests use."""

from __future__ import annotations

from typing import Any

import numpy as np
from anyio.lowlevel import checkpoint

from async_orch import Device, Layout, Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream


def square(image: ByteArray, workspace: ByteArray, output: ByteArray) -> None:
    """Kernel: read a number, keep a copy in the workspace, write its square."""
    workspace[:8] = image[:8]
    value = workspace[:8].view(np.int64)
    output[:8].view(np.int64)[0] = value[0] * value[0]


class Square(StepProgram[int, int]):
    """Squares an int on the device; counts its hooks."""

    slot = SlotSpec(image=Layout(value=("i8", (1,))), workspace_nbytes=64, output_nbytes=8)

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.device: Device | None = None

    def open(self, device: Device) -> None:
        self.calls.append("open")
        self.device = device

    def build(self, step: int, image: Any) -> int | None:
        image.value[0] = step
        return None

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        stream.launch(square, slot.image, slot.workspace, slot.output)
        return None

    def collect(self, step: int, output: ByteArray) -> int:
        return int(output.view(np.int64)[0])

    def close(self) -> None:
        self.calls.append("close")


class Hooked(Square):
    """A `Square` whose hooks raise what the test puts in ``fail``: hook name -> steps that fail."""

    def __init__(self, **fail: set[int]) -> None:
        super().__init__()
        self.fail = fail

    def _check(self, hook: str, step: int) -> None:
        if step in self.fail.get(hook, ()):
            raise ArithmeticError(f"{hook} of {step}")

    def build(self, step: int, image: Any) -> int | None:
        self._check("build", step)
        return super().build(step, image)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        self._check("launch", step)
        if step in self.fail.get("kernel", ()):
            stream.launch(_raise, step)
            return None
        return super().launch(step, slot, stream)

    def collect(self, step: int, output: ByteArray) -> int:
        self._check("collect", step)
        return super().collect(step, output)


def _raise(step: int) -> None:
    raise ArithmeticError(f"kernel of {step}")


async def settle() -> None:
    """Let wake-ups that the test's fences posted run."""
    for _ in range(3):
        await checkpoint()
