"""Bytes and time of an upload, full and as the difference, for the image of a paged decode.

    python -m tests.bench.upload_delta [--steps 60] [--backends host,opencl,sim:a5-report]

First what the constants of the engine rest on, on this machine: the time of a comparison by the size of what numpy gets
at a time, the time of one on the loop, and for each backend the cost of a copy more, in bytes. Then for each backend
and ``upload=``: bytes a step, the copy stream's time and the comparison's a step (p50, slots that were filled once),
and the time from build's end to the copy's.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import time
from typing import Any, Literal

import numpy as np

from async_orch import Orchestrator, SlotSpec, StepProgram, _delta, open_backend
from async_orch.abc import Backend, ByteArray, Stream
from async_orch.logs import StepRecord
from tests.bench._raw import RawFile, add_option
from tests.bench.paged_decode import images

SLOTS = 3


class Uploads(StepProgram[ByteArray, None]):
    """A step is its image; the device has nothing to do."""

    def __init__(self, image_nbytes: int) -> None:
        self.slot = SlotSpec(image_nbytes=image_nbytes)

    def build(self, step: ByteArray, image: ByteArray) -> int:
        image[: step.size] = step
        return step.size

    def launch(self, step: ByteArray, slot: Any, stream: Stream) -> None:
        """Nothing: the copy is what is measured."""


def median_us(call: Any, rounds: int = 21) -> float:
    """Median time of a call."""
    spent = []
    for _ in range(rounds):
        start = time.perf_counter_ns()
        call()
        spent.append(time.perf_counter_ns() - start)
    return statistics.median(spent) / 1e3


def comparison(first: ByteArray) -> None:
    """How long comparing takes, by chunk and by image size."""
    nbytes = 5_543_943
    image = np.resize(first, nbytes)
    other = np.zeros(nbytes, np.uint8)
    row = [f"memcpy {median_us(lambda: np.copyto(other, image)):.0f} us"]
    chosen = _delta.CHUNK_NBYTES
    for chunk in (1 << 16, 1 << 18, 1 << 20, 1 << 23):
        _delta.CHUNK_NBYTES = chunk  # type: ignore[misc]
        shadow = filled(image)
        row.append(f"{chunk >> 10} KiB {median_us(lambda s=shadow: again(s, image)):.0f} us")
    _delta.CHUNK_NBYTES = chosen  # type: ignore[misc]
    print(f"comparing {nbytes:,} B that are equal, by chunk: {', '.join(row)}")
    row = []
    for size in (1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 17, 1 << 18):
        small = image[:size].copy()
        edited = small.copy()
        edited[:: size // 4] ^= 1
        shadow, turn = filled(small), [small, edited]

        def alternate(shadow: _delta.Shadow = shadow, turn: list[ByteArray] = turn) -> None:
            turn.reverse()
            again(shadow, turn[0])

        row.append(f"{size >> 10} KiB {median_us(alternate, 201):.0f} us")
    print(f"comparing images with four edits: {', '.join(row)}")


def filled(image: ByteArray) -> _delta.Shadow:
    """A shadow that holds ``image``."""
    shadow = _delta.Shadow(image.size)
    shadow.compare(image, image.size, 0)
    shadow._known_nbytes = image.size
    return shadow


def again(shadow: _delta.Shadow, image: ByteArray) -> None:
    """One comparison, with what it found taken for copied."""
    shadow.compare(image, image.size, 16_384)
    shadow._known_nbytes = image.size


def overhead_nbytes(backend: Backend) -> tuple[float, float, int]:
    """Time of 16 copies of one block less that of one, a copy; bytes a nanosecond; and the first in bytes."""
    nbytes = 8 << 20
    device, host = backend.alloc(nbytes), backend.alloc_host(nbytes)
    backend.touch(device)
    backend.touch(host)
    stream = backend.create_stream("copy")

    def run(copies: int, size: int) -> None:
        for index in range(copies):
            stream.copy(device, host, size, dst_offset=index * 65_536, src_offset=index * 65_536)
        stream.record().synchronize()

    one, many = median_us(lambda: run(1, 64), 201), median_us(lambda: run(16, 64), 201)
    large = median_us(lambda: run(1, nbytes))
    stream.close()
    device.free()
    host.free()
    each_us, rate = (many - one) / 15, nbytes / (large - one)
    return each_us, rate / 1e3, round(each_us * rate)


async def uploads(backend: Backend, steps: list[ByteArray], upload: Literal["full", "delta"]) -> list[StepRecord]:
    """The records of the steps whose slots had held an image before."""
    records: list[StepRecord] = []
    program = Uploads(max(step.size for step in steps))
    async with Orchestrator(program, backend, slots=SLOTS, upload=upload, observers=[records.append]) as orch:
        async for _ in orch.map(steps):
            await asyncio.sleep(0.002)  # steps apart, so that their copies do not queue behind each other
    return records[SLOTS:]


def p50_us(values: Any) -> str:
    """Median in microseconds; "-" without values."""
    known = [value for value in values if value is not None]
    return f"{statistics.median(known) / 1e3:.0f}" if known else "-"


def show(name: str, records: list[StepRecord], steps: list[ByteArray]) -> dict[str, Any]:
    """One row; gives what it comes from, a list with a value for each step."""
    copied = statistics.mean(record.copy_nbytes or 0 for record in records)
    full = statistics.mean(step.size for step in steps[SLOTS:])
    whole = [(r.h2d_start_ns or 0) + (r.h2d_ns or 0) - (r.build_start_ns or 0) - (r.build_ns or 0) for r in records]
    print(
        f"| {name} | {copied:,.0f} | {copied / full:.2%} | {p50_us(r.h2d_ns for r in records)} "
        f"| {p50_us(r.delta_ns for r in records)} | {p50_us(whole)} |"
    )
    return {
        "full_nbytes": [step.size for step in steps[SLOTS:]],
        "copy_nbytes": [record.copy_nbytes for record in records],
        "h2d_ns": [record.h2d_ns for record in records],
        "delta_ns": [record.delta_ns for record in records],
        "build_to_copied_ns": whole,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--backends", default="host,opencl,sim:a5-report")
    add_option(parser)
    arguments = parser.parse_args()
    command = f"python -m tests.bench.upload_delta --steps {arguments.steps} --backends {arguments.backends}"
    raw = RawFile(arguments.json, command)
    graphs = {form: images(arguments.steps, unrolled=form == "unrolled") for form in ("replayed", "unrolled")}
    comparison(graphs["unrolled"][0])
    for name in arguments.backends.split(","):
        backend = open_backend(name)
        each_us, rate, nbytes = overhead_nbytes(backend)
        found: dict[str, Any] = {"support": backend.info.support, "copy_us": each_us, "copy_overhead_nbytes": nbytes}
        print(f"\n{name} ({backend.info.support})")
        print(f"a copy more costs {each_us:.1f} us, copies run at {rate:.2f} GB/s: worth {nbytes:,} B\n")
        print(f"| {name} | bytes a step | of full | copy p50 us | compare p50 us | build to copied p50 us |")
        print("|---|---:|---:|---:|---:|---:|")
        for form, steps in graphs.items():
            for upload in ("full", "delta"):
                row = f"{form}, {upload}"
                found[row] = show(row, asyncio.run(uploads(backend, steps, upload)), steps)
        raw.figures[name] = found
        backend.close()
    raw.write()


if __name__ == "__main__":
    main()
