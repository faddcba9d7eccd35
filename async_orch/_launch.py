"""The launch stage: late input, kernels behind the copy of the image, the copy of the output behind the kernels."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from async_orch._nbytes import as_nbytes
from async_orch._slot import Slot
from async_orch._stage import Stage
from async_orch._step import ACQUIRED, LAUNCHED, LAUNCHING, SETTLED, UNKNOWN, Extras, Step
from async_orch._workers import WorkerPool
from async_orch.abc import Fence
from async_orch.exceptions import DeviceLost, LaunchError, OrchError

if TYPE_CHECKING:
    from async_orch._pipeline import Pipeline

__all__ = ["LaunchStage"]


class _Failed(Exception):
    """An enqueue that failed: which part, and why. Never leaves this file."""

    def __init__(self, what: str, cause: BaseException) -> None:
        super().__init__(what)
        self.what = what
        self.cause = cause


class Late:
    """What a launch has to wait for or be fed with; taken on the loop, since a cancel may end the step's extras."""

    __slots__ = ("feeds", "previous", "wait_for")

    def __init__(self, extras: Extras | None = None, has_feed: bool = False, previous: Any = None) -> None:
        self.wait_for: tuple[Fence, ...] = () if extras is None else extras.wait_for
        self.feeds = extras if extras is not None and extras.after is not None and has_feed else None
        self.previous = previous


NOTHING = Late()


class LaunchStage(Stage):
    """Launches strictly in order; a step that waits for late input, or behind a barrier, holds those after it."""

    name = "launch"

    def __init__(self, pipeline: Pipeline, pool: WorkerPool[Any] | None) -> None:
        super().__init__(pipeline)
        self.pool = pool
        self.busy: Step | None = None
        self._failed: _Failed | None = None

    def advance(self) -> bool:
        pipeline, queue = self.pipeline, self.queue
        moved = False
        if self.busy is not None:
            if not self._take_finished():
                return False
            moved = True
        while queue and self.busy is None:
            step = queue[0]
            if pipeline.barriers.standing and pipeline.barriers.holds_launch(step.seq):
                break
            previous: Any = None
            extras = step.extras
            if extras is not None and extras.after is not None and step.program.has_feed:
                if not extras.after.collected:
                    if extras.waiting_since_ns == UNKNOWN:
                        extras.waiting_since_ns = pipeline.now()
                    break
                previous = extras.after.output
                if extras.waiting_since_ns != UNKNOWN:
                    extras.feed_wait_ns = pipeline.now() - extras.waiting_since_ns
            queue.popleft()
            moved = True
            if self.launch(step, previous):
                pipeline.retire.queue.append(step)
        return moved

    def launch(self, step: Step, previous: Any = None) -> bool:
        """Launch a step. True if it is on the device now: the caller hands it to retire."""
        slot, pipeline = step.slot, self.pipeline
        if slot is None:
            return False
        step.state = LAUNCHING
        pipeline.on_device = step.on_device = pipeline.on_device + 1
        step.launch_start_ns = pipeline.now()
        extras = step.extras
        payload = extras.prepared if extras is not None and step.program.slot_at_build else step.payload
        late = NOTHING if extras is None else Late(extras, step.program.has_feed, previous)
        if self.pool is None:
            try:
                self._enqueue(step, slot, payload, late)
            except _Failed as failed:
                pipeline.hook_raised(failed.cause)
                self._launch_failed(step, failed)
                return False
            self._launched(step)
            return True
        self.busy = step
        self.pool.submit(partial(self._enqueue_on_thread, step, slot, payload, late))
        return False

    def _enqueue_on_thread(self, step: Step, slot: Slot, payload: Any, late: Late) -> None:
        self._failed = None
        try:
            self._enqueue(step, slot, payload, late)
        except _Failed as failed:
            self._failed = failed

    def _take_finished(self) -> bool:
        pool, step = self.pool, self.busy
        if pool is None or step is None or pool.take() is None:
            return False
        self.busy = None
        if self._failed is not None:
            self._launch_failed(step, self._failed)
        else:
            self._launched(step)
            self.pipeline.retire.queue.append(step)
        return True

    # -- on the loop's thread or the device thread ---------------------------------------------------------

    def _enqueue(self, step: Step, slot: Slot, payload: Any, late: Late) -> None:
        """Everything that touches the compute stream. Raises `_Failed`."""
        pipeline, program = self.pipeline, step.program
        stream = pipeline.compute_stream
        memory = slot.item
        what = "launch raised"
        try:
            if late is NOTHING and slot.fixed_image is None:
                step.device_start = stream.begin(step.copy_end)
            else:
                stream.isolate()
                if step.copy_end is not None:
                    stream.wait(step.copy_end)
                for fence in late.wait_for:
                    stream.wait(fence)
                if late.feeds is not None:
                    what = "feed raised"
                    self._feed(step, slot, late.feeds, payload, late.previous)
                    what = "launch raised"
                step.device_start = self._to_fixed_address(step, slot)
            used = program.launch(payload, slot, stream)
            capacity = program.output_nbytes
            if step.extras is not None and step.extras.sizes is not None:
                capacity = step.extras.sizes.output_nbytes
            nbytes = capacity if used is None else as_nbytes(used)
            if not 0 <= nbytes <= capacity:
                raise ValueError(f"launch returned {nbytes} output bytes, output_nbytes is {capacity}")
            if not program.slot_at_build:
                step.d2h_nbytes = nbytes
            if nbytes and memory.output is not None and memory.output_host is not None and not memory.mapped:
                step.device_end, step.output_done = stream.record_copy(memory.output_host, memory.output, nbytes)
            else:
                step.device_end = step.output_done = stream.record()
        except BaseException as exc:
            raise _Failed(what, self._fence_the_rest(step, exc)) from exc
        finally:
            step.launch_end_ns = pipeline.now()

    def _fence_the_rest(self, step: Step, cause: BaseException) -> BaseException:
        """Some work may be enqueued already: the slot comes back behind a fence after all of it. Gives the cause."""
        try:
            step.output_done = self.pipeline.compute_stream.record()
        except OrchError as unfenced:
            step.output_done = None
            return unfenced if isinstance(unfenced, DeviceLost) else cause
        return cause

    def enqueue_failed(self, step: Step, cause: BaseException) -> None:
        """The express way could not launch the step."""
        cause = self._fence_the_rest(step, cause)
        step.launch_end_ns = self.pipeline.now()
        self._launch_failed(step, _Failed("launch raised", cause))

    def _feed(self, step: Step, slot: Slot, extras: Extras, payload: Any, previous: Any) -> None:
        pipeline, memory = self.pipeline, slot.item
        if memory.feed_host is None or memory.feed is None:
            return
        start = pipeline.now()
        capacity = (extras.sizes or step.program.sizes).feed_nbytes
        used = step.program.feed(payload, previous, memory.feed_host.array[:capacity])
        nbytes = capacity if used is None else as_nbytes(used)
        if not 0 <= nbytes <= capacity:
            raise ValueError(f"feed returned {nbytes} bytes, feed_nbytes is {capacity}")
        if nbytes:
            pipeline.compute_stream.copy(memory.feed, memory.feed_host, nbytes)
        extras.feed_ns = pipeline.now() - start

    def _to_fixed_address(self, step: Step, slot: Slot) -> Fence:
        """Copy the image on the device where the program wants it so; the fence where the kernels start."""
        stream, image = self.pipeline.compute_stream, slot.item.image
        if slot.fixed_image is not None and image is not None:
            step.d2d_start = stream.record()
            if step.copy_nbytes > 0:
                stream.copy(slot.fixed_image, image, step.copy_nbytes)
        return stream.record()

    # -- back on the loop ----------------------------------------------------------------------------------

    def _launched(self, step: Step) -> None:
        program, extras = step.program, step.extras
        if not program.launched:
            program.launched = True
            step.cold_reason = "first_launch"
        if step.state != SETTLED:
            step.state = LAUNCHED
        # Else it was cancelled meanwhile, but is on the device all the same: retire waits for its fence.
        elapsed = step.launch_end_ns - step.launch_start_ns
        if elapsed > self.blocked_ns and self.pool is None:
            self.warn_blocked("launch", step, elapsed)
        if extras is not None:
            extras.after = None
            extras.wait_for = ()
            extras.wake_launch_waiters()

    def _launch_failed(self, step: Step, failed: _Failed) -> None:
        program = step.program
        if not program.launched:
            program.launched = True
            step.cold_reason = "first_launch"
        pipeline, lost = self.pipeline, None
        fence, step.output_done = step.output_done, None
        if fence is None:
            lost, step.slot = step.slot, None
        else:
            # The copy's fence too: the compute stream may have failed before it waited for the copy.
            pipeline.release_slot(step, fence, step.copy_end)
        step.copy_end = step.device_start = step.device_end = None
        if step.state == SETTLED:
            # Cancelled while its launch ran.
            pipeline.settling.detached_ended(step)
            if isinstance(failed.cause, DeviceLost):
                pipeline.settling.device_lost(step, failed.cause)
        else:
            # It did not get to the device: settled and recorded at once.
            pipeline.on_device -= 1
            step.state = ACQUIRED
            self.fail_step(step, LaunchError, failed.what, failed.cause)
        if lost is not None:
            pipeline.quarantine.take(None, lost)
