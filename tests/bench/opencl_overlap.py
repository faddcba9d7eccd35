"""Overlap on a real driver: ``python -m tests.bench.opencl_overlap [--out DIR]``.

66.5 MB of workspace, 16 MB of image and a kernel of 1.5 ms on one work-group, in the three modes of the orchestrator,
on PoCL or on another device (``BENCH_BACKEND=opencl:1``). The bounds are measured without this library, in turn with
the pipeline: the kernels alone, and the kernels in one queue, each behind the copy of its image in a second one, one
copy a step, three steps under way, over as many host and device buffers as the pipeline has. Nothing that copies an
image for each kernel on this memory can be faster; a copy loop without a pace is no bound, since it takes more of the
memory's bandwidth than steps do.

On PoCL a copy is the C library's `memcpy` on a core of the host, and its writes go through the cache up to some size;
then a copy may take longer than the kernel, and no pipeline is bound by kernels. So it is measured a second time in a
process whose copies go past the cache (``GLIBC_TUNABLES=glibc.cpu.x86_non_temporal_threshold=4000000``).

And a third time with the image in memory that device and host share (`SlotSpec(image_at="shared")`), where nothing is
copied: then the kernels alone are the bound.

Last the latency from a fence to the coroutine that awaits it, beside that of a bare thread with
``call_soon_threadsafe``. Needs ``async-orch[pocl]``. On a GPU: ``tests.bench.device_overlap``.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from functools import partial
from typing import Any, Literal

import numpy as np

from async_orch import Orchestrator, open_backend
from tests.bench._kit import Bench, CheckFailed, Figure, Sample, Samples, main, on_loop, quotient, single
from tests.bench._opencl_spin import (
    BACKEND,
    IMAGE_NBYTES,
    KERNEL_NS,
    STEPS,
    WORKSPACE_NBYTES,
    Spin,
    beside_bound,
    beside_kernels,
    check,
    compiled,
    pyopencl,
    spin_rounds,
    step_ms,
    steps,
    streaming,
)

NAIVE_STEPS = 40
Mode = Literal["pipelined", "ring", "naive"]


async def _mode(mode: Mode, slots: int, count: int) -> Sample:
    """Milliseconds a step, without the first and last ones."""
    results: list[Any] = []
    async with Orchestrator(Spin(), BACKEND, mode=mode, slots=slots) as orch:
        ends = await steps(orch, results, 0, count)
    check(orch, results, mode, slots)
    return {"step_ms": step_ms(ends)}


def mode(name: Mode, slots: int, count: int) -> Sample:
    pyopencl()
    sample: Sample = on_loop(partial(_mode, name, slots, count))
    return sample


async def _latency(bare: bool) -> Sample:
    """Median microseconds from a kernel's end to the coroutine that awaits it."""
    from async_orch_backends.opencl import NDRange

    cl = pyopencl()
    loop = asyncio.get_running_loop()
    rounds = np.int32(spin_rounds())
    backend = open_backend(BACKEND)
    stream: Any = backend.create_stream("compute")
    context, device = stream.context, stream.device
    kernel = compiled(context)
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
    pyopencl()
    sample: Sample = on_loop(partial(_latency, bare))
    return sample


def figures(samples: Samples) -> list[Figure]:
    step, best, past, shared = "step_ms", "pipelined, 3 slots", "past the cache", "shared image"
    titles = {
        "naive": "naive: allocates each step, serial",
        "ring": "ring: allocated once, serial",
        "pipelined, 1 slot": "pipelined, ring of 1",
        "pipelined, 2 slots": "pipelined, ring of 2",
        best: "pipelined, ring of 3",
    }
    ms: dict[str, Any] = {"unit": "ms"}
    share: dict[str, Any] = {"unit": "x", "goal": (">=", 0.95)}
    return [
        single(samples, best, "kernel_ms", "opencl_kernel", "the kernels alone, by the driver alone", **ms),
        single(samples, best, "copy_ms", "opencl_copy", "the copy of 16 MB alone", **ms),
        single(samples, best, "bound_ms", "opencl_bound", "the kernel behind its copy, by the driver alone", **ms),
        *(single(samples, name, step, f"opencl_{name}", title, **ms) for name, title in titles.items()),
        quotient(
            samples, ("naive", step), (best, step), "opencl_naive_ratio", "naive / pipelined, ring of 3", unit="x",
            goal=(">=", 3.3),
        ),
        single(samples, best, "ratio", "opencl_share", "16 MB image, kernel 1.5 ms: steps/s / bound", **share),
        single(samples, past, "copy_ms", "opencl_past_copy", "past the cache: the copy of 16 MB alone", **ms),
        single(
            samples, past, "bound_ms", "opencl_past_bound", "past the cache: the kernel behind its copy", **ms
        ),
        single(samples, past, step, "opencl_past", "past the cache: pipelined, ring of 3", **ms),
        single(
            samples, past, "ratio", "opencl_past_share", "past the cache: steps/s / bound", **share
        ),
        single(
            samples, past, "kernel_ratio", "opencl_kernel_share", "past the cache: steps/s / kernels alone",
            **share,
        ),
        single(samples, shared, step, "opencl_shared", "image in shared memory: pipelined, ring of 3", **ms),
        single(
            samples, shared, "kernel_ratio", "opencl_shared_share", "image in shared memory: steps/s / kernels alone",
            **share,
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
        "past the cache": streaming,
        "shared image": beside_kernels,
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
