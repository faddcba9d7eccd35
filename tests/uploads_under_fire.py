"""Steps of two programs under fire, whose results are the images that the device saw."""

from __future__ import annotations

import random
from typing import Any

from async_orch import Orchestrator
from async_orch.exceptions import DeviceLost, OrchError
from async_orch.testing import Fault, FaultPlan, leak_check
from tests.uploads import Mirror

__all__ = ["plan_for", "run"]

NBYTES = 2_000


class Images:
    """Images that are much alike, and now and then not at all; sizes grow and shrink."""

    def __init__(self, seed: int, largest_nbytes: int) -> None:
        self.random = random.Random(seed)
        self._image = bytearray(largest_nbytes)
        self._used = NBYTES

    def next(self) -> bytes:
        """One more image, never the same twice."""
        chance = self.random
        if chance.random() < 0.1:
            self._image[:] = chance.randbytes(len(self._image))
        for _ in range(chance.choice((0, 1, 3, 10))):
            self._image[chance.randrange(self._used)] = chance.randrange(256)
        if chance.random() < 0.3:
            self._used = chance.randint(8, len(self._image) if chance.random() < 0.2 else NBYTES)
        self._image[:8] = chance.randbytes(8)
        return bytes(self._image[: self._used])


def plan_for(seed: int) -> FaultPlan:
    """Copies and launches that fail in the call or on the device, copies that end half-way."""
    return FaultPlan(
        Fault(action="raise", operation="copy", stream="copy", probability=0.04),
        Fault(action="raise", operation="copy", stream="copy", where="call", probability=0.02),
        Fault(action="short_copy", operation="copy", stream="copy", probability=0.04, copied_nbytes=5),
        Fault(action="raise", operation="launch", probability=0.03),
        Fault(action="lose_device", operation="launch", probability=0.004),
        Fault(action="delay", operation="launch", probability=0.05, delay_ns=70_000_000),
        seed=seed,
    )


async def run(
    backend: Any,
    seed: int,
    count: int,
    *,
    grows: bool = False,
    image_at: tuple[str, str] = ("slot", "slot"),
    **options: Any,
) -> int:
    """Steps of two programs with faults, cancels and reopening; gives how many gave their image back while it ran."""
    images = Images(seed, 3 * NBYTES if grows else NBYTES)
    chance = images.random
    programs = {
        name: Mirror(NBYTES, grows=grows, image_at=at) for name, at in zip(("one", "other"), image_at, strict=True)
    }
    right = 0
    with leak_check(backend) as leaks:
        orch: Orchestrator[Any, Any] = Orchestrator(
            programs,
            backend,
            grow="high_water" if grows else "never",
            max_quarantined=1_000,
            **options,
        )
        async with leaks.watch(orch):
            handles: list[Any] = []
            for _ in range(count):
                step, name = images.next(), chance.choice(("one", "other"))
                if chance.random() < 0.1:
                    programs[name].fails[step] = chance.choice(("build", "launch", "kernel"))
                try:
                    handles.append((step, await orch.submit(step, program=name)))
                    if chance.random() < 0.15:
                        chance.choice(handles)[1].cancel()
                    while handles and (len(handles) > 4 or chance.random() < 0.4):
                        expected, handle = handles.pop(0)
                        result = await handle
                        assert result.output == expected
                        right += 1
                except DeviceLost:
                    await orch.reopen()
                    handles.clear()
                except OrchError:
                    continue
            for expected, handle in handles:
                try:
                    assert (await handle).output == expected
                except OrchError:
                    continue
    return right
