"""``async-orch estimate``: what overlap would bring, from the times of a step."""

from __future__ import annotations

import argparse
import math

from async_orch._commands._shared import UsageError, write

__all__ = ["DESCRIPTION", "EPILOG", "add_arguments", "run"]

DESCRIPTION = (
    "Says what a pipeline would gain, from the times of one warm step: serial against overlapped, what bounds it, and "
    "what the ring of slots costs in memory. Nothing is measured; the model is the one of whatif."
)
EPILOG = (
    "Example: async-orch estimate --build-ms 3.7 --h2d-ms 32 --launch-ms 0.2 --device-ms 36.8 --alloc-ms 75 "
    "--image-nbytes 5543943 --workspace-nbytes 66488960. Exit code: 0, or 2 for a figure that cannot be."
)

_MAX_MS = 3_600_000.0
_TIMES = {
    "build": "the host builds the step's image",
    "h2d": "the image is copied to the device",
    "launch": "the host enqueues the kernels",
    "device": "the kernels, and the copy of the output",
}
_SIZES = {
    "image": "bytes copied to the device each step",
    "workspace": "device memory that kernels use",
    "output": "bytes copied back each step",
    "feed": "bytes of late input each step",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    for name, help_text in _TIMES.items():
        parser.add_argument(f"--{name}-ms", type=_ms, required=True, metavar="MS", help=help_text)
    parser.add_argument(
        "--alloc-ms", type=_ms, default=0.0, metavar="MS", help="the step's memory is allocated and cleared, if it is"
    )
    parser.add_argument("--slots", type=_count, default=3, metavar="N", help="default: %(default)s")
    parser.add_argument("--queue-depth", type=_count, default=2, metavar="N", help="default: %(default)s")
    parser.add_argument("--max-inflight", type=_count, metavar="N", help="default: slots + queue depth")
    parser.add_argument(
        "--build-workers", type=_workers, default=0, metavar="N", help="0 builds on the event loop (default)"
    )
    for name, help_text in _SIZES.items():
        parser.add_argument(f"--{name}-nbytes", type=_nbytes, default=0, metavar="N", help=help_text)
    parser.add_argument("--json", action="store_true", help="one JSON object, in ns and bytes")


def _ms(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of milliseconds such as 3.7") from None
    if not math.isfinite(value) or not 0 <= value <= _MAX_MS:
        raise argparse.ArgumentTypeError(f"{text} must be from 0 to {_MAX_MS:.0f} ms (an hour)")
    return value


def _whole(text: str, least: int, most: int, unit: str) -> int:
    try:
        value = int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of {unit}") from None
    if not least <= value <= most:
        raise argparse.ArgumentTypeError(f"{text} must be from {least} to {most} {unit}")
    return value


def _count(text: str) -> int:
    return _whole(text, 1, 4096, "steps or slots")


def _workers(text: str) -> int:
    return _whole(text, 0, 256, "workers")


def _nbytes(text: str) -> int:
    return _whole(text, 0, 2**53, "bytes")


def run(options: argparse.Namespace) -> int:
    from async_orch.analysis import EstimateError, Setting, StepCost, StepSizes, estimate  # noqa: PLC0415 - numpy
    from async_orch.analysis import _render_estimate as render  # noqa: PLC0415

    times = {name: round(getattr(options, f"{name}_ms") * 1e6) for name in (*_TIMES, "alloc")}
    cost = StepCost(
        build=times["build"],
        alloc=times["alloc"],
        copy=times["h2d"],
        launch=times["launch"],
        device=times["device"],
        d2h=0,
        retire=0,
    )
    setting = Setting(
        slots=options.slots,
        queue_depth=options.queue_depth,
        max_inflight=options.max_inflight,
        build_workers=options.build_workers,
    )
    try:
        found = estimate(
            cost, setting, StepSizes(**{f"{name}_nbytes": getattr(options, f"{name}_nbytes") for name in _SIZES})
        )
    except EstimateError as error:
        raise UsageError(str(error)) from error
    write(render.as_json(found) if options.json else render.as_text(found))
    return 0
