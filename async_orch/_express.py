"""The express way: a step that nothing stands in the way of, from `submit` to the device in one function.

It does what the five stages do, in their order, without the queues between them and without the calls that a step
only needs when it has to wait, to grow, to be retried or to fail. Whatever goes wrong is handed to the stage that
owns it, in the state that this stage would have left. A step that cannot go further (its fence is not done) ends in
retire's queue like any other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from async_orch._collect import escaped
from async_orch._escape import PLAIN, escapes
from async_orch._nbytes import as_nbytes
from async_orch._slot import Slot
from async_orch._step import ACQUIRED, BUILDING, LAUNCHED, LAUNCHING, RETIRING, SETTLED, Step
from async_orch.exceptions import OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline
    from async_orch.abc import Fence

__all__ = ["express_way"]


def possible(pipeline: Pipeline) -> bool:
    """Whether any step can take this way: those that need a thread, a size class or a comparison do not."""
    memory, config = pipeline.memory, pipeline.config
    return (
        len(memory.classes) == 1
        and config.annotate is None
        and config.build_in == config.launch_in == config.collect_in == "inline"
        and not any(runtime.slot_at_build for runtime in memory.runtimes)
        and not memory.delta
    )


def express_way(pipeline: Pipeline) -> Callable[[Step], bool]:
    """A function that accepts a fresh step and moves it to the device; False, and nothing done, if it cannot now.

    A closure, so that a step costs no look-ups of what never changes.
    """
    if not possible(pipeline):
        return lambda step: False
    travel = _route(pipeline)
    admission, barriers, counts, live = pipeline.admission, pipeline.barriers, pipeline.counts, pipeline.live
    to_build, to_acquire = pipeline.build.queue, pipeline.acquire.queue
    to_copy, to_launch, to_retire = pipeline.h2d.queue, pipeline.launch.queue, pipeline.retire.queue
    conditions = pipeline.conditions
    named, standing, limit, serial = admission.named, barriers.standing, pipeline.config.inflight_limit, pipeline.serial
    slots, staging = pipeline.memory.classes[0].ring.free_indices, pipeline.staging.free_indices

    def accept(step: Step) -> bool:
        if (
            not slots
            or len(live) >= limit
            or pipeline.pumping
            or to_build
            or to_acquire
            or to_copy
            or to_launch
            or standing
            or admission.waiting
            or step.extras is not None
            or (not staging and step.program.image_nbytes)
            or (serial and pipeline.occupied())
        ):
            return False
        step.accept_ns = step.submit_ns  # accepted in the same move as it was submitted
        seq = step.seq = counts.accepted
        counts.accepted = seq + 1
        live[seq] = step
        if step.step_id is None:
            step.step_id = seq
        else:
            named[step.step_id] = step
        step.in_flight = len(live)
        pipeline.pumping = True
        try:
            travel(step)
        except BaseException as exc:
            pipeline.broken(exc)
            raise
        finally:
            pipeline.pumping = False
        if to_retire or pipeline.again or conditions:
            pipeline.pump()
        return True

    return accept


def _route(pipeline: Pipeline) -> Callable[[Step], None]:
    """The function that builds, acquires, copies and launches a step, and retires it if the device is done at once."""
    now, blocked_ns, counts, live = pipeline.now, pipeline.blocked_ns, pipeline.counts, pipeline.live
    named = pipeline.admission.named
    staging_ring, slot_class = pipeline.staging, pipeline.memory.classes[0]
    slot_ring, naive, shares = slot_class.ring, pipeline.memory.naive, pipeline.memory.shares_images
    staging_items, slot_items, generations = staging_ring.items, slot_ring.items, slot_ring.generations
    build, acquire, h2d = pipeline.build, pipeline.acquire, pipeline.h2d
    launch, retire, settling = pipeline.launch, pipeline.retire, pipeline.settling
    copying, to_retire = h2d.copying, retire.queue
    copy_stream, compute_stream = pipeline.copy_stream, pipeline.compute_stream
    take_staging, take_slot = staging_ring.take, slot_ring.take
    free_staging, free_slot = staging_ring.free_indices.append, slot_ring.free_indices.append
    sink, collected, note_times = pipeline.sink, retire.collected, retire.clocks.note

    def travel(step: Step) -> None:
        program, payload = step.program, step.payload

        # build
        staged = -1
        view: Any = None
        if program.image_nbytes:
            staged = take_staging()
            view = staging_items[staged].views[program.index]
        step.state = BUILDING
        start_ns = step.build_start_ns = step.accept_ns
        result: Any = None
        failure: BaseException | None = None
        if program.has_build:
            try:
                result = program.build(payload, view)
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                pipeline.hook_raised(exc)
                failure = exc
        built_ns = now()
        if built_ns - start_ns > blocked_ns and failure is None:
            build.warn_blocked("build", step, built_ns - start_ns)
        nbytes = program.image_nbytes
        if result is not None or failure is not None or step.state != BUILDING:
            lease = None if staged < 0 else staging_ring.lease(staged)
            if step.state == SETTLED:
                # The hook cancelled its own step.
                if lease is not None:
                    lease.release()
                return
            step.staging = lease
            build.built(step, result, failure)
            if step.state == SETTLED:
                return
            step.staging = None
            nbytes = step.copy_nbytes
        step.copy_nbytes = nbytes

        # acquire
        index = step.slot_index = take_slot()
        generation = step.generation = generations[index]
        slot = step.slot = Slot(slot_ring, index, generation)
        step.state = ACQUIRED
        step.build_end_ns = step.acquire_start_ns = step.acquire_ns = built_ns
        memory = slot_items[index]
        if naive:
            if staged >= 0:
                step.staging = staging_ring.lease(staged)
            if not acquire.prepare(step, slot_class, slot):
                return
            step.staging = None

        # h2d
        copy_start: Fence | None = None
        copied: Fence | None = None
        if staged >= 0 and shares and memory.take_image(staging_items[staged]):
            step.note_shared_image()
            staging_ring.give_back(staged)
        elif staged >= 0 and memory.image is not None:
            step.h2d_start_ns = built_ns
            try:
                copy_start, copied = copy_stream.begin_copy(memory.image, staging_items[staged].buffer, nbytes)
            except OrchError as exc:
                step.staging = staging_ring.lease(staged)
                h2d.copy_failed(step, exc)
                return
            if not copying and copied.query():
                if staging_ring.on_free is None:
                    staging_ring.generations[staged] += 1
                    free_staging(staged)
                else:
                    staging_ring.give_back(staged)
            else:
                copying.append((copied, staging_ring.lease(staged)))

        # launch
        if program.fixed_image is not None:
            step.copy_start, step.copy_end = copy_start, copied
            slot.fixed_image = program.fixed_image
            if launch.launch(step):
                to_retire.append(step)
            return
        step.state = LAUNCHING
        pipeline.on_device = step.on_device = pipeline.on_device + 1
        launch_ns = step.launch_start_ns = now()
        try:
            device_start = compute_stream.begin(copied)
            used = program.launch(payload, slot, compute_stream)
            nbytes = program.output_nbytes
            if used is not None:
                nbytes = as_nbytes(used)
                if not 0 <= nbytes <= program.output_nbytes:
                    raise ValueError(f"launch returned {nbytes} output bytes, output_nbytes is {program.output_nbytes}")
            step.d2h_nbytes = nbytes
            if nbytes and memory.output is not None and memory.output_host is not None and not memory.mapped:
                device_end, fence = compute_stream.record_copy(memory.output_host, memory.output, nbytes)
            else:
                fence = device_end = compute_stream.record()
        except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
            pipeline.hook_raised(exc)
            step.copy_start, step.copy_end = copy_start, copied
            launch.enqueue_failed(step, exc)
            return
        launched_ns = step.launch_end_ns = now()
        if not program.launched:
            program.launched = True
            step.cold_reason = "first_launch"
        if launched_ns - launch_ns > blocked_ns:
            launch.warn_blocked("launch", step, launched_ns - launch_ns)
        on_device = step.state != SETTLED  # or the hook cancelled its own step
        if on_device:
            step.state = LAUNCHED
        if not on_device or to_retire or not fence.query() or fence.error is not None:
            # Retire waits for its fence.
            step.copy_start, step.copy_end = copy_start, copied
            step.device_start, step.device_end, step.output_done = device_start, device_end, fence
            to_retire.append(step)
            return

        # retire
        step.retire_start_ns = retire.last_fence_ns = launched_ns
        note_times(step, copy_start, copied, device_start, device_end, fence)
        step.state = RETIRING
        output: Any = None
        if program.has_collect:
            output_view = memory.output_view
            if output_view is None or output_view.nbytes != nbytes:
                output_view = retire.view(step)
            try:
                output = program.collect(payload, output_view)
                if output is not None and type(output) not in PLAIN and escapes(output, output_view):
                    raise escaped(program)
            except BaseException as exc:  # noqa: BLE001 - whatever the hook raises is its step's failure
                pipeline.hook_raised(exc)
                collected(step, None, exc)
                return
        if slot.holds or step.state == SETTLED:
            collected(step, output, None)
            return
        step.slot = None
        if slot_ring.on_free is None:
            generations[index] = generation + 1
            free_slot(index)
        else:
            slot_ring.give_back(index)
        step.output = output
        step.collected = True
        ended_ns = step.retire_end_ns = step.settled_ns = now()
        if ended_ns - launched_ns > blocked_ns:
            retire.warn_blocked("collect", step, ended_ns - launched_ns)

        # settle
        if step.extras is not None or step.waiters is not None or step.dependents is not None:
            # A hook has tied others to its own step.
            settling.settle(step, "completed")
            return
        if named and named.get(step.step_id) is step:
            del named[step.step_id]
        pipeline.on_device -= 1
        step.state = SETTLED
        step.outcome = "completed"
        step.recorded = True
        step.payload = None
        del live[step.seq]
        counts.completed += 1
        if sink is not None:
            sink(step)

    return travel
