"""The seam to a device: what a backend implements, and all that the engine knows of one.

A backend is one file around four small classes. The engine calls them from one thread at a time (the loop's,
or the device thread with ``launch_in="thread"``); only `Fence.query`, `Fence.notify` and `Fence.synchronize`
may be called from any thread.

The words are the field's: a *stream* is an ordered device work queue, a *fence* is a completion marker on a
stream (an event in CUDA, ACL and OpenCL), a *buffer* is a range of device memory or of (pinned) host memory.

Longer than other files of this project, on purpose: whoever writes a backend reads all of it, and most of it is the
text of the contract.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np
import numpy.typing as npt

__all__ = [
    "Backend",
    "Buffer",
    "DeviceInfo",
    "Fence",
    "Stream",
    "AllocVisibility",
    "ByteArray",
    "DeviceClock",
    "ReuseOrder",
]

ByteArray = npt.NDArray[np.uint8]
AllocVisibility = Literal["all", "own", "none"]
DeviceClock = Literal["device", "anchored", "host", "none"]
ReuseOrder = Literal["fifo", "lifo"]


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """What a backend says of itself and its device.

    Attributes
    ----------
    backend, device:
        Names, as in ``"host"`` and ``"cpu"``.
    support:
        How far the claim of support goes, in the words ``"measured on DEVICE"``, ``"calibrated to SOURCE"``,
        ``"tested against a fake"`` or ``"not run"``.
    alignment_nbytes:
        Alignment of the addresses that `Backend.alloc` returns.
    pinned:
        Whether `Backend.alloc_host` gives page-locked memory (or needs none to copy asynchronously).
    alloc_visibility:
        Which allocations of device memory the backend can count: ``"all"`` (see `Backend.allocation_counter`), its
        ``"own"``, or ``"none"``.
    device_clock:
        Source of `Fence.time_ns`: the ``"device"``'s clock in host time, a device clock ``"anchored"`` to
        the host's once, the ``"host"`` clock read when the marker was reached, or ``"none"``.
    memory_nbytes:
        Size of device memory, None where unknown.
    driver:
        Name and version of the driver, empty where there is none.
    assumed:
        Figures of a simulated device that no source backs, each with its value, as ``"kernel_ns 36.8 ms"``.
    """

    backend: str
    device: str
    support: str
    alignment_nbytes: int = 64
    pinned: bool = False
    alloc_visibility: AllocVisibility = "own"
    device_clock: DeviceClock = "none"
    memory_nbytes: int | None = None
    driver: str = ""
    assumed: tuple[str, ...] = ()


class Buffer(ABC):
    """A range of device memory or of host memory that a device copies from and to."""

    __slots__ = ("name", "nbytes")

    def __init__(self, nbytes: int, name: str = "") -> None:
        self.nbytes = nbytes
        self.name = name

    @property
    @abstractmethod
    def is_host(self) -> bool:
        """True for memory from `Backend.alloc_host`."""

    @property
    @abstractmethod
    def array(self) -> ByteArray:
        """The memory as a writable uint8 array of shape ``(nbytes,)``.

        Raises `DeviceError` where the host cannot address the memory, or after `free`.
        """

    @property
    @abstractmethod
    def handle(self) -> int:
        """The address as an integer, or the driver's handle where there is no address."""

    @property
    def native(self) -> Any:
        """The driver's own object; the buffer itself where there is none."""
        return self

    @abstractmethod
    def free(self) -> None:
        """Give the memory back. Idempotent. The caller has waited for the work that uses it."""

    def __repr__(self) -> str:
        space = "host" if self.is_host else "device"
        return f"<{type(self).__name__} {self.name or 'unnamed'} {space} {self.nbytes} B>"


class Fence(ABC):
    """A completion marker: done when all work enqueued on its stream before it is done."""

    __slots__ = ()

    notifies: ClassVar[bool] = False
    """True if `notify` works; otherwise the engine waits on a thread of its own with `synchronize`."""

    @abstractmethod
    def query(self) -> bool:
        """Whether the work is over, successfully or not. Never blocks, never raises for a failed step."""

    @property
    @abstractmethod
    def error(self) -> BaseException | None:
        """Why the work before the fence failed; None while it is not done, and when it succeeded."""

    @abstractmethod
    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block the calling thread, without the GIL, until the fence is done.

        Raises `TimeoutError` after ``timeout_s`` seconds and the work's `DeviceError` if it failed.
        """

    def notify(self, callback: Callable[[], None]) -> None:
        """Call ``callback()`` once when the fence is done; at once if it already is.

        The callback runs on a Python thread of the backend, never inside a driver's own callback (which may
        hold driver locks while it waits for the GIL: a documented deadlock). It must not block.
        """
        raise RuntimeError(f"{type(self).__name__} cannot notify; wait for it with synchronize()")

    @abstractmethod
    def time_ns(self) -> int | None:
        """When the stream reached the fence, in CLOCK_MONOTONIC nanoseconds; None if unknown or not done."""

    def elapsed_ns(self, earlier: Fence) -> int | None:
        """Nanoseconds from ``earlier`` to this fence, both done; None where the device has no clock."""
        end, start = self.time_ns(), earlier.time_ns()
        return None if end is None or start is None else end - start

    @property
    def native(self) -> Any:
        """The driver's own object; the fence itself where there is none."""
        return self


class Stream(ABC):
    """An ordered device work queue. Every method but `synchronize` and `close` returns at once."""

    name: str

    @abstractmethod
    def copy(self, dst: Buffer, src: Buffer, nbytes: int, *, dst_offset: int = 0, src_offset: int = 0) -> None:
        """Enqueue a copy of ``nbytes`` bytes; the buffers' memory spaces give the direction.

        Neither buffer may be freed, nor the source changed, before a fence recorded after the copy is done.
        Raises `DeviceError` if a range does not lie within its buffer.
        """

    @abstractmethod
    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        """Enqueue a kernel.

        What ``kernel`` may be is up to the backend. On ``host`` and ``sim`` it is a Python callable that runs
        on the stream's thread; each `Buffer` argument arrives as its uint8 array, others as they are.
        ``cost_ns`` is the duration for simulated devices; real ones ignore it.
        """

    @abstractmethod
    def record(self) -> Fence:
        """Enqueue a marker and return it."""

    @abstractmethod
    def wait(self, fence: Fence) -> None:
        """Let work enqueued from here on start only after ``fence``, without blocking the caller.

        If the fence's work fails, the work behind the wait fails too, up to the next `isolate`.
        """

    def isolate(self) -> None:
        """Let work enqueued from here on run even if earlier work on this stream failed.

        The engine calls it at the start of each step, so that a failed step does not fail the next. Drivers
        whose errors are sticky ignore it: there a failure is a `DeviceLost`.
        """

    def begin(self, after: Fence | None = None) -> Fence:
        """Start a step's work here: `isolate`, `wait` for ``after`` if given, then `record` where it starts.

        One call for what every step does; override it where three are dear.
        """
        self.isolate()
        if after is not None:
            self.wait(after)
        return self.record()

    def begin_copy(self, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
        """`begin` a step here with a `copy` to the device, then `record`: the fences before and behind the copy.

        One call for what every image needs; override it where three are dear.
        """
        start = self.begin()
        if nbytes:
            self.copy(dst, src, nbytes)
        return start, self.record()

    def record_copy(self, dst: Buffer, src: Buffer, nbytes: int) -> tuple[Fence, Fence]:
        """`record`, `copy`, `record`: where the kernels end, and where their output has arrived."""
        reached = self.record()
        self.copy(dst, src, nbytes)
        return reached, self.record()

    def idle(self) -> bool:
        """Whether everything enqueued so far is done."""
        return self.record().query()

    @abstractmethod
    def synchronize(self, timeout_s: float | None = None) -> None:
        """Block the calling thread until everything enqueued is done; `TimeoutError` after ``timeout_s``."""

    @abstractmethod
    def close(self) -> None:
        """Stop the stream. Work still queued may be dropped; its fences then fail. Idempotent."""

    @property
    def native(self) -> Any:
        """The driver's own object; the stream itself where there is none."""
        return self

    @property
    def handle(self) -> int:
        """The driver's handle as an integer, 0 where there is none."""
        return 0


class Backend(ABC):
    """An opened device.

    Attributes
    ----------
    info:
        What the backend says of itself.
    reuse_order:
        Which of a ring's free buffers is used next: the one that has been free longest (``"fifo"``), or the one
        given back last (``"lifo"``), which shows a buffer given back too early at the next step.
    copy_overhead_nbytes:
        What one more copy to the device costs, as the number of bytes that are copied in the same time. With
        ``upload="delta"`` differing ranges that are no further apart are copied as one. The default is what
        ``host`` was measured at, and about what a copy of a few microseconds costs on a link of 15 GB/s.
    """

    info: DeviceInfo
    reuse_order: ReuseOrder = "fifo"
    copy_overhead_nbytes: int = 64 * 1024

    @abstractmethod
    def alloc(self, nbytes: int, *, name: str = "") -> Buffer:
        """Allocate device memory, contents undefined. Raises `OutOfDeviceMemory`."""

    @abstractmethod
    def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
        """Allocate (pinned) host memory, zeroed. Raises `OutOfDeviceMemory`."""

    def alloc_mapped(self, nbytes: int, *, name: str = "") -> tuple[Buffer, Buffer] | None:
        """One piece of memory as the device's buffer and as the host's, zeroed, which kernels and host use in turn.

        The engine asks for it with the outputs of slots, and then copies none of them back: what kernels wrote must be
        in the host's array once a fence behind them is done. And with images, for programs that have them ``"shared"``:
        what the host wrote must be seen by the kernels that are enqueued after. Each buffer is freed for itself, when
        nothing enqueued uses it any more, and the memory goes with the second one; `allocated_nbytes` counts the
        device's. None, the default, means that there is no such memory, or none free, or that the host reads or writes
        it slower than a copy takes: then `alloc` and `alloc_host` are asked. May raise `OutOfDeviceMemory`; images are
        copied then, too.
        """
        return None

    def register_host(self, array: ByteArray, *, name: str = "") -> Buffer | None:
        """Make memory that somebody else allocated, and has touched, one of the device's host buffers, without a copy.

        The engine asks for it with the shared memory that worker processes build images in. A backend that needs
        page-locked memory locks it here. None, the default, means that this backend cannot: then each image is copied
        to a buffer from `alloc_host`. `Buffer.free` undoes the registration and leaves the memory to its owner.
        """
        return None

    @abstractmethod
    def touch(self, buffer: Buffer) -> None:
        """Make a fresh buffer resident, blocking, so that no first-use cost falls on a step."""

    @abstractmethod
    def create_stream(self, name: str) -> Stream:
        """Give a stream; ``name`` is ``"copy"`` or ``"compute"`` and shows in thread names and traces.

        A backend opened with ``compute_stream=`` or ``copy_stream=`` gives the caller's stream instead of a new one.
        """

    def close_stream(self, stream: Stream) -> None:
        """Close a stream that `create_stream` gave; a stream of the caller's is left as it is. Idempotent."""
        stream.close()

    def released(self, buffer: Buffer) -> None:
        """The engine gave this ring buffer back: its contents are undefined until its next user writes to it.

        Called on the loop's thread after the last fence of the buffer's user. Does nothing by default; test backends
        scribble over the buffer, so that whoever still reads it shows.
        """

    def clock_ns(self) -> int:
        """The clock of all records; CLOCK_MONOTONIC unless the device keeps virtual time."""
        return time.monotonic_ns()

    def clock_source(self) -> Callable[[], int]:
        """A function that reads the clock of `clock_ns`; the engine calls it several times a step."""
        return time.monotonic_ns if type(self).clock_ns is Backend.clock_ns else self.clock_ns

    @property
    def allocated_nbytes(self) -> int | None:
        """Device memory allocated through this backend and not freed, None where that is not counted."""
        return None

    def free_nbytes(self) -> int | None:
        """Free device memory, None where unknown."""
        return None

    def allocation_counter(self) -> Callable[[], int] | None:
        """A function that gives how often device memory was allocated so far, by whomever; None where nobody counts.

        Asked for once the programs are open, and read before and after each launch: what a library allocates behind
        our back is counted, and refused under ``strict_alloc``. It must be quick, and callable from the thread of
        ``launch``.
        """
        return None

    def threads_abandoned(self) -> int:
        """Threads that `close` could not join because they are stuck in code of the caller."""
        return 0

    def reset(self) -> bool:
        """Try to make a lost device usable again; False where that needs a new process."""
        return False

    @abstractmethod
    def close(self) -> None:
        """Close streams and free every buffer still allocated. Bounded in time. Idempotent."""
