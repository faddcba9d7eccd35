"""The device behind the fake ``cuda.core``: queues with a thread each, memory, an error that sticks to the context."""

from __future__ import annotations

import collections
import ctypes
import queue
import threading
from collections.abc import Callable, Iterable
from enum import IntEnum
from typing import NoReturn

__all__ = ["CUDAError", "CUresult", "CudaMisuse", "FakeGpu", "FakeQueue"]

MEMORY_NBYTES = 2**34
ALIGNMENT = 256
PATIENCE_S = 60.0


class CudaMisuse(AssertionError):
    """The caller did what is documented to be wrong."""


class CUDAError(Exception):
    """As cuda.core raises it for each error of the driver: no `RuntimeError`, and its text begins with the name."""


class CUresult(IntEnum):
    """Results of the driver, by the names and numbers of ``cuda.h``."""

    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_OUT_OF_MEMORY = 2
    CUDA_ERROR_INVALID_HANDLE = 400
    CUDA_ERROR_ILLEGAL_ADDRESS = 700
    CUDA_ERROR_LAUNCH_FAILED = 719

    def raise_if_failed(self) -> None:
        """Raise as cuda.core does."""
        if self:
            raise CUDAError(f"{self.name}: what the documentation says of it")


class FakeQueue:
    """Runs what is enqueued, in order, on a thread. After a failure of its context it runs nothing but markers."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self._queue: queue.SimpleQueue[tuple[Callable[[], object], CUresult, bool] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="fake-cuda-stream", daemon=True)
        self._thread.start()

    def put(
        self, work: Callable[[], object], failure: CUresult = CUresult.CUDA_SUCCESS, *, always: bool = False
    ) -> None:
        """Enqueue; ``always`` for markers and waits. Work with a ``failure`` loses the context when it runs."""
        self._queue.put((work, failure, always))

    def drain(self) -> None:
        """Block until everything enqueued so far is over."""
        over = threading.Event()
        self.put(over.set, always=True)
        over.wait(PATIENCE_S)

    def stop(self) -> None:
        """End the thread after what it was given; does not block, as cuStreamDestroy does not."""
        self._queue.put(None)

    def _run(self) -> None:
        while (item := self._queue.get()) is not None:
            work, failure, always = item
            if always or not self._gpu.failure:
                work()
                self._gpu.failure = self._gpu.failure or failure
            item = work = None  # type: ignore[assignment]


class FakeGpu:
    """One device with its primary context: memory, queues, and the record of misuses."""

    def __init__(self) -> None:
        self.misuses: list[str] = []
        self.calls: collections.Counter[str] = collections.Counter()
        self.fail_next: dict[str, CUresult] = {}
        self.failure = CUresult.CUDA_SUCCESS
        self.forgets_success = False
        self.queues: dict[int, FakeQueue] = {}
        self.memory: dict[int, tuple[ctypes.Array[ctypes.c_char], int, bool]] = {}
        self._kept: list[object] = []
        self._using: collections.Counter[int] = collections.Counter()
        self._here = threading.local()
        self._handles = 0x1000
        self._lock = threading.Lock()

    # -- rules ---------------------------------------------------------------------------------------------

    def misuse(self, text: str) -> NoReturn:
        """Fail the test, also where the caller swallows this."""
        raise self._misused(text)

    def _misused(self, text: str) -> CudaMisuse:
        self.misuses.append(text)
        return CudaMisuse(text)

    def make_current(self) -> None:
        """Device.set_current on the calling thread."""
        self._here.current = True

    def need_context(self, what: str) -> None:
        """A call that needs a context on its thread."""
        if not getattr(self._here, "current", False):
            self.misuse(f"{what} on thread {threading.current_thread().name} without Device.set_current()")
        self.calls[what] += 1

    def enter(self, what: str) -> None:
        """The same; fails with the context's error."""
        self.need_context(what)
        (self.fail_next.pop(what, None) or self.failure).raise_if_failed()

    # -- queues --------------------------------------------------------------------------------------------

    def new_queue(self) -> int:
        """The handle of a new queue."""
        with self._lock:
            self._handles += 16
            handle = self._handles
        self.queues[handle] = FakeQueue(self)
        return handle

    def queue(self, handle: int) -> FakeQueue:
        """The queue with this handle; 0 is the default stream, which nobody here means to use."""
        found = self.queues.get(handle)
        if found is None:
            self.misuse(f"{handle:#x} is no stream or no longer one; 0 would be the default stream")
        return found

    # -- memory --------------------------------------------------------------------------------------------

    def used_nbytes(self) -> int:
        """Device memory that is allocated."""
        return sum(nbytes for _, nbytes, is_host in self.memory.values() if not is_host)

    def allocate(self, nbytes: int, *, is_host: bool) -> int:
        """An address; CUDAError if there is no memory."""
        if nbytes > MEMORY_NBYTES - (0 if is_host else self.used_nbytes()):
            CUresult.CUDA_ERROR_OUT_OF_MEMORY.raise_if_failed()
        memory = ctypes.create_string_buffer(b"\xdd" * min(nbytes, 4096), nbytes + ALIGNMENT)
        address = -(-ctypes.addressof(memory) // ALIGNMENT) * ALIGNMENT
        self.memory[address] = (memory, nbytes, is_host)
        return address

    def release(self, address: int) -> None:
        """Free memory, which nothing enqueued may still use."""
        if self._using[address]:
            self.misuse(f"memory at {address:#x} was freed while enqueued work uses it")
        self._kept.append(self.memory.pop(address))  # kernels may still write: the misuse is theirs to show

    def allocation(self, address: int, nbytes: int, what: str) -> int:
        """The start of the allocation that the range lies in. Memory from elsewhere is not page-locked."""
        for start, (_, size, _) in list(self.memory.items()):
            if start <= address and address + nbytes <= start + size:
                return start
        raise self._misused(
            f"{what}: {nbytes} B at {address:#x} lie in no allocation of this driver; such a copy would block"
        )

    def enqueue(
        self,
        handle: int,
        work: Callable[[], object],
        uses: Iterable[int],
        failure: CUresult = CUresult.CUDA_SUCCESS,
    ) -> None:
        """Enqueue work that uses the allocations with these starts."""
        starts = tuple(uses)
        queue = self.queue(handle)
        with self._lock:
            self._using.update(starts)

        def over() -> None:
            with self._lock:
                self._using.subtract(starts)

        queue.put(work, failure)
        queue.put(over, always=True)

    def check_clean(self) -> None:
        """Nothing was misused, and nothing is left."""
        left = {"streams": len(self.queues), "allocations": len(self.memory)}
        assert not self.misuses, self.misuses
        assert not any(left.values()), left
