"""Real memory, real copies, real kernels: ``python -m tests.bench.real_memory [--out DIR]``.

Slots of the a5 report's sizes: 66.5 MB of workspace, 5.5 MB of image. A kernel adds a number of the image to every
word of the workspace; both ends of the workspace come back as output and are compared. On ``host`` and on PoCL, an
OpenCL driver on the CPU.

The bound is measured without this library: the same kernels one after the other, while a second thread (OpenCL: a
second queue) copies as many images, one a kernel; on ``host`` over the very buffers of the pipeline, in turn with it.
Both share the memory of the machine, so neither is as fast as alone; nothing that overlaps them can be faster.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from typing import Any

import numpy as np

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from async_orch.abc import ByteArray, Stream
from tests.bench._kit import Bench, CheckFailed, Figure, NotInstalled, Sample, Samples, main, on_loop, quotient, single

WORKSPACE_NBYTES = 66_488_960
IMAGE_NBYTES = 5_543_944  # a whole number of words
SLOTS = 3
STEPS = 80
EDGE = 8
TURNS = 2


class _Adding(StepProgram[int, tuple[int, int, int]]):
    """The step's number, first and last word of the workspace come back; a subclass launches."""

    slot = SlotSpec(image_nbytes=IMAGE_NBYTES, workspace_nbytes=WORKSPACE_NBYTES, output_nbytes=24)

    def build(self, step: int, image: ByteArray) -> None:
        image[:8].view("u8")[0] = step + 1
        image[-8:].view("u8")[0] = step + 1

    def collect(self, step: int, output: ByteArray) -> tuple[int, int, int]:
        number, first, last = output.view("u8").tolist()
        return number, first, last


class HostAdding(_Adding):
    """Remembers its buffers: the bound is measured over the same ones, as memory differs in speed as its pages lie."""

    def __init__(self) -> None:
        self.staging: dict[int, ByteArray] = {}
        self.device: dict[int, tuple[ByteArray, ByteArray]] = {}
        self._cleared: set[int] = set()

    def build(self, step: int, image: ByteArray) -> None:
        super().build(step, image)
        self.staging.setdefault(image.ctypes.data, image)

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        if slot.index not in self._cleared:
            self._cleared.add(slot.index)
            stream.launch(self._clear, slot.image, slot.workspace)
        stream.launch(_add, slot.image, slot.workspace, slot.output)

    def _clear(self, image: ByteArray, workspace: ByteArray) -> None:
        self.device[workspace.ctypes.data] = (image, workspace)
        workspace[:] = 0


def _add(image: ByteArray, workspace: ByteArray, output: ByteArray) -> None:
    words = workspace.view("u8")
    np.add(words, image[-8:].view("u8")[0], out=words)
    output.view("u8")[:] = (image[:8].view("u8")[0], words[0], words[-1])


async def _run(orch: Orchestrator[int, tuple[int, int, int]], results: list[Any], first: int, steps: int) -> float:
    """Milliseconds a step, fill and drain left out."""
    ends: list[int] = []
    async for result in orch.map(range(first, first + steps)):
        ends.append(time.perf_counter_ns())
        results.append(result)
    return _step_ms(ends)


def _step_ms(ends: list[int]) -> float:
    return (ends[-1 - EDGE] - ends[EDGE]) / (len(ends) - 1 - 2 * EDGE) / 1e6


def _check(orch: Orchestrator[Any, Any], results: list[Any], bare: int = 0) -> None:
    """Order, slots, both streams, and that each workspace holds the sum of its steps' numbers.

    `bare` is how many turns of bare kernels ran over the same workspaces in between: their sums are not known here.
    """
    check_order([result.output[0] - 1 for result in results], len(results))
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), len(results))
    timings = [result.timings for result in results]
    check_intervals("compute", [(t.device_start_ns, t.device_ns) for t in timings], least_ns=1, slack_ns=100_000)
    check_intervals("copy", [(t.h2d_start_ns, t.h2d_ns) for t in timings], least_ns=1, slack_ns=100_000)
    sums = [0] * SLOTS
    for result in results[: STEPS if bare else None]:
        sums[result.slot] += result.seq + 1
        if result.output[1:] != (sums[result.slot], sums[result.slot]):
            raise CheckFailed(f"step {result.seq}: the workspace holds {result.output[1:]}, not {sums[result.slot]}")


async def _host() -> Sample:
    program = HostAdding()
    results: list[Any] = []
    pipelined, bound = [], []
    async with Orchestrator(program, "host", slots=SLOTS) as orch:
        for turn in range(TURNS):
            pipelined.append(await _run(orch, results, turn * STEPS, STEPS))
            bound.append(await asyncio.to_thread(_bare, list(program.device.values()), list(program.staging.values())))
    _check(orch, results, bare=TURNS)
    ratio = statistics.median(bare / ours for bare, ours in zip(bound, pipelined, strict=True))
    return {"step_ms": statistics.median(pipelined), "bound_ms": statistics.median(bound), "ratio": ratio}


def _bare(device: list[tuple[ByteArray, ByteArray]], staging: list[ByteArray]) -> float:
    """Milliseconds a kernel on this thread, beside a thread that copies one image a kernel."""
    output = np.zeros(24, "u1")
    allowed, copied = threading.Semaphore(SLOTS), threading.Semaphore(0)

    def copy_loop() -> None:
        for i in range(STEPS):
            allowed.acquire()
            np.copyto(device[i % SLOTS][0], staging[i % len(staging)])
            copied.release()

    copier = threading.Thread(target=copy_loop)
    copier.start()
    ends = []
    before = int(device[0][1].view("u8")[0])
    for i in range(STEPS):
        copied.acquire()
        _add(*device[i % SLOTS], output)
        allowed.release()
        ends.append(time.perf_counter_ns())
    copier.join()
    if int(device[0][1].view("u8")[0]) == before:
        raise CheckFailed("a workspace was left as it was")
    return _step_ms(ends)


def host() -> Sample:
    sample: Sample = on_loop(_host)
    return sample


SOURCE = """
kernel void clear(global ulong *workspace, int words) {
    for (int i = 0; i < words; ++i) workspace[i] = 0;
}
kernel void add(global const ulong *image, int image_words, global ulong *workspace, int words, global ulong *output) {
    ulong number = image[image_words - 1];
    for (int i = 0; i < words; ++i) workspace[i] += number;
    output[0] = image[0];
    output[1] = workspace[0];
    output[2] = workspace[words - 1];
}
"""
WORDS = (np.int32(IMAGE_NBYTES // 8), np.int32(WORKSPACE_NBYTES // 8))


def _pocl() -> Any:
    try:
        import pyopencl
    except ModuleNotFoundError as error:
        raise NotInstalled("async-orch[pocl]") from error
    return pyopencl


class PoclAdding(_Adding):
    def open(self, device: Any) -> None:
        from async_orch_backends.opencl import NDRange

        cl = _pocl()
        program = cl.Program(device.compute_stream.context, SOURCE).build()
        clear, add = cl.Kernel(program, "clear"), cl.Kernel(program, "add")
        clear.set_scalar_arg_dtypes([None, np.int32])
        add.set_scalar_arg_dtypes([None, np.int32, None, np.int32, None])
        self._clear, self._add = NDRange(clear, (1,), (1,)), NDRange(add, (1,), (1,))
        self._cleared: set[int] = set()

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        image_words, words = WORDS
        if slot.index not in self._cleared:
            self._cleared.add(slot.index)
            stream.launch(self._clear, slot.workspace, words)
        stream.launch(self._add, slot.image, image_words, slot.workspace, words, slot.output)


async def _pocl_run() -> Sample:
    results: list[Any] = []
    async with Orchestrator(PoclAdding(), "opencl", slots=SLOTS) as orch:
        step_ms = await _run(orch, results, 0, STEPS)
    _check(orch, results)
    return {"step_ms": step_ms}


def pocl_pipelined() -> Sample:
    _pocl()
    sample: Sample = on_loop(_pocl_run)
    return sample


def pocl_bound() -> Sample:
    """Kernels in one queue, behind the copies of their images in another; three steps under way."""
    from async_orch import open_backend

    cl = _pocl()
    backend = open_backend("opencl")
    try:
        stream: Any = backend.create_stream("compute")
        context, device = stream.context, stream.device
        program = cl.Program(context, SOURCE).build()
        add, clear = cl.Kernel(program, "add"), cl.Kernel(program, "clear")
        kernels, copies = cl.CommandQueue(context, device), cl.CommandQueue(context, device)
        flags = cl.mem_flags.READ_WRITE
        images = [cl.Buffer(context, flags, IMAGE_NBYTES) for _ in range(SLOTS)]
        workspaces = [cl.Buffer(context, flags, WORKSPACE_NBYTES) for _ in range(SLOTS)]
        sources = [cl.Buffer(context, flags | cl.mem_flags.ALLOC_HOST_PTR, IMAGE_NBYTES) for _ in range(SLOTS + 1)]
        output = cl.Buffer(context, flags, 24)
        image_words, words = WORDS
        for source in sources:
            cl.enqueue_fill_buffer(copies, source, np.uint8(1), 0, IMAGE_NBYTES)
        for workspace in workspaces:
            clear(kernels, (1,), (1,), workspace, words)
        copies.finish()
        kernels.finish()
        done: list[Any] = []
        ends = []
        for i in range(STEPS):
            if i >= SLOTS:
                done[i - SLOTS].wait()
                ends.append(time.perf_counter_ns())
            copied = cl.enqueue_copy(copies, images[i % SLOTS], sources[i % len(sources)], byte_count=IMAGE_NBYTES)
            copies.flush()
            done.append(
                add(
                    kernels, (1,), (1,), images[i % SLOTS], image_words, workspaces[i % SLOTS], words, output,
                    wait_for=[copied],
                )
            )  # fmt: skip
            kernels.flush()
        kernels.finish()
        found = np.empty(3, "u8")
        cl.enqueue_copy(kernels, found, output)
        expected = sum(0x0101010101010101 for i in range(STEPS) if i % SLOTS == (STEPS - 1) % SLOTS) % 2**64
        if int(found[1]) != expected or int(found[2]) != expected:
            raise CheckFailed(f"the bare workspace holds {found.tolist()}, not {expected}")
        return {"step_ms": _step_ms(ends)}
    finally:
        backend.close()


def figures(samples: Samples) -> list[Figure]:
    bound, ours = ("PoCL bound", "step_ms"), ("PoCL pipelined", "step_ms")
    goal = (">=", 0.95)
    title = "66.5 + 5.5 MB: pipelined steps/s / bound"
    return [
        single(samples, "host", "bound_ms", "memory_host_bound", "host: the kernel beside bare copies", unit="ms"),
        single(samples, "host", "ratio", "memory_host", f"host, {title}", unit="x", goal=goal),
        single(samples, *bound, "memory_PoCL_bound", "PoCL: the kernel beside bare copies", unit="ms"),
        quotient(samples, bound, ours, "memory_PoCL", f"PoCL, {title}", unit="x", goal=goal),
    ]


BENCH = Bench(
    "real_memory",
    {
        "host": host,
        "PoCL bound": pocl_bound,
        "PoCL pipelined": pocl_pipelined,
    },
    figures,
    rounds=5,
    about={"steps": STEPS, "workspace_nbytes": WORKSPACE_NBYTES, "image_nbytes": IMAGE_NBYTES, "slots": SLOTS},
)

if __name__ == "__main__":
    main(BENCH)
