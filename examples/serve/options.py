"""The server's command line."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from examples.qwen3.options import CHECKPOINT

__all__ = ["Options", "parse_options"]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """What the command line asks for."""

    model: Path
    name: str
    backend: str
    mode: str
    slots: int
    batch: int
    context: int | None
    kv_blocks: int | None
    waiting_room: int
    request_s: float
    drain_s: float
    connections: int | None
    host: str
    port: int
    step_log: Path | None
    access_log: Path | None
    otel: bool


class _Parser(argparse.ArgumentParser):
    """Says what is wrong in one line."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {message} (see --help)\n")


BACKENDS = ("host", "sim", "opencl")
"""Where the paged Qwen3 programs run: with kernels of numpy's, and in OpenCL C."""

MOST = 1_000_000
"""Of anything that is counted: more is a slip of the keyboard."""


def _count(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else 0
    if not 1 <= value <= MOST:
        raise argparse.ArgumentTypeError(f"{text!r} must be a whole number, 1 to {MOST}")
    return value


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < 1e6:
        raise argparse.ArgumentTypeError(f"{text!r} must be a number of seconds above 0")
    return value


def _port(text: str) -> int:
    value = int(text) if text.isascii() and text.isdigit() and len(text) < 12 else -1
    if not 0 <= value <= 65535:
        raise argparse.ArgumentTypeError(f"{text!r} must be a port, 0 to 65535; 0 takes a free one")
    return value


def _backend(text: str) -> str:
    if text.partition(":")[0] not in BACKENDS:
        raise argparse.ArgumentTypeError(
            f"{text!r} cannot run the served model: its programs exist for {', '.join(BACKENDS)} only"
        )
    return text


def parse_options(arguments: Sequence[str] | None = None) -> Options:
    """Read the command line; ends the process with one line for what it does not understand."""
    parser = _Parser(prog="examples.serve", description="An OpenAI-compatible server over async_orch.")
    add = parser.add_argument
    add("--model", type=Path, default=CHECKPOINT, metavar="DIR", help="model folder (default: the shipped checkpoint)")
    add("--name", help="what clients call the model (default: the folder's name; qwen3-stories if shipped)")
    add(
        "--backend",
        type=_backend,
        default="host",
        help="host (default), sim:PROFILE or opencl:INDEX; no other runs this model",
    )
    add("--mode", choices=("pipelined", "ring", "naive"), default="pipelined")
    add("--slots", type=_count, default=3, help="slots of the orchestrator (default: 3)")
    add("--batch", type=_count, default=16, help="sequences that run at once (default: 16)")
    add(
        "--context",
        type=_count,
        help="longest prompt and answer together, in tokens (default: the model's, up to 4096)",
    )
    add("--kv-blocks", type=_count, help="blocks of the cache (default: enough for --batch sequences of full length)")
    add(
        "--waiting-room",
        type=_count,
        default=128,
        help="requests that may wait beyond the free rows; further ones get 429 (default: 128)",
    )
    add("--request-timeout", type=_seconds, default=300.0, metavar="S", help="limit of one request (default: 300)")
    add("--drain-timeout", type=_seconds, default=30.0, metavar="S", help="time to finish after SIGTERM (default: 30)")
    add(
        "--max-connections",
        type=_count,
        help="connections at once; further ones get 503 (default: what the limit of open files allows)",
    )
    add("--host", default="127.0.0.1", help="address to listen on (default: 127.0.0.1)")
    add("--port", type=_port, default=8000, help="port to listen on (default: 8000; 0: a free one)")
    add("--step-log", type=Path, metavar="FILE", help="append each step's record, for async-orch analyze")
    add("--access-log", type=Path, metavar="FILE", help="append a JSON line for each request")
    add("--otel", action="store_true", help="report requests and steps to OpenTelemetry (needs the extra otel)")
    found = parser.parse_args(arguments)
    name = found.name or ("qwen3-stories" if found.model == CHECKPOINT else found.model.resolve().name)
    return Options(
        model=found.model,
        name=name,
        backend=found.backend,
        mode=found.mode,
        slots=found.slots,
        batch=found.batch,
        context=found.context,
        kv_blocks=found.kv_blocks,
        waiting_room=found.waiting_room,
        request_s=found.request_timeout,
        drain_s=found.drain_timeout,
        connections=found.max_connections,
        host=found.host,
        port=found.port,
        step_log=found.step_log,
        access_log=found.access_log,
        otel=found.otel,
    )
