"""Overlap on a real driver: ``python -m tests.bench.opencl_overlap [--out DIR]``.

66.5 MB of workspace, 16 MB of image and a kernel of 1.5 ms on one work-group, in the three modes of the orchestrator,
on PoCL or on another device (``BENCH_BACKEND=opencl:1``). The bound is measured without this library: the same kernels
in one queue, each behind the copy of its image in a second one, one copy a step, three steps under way, over as many
host and device buffers as the pipeline has. Nothing that copies an image for each kernel on this memory can be faster;
a copy loop without a pace is no bound, since it takes more of the memory's bandwidth than steps do.

Last the latency from a fence to the coroutine that awaits it, beside that of a bare thread with
``call_soon_threadsafe``. Needs ``async-orch[pocl]``. On a GPU: ``tests.bench.device_overlap``.
"""

from __future__ import annotations

import asyncio
import functools
import os
import statistics
import threading
import time
from functools import partial
from typing import Any, Literal

import numpy as np

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from tests.bench._kit import Bench, CheckFailed, Figure, Sample, Samples, main, on_loop, quotient, refuse, single

BACKEND = os.environ.get("BENCH_BACKEND", "opencl")
WORKSPACE_NBYTES = 66_488_960
IMAGE_NBYTES = 16_000_000
OUTPUT_NBYTES = 64
KERNEL_NS = 1_500_000
SLOTS = 3
STAGING = 4  # of an orchestrator with one builder and queue_depth=2
STEPS = 200
NAIVE_STEPS = 40
TURNS = 4
SLACK_NS = 100_000  # device clocks are anchored to the host's
Mode = Literal["pipelined", "ring", "naive"]
SOURCE = """
kernel void spin(global uint *out, global const uchar *image, int last, int rounds) {
    uint x = image[0];
    for (int i = 0; i < rounds; ++i) x = x * 1664525u + 1013904223u;
    out[0] = x;
    out[1] = image[0];
    out[2] = image[last];
}
"""


def _cl() -> Any:
    try:
        import pyopencl
    except ModuleNotFoundError:
        refuse("async-orch[pocl]")
    return pyopencl


def _kernel(context: Any) -> Any:
    cl = _cl()
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "spin")
    kernel.set_scalar_arg_dtypes([None, None, np.int32, np.int32])
    return kernel


@functools.cache
def _rounds() -> int:
    """How many rounds take 1.5 ms; found once, so that all variants do the same work."""
    cl = _cl()
    backend = open_backend(BACKEND)
    try:
        stream: Any = backend.create_stream("compute")
        kernel = _kernel(stream.context)
        queue = cl.CommandQueue(stream.context, stream.device, properties=cl.command_queue_properties.PROFILING_ENABLE)
        out, image = (cl.Buffer(stream.context, cl.mem_flags.READ_WRITE, 64) for _ in range(2))
        rounds = 100_000
        for _ in range(6):
            spent = []
            for _ in range(5):
                event = kernel(queue, (1,), (1,), out, image, np.int32(0), np.int32(rounds))
                event.wait()
                spent.append(event.profile.end - event.profile.start)
            rounds = max(int(rounds * KERNEL_NS / max(statistics.median(spent), 1)), 1000)
    finally:
        backend.close()
    return rounds


class Spin(StepProgram[int, tuple[int, int]]):
    """Builds a little, copies a lot, computes for 1.5 ms; both ends of the image come back."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, workspace_nbytes=WORKSPACE_NBYTES, output_nbytes=OUTPUT_NBYTES)

    def open(self, device: Any) -> None:
        from async_orch_backends.opencl import NDRange

        self._rounds = np.int32(_rounds())
        self._spin = NDRange(_kernel(device.compute_stream.context), (1,), (1,))

    def build(self, step: int, image: Any) -> None:
        image[: 2**16] = image[-1] = step % 251

    def launch(self, step: int, slot: Any, stream: Any) -> None:
        stream.launch(self._spin, slot.output, slot.image, np.int32(IMAGE_NBYTES - 1), self._rounds)

    def collect(self, step: int, output: Any) -> tuple[int, int]:
        _, first, last = output[:12].view("u4").tolist()
        return first, last


async def _mode(mode: Mode, slots: int, steps: int) -> Sample:
    """Milliseconds a step, without the first and last ones."""
    results: list[Any] = []
    async with Orchestrator(Spin(), BACKEND, mode=mode, slots=slots) as orch:
        ends = await _steps(orch, results, 0, steps)
    _check(orch, results, mode, slots)
    return {"step_ms": _step_ms(ends)}


async def _steps(orch: Orchestrator[int, tuple[int, int]], results: list[Any], first: int, steps: int) -> list[int]:
    """When each step came out; what came out is added to the results."""
    ends: list[int] = []
    async for result in orch.map(range(first, first + steps)):
        ends.append(time.perf_counter_ns())
        results.append(result)
    return ends


def _check(orch: Orchestrator[int, tuple[int, int]], results: list[Any], mode: Mode, slots: int) -> None:
    check_order([result.seq for result in results], len(results))
    if any(result.output != (i % 251, i % 251) for i, result in enumerate(results)):
        raise CheckFailed(f"{mode}: an image did not come back as it was built")
    if mode != "naive":  # which allocates in each step, and whose slots are new ones
        check_slots(results, slots)
        check_statistics(orch.statistics(), len(results))
    timings = [result.timings for result in results]
    compute = [(t.device_start_ns, t.device_ns) for t in timings]
    check_intervals("compute", compute, least_ns=KERNEL_NS // 2, slack_ns=SLACK_NS)
    check_intervals("copy", [(t.h2d_start_ns, t.h2d_ns) for t in timings], least_ns=1, slack_ns=SLACK_NS)


def _step_ms(ends: list[int]) -> float:
    skip = max(len(ends) // 10, 1)
    return (ends[-1 - skip] - ends[skip]) / (len(ends) - 1 - 2 * skip) / 1e6


def mode(name: Mode, slots: int, steps: int) -> Sample:
    _cl()
    sample: Sample = on_loop(partial(_mode, name, slots, steps))
    return sample


class Bare:
    """Kernels behind their copies, by the driver alone; keeps its buffers from turn to turn, as the pipeline does."""

    def __init__(self) -> None:
        cl = _cl()
        self._backend = open_backend(BACKEND)
        stream: Any = self._backend.create_stream("compute")
        context, device = stream.context, stream.device
        self._kernel = _kernel(context)
        self._kernels, self._copies = cl.CommandQueue(context, device), cl.CommandQueue(context, device)
        images = [self._backend.alloc(IMAGE_NBYTES) for _ in range(SLOTS)]
        sources = [self._backend.alloc_host(IMAGE_NBYTES) for _ in range(STAGING)]
        for buffer in (*images, *sources):
            self._backend.touch(buffer)
        self._images: list[Any] = [image.native for image in images]
        self._sources: list[Any] = [source.array for source in sources]
        self._out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)

    def step_ms(self, steps: int) -> float:
        """Milliseconds a kernel with its copy; raises `CheckFailed` if the last one saw another image."""
        cl, last, rounds = _cl(), np.int32(IMAGE_NBYTES - 1), np.int32(_rounds())
        done: list[Any] = []
        ends: list[int] = []
        for i in range(steps + SLOTS):
            if i >= SLOTS:
                done[i - SLOTS].wait()
                ends.append(time.perf_counter_ns())
            if i >= steps:
                continue
            source, image = self._sources[i % STAGING], self._images[i % SLOTS]
            source[: 2**16] = source[-1] = i % 251
            copied = cl.enqueue_copy(self._copies, image, source, is_blocking=False)
            self._copies.flush()
            done.append(self._kernel(self._kernels, (1,), (1,), self._out, image, last, rounds, wait_for=[copied]))
            self._kernels.flush()
        found = np.empty(3, "u4")
        cl.enqueue_copy(self._kernels, found, self._out)
        if found[1:].tolist() != [(steps - 1) % 251] * 2:
            raise CheckFailed(f"the bare kernels saw {found[1:].tolist()}, not twice {(steps - 1) % 251}")
        return _step_ms(ends)

    def close(self) -> None:
        self._backend.close()


async def _beside_bound() -> Sample:
    """Pipeline and bound in short turns, as the memory's speed changes from one moment to the next."""
    bare = Bare()
    share = STEPS // TURNS
    pipelined, bound = [], []
    results: list[Any] = []
    try:
        async with Orchestrator(Spin(), BACKEND, slots=SLOTS) as orch:
            for turn in range(TURNS):
                ends = await _steps(orch, results, turn * share, share)
                pipelined.append(_step_ms(ends))
                bound.append(await asyncio.to_thread(bare.step_ms, share))
    finally:
        bare.close()
    _check(orch, results, "pipelined", SLOTS)
    ratio = statistics.median(one / other for one, other in zip(bound, pipelined, strict=True))
    return {"step_ms": statistics.median(pipelined), "bound_ms": statistics.median(bound), "ratio": ratio}


def beside_bound() -> Sample:
    _cl()
    sample: Sample = on_loop(_beside_bound)
    return sample


async def _latency(bare: bool) -> Sample:
    """Median microseconds from a kernel's end to the coroutine that awaits it."""
    from async_orch_backends.opencl import NDRange

    cl = _cl()
    loop = asyncio.get_running_loop()
    rounds = np.int32(_rounds())
    backend = open_backend(BACKEND)
    stream: Any = backend.create_stream("compute")
    context, device = stream.context, stream.device
    kernel = _kernel(context)
    memory, image = backend.alloc(64), backend.alloc(64)
    spin = NDRange(kernel, (1,), (1,))
    queue = cl.CommandQueue(context, device, properties=cl.command_queue_properties.PROFILING_ENABLE)
    jobs: list[Any] = []
    ready = threading.Semaphore(0)

    def waiter() -> None:
        while True:
            ready.acquire()
            event, done = jobs.pop(0)
            if event is None:
                return
            event.wait()
            loop.call_soon_threadsafe(done.set)

    thread = threading.Thread(target=waiter)
    thread.start()
    found: list[int] = []
    raw, raw_image = (cl.Buffer(context, cl.mem_flags.READ_WRITE, 64) for _ in range(2))
    try:
        for _ in range(STEPS):
            done = asyncio.Event()
            if bare:
                event = kernel(queue, (1,), (1,), raw, raw_image, np.int32(0), rounds)
                queue.flush()
                jobs.append((event, done))
                ready.release()
            else:
                stream.launch(spin, memory, image, np.int32(0), rounds)
                fence = stream.record()
                fence.notify(partial(loop.call_soon_threadsafe, done.set))
                event = fence.native
            await done.wait()
            # PoCL's clock; another driver's has another zero, and only the medians' difference says something then.
            found.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - event.profile.end)
    finally:
        jobs.append((None, None))
        ready.release()
        thread.join()
        backend.close()
    if min(found) < 0:
        raise CheckFailed(f"a coroutine was told {-min(found)} ns before the kernel's end")
    return {"latency_us": statistics.median(found) / 1e3}


def latency(bare: bool) -> Sample:
    _cl()
    sample: Sample = on_loop(partial(_latency, bare))
    return sample


def figures(samples: Samples) -> list[Figure]:
    step, best = "step_ms", ("pipelined, 3 slots", "step_ms")
    titles = {
        "naive": "naive: allocates each step, serial",
        "ring": "ring: allocated once, serial",
        "pipelined, 1 slot": "pipelined, ring of 1",
        "pipelined, 2 slots": "pipelined, ring of 2",
        best[0]: "pipelined, ring of 3",
    }
    return [
        single(
            samples, best[0], "bound_ms", "opencl_bound", "the kernel behind its copy, by the driver alone", unit="ms"
        ),
        *(single(samples, name, step, f"opencl_{name}", title, unit="ms") for name, title in titles.items()),
        quotient(
            samples, ("naive", step), best, "opencl_naive_ratio", "naive / pipelined, ring of 3", unit="x",
            goal=(">=", 3.3),
        ),
        single(
            samples, best[0], "ratio", "opencl_share", "16 MB image, kernel 1.5 ms: pipelined steps/s / bound",
            unit="x", goal=(">=", 0.95),
        ),
        single(samples, "latency bare", "latency_us", "opencl_latency_bare", "bare: a fence to a coroutine", unit="us"),
        quotient(
            samples, ("latency", "latency_us"), ("latency bare", "latency_us"), "opencl_latency",
            "a fence to the coroutine that awaits it / bare thread", unit="x", goal=("<=", 1.3),
        ),
    ]  # fmt: skip


BENCH = Bench(
    "opencl_overlap",
    {
        "pipelined, 3 slots": beside_bound,
        "naive": partial(mode, "naive", 1, NAIVE_STEPS),
        "ring": partial(mode, "ring", 1, STEPS),
        "pipelined, 1 slot": partial(mode, "pipelined", 1, STEPS),
        "pipelined, 2 slots": partial(mode, "pipelined", 2, STEPS),
        "latency bare": partial(latency, bare=True),
        "latency": partial(latency, bare=False),
    },
    figures,
    rounds=5,
    about={
        "backend": BACKEND, "steps": STEPS, "naive_steps": NAIVE_STEPS, "workspace_nbytes": WORKSPACE_NBYTES,
        "image_nbytes": IMAGE_NBYTES, "kernel_ns": KERNEL_NS,
    },
)  # fmt: skip

if __name__ == "__main__":
    main(BENCH)
