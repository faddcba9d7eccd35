"""Copies of 5.5 MB through the pipeline, beside bare ones: ``python -m tests.bench.copies [--out DIR]``.

On ``host``. The bare ones rotate over the very buffers of the pipeline, in turn with it, on a thread that does nothing
else; both ends of every image that went through the pipeline are compared.
"""

from __future__ import annotations

from functools import partial

from async_orch._bench import measure_copies
from tests.bench._kit import Bench, Figure, Sample, Samples, main, on_loop, single

STEPS = 1_000


def copies() -> Sample:
    return dict(on_loop(partial(measure_copies, STEPS))._asdict())


def figures(samples: Samples) -> list[Figure]:
    return [
        single(samples, "copies", "bare_gb_per_s", "copies_bare", "bare copies of 5.5 MB on host", unit="GB/s"),
        single(samples, "copies", "ratio", "copies", "copies through the pipeline / bare", unit="x", goal=(">=", 0.95)),
        single(
            samples, "copies", "loop_us", "copies_loop", "CPU time of the event loop a step, beside the copy", unit="us"
        ),
        single(
            samples,
            "copies",
            "beside_ratio",
            "copies_beside",
            "copies through the pipeline / bare beside a thread as busy as the loop",
            unit="x",
        ),
    ]


BENCH = Bench("copies", {"copies": copies}, figures, rounds=9, about={"steps": STEPS})

if __name__ == "__main__":
    main(BENCH)
