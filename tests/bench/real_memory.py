"""Real memory, real copies, real kernels: ``python -m tests.bench.real_memory [--out DIR]``.

Slots of the a5 report's sizes: 66.5 MB of workspace, 5.5 MB of image. A kernel adds a number of the image to every
word of the workspace; both ends of the workspace come back as output and are compared. On ``host`` and on PoCL, an
OpenCL driver on the CPU.

The bound is measured without this library: the same kernels one after the other, while a second thread (OpenCL: a
second queue) copies as many images, one a kernel, into the same number of buffers. Both share the memory of the
machine, so neither is as fast as alone; nothing that overlaps them can be faster.
"""

from __future__ import annotations

import threading
import time
from functools import partial
from typing import Any

import numpy as np

from async_orch import Orchestrator, Slot, SlotSpec, StepProgram
from async_orch._bench._checks import check_intervals, check_order, check_slots, check_statistics
from async_orch.abc import ByteArray, Stream
from tests.bench._kit import Bench, CheckFailed, Figure, NotInstalled, Sample, Samples, main, on_loop, quotient, single

WORKSPACE_NBYTES = 66_488_960
IMAGE_NBYTES = 5_543_944  # a whole number of words
SLOTS = 3
STEPS = 150
EDGE = 15


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
    def open(self, device: Any) -> None:
        self._cleared: set[int] = set()

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        if slot.index not in self._cleared:
            self._cleared.add(slot.index)
            stream.launch(_clear, slot.workspace)
        stream.launch(_add, slot.image, slot.workspace, slot.output)


def _clear(workspace: ByteArray) -> None:
    workspace[:] = 0


def _add(image: ByteArray, workspace: ByteArray, output: ByteArray) -> None:
    words = workspace.view("u8")
    np.add(words, image[-8:].view("u8")[0], out=words)
    output.view("u8")[:] = (image[:8].view("u8")[0], words[0], words[-1])


async def _pipelined(program: _Adding, backend: str) -> float:
    """Nanoseconds a step, fill and drain left out."""
    ends: list[int] = []
    async with Orchestrator(program, backend, slots=SLOTS) as orch:
        results = []
        async for result in orch.map(range(STEPS)):
            ends.append(time.perf_counter_ns())
            results.append(result)
    check_order([result.output[0] - 1 for result in results], STEPS)
    check_slots(results, SLOTS)
    check_statistics(orch.statistics(), STEPS)
    timings = [result.timings for result in results]
    check_intervals("compute", [(t.device_start_ns, t.device_ns) for t in timings], least_ns=1, slack_ns=100_000)
    sums = [0] * SLOTS
    for result in results:
        sums[result.slot] += result.seq + 1
        if result.output[1:] != (sums[result.slot], sums[result.slot]):
            raise CheckFailed(f"step {result.seq}: the workspace holds {result.output[1:]}, not {sums[result.slot]}")
    return (ends[-1 - EDGE] - ends[EDGE]) / (STEPS - 1 - 2 * EDGE)


def host_pipelined() -> Sample:
    return {"step_ms": on_loop(partial(_pipelined, HostAdding(), "host")) / 1e6}


def host_bound() -> Sample:
    """Kernels on this thread, beside a thread that copies one image a kernel."""
    workspaces = [np.zeros(WORKSPACE_NBYTES, "u1") for _ in range(SLOTS)]
    images = [np.zeros(IMAGE_NBYTES, "u1") for _ in range(SLOTS)]
    staging = [np.ones(IMAGE_NBYTES, "u1") for _ in range(SLOTS + 1)]
    output = np.zeros(24, "u1")
    allowed, copied = threading.Semaphore(SLOTS), threading.Semaphore(0)

    def copy_loop() -> None:
        for i in range(STEPS):
            allowed.acquire()
            np.copyto(images[i % SLOTS], staging[i % len(staging)])
            copied.release()

    copier = threading.Thread(target=copy_loop)
    copier.start()
    ends = []
    for i in range(STEPS):
        copied.acquire()
        _add(images[i % SLOTS], workspaces[i % SLOTS], output)
        allowed.release()
        ends.append(time.perf_counter_ns())
    copier.join()
    if not all(int(workspace.view("u8")[0]) for workspace in workspaces):
        raise CheckFailed("a workspace was left as it was")
    return {"step_ms": (ends[-1 - EDGE] - ends[EDGE]) / (STEPS - 1 - 2 * EDGE) / 1e6}


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
        self._clear = NDRange(cl.Kernel(program, "clear"), (1,), (1,))
        self._add = NDRange(cl.Kernel(program, "add"), (1,), (1,))
        self._cleared: set[int] = set()

    def launch(self, step: int, slot: Slot, stream: Stream) -> None:
        image_words, words = WORDS
        if slot.index not in self._cleared:
            self._cleared.add(slot.index)
            stream.launch(self._clear, slot.workspace, words)
        stream.launch(self._add, slot.image, image_words, slot.workspace, words, slot.output)


def pocl_pipelined() -> Sample:
    _pocl()
    return {"step_ms": on_loop(partial(_pipelined, PoclAdding(), "opencl")) / 1e6}


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
        return {"step_ms": (ends[-1 - EDGE] - ends[EDGE]) / (len(ends) - 1 - 2 * EDGE) / 1e6}
    finally:
        backend.close()


def figures(samples: Samples) -> list[Figure]:
    found = []
    for name in ("host", "PoCL"):
        bound, ours = (f"{name} bound", "step_ms"), (f"{name} pipelined", "step_ms")
        found += [
            single(samples, *bound, f"memory_{name}_bound", f"{name}: the kernel beside bare copies", unit="ms"),
            quotient(
                samples, bound, ours, f"memory_{name}", f"{name}, 66.5 + 5.5 MB: pipelined steps/s / bound", unit="x",
                goal=(">=", 0.95),
            ),
        ]  # fmt: skip
    return found


BENCH = Bench(
    "real_memory",
    {
        "host bound": host_bound,
        "host pipelined": host_pipelined,
        "PoCL bound": pocl_bound,
        "PoCL pipelined": pocl_pipelined,
    },
    figures,
    rounds=5,
    about={"steps": STEPS, "workspace_nbytes": WORKSPACE_NBYTES, "image_nbytes": IMAGE_NBYTES, "slots": SLOTS},
)

if __name__ == "__main__":
    main(BENCH)
