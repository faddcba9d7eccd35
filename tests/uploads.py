"""Programs that give back what the device's image holds, for tests of uploads."""

from __future__ import annotations

from typing import Any

from async_orch import Slot, SlotSpec, StepProgram
from async_orch.abc import ByteArray, Stream

__all__ = ["Echo", "Mirror"]


class Echo(StepProgram[bytes, bytes]):
    """A step is its image's bytes; its result is what the device had of them when the kernel ran."""

    def __init__(self, image_nbytes: int, **spec: Any) -> None:
        self.slot = SlotSpec(image_nbytes=image_nbytes, output_nbytes=image_nbytes, **spec)

    def build(self, step: bytes, image: ByteArray) -> Any:
        image[: len(step)] = memoryview(step)
        return len(step)

    def launch(self, step: bytes, slot: Slot, stream: Stream) -> int | None:
        stream.launch(_copy, slot.image, slot.output)
        return len(step)

    def collect(self, step: bytes, output: ByteArray) -> bytes:
        return output.tobytes()


class Mirror(Echo):
    """An `Echo` whose hooks fail, or whose kernel does, for the steps told so; slots grow with the steps."""

    def __init__(self, image_nbytes: int, *, grows: bool = False, **spec: Any) -> None:
        super().__init__(image_nbytes, **spec)
        self.grows = grows
        self.fails: dict[bytes, str] = {}

    def sizes(self, step: bytes) -> SlotSpec | None:
        nbytes = len(step)
        return SlotSpec(image_nbytes=nbytes, output_nbytes=nbytes) if self.grows else None

    def build(self, step: bytes, image: ByteArray) -> Any:
        used = super().build(step, image)
        self._check("build", step)
        return used

    def launch(self, step: bytes, slot: Slot, stream: Stream) -> int | None:
        self._check("launch", step)
        if self.fails.get(step) == "kernel":
            stream.launch(_raise)
        return super().launch(step, slot, stream)

    def _check(self, hook: str, step: bytes) -> None:
        if self.fails.get(step) == hook:
            raise ArithmeticError(hook)


def _copy(image: ByteArray, output: ByteArray) -> None:
    nbytes = min(image.size, output.size)
    output[:nbytes] = image[:nbytes]


def _raise() -> None:
    raise ArithmeticError("kernel")
