"""Where the graph part of a decode step's upload goes: device allocation and copy, timed apart, cold and warm.

    python -m tests.bench.graph_upload --backend host
    python -m tests.bench.graph_upload --backend opencl --rounds 30

The sizes are those of hw-native-sys/simpler #1841: 40 blocks of 1,662,224 B allocated and cleared, 40 images of
132,752 B copied. *cold* allocates the blocks, touches them, copies and frees; *warm* copies into blocks that are there.
Beside them: the same bytes in one copy, and what a replayed step of `examples.large` copies.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

from async_orch import open_backend
from async_orch.abc import Backend, Buffer, Stream
from tests.bench._raw import RawFile, add_option

BLOCKS = 40
BLOCK_NBYTES = 1_662_224
IMAGE_NBYTES = 132_752
STEP_NBYTES = 45_824


class Upload:
    """The operations to be timed, each blocking until the device has done it."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.stream: Stream = backend.create_stream("copy")
        self.source = backend.alloc_host(BLOCKS * IMAGE_NBYTES)
        backend.touch(self.source)
        self.blocks: list[Buffer] = []

    def allocate(self) -> None:
        """Only ask for the memory."""
        self.blocks = [self.backend.alloc(BLOCK_NBYTES) for _ in range(BLOCKS)]

    def touch(self) -> None:
        """First use of every page."""
        for block in self.blocks:
            self.backend.touch(block)

    def copy_each(self) -> None:
        """One copy a block."""
        for number, block in enumerate(self.blocks):
            self.stream.copy(block, self.source, IMAGE_NBYTES, src_offset=number * IMAGE_NBYTES)
        self.stream.synchronize(60)

    def copy_one_by_one(self) -> None:
        """One copy a block, waiting for each, as a synchronous memcpy does."""
        for number, block in enumerate(self.blocks):
            self.stream.copy(block, self.source, IMAGE_NBYTES, src_offset=number * IMAGE_NBYTES)
            self.stream.synchronize(60)

    def free(self) -> None:
        for block in self.blocks:
            block.free()
        self.blocks = []

    def copy_to(self, target: Buffer, nbytes: int) -> None:
        """One copy."""
        self.stream.copy(target, self.source, nbytes)
        self.stream.synchronize(60)


def timed(times: dict[str, list[float]], name: str, operation: Callable[[], None]) -> None:
    start = time.perf_counter_ns()
    operation()
    times.setdefault(name, []).append((time.perf_counter_ns() - start) / 1e6)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="host")
    parser.add_argument("--rounds", type=int, default=30)
    add_option(parser)
    options = parser.parse_args()
    command = f"python -m tests.bench.graph_upload --backend {options.backend} --rounds {options.rounds}"
    raw = RawFile(options.json, command)
    backend = open_backend(options.backend)
    upload = Upload(backend)
    times: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        timed(times, "cold: allocate 40 blocks", upload.allocate)
        timed(times, "cold: touch them for the first time", upload.touch)
        timed(times, "cold: copy 40 images", upload.copy_each)
        timed(times, "warm: copy 40 images", upload.copy_each)
        timed(times, "warm: copy 40 images, waiting for each", upload.copy_one_by_one)
        timed(times, "cold: free 40 blocks", upload.free)
    whole = backend.alloc(BLOCKS * IMAGE_NBYTES)
    backend.touch(whole)
    for _ in range(options.rounds):
        timed(times, "warm: the same bytes in one copy", lambda: upload.copy_to(whole, BLOCKS * IMAGE_NBYTES))
        timed(times, "warm: a replayed step's image in one copy", lambda: upload.copy_to(whole, STEP_NBYTES))
    print(f"{options.backend}: {backend.info.support}; {options.rounds} rounds, ms")
    print(f"{'':<44}{'first':>9}{'p50':>9}{'p90':>9}")
    for name, found in sorted(times.items()):
        ranked = sorted(found)
        p90 = ranked[int(0.9 * len(ranked))]
        print(f"{name:<44}{found[0]:>9.3f}{statistics.median(found):>9.3f}{p90:>9.3f}")
    raw.figures = {"support": backend.info.support, "driver": backend.info.driver, "ms": times}
    backend.close()
    raw.write()


if __name__ == "__main__":
    main()
