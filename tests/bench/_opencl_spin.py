"""The steps of `tests.bench.opencl_overlap`, and what bounds them: the same work by the driver alone.

``python -m tests.bench._opencl_spin`` prints one sample of `beside_bound` as JSON.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import json
import os
import statistics
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from tests.bench._kit import CheckFailed, Sample, on_loop, refuse

__all__ = [
    "BACKEND", "IMAGE_NBYTES", "KERNEL_NS", "OUTPUT_NBYTES", "SLOTS", "STEPS", "WORKSPACE_NBYTES", "Bare", "Spin",
    "beside_bound", "beside_kernels", "check", "compiled", "pyopencl", "spin_rounds", "step_ms", "steps", "streaming",
]  # fmt: skip

BACKEND = os.environ.get("BENCH_BACKEND", "opencl")
WORKSPACE_NBYTES = 66_488_960
IMAGE_NBYTES = 16_000_000
OUTPUT_NBYTES = 64
KERNEL_NS = 1_500_000
SLOTS = 3
STAGING = 4  # of an orchestrator with one builder and queue_depth=2
STEPS = 200
TURNS = 4
SLACK_NS = 100_000  # device clocks are anchored to the host's
RESULT = struct.Struct("=III")
PAST_THE_CACHE = "glibc.cpu.x86_non_temporal_threshold=4000000"
"""The image is more than this many bytes; by default glibc stores past the cache from 3/4 of a shared cache on."""
SOURCE = """
kernel void spin(global uint *out, global const uchar *image, int last, int rounds) {
    uint x = image[0];
    for (int i = 0; i < rounds; ++i) x = x * 1664525u + 1013904223u;
    out[0] = x;
    out[1] = image[0];
    out[2] = image[last];
}
"""


def pyopencl() -> Any:
    try:
        import pyopencl
    except ModuleNotFoundError:
        refuse("async-orch[pocl]")
    return pyopencl


def compiled(context: Any) -> Any:
    cl = pyopencl()
    kernel = cl.Kernel(cl.Program(context, SOURCE).build(), "spin")
    kernel.set_scalar_arg_dtypes([None, None, np.int32, np.int32])
    return kernel


@functools.cache
def spin_rounds() -> int:
    """How many rounds take 1.5 ms; found once, so that all variants do the same work."""
    cl = pyopencl()
    backend = open_backend(BACKEND)
    try:
        stream: Any = backend.create_stream("compute")
        kernel = compiled(stream.context)
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

    def __init__(self, *, shared: bool = False) -> None:
        if shared:
            self.slot = dataclasses.replace(type(self).slot, image_at="shared")

    def open(self, device: Any) -> None:
        from async_orch_backends.opencl import NDRange

        self._last, self._rounds = np.int32(IMAGE_NBYTES - 1), np.int32(spin_rounds())
        self._spin = NDRange(compiled(device.compute_stream.context), (1,), (1,))

    def build(self, step: int, image: Any) -> None:
        image[: 2**16] = image[-1] = step % 251

    def launch(self, step: int, slot: Any, stream: Any) -> None:
        stream.launch(self._spin, slot.output, slot.image, self._last, self._rounds)

    def collect(self, step: int, output: Any) -> tuple[int, int]:
        _, first, last = RESULT.unpack_from(output)
        return first, last


async def steps(orch: Orchestrator[int, tuple[int, int]], results: list[Any], first: int, count: int) -> list[int]:
    """When each step came out; what came out is added to the results."""
    ends: list[int] = []
    async for result in orch.map(range(first, first + count)):
        ends.append(time.perf_counter_ns())
        results.append(result)
    return ends


def check(
    orch: Orchestrator[int, tuple[int, int]], results: list[Any], mode: str, slots: int, *, copied: bool = True
) -> None:
    check_order([result.seq for result in results], len(results))
    if any(result.output != (i % 251, i % 251) for i, result in enumerate(results)):
        raise CheckFailed(f"{mode}: an image did not come back as it was built")
    if mode != "naive":  # which allocates in each step, and whose slots are new ones
        check_slots(results, slots)
        check_statistics(orch.statistics(), len(results))
    timings = [result.timings for result in results]
    compute = [(t.device_start_ns, t.device_ns) for t in timings]
    check_intervals("compute", compute, least_ns=KERNEL_NS // 2, slack_ns=SLACK_NS)
    if any(t.copy_nbytes != (IMAGE_NBYTES if copied else 0) for t in timings):
        raise CheckFailed(f"{mode}: images were {'not ' if copied else ''}copied; does the device share memory?")
    if not copied:
        return
    check_intervals("copy", [(t.h2d_start_ns, t.h2d_ns) for t in timings], least_ns=1, slack_ns=SLACK_NS)


def step_ms(ends: list[int]) -> float:
    skip = max(len(ends) // 10, 1)
    return (ends[-1 - skip] - ends[skip]) / (len(ends) - 1 - 2 * skip) / 1e6


class Bare:
    """Kernels behind their copies, by the driver alone; keeps its buffers from turn to turn, as the pipeline does."""

    def __init__(self) -> None:
        cl = pyopencl()
        self._backend = open_backend(BACKEND)
        stream: Any = self._backend.create_stream("compute")
        context, device = stream.context, stream.device
        self._kernel = compiled(context)
        self._kernels, self._copies = cl.CommandQueue(context, device), cl.CommandQueue(context, device)
        images = [self._backend.alloc(IMAGE_NBYTES) for _ in range(SLOTS)]
        sources = [self._backend.alloc_host(IMAGE_NBYTES) for _ in range(STAGING)]
        for buffer in (*images, *sources):
            self._backend.touch(buffer)
        self._images: list[Any] = [image.native for image in images]
        self._sources: list[Any] = [source.array for source in sources]
        self._out = cl.Buffer(context, cl.mem_flags.READ_WRITE, 64)

    def step_ms(self, count: int, *, copies: bool = True) -> float:
        """Milliseconds a kernel, with its copy or without; raises `CheckFailed` if the last one saw another image."""
        cl, last, rounds = pyopencl(), np.int32(IMAGE_NBYTES - 1), np.int32(spin_rounds())
        done: list[Any] = []
        ends: list[int] = []
        for i in range(count + SLOTS):
            if i >= SLOTS:
                done[i - SLOTS].wait()
                ends.append(time.perf_counter_ns())
            if i >= count:
                continue
            image, copied = self._images[i % SLOTS], None
            if copies:
                source = self._sources[i % STAGING]
                source[: 2**16] = source[-1] = i % 251
                copied = [cl.enqueue_copy(self._copies, image, source, is_blocking=False)]
                self._copies.flush()
            done.append(self._kernel(self._kernels, (1,), (1,), self._out, image, last, rounds, wait_for=copied))
            self._kernels.flush()
        found = np.empty(3, "u4")
        cl.enqueue_copy(self._kernels, found, self._out)
        if copies and found[1:].tolist() != [(count - 1) % 251] * 2:
            raise CheckFailed(f"the bare kernels saw {found[1:].tolist()}, not twice {(count - 1) % 251}")
        return step_ms(ends)

    def copy_ms(self) -> float:
        """Milliseconds that the copy of an image takes when nothing else is done."""
        cl = pyopencl()
        spent = []
        for i in range(10 * STAGING):
            begun = time.perf_counter_ns()
            cl.enqueue_copy(self._copies, self._images[i % SLOTS], self._sources[i % STAGING], is_blocking=False).wait()
            spent.append(time.perf_counter_ns() - begun)
        return statistics.median(spent) / 1e6

    def close(self) -> None:
        self._backend.close()


async def _in_turns(names: Sequence[str], *, shared: bool = False) -> dict[str, list[float]]:
    """Milliseconds a step of the pipeline and of what is named, in turns, as the memory changes its speed meanwhile."""
    bare = Bare()
    share = STEPS // TURNS
    bounds: dict[str, Callable[[], float]] = {
        "bound": partial(bare.step_ms, share),
        "kernel": partial(bare.step_ms, share, copies=False),
        "copy": bare.copy_ms,
    }
    found: dict[str, list[float]] = {name: [] for name in ("step", *names)}
    results: list[Any] = []
    try:
        async with Orchestrator(Spin(shared=shared), BACKEND, slots=SLOTS) as orch:
            for turn in range(TURNS):
                found["step"].append(step_ms(await steps(orch, results, turn * share, share)))
                for name in names:
                    found[name].append(await asyncio.to_thread(bounds[name]))
    finally:
        bare.close()
    check(orch, results, "pipelined", SLOTS, copied=not shared)
    return found


def _share(found: dict[str, list[float]], bound: str) -> float:
    return statistics.median(one / other for one, other in zip(found[bound], found["step"], strict=True))


def _medians(found: dict[str, list[float]]) -> Sample:
    return {f"{name}_ms": statistics.median(values) for name, values in found.items()}


def beside_bound() -> Sample:
    """The pipeline beside the same work by the driver alone, and beside the kernels and the copies alone."""
    pyopencl()
    found: dict[str, list[float]] = on_loop(partial(_in_turns, ("bound", "kernel", "copy")))
    return _medians(found) | {"ratio": _share(found, "bound"), "kernel_ratio": _share(found, "kernel")}


def beside_kernels() -> Sample:
    """The pipeline whose kernels read images where they were built, beside the kernels alone."""
    pyopencl()
    found: dict[str, list[float]] = on_loop(partial(_in_turns, ("kernel",), shared=True))
    return _medians(found) | {"kernel_ratio": _share(found, "kernel")}


def streaming() -> Sample:
    """`beside_bound` in a process whose large copies go past the cache: PoCL copies with the C library's `memcpy`."""
    pyopencl()
    environment = dict(os.environ)
    environment["GLIBC_TUNABLES"] = ":".join(filter(None, [environment.get("GLIBC_TUNABLES"), PAST_THE_CACHE]))
    command = [sys.executable, "-m", "tests.bench._opencl_spin"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CheckFailed(f"{' '.join(command[1:])} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    sample: Sample = json.loads(done.stdout.splitlines()[-1])
    return sample


if __name__ == "__main__":
    print(json.dumps(beside_bound()))
