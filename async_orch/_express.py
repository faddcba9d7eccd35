"""The express way: a step that nothing stands in the way of, from acceptance to the device in one function.

It does what the five stages do, in their order, without the queues between them and without the calls that a step
only needs when it has to wait, to grow, to be retried or to fail. Whatever goes wrong is handed to the stage that
owns it, in the state that this stage would have left. `Pipeline.start` decides which steps may come here; a step
that cannot go further (its fence is not done) ends in retire's queue like any other.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any

from async_orch._collect import escaped
from async_orch._escape import escapes
from async_orch._ring import Lease
from async_orch._slot import Slot
from async_orch._step import ACQUIRED, BUILDING, BUILT, LAUNCHED, LAUNCHING, RETIRING, SETTLED, Step
from async_orch.exceptions import OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["ExpressWay"]


class ExpressWay:
    """Binds what the function needs of the pipeline, so that a step costs no look-ups."""

    def __init__(self, pipeline: Pipeline) -> None:
        memory, config = pipeline.memory, pipeline.config
        self._pipeline = pipeline
        self._slots = memory.classes[0].ring
        self._staging = memory.staging
        self._slot_class = memory.classes[0]
        self._naive = memory.naive
        # Steps that need a thread or a size class take the queues; the modes differ in nothing here.
        self.open = (
            len(memory.classes) == 1
            and config.annotate is None
            and config.build_in == config.launch_in == config.collect_in == "inline"
            and not any(runtime.slot_at_build for runtime in memory.runtimes)
        )

    def clear(self, step: Step) -> bool:
        """Whether the step may take this way now."""
        pipeline = self._pipeline
        return (
            self.open
            and step.extras is None
            and not pipeline.pumping
            and not pipeline.build.queue
            and not pipeline.acquire.queue
            and not pipeline.h2d.queue
            and not pipeline.launch.queue
            and not pipeline.barriers.standing
            and not (pipeline.serial and pipeline.occupied())
            and self._slots.has_free()
            and (not step.program.image_nbytes or self._staging.has_free())
        )

    def run(self, step: Step) -> None:
        """Build, acquire, copy and launch; retire too if the device is done at once."""
        pipeline, program = self._pipeline, step.program
        now, staging_ring, slot_ring = pipeline.now, self._staging, self._slots
        lease: Lease[Any] | None = None
        view: Any = None

        # build
        if program.image_nbytes:
            index = staging_ring.take()
            lease = step.staging = Lease(staging_ring, index, staging_ring.generations[index])
            view = staging_ring.items[index].views[program.index]
        step.state = BUILDING
        start_ns = step.build_start_ns = step.accept_ns
        result: Any = None
        if program.has_build:
            try:
                result = program.build(step.payload, view)
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                pipeline.hook_raised(exc)
                pipeline.build.built(step, None, exc)
                return
        built_ns = now()
        if built_ns - start_ns > pipeline.blocked_ns:
            pipeline.build.warn_blocked("build", step, built_ns - start_ns)
        if result is None and step.state == BUILDING:
            step.build_end_ns = step.acquire_start_ns = built_ns
            nbytes = step.copy_nbytes = program.image_nbytes
        else:
            pipeline.build.built(step, result, None)
            if step.state != BUILT:
                return
            nbytes = step.copy_nbytes

        # acquire
        index = step.slot_index = slot_ring.take()
        generation = step.generation = slot_ring.generations[index]
        slot = step.slot = Slot(slot_ring, index, generation)
        step.state = ACQUIRED
        step.acquire_ns = step.h2d_start_ns = built_ns
        memory = slot_ring.items[index]
        if self._naive and not pipeline.acquire.prepare(step, self._slot_class, slot):
            return

        # h2d
        if lease is not None:
            stream = pipeline.copy_stream
            try:
                step.copy_start = stream.begin()
                if nbytes and memory.image is not None:
                    stream.copy(memory.image, staging_ring.items[lease.index].buffer, nbytes)
                fence = step.copy_end = stream.record()
            except OrchError as exc:
                pipeline.h2d.copy_failed(step, exc)
                return
            step.staging = None
            copying = pipeline.h2d.copying
            if not copying and fence.query():
                self._staging.release(lease)
            else:
                copying.append((fence, lease))

        # launch
        if program.fixed_image is not None:
            slot.fixed_image = program.fixed_image
            if pipeline.launch.launch(step):
                pipeline.retire.queue.append(step)
            return
        step.state = LAUNCHING
        pipeline.on_device = step.on_device = pipeline.on_device + 1
        step.launch_start_ns = now()
        stream = pipeline.compute_stream
        try:
            step.device_start = stream.begin(step.copy_end)
            used = program.launch(step.payload, slot, stream)
            fence = step.device_end = step.output_done = stream.record()
            capacity = program.output_nbytes
            nbytes = capacity if used is None else operator.index(used)
            if not 0 <= nbytes <= capacity:
                raise ValueError(f"launch returned {nbytes} output bytes, output_nbytes is {capacity}")
            step.d2h_nbytes = nbytes
            if nbytes and memory.output is not None and memory.output_host is not None:
                stream.copy(memory.output_host, memory.output, nbytes)
                fence = step.output_done = stream.record()
        except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            pipeline.hook_raised(exc)
            pipeline.launch.enqueue_failed(step, exc)
            return
        launched_ns = step.launch_end_ns = now()
        if not program.launched:
            program.launched = True
            step.cold_reason = "first_launch"
        if launched_ns - step.launch_start_ns > pipeline.blocked_ns:
            pipeline.launch.warn_blocked("launch", step, launched_ns - step.launch_start_ns)
        retire = pipeline.retire
        if step.state == SETTLED:
            # The hook cancelled its own step: retire waits for its fence like for any other.
            retire.queue.append(step)
            return
        step.state = LAUNCHED
        if retire.queue or not fence.query() or fence.error is not None:
            retire.queue.append(step)
            return

        # retire
        step.retire_start_ns = retire.last_fence_ns = launched_ns
        retire.read_clocks(step)
        step.state = RETIRING
        output: Any = None
        if program.has_collect:
            output_view = memory.output_view
            if output_view is None or output_view.nbytes != nbytes:
                output_view = retire.view(step)
            try:
                output = program.collect(step.payload, output_view)
                if output is not None and escapes(output, output_view):
                    raise escaped(program)
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                pipeline.hook_raised(exc)
                retire.collected(step, None, exc)
                return
        if slot.holds or step.state == SETTLED:
            retire.collected(step, output, None)
            return
        step.copy_end = step.device_end = step.output_done = step.slot = None
        slot_ring.release(slot)
        step.output = output
        step.collected = True
        step.retire_end_ns = now()
        pipeline.settling.settle(step, "completed")
