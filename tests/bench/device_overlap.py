"""Overlap on an accelerator: 66.5 MB workspace, 16 MB image and a kernel of 1.5 ms, all in one run.

    python -m tests.bench.device_overlap --backend cuda:0 [--steps 200] [--rounds 5]
    python -m tests.bench.device_overlap --backend torch:cuda:0

Prints milliseconds a step for the three modes of the orchestrator, for kernel and copy each alone, and for both beside
each other on two streams without the orchestrator: the longer of the two is the bound. Bound and pipeline take turns;
the ratio is the median over the rounds. Without such a device it says so in one line (exit code 3). ``torch:cpu`` shows
that the bench runs, and nothing about a device. On OpenCL: ``tests.bench.opencl_overlap``.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any, Literal

import numpy as np

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch.abc import Backend, Buffer, Stream
from async_orch.exceptions import BackendUnavailable

WORKSPACE_NBYTES = 66_488_960
IMAGE_NBYTES = 16_000_000
KERNEL_NS = 1_500_000
NOT_RUN = 3
SLOTS = 3
STAGING = 4  # of an orchestrator with one builder and queue_depth=2
TIMEOUT_S = 120.0

Work = Callable[[Stream, Buffer, int], None]
"""Enqueues a kernel on memory that it may change; the number says how long it takes."""


def work_for(backend: str, stream: Stream) -> Work:
    """The kernel for a backend: one thread that spins on ``cuda``, additions to the whole workspace on ``torch``."""
    if backend.startswith("cuda"):
        from async_orch_backends.cuda_driver import Launch
        from cuda.core import LaunchConfig

        from tests.conformance.cuda_kernels import CudaKernels

        spin = Launch(CudaKernels().kernel(stream, "spin"), LaunchConfig(grid=1, block=1))
        return lambda stream, memory, amount: stream.launch(spin, memory, np.int64(amount))

    def add(tensor: Any, amount: int) -> None:
        for _ in range(amount):
            tensor.add_(1)

    return lambda stream, memory, amount: stream.launch(add, memory, amount)


def calibrated(work: Work, stream: Stream, memory: Buffer) -> int:
    """The number with which the kernel takes 1.5 ms, or as near to it as it comes."""
    amount = 1
    for _ in range(12):
        spent = []
        for _ in range(3):
            start = time.perf_counter_ns()
            first = stream.record()
            work(stream, memory, amount)
            last = stream.record()
            last.synchronize(TIMEOUT_S)
            on_device_ns = last.elapsed_ns(first)
            spent.append(time.perf_counter_ns() - start if on_device_ns is None else on_device_ns)
        ratio = KERNEL_NS / max(statistics.median(spent), 1)
        amount = max(round(amount * min(ratio, 1000.0)), 1)
    return amount


class Load(StepProgram[int, int]):
    """Builds a little, copies a lot, computes for 1.5 ms."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, workspace_nbytes=WORKSPACE_NBYTES, output_nbytes=64)

    def __init__(self, backend: str) -> None:
        self._backend = backend

    def open(self, device: Any) -> None:
        stream = device.compute_stream
        self._work = work_for(self._backend, stream)
        memory = device.alloc(WORKSPACE_NBYTES, name="calibration")
        self._amount = calibrated(self._work, stream, memory)
        device.free(memory)

    def build(self, step: int, image: Any) -> None:
        image[: 2**16] = step % 251

    def launch(self, step: int, slot: Any, stream: Stream) -> None:
        self._work(stream, slot.workspace, self._amount)

    def collect(self, step: int, output: Any) -> int:
        return int(output[0])


async def mode_ns(backend: str, mode: Literal["pipelined", "ring", "naive"], slots: int, steps: int) -> float:
    """Nanoseconds a step, without the first and last ones."""
    ends: list[int] = []
    async with Orchestrator(Load(backend), backend, mode=mode, slots=slots) as orch:
        async for _ in orch.map(range(steps)):
            ends.append(time.monotonic_ns())  # noqa: PERF401 - the time of each is the point
    skip = max(steps // 10, 1)
    return (ends[-skip] - ends[skip]) / (len(ends) - 2 * skip)


class Bare:
    """Streams and memory of the backend, without an orchestrator."""

    def __init__(self, name: str) -> None:
        self.backend: Backend = open_backend(name)
        self._compute, self._copy = (self.backend.create_stream(name) for name in ("compute", "copy"))
        self._work = work_for(name, self._compute)
        self._memory = self.backend.alloc(WORKSPACE_NBYTES)
        self._images = [self.backend.alloc(IMAGE_NBYTES) for _ in range(SLOTS)]
        self._staging = [self.backend.alloc_host(IMAGE_NBYTES) for _ in range(STAGING)]
        for buffer in (self._memory, *self._images, *self._staging):
            self.backend.touch(buffer)
        self._amount = calibrated(self._work, self._compute, self._memory)

    def step_ns(self, steps: int, *, kernels: bool, copies: bool) -> float:
        """Nanoseconds a step of kernels, of copies, or of both side by side; at most three steps are in flight."""
        flying: list[Any] = []
        start = time.monotonic_ns()
        for step in range(steps):
            if copies:
                self._copy.copy(self._images[step % SLOTS], self._staging[step % STAGING], IMAGE_NBYTES)
                flying.append(self._copy.record())
            if kernels:
                self._work(self._compute, self._memory, self._amount)
                flying.append(self._compute.record())
            while len(flying) > 3 * (kernels + copies):
                flying.pop(0).synchronize(TIMEOUT_S)
        for fence in flying:
            fence.synchronize(TIMEOUT_S)
        return (time.monotonic_ns() - start) / steps


def show(name: str, steps: int, rounds: int) -> None:
    """Measure and print the table."""
    bare = Bare(name)
    try:
        info = bare.backend.info
        print(f"{name}: {info.device}, {info.driver}; {info.support}")
        bare.step_ns(SLOTS, kernels=True, copies=True)  # warm
        kernel = bare.step_ns(steps, kernels=True, copies=False)
        copy = bare.step_ns(steps, kernels=False, copies=True)
        naive = asyncio.run(mode_ns(name, "naive", 1, max(steps // 5, 20)))
        ring = asyncio.run(mode_ns(name, "ring", 1, steps))
        few = {slots: asyncio.run(mode_ns(name, "pipelined", slots, steps)) for slots in (1, 2)}
        bound, piped = [], []
        for _ in range(rounds):
            bound.append(bare.step_ns(steps, kernels=True, copies=True))
            piped.append(asyncio.run(mode_ns(name, "pipelined", SLOTS, steps)))
    finally:
        bare.backend.close()
    best = statistics.median(piped)
    ratios = [one / other for one, other in zip(bound, piped, strict=True)]
    print(f"{'kernel / copy, each alone':42}{kernel / 1e6:8.3f} / {copy / 1e6:.3f} ms")
    print(f"{'kernel and copy side by side':42}{statistics.median(bound) / 1e6:8.3f} ms")
    print(f"{'naive: allocated each step, serial':42}{naive / 1e6:8.3f} ms a step")
    print(f"{'ring: allocated once, serial':42}{ring / 1e6:8.3f} ms a step")
    for slots, spent in {**few, SLOTS: best}.items():
        print(f"{f'pipelined, ring of {slots}':42}{spent / 1e6:8.3f} ms a step")
    print(f"{'naive / pipelined':42}{naive / best:8.2f}")
    print(f"{'bound / pipelined':42}{statistics.median(ratios):8.3f} ({min(ratios):.3f} to {max(ratios):.3f})")


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or why there is none."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="cuda:0", help="cuda:ORDINAL or torch:KIND:INDEX (default: %(default)s)")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args(arguments)
    if options.backend.partition(":")[0] not in ("cuda", "torch"):
        parser.error(f"--backend is cuda:ORDINAL or torch:KIND:INDEX, not {options.backend}")
    if options.steps < 10 or options.rounds < 1:
        parser.error("--steps must be at least 10, and --rounds at least 1")
    try:
        show(options.backend, options.steps, options.rounds)
    except BackendUnavailable as exc:
        print(f"not run: {exc}")
        return NOT_RUN
    return 0


if __name__ == "__main__":
    sys.exit(main())
