"""Images in shared memory where sizes differ: slots and staging that grow, and classes of slots."""

from __future__ import annotations

from typing import Any

import pytest

from async_orch import Orchestrator, SlotSpec
from async_orch.exceptions import CopyError
from async_orch.testing import ManualBackend
from tests.sharing import NBYTES, copies, image, outputs, shared
from tests.uploads import Echo


async def test_images_that_grow_are_shared_as_well() -> None:
    """Staging and slots get larger pieces one by one; none is copied between pieces of different sizes."""
    backend = ManualBackend(shares_memory=True)
    sizes = [16, 32, 100, 16, 100, 200, 16, 16, 16, 200, 32, 16, 200, 200, 200, 200, 16, 200]
    steps = [image(number, nbytes) for number, nbytes in enumerate(sizes)]
    async with Orchestrator(shared(grows=True), backend, slots=2, grow="high_water") as orch:
        assert await outputs(orch, backend, steps) == steps
        pieces = {b.handle: b.nbytes for b in backend.live if b.name == "image"}
        assert len(pieces) == 6
        assert max(pieces.values()) == 200
    assert copies(backend) == 0
    assert backend.live == []


@pytest.mark.parametrize("part", ["output", "workspace"])
async def test_an_image_stays_shared_where_another_part_of_its_slot_grows(part: str) -> None:
    """Only what is too small is allocated anew."""

    class Works(Echo):
        def sizes(self, step: bytes) -> SlotSpec | None:
            output_nbytes, workspace_nbytes = (100, 8) if part == "output" else (NBYTES, 100)
            return SlotSpec(image_nbytes=NBYTES, output_nbytes=output_nbytes, workspace_nbytes=workspace_nbytes)

    backend = ManualBackend(shares_memory=True)
    program = Works(NBYTES, image_at="shared", workspace_nbytes=8)
    async with Orchestrator(program, backend, slots=1, grow="high_water") as orch:
        pieces = {b.handle for b in backend.live if b.name == "image"}
        steps = [image(number) for number in range(6)]
        assert await outputs(orch, backend, steps) == steps
        assert {b.handle for b in backend.live if b.name == "image"} == pieces
    assert copies(backend) == 0
    assert backend.live == []


async def test_a_slot_knows_the_size_of_what_it_got() -> None:
    """After an exchange with a smaller piece it has to grow again, also where nothing is shared any more."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(grows=True), backend, slots=1, grow="high_water") as orch:
        steps = [image(1, 100), image(2, 16)]
        assert await outputs(orch, backend, steps) == steps
        backend.shares_memory = False
        steps = [image(3, 100), image(4, 100)]
        assert await outputs(orch, backend, steps) == steps
    assert backend.live == []


async def test_views_of_a_slot_that_grew_travel() -> None:
    """Steps without sizes of their own build in what a grown slot has left to staging."""

    class Some(Echo):
        def sizes(self, step: bytes) -> SlotSpec | None:
            return None if len(step) <= NBYTES else SlotSpec(image_nbytes=len(step), output_nbytes=len(step))

    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(Some(NBYTES, image_at="shared"), backend, slots=1, grow="high_water") as orch:
        steps = [image(1, 100), *(image(number) for number in range(2, 10))]
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 0
    assert backend.live == []


async def test_one_class_exchanges_whatever_the_sizes() -> None:
    """A single class is as good as none: its staging is never too small for another."""
    backend = ManualBackend(shares_memory=True)
    classes = [(SlotSpec(image_nbytes=NBYTES, output_nbytes=NBYTES), 2)]
    sizes = [16, 100, 16, 16, 100, 16, 16, 16]
    steps = [image(number, nbytes) for number, nbytes in enumerate(sizes)]
    async with Orchestrator(shared(grows=True), backend, slot_classes=classes, grow="high_water") as orch:
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 0


async def test_growth_goes_on_where_shared_memory_has_run_out() -> None:
    """What grew into memory of the device's own is copied to from then on."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(grows=True), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [image(1)]) == [image(1)]
        backend.shares_memory = False
        large = [image(number, 100) for number in range(8)]
        assert await outputs(orch, backend, large) == large
        assert copies(backend) == 8
    assert backend.live == []


async def test_growth_that_does_not_fit_fails_its_step_only() -> None:
    """The slot and its image stay as they are."""
    backend = ManualBackend(shares_memory=True)
    async with Orchestrator(shared(grows=True), backend, slots=1, grow="high_water") as orch:
        assert await outputs(orch, backend, [image(1)]) == [image(1)]
        backend.capacity_nbytes = backend.allocated_nbytes + 100  # for staging's new piece, not for the slot's
        with pytest.raises(CopyError, match="its slot could not be allocated"):
            await orch.run(image(2, 100))
        backend.capacity_nbytes = 1 << 30
        steps = [image(number, nbytes) for number, nbytes in enumerate((32, 16, 100, 32))]
        assert await outputs(orch, backend, steps) == steps
    assert copies(backend) == 0
    assert backend.live == []


async def test_small_classes_copy_so_that_staging_stays_large_enough() -> None:
    """A step of the largest class finds staging of its size, whatever came before; its image is not copied."""
    backend = ManualBackend(shares_memory=True)
    classes = [(SlotSpec(image_nbytes=16, output_nbytes=100), 2), (SlotSpec(image_nbytes=100, output_nbytes=100), 1)]
    sizes = [16, 16, 100, 16, 16, 16, 16, 100, 100]
    steps = [image(number, nbytes) for number, nbytes in enumerate(sizes)]
    async with Orchestrator(shared(16, grows=True), backend, slot_classes=classes) as orch:
        assert await outputs(orch, backend, steps) == steps
        opened: Any = orch._opened
        assert {staging.buffer.nbytes for staging in opened.pipeline.memory.staging.items} == {100}
    assert copies(backend) == sizes.count(16)
    assert backend.live == []
