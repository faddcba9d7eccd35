"""The decode runner's command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn, get_args

from examples.qwen3.decode import Mode
from examples.qwen3.program import NATURAL, REPORT, SlotMemory
from examples.qwen3.wording import one_line

__all__ = ["CHECKPOINT", "DEFAULT_PROMPTS", "MEMORY", "Options", "parse_options"]

CHECKPOINT = Path(__file__).resolve().parent / "checkpoint"
DEFAULT_LOG = "decode_runner.jsonl"
DEFAULT_PROMPTS = (
    "Once upon a time",
    "There was once a clever fox called Zoë, who lived in the village of",
    "One night there was a terrible storm",
)
MEMORY = {"natural": NATURAL, "report": REPORT}


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    model: Path
    backend: str
    modes: tuple[Mode, ...]
    tokens: int
    prompts: tuple[str, ...]
    slots: int
    queue_depth: int
    memory: SlotMemory
    memory_name: str
    log: Path
    json: bool


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {one_line(message)} (see --help)\n")


def _count(text: str) -> int:
    try:
        value = int(text)
    except ValueError:
        value = 0
    if value < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number of at least 1")
    return value


def _path(text: str) -> Path:
    if not text:  # Path would make the working folder of it
        raise argparse.ArgumentTypeError("it is empty; give a path")
    return Path(text)


def _log_path(text: str) -> Path:
    if text == "-":
        raise argparse.ArgumentTypeError(
            "'-' names no file, and the log cannot go to standard output; give a path, ./- for a file of that name"
        )
    return _path(text)


def parse_options(argv: Sequence[str] | None) -> Options:
    """Parse the arguments; a wrong one exits with code 2 and one line on stderr."""
    parser = _Parser(
        prog="decode_runner",
        description="Decode prompts with a Qwen3 checkpoint in the modes naive (a slot allocated and freed "
        "each step), ring (allocated once) and pipelined (allocated once, and built and copied ahead).",
    )
    add = parser.add_argument
    add(
        "--model",
        type=_path,
        default=CHECKPOINT,
        metavar="DIR",
        help="model folder (default: the shipped one)",
    )
    add("--backend", default="host", metavar="NAME", help="host, sim:a5-report, ... (default: host)")
    add("--mode", choices=(*get_args(Mode), "all"), default="all", help="default: all")
    add(
        "--tokens",
        type=_count,
        default=64,
        metavar="N",
        help="tokens to generate for each prompt (default: 64)",
    )
    add("--prompt", action="append", metavar="TEXT", help="a prompt; repeat it for a batch")
    add("--slots", type=_count, default=3, metavar="N", help="slots in the ring (default: 3)")
    add("--queue-depth", type=_count, default=2, metavar="N", help="places in each queue (default: 2)")
    add(
        "--memory",
        choices=tuple(MEMORY),
        default="natural",
        help="size of a slot: natural, what the graph needs; report, a workspace of "
        f"{REPORT.workspace_nbytes:,} B and an image padded to {REPORT.image_nbytes:,} B (default: natural)",
    )
    add(
        "--log",
        type=_log_path,
        default=Path(DEFAULT_LOG),
        metavar="FILE",
        help=f"step log; one that is there is replaced, any other file is refused (default: {DEFAULT_LOG})",
    )
    add(
        "--shape",
        metavar="NAME",
        help="a large model without weights on a simulated device: qwen3-14b; its options: --shape qwen3-14b --help",
    )
    add("--json", action="store_true", help="print one JSON object and nothing else")
    given = parser.parse_args(argv)
    return Options(
        model=given.model,
        backend=given.backend,
        modes=get_args(Mode) if given.mode == "all" else (given.mode,),
        tokens=given.tokens,
        prompts=DEFAULT_PROMPTS if given.prompt is None else tuple(given.prompt),
        slots=given.slots,
        queue_depth=given.queue_depth,
        memory=MEMORY[given.memory],
        memory_name=given.memory,
        log=given.log,
        json=given.json,
    )
