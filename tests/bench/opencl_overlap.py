"""Overlap on a real driver: 66.5 MB workspace, 16 MB image and a kernel of 1.5 ms on one work-group, all in one run.

    python -m tests.bench.opencl_overlap [--steps 200] [--rounds 5] [--backend opencl:0]

Prints milliseconds a step for the three modes of the orchestrator, for the kernel alone, and for kernel and copy beside
each other without this library: the longer of the two is the bound of any overlap on shared memory. The copies of the
bound rotate over as many host and device buffers as the pipeline has, as a buffer that is copied again and again stays
in the cache. Bound and pipeline take turns, and the ratio is the median over the rounds: a shared machine's memory is
not equally fast for long. Last the latency from a fence to the coroutine that awaits it, beside that of a bare thread
with ``call_soon_threadsafe``. Needs ``async-orch[pocl]``. On a GPU: ``tests.bench.device_overlap``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import threading
import time
from functools import partial
from typing import Any, Literal

import numpy as np
import pyopencl as cl
from async_orch_backends.opencl import NDRange

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend

WORKSPACE_NBYTES = 66_488_960
IMAGE_NBYTES = 16_000_000
OUTPUT_NBYTES = 64
KERNEL_NS = 1_500_000
SLOTS = 3
STAGING = 4  # of an orchestrator with one builder and queue_depth=2
SOURCE = """
kernel void spin(global uint *out, int rounds) {
    uint x = out[0];
    for (int i = 0; i < rounds; ++i) x = x * 1664525u + 1013904223u;
    out[0] = x;
}
"""


def calibrated(context: Any, device: Any) -> tuple[Any, Any]:
    """The kernel, and the number of rounds that take 1.5 ms."""
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "spin")
    queue = cl.CommandQueue(context, device, properties=cl.command_queue_properties.PROFILING_ENABLE)
    out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    rounds = 100_000
    for _ in range(6):
        spent = []
        for _ in range(5):
            event = kernel(queue, (1,), (1,), out, np.int32(rounds))
            event.wait()
            spent.append(event.profile.end - event.profile.start)
        rounds = max(int(rounds * KERNEL_NS / max(statistics.median(spent), 1)), 1000)
    return kernel, np.int32(rounds)


class Spin(StepProgram[int, int]):
    """Builds a little, copies a lot, computes for 1.5 ms."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, workspace_nbytes=WORKSPACE_NBYTES, output_nbytes=OUTPUT_NBYTES)

    def open(self, device: Any) -> None:
        stream = device.compute_stream
        kernel, self.rounds = calibrated(stream.context, stream.device)
        self.spin = NDRange(kernel, (1,), (1,))

    def build(self, step: int, image: Any) -> None:
        image[: 2**16] = step % 251

    def launch(self, step: int, slot: Any, stream: Any) -> None:
        stream.launch(self.spin, slot.output, self.rounds)

    def collect(self, step: int, output: Any) -> int:
        return int(output[0])


async def mode_ns(backend: str, mode: Literal["pipelined", "ring", "naive"], slots: int, steps: int) -> float:
    """Nanoseconds a step, without the first and last ones."""
    ends: list[int] = []
    async with Orchestrator(Spin(), backend, mode=mode, slots=slots) as orch:
        async for _ in orch.map(range(steps)):
            ends.append(time.monotonic_ns())  # noqa: PERF401 - the time of each is the point
    skip = max(steps // 10, 1)
    return (ends[-skip] - ends[skip]) / (len(ends) - 2 * skip)


def bare_ns(steps: int, *, beside_copies: bool) -> tuple[float, float]:
    """Nanoseconds of a kernel and of a copy enqueued by nothing but the driver: each alone, or at the same time."""
    backend = open_backend("opencl")
    native = backend.create_stream("compute").native
    context, device = native.context, native.device
    kernel, rounds = calibrated(context, device)
    copies = cl.CommandQueue(context, device)
    images = [backend.alloc(IMAGE_NBYTES) for _ in range(SLOTS)]
    sources = [backend.alloc_host(IMAGE_NBYTES) for _ in range(STAGING)]
    for buffer in (*images, *sources):
        backend.touch(buffer)
    natives, arrays = [image.native for image in images], [source.array for source in sources]
    out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    halt = threading.Event()
    copied: list[int] = []

    def copy_loop() -> None:
        while not halt.is_set():
            start = time.monotonic_ns()
            step = len(copied)
            cl.enqueue_copy(copies, natives[step % SLOTS], arrays[step % STAGING], is_blocking=False).wait()
            copied.append(time.monotonic_ns() - start)

    copier = threading.Thread(target=copy_loop)
    copier.start()
    if not beside_copies:
        while len(copied) < steps:
            time.sleep(0.01)
        halt.set()
        copier.join()
    try:
        kernel(native, (1,), (1,), out, rounds).wait()
        start = time.monotonic_ns()
        events: list[Any] = []
        for _ in range(steps):
            events.append(kernel(native, (1,), (1,), out, rounds))
            native.flush()
            if len(events) > 3:
                events.pop(0).wait()
        native.finish()
        return (time.monotonic_ns() - start) / steps, statistics.mean(copied)
    finally:
        halt.set()
        copier.join()
        backend.close()


async def latency_ns(steps: int, *, bare: bool) -> float:
    """Median nanoseconds from a kernel's end to the coroutine that awaits it."""
    loop = asyncio.get_running_loop()
    backend = open_backend("opencl")
    stream: Any = backend.create_stream("compute")
    context, device = stream.context, stream.device
    kernel, rounds = calibrated(context, device)
    memory = backend.alloc(64)
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
    raw = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)
    for _ in range(steps):
        done = asyncio.Event()
        fence = None
        if bare:
            event = kernel(queue, (1,), (1,), raw, rounds)
            queue.flush()
            jobs.append((event, done))
            ready.release()
        else:
            stream.launch(spin, memory, rounds)
            fence = stream.record()
            fence.notify(partial(_set_soon, loop, done))
            event = fence.native
        await done.wait()
        # PoCL's clock; another driver's has another zero, and only the difference of the two medians says something.
        found.append(time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - event.profile.end)
    jobs.append((None, None))
    ready.release()
    thread.join()
    backend.close()
    return float(statistics.median(found))


def _set_soon(loop: asyncio.AbstractEventLoop, done: asyncio.Event) -> None:
    loop.call_soon_threadsafe(done.set)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--backend", default="opencl")
    options = parser.parse_args()
    steps = options.steps
    alone = bare_ns(steps, beside_copies=False)
    naive = asyncio.run(mode_ns(options.backend, "naive", 1, max(steps // 5, 20)))
    ring = asyncio.run(mode_ns(options.backend, "ring", 1, steps))
    few = {slots: asyncio.run(mode_ns(options.backend, "pipelined", slots, steps)) for slots in (1, 2)}
    beside, piped = [], []
    for _ in range(options.rounds):
        beside.append(bare_ns(steps, beside_copies=True))
        piped.append(asyncio.run(mode_ns(options.backend, "pipelined", SLOTS, steps)))
    ratios = [max(bound) / spent for bound, spent in zip(beside, piped, strict=True)]
    kernel, copy = (statistics.median(part) for part in zip(*beside, strict=True))
    best = statistics.median(piped)
    print(f"{'kernel / copy, each alone':34}{alone[0] / 1e6:8.3f} / {alone[1] / 1e6:.3f} ms")
    print(f"{'kernel / copy, at the same time':34}{kernel / 1e6:8.3f} / {copy / 1e6:.3f} ms")
    print(f"{'naive: allocated each step, serial':34}{naive / 1e6:8.3f} ms a step")
    print(f"{'ring: allocated once, serial':34}{ring / 1e6:8.3f} ms a step")
    for slots, spent in {**few, SLOTS: best}.items():
        print(f"{f'pipelined, ring of {slots}':34}{spent / 1e6:8.3f} ms a step")
    print(f"{'naive / pipelined':34}{naive / best:8.2f}")
    print(f"{'bound / pipelined':34}{statistics.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    pairs = [
        (asyncio.run(latency_ns(steps, bare=True)), asyncio.run(latency_ns(steps, bare=False)))
        for _ in range(options.rounds)
    ]
    bare, ours = (statistics.median(part) for part in zip(*pairs, strict=True))
    late = [mine / other for other, mine in pairs]
    spread = f"{statistics.median(late):.2f} ({min(late):.2f} to {max(late):.2f})"
    print(f"{'fence to coroutine, bare / ours':34}{bare / 1e3:8.1f} / {ours / 1e3:.1f} us = {spread}")


if __name__ == "__main__":
    main()
