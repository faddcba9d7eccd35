"""The rings of an orchestrator: staging, and slots in one or several size classes; how they are made and grow."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING

from async_orch._config import OrchestratorConfig
from async_orch._delta import Shadow
from async_orch._events import emit
from async_orch._program import ProgramRuntime, image_view, sizes_of
from async_orch._ring import Ring
from async_orch._slot import SlotMemory, SlotSizes
from async_orch._staging import Staging, mapped_staging, new_staging
from async_orch.abc import Backend, Fence
from async_orch.exceptions import ConfigurationError, OutOfDeviceMemory, PipelineFailed

if TYPE_CHECKING:
    from async_orch._step import Step

__all__ = ["MemoryPlan", "SlotClass"]


class SlotClass:
    """Slots of one size, and the high-water mark that they grow to."""

    __slots__ = ("memories", "ring", "sizes")

    def __init__(
        self,
        sizes: SlotSizes,
        count: int,
        new: Callable[[], SlotMemory],
        on_free: Callable[[SlotMemory], None] | None,
        *,
        fifo: bool,
    ) -> None:
        self.memories = [new() for _ in range(count)]
        self.sizes = sizes
        self.ring: Ring[SlotMemory] = Ring(self.memories, fifo=fifo, on_free=on_free)


class MemoryPlan:
    """Allocates every ring at open, gives each step the class it fits in, and frees everything at close.

    In mode naive slots hold no device memory until a step acquires one, and give it back with the lease.
    """

    def __init__(
        self, config: OrchestratorConfig, backend: Backend, runtimes: Sequence[ProgramRuntime], *, has_memory: bool
    ) -> None:
        self._backend = backend
        self.runtimes = runtimes
        self.has_memory = has_memory
        self.naive = config.mode == "naive" and has_memory
        self.grows = config.grow == "high_water"
        self._shares_staging = config.build_in == "process"
        self.delta = config.upload == "delta" and has_memory and not self.naive
        with_image = [runtime for runtime in runtimes if runtime.image_nbytes]
        self.shares_images = bool(
            with_image
            and all(runtime.shares_image for runtime in with_image)
            and not (self.naive or self.delta or self._shares_staging)
        )
        self._images_differ = len(config.slot_classes) > 1
        self.step_path_allocs = 0
        self._fifo = backend.reuse_order == "fifo"
        # Only test backends want to know; the others must not pay for a call a step.
        self._tells_released = type(backend).released is not Backend.released
        needed = SlotSizes()
        for runtime in runtimes:
            needed = needed.or_larger(runtime.sizes)
        self.classes = self._make_classes(config, needed)
        self.image_nbytes = max(c.sizes.image_nbytes for c in self.classes)
        staging_count = config.staging_count if self.image_nbytes else 0
        on_free = self._staging_freed if self._tells_released else None
        self.staging: Ring[Staging] = Ring([], fifo=self._fifo, on_free=on_free)
        self._staging_count = staging_count

    def _make_classes(self, config: OrchestratorConfig, needed: SlotSizes) -> list[SlotClass]:
        fifo = self._fifo
        on_free = self._slot_freed if self.naive or self.delta or self._tells_released else None
        if not config.slot_classes:
            return [SlotClass(needed, config.slots, self._new_memory, on_free, fifo=fifo)]
        # Feed and output may be left out of a class: every program may need its own, and they are small.
        common = SlotSizes(feed_nbytes=needed.feed_nbytes, output_nbytes=needed.output_nbytes)
        sizes = [(sizes_of(spec).or_larger(common), count) for spec, count in config.slot_classes]
        largest = sizes[-1][0]
        if not needed.fits_in(largest):
            raise ConfigurationError(
                f"slot_classes are too small: the largest has {largest}, but the programs' slots need {needed}"
            )
        return [SlotClass(size, count, self._new_memory, on_free, fifo=fifo) for size, count in sizes]

    def _new_memory(self) -> SlotMemory:
        return SlotMemory(shares_images=self.shares_images, images_differ=self._images_differ)

    def allocate(self) -> None:
        """Allocate and touch everything. Raises `OutOfDeviceMemory` with what to lower; `free` undoes the rest."""
        total = sum(len(c.memories) for c in self.classes)
        self._check_room(total)
        # Slots first: what memory they leave, staging can share with the device.
        count = 0
        for slot_class in self.classes:
            for memory in slot_class.memories:
                count += 1
                try:
                    memory.allocate_host(self._backend, slot_class.sizes, naive=self.naive)
                    if self.naive:
                        continue
                    self._allocate_device(memory, slot_class.sizes)
                except OutOfDeviceMemory as exc:
                    raise OutOfDeviceMemory(
                        f"slot {count} of {total} does not fit: each needs {slot_class.sizes.device_nbytes} B "
                        f"({slot_class.sizes}); lower slots or the sizes ({exc})"
                    ) from exc
        for i in range(self._staging_count):
            try:
                staging = self._new_staging(f"staging{i}", self.image_nbytes)
            except OutOfDeviceMemory as exc:
                raise OutOfDeviceMemory(
                    f"staging buffer {i + 1} of {self._staging_count} does not fit in host memory: each needs "
                    f"{self.image_nbytes} B; lower image_nbytes, queue_depth or build_workers ({exc})"
                ) from exc
            self.staging.add(staging)
            self._make_views(staging)

    def _allocate_device(self, memory: SlotMemory, sizes: SlotSizes) -> None:
        memory.shadow = self._shadow_of(sizes)
        memory.allocate_device(self._backend, sizes)
        if memory.staged is not None:
            self._make_views(memory.staged)

    def _check_room(self, total: int) -> None:
        """Refuse rings that cannot fit before anything of them is touched."""
        free = self._backend.free_nbytes()
        if free is None:
            return
        if self.naive:  # one slot at a time
            needed = max(c.sizes.device_nbytes for c in self.classes)
            what, lower = "a slot does not fit: it needs", "the sizes"
        else:
            needed = sum(len(c.memories) * c.sizes.device_nbytes for c in self.classes)
            what, lower = f"the rings do not fit: {total} slots need", "slots or the sizes"
        if needed > free:
            raise OutOfDeviceMemory(
                f"{what} {needed} B of device memory, {free} B are free; lower {lower} ({self.classes[-1].sizes})"
            )

    def _make_views(self, staging: Staging) -> None:
        if staging.shared is not None:
            staging.views[:] = [staging] * len(self.runtimes)  # the workers make views of it; none is needed here
            return
        array = staging.buffer.array
        staging.views[:] = [image_view(r.program, array) if r.image_nbytes else array[:0] for r in self.runtimes]

    def _shadow_of(self, sizes: SlotSizes) -> Shadow | None:
        return Shadow(sizes.image_nbytes) if self.delta and sizes.image_nbytes else None

    def _slot_freed(self, memory: SlotMemory) -> None:
        shadow = memory.shadow
        if shadow is not None:
            shadow.settle()
        if self._tells_released:
            for buffer in memory.buffers():
                if memory.staged is not None and buffer is memory.image:
                    self._backend.released(memory.staged.buffer)  # the host is the next to write to it
                elif shadow is None or buffer is not memory.image:  # else the next image builds on what it holds
                    self._backend.released(buffer)
        if self.naive:
            memory.free_device()

    def _staging_freed(self, staging: Staging) -> None:
        self._backend.released(staging.buffer)

    def class_of(self, step: Step) -> SlotClass:
        """The smallest class that a step fits in; the largest if none does (it must grow then)."""
        classes = self.classes
        if len(classes) == 1:
            return classes[0]
        sizes = step.program.sizes if step.extras is None or step.extras.sizes is None else step.extras.sizes
        return next((c for c in classes if sizes.fits_in(c.sizes)), classes[-1])

    def prepare_slot(self, slot_class: SlotClass, memory: SlotMemory, step: Step) -> None:
        """Before a step gets a slot: allocate it (mode naive), or grow it to what the step needs.

        Raises `OutOfDeviceMemory`; the slot is then as it was. Raises `PipelineFailed` if ``slots_changed`` raised.
        """
        if self.naive:
            start = self._backend.clock_ns()
            sizes = slot_class.sizes
            if step.extras is not None and step.extras.sizes is not None:
                sizes = sizes.or_larger(step.extras.sizes)
            step.alloc_count = memory.allocate_device(self._backend, sizes)
            step.alloc_ns = self._backend.clock_ns() - start
            step.alloc_nbytes = sizes.device_nbytes
            step.cold_reason = "each_step"
            self.step_path_allocs += step.alloc_count
            return
        if step.extras is None or step.extras.sizes is None or step.extras.sizes.fits_in(memory.sizes):
            return
        before, wanted = memory.sizes, slot_class.sizes.or_larger(step.extras.sizes)
        moves = wanted.image_nbytes > before.image_nbytes
        shadow = self._shadow_of(wanted) if moves else memory.shadow
        memory.grow(self._backend, wanted)
        memory.shadow = shadow
        if moves and memory.staged is not None:
            self._make_views(memory.staged)
        slot_class.sizes = wanted  # only now: what did not fit is not what later steps are to be given
        step.cold_reason = "slot_grown"
        emit("info", "ring.grown", ring="slots", seq=step.seq, before=str(before), after=str(memory.sizes))
        for runtime in self.runtimes:
            try:
                runtime.slots_changed([c for each in self.classes for c in each.memories])
            except Exception as exc:
                raise PipelineFailed(
                    f"slots_changed raised: {type(exc).__name__}: {exc}; program {runtime.name!r} does not know where "
                    "its slots are now"
                ) from exc

    def prepare_staging(self, staging: Staging, step: Step) -> None:
        """Before a step is built: grow its staging buffer if the step's image needs it."""
        if step.extras is None or step.extras.sizes is None:
            return
        nbytes = step.extras.sizes.image_nbytes
        if nbytes <= staging.buffer.nbytes:
            return
        wanted = max(self.image_nbytes, nbytes)
        larger = self._new_staging("staging", wanted)
        self.image_nbytes = wanted  # only now: what did not fit is not what later steps are to be given
        old_nbytes = staging.buffer.nbytes
        staging.take_over(larger)
        self._make_views(staging)
        step.cold_reason = "slot_grown"
        emit("info", "ring.grown", ring="staging", seq=step.seq, before=old_nbytes, after=self.image_nbytes)

    def replace_staging(self) -> None:
        """A quarantined staging buffer is followed by a new one."""
        staging = self._new_staging("staging", self.image_nbytes)
        self._make_views(staging)
        self.staging.add(staging)

    def replace_slot(self, ring: Ring[SlotMemory]) -> None:
        """A quarantined slot is followed by a new one."""
        slot_class = next(each for each in self.classes if each.ring is ring)
        memory = self._new_memory()
        with ExitStack() as if_not_whole:
            if_not_whole.callback(memory.free)
            memory.allocate_host(self._backend, slot_class.sizes, naive=self.naive)
            if not self.naive:
                self._allocate_device(memory, slot_class.sizes)
            if_not_whole.pop_all()
        slot_class.memories.append(memory)
        ring.add(memory)

    def _new_staging(self, name: str, nbytes: int) -> Staging:
        mapped = mapped_staging(self._backend, nbytes) if self.shares_images else None
        return mapped or new_staging(self._backend, nbytes, name, shared=self._shares_staging)

    # -- counts --------------------------------------------------------------------------------------------

    def poll(self) -> bool:
        """Free the parked slots whose fences are done."""
        freed = False
        for slot_class in self.classes:
            freed = slot_class.ring.poll() or freed
        return freed

    def leased(self) -> int:
        """Buffers of any kind that are leased or wait for their last fence."""
        self.poll()
        return self.staging.leased + sum(c.ring.leased for c in self.classes)

    def parked_fences(self) -> list[Fence]:
        """The fences that slots still wait for."""
        return [fence for c in self.classes for fence in c.ring.parked_fences()]

    def free(self) -> None:
        """Free what nobody may still touch: leased and quarantined buffers stay mapped."""
        for i, staging in enumerate(self.staging.items):
            if self.staging.is_free(i):
                staging.free()
        for slot_class in self.classes:
            for i, memory in enumerate(slot_class.memories):
                if slot_class.ring.is_free(i):
                    memory.free()
