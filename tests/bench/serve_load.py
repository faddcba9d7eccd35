"""The server under a crowd: tokens a second and times between tokens in each mode, and what is left afterwards.

    python -m tests.bench.serve_load --model hash --backend sim:a5-report --seconds 20
    python -m tests.bench.serve_load --model qwen3 --backend host --seconds 120 --mode pipelined

The server runs in a process of its own, the clients in this one: 64 streams, a quarter of which leave in the middle,
with nonsense sent in between. Every stream that stays is compared with what greedy decoding gives offline.

The exit status is 1 if a stream got something else than its tokens, a step failed or, in a mode that must not,
allocated, or the server kept a slot, block, task, file or memory.

"of bound" is the share of the measured time in which the device executed steps, by the step log, from the first step
that began after the warm-up to the last; it is 1 if the device never waited. On `sim` a step's time is the profile's.
``hash`` is a model that costs the host next to nothing, so that the server is what is measured; its steps take the
profile's time on `sim` and their own on `host`. ``qwen3`` is the shipped checkpoint.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import importlib.metadata
import json
import os
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from async_orch import Orchestrator, open_backend
from examples.qwen3.options import CHECKPOINT
from examples.qwen3.paged import PagedModel
from examples.qwen3.paged_run import Request, generate
from examples.qwen3.tokenizer import GrowingText, TextCodec
from examples.serve.app import Settings, serving
from examples.serve.served_qwen3 import ServedQwen3
from examples.serve.server import HttpServer, listen
from tests.bench._kit import machine, versions
from tests.serve.hash_model import Characters, HashModel, answer, text_of
from tests.serve.load import Crowd

NAME = "bench"
ROUNDS = 3_000_000
"""Of the loop that makes a step of the hash model take some milliseconds on `opencl`."""

MOST_GROWTH_MIB = 32.0
"""Resident memory after the load, above that after the warm-up; two minutes of the real model took 5 MiB more."""

STORIES = ["Once upon a time", "There was once a clever fox", "One night there was a storm", "A", "The old bear"]


# -- the server's process -------------------------------------------------------------------------------------


def resident_nbytes() -> int:
    """What of this process is in memory now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


async def serve(options: argparse.Namespace) -> None:
    """Serve; answer each line on standard input with what is held now; end when standard input does."""
    model: Any
    backend = open_backend(options.backend)
    if options.model == "hash" and options.backend.startswith("opencl"):
        hash_opencl = importlib.import_module("tests.serve.hash_opencl")
        model = hash_opencl.HashModelOpenCL(batch=options.batch, context=512, prefill_tokens=512, rounds=ROUNDS)
        codec: Any = Characters()
    elif options.model == "hash":
        model, codec = HashModel(batch=options.batch, context=512, prefill_tokens=512), Characters()
    else:
        model = ServedQwen3(CHECKPOINT, backend, batch=options.batch, context=None, kv_blocks=None)
        codec = model.codec
    settings = Settings(name=NAME, mode=options.mode, step_log=options.step_log, waiting_room=256)
    with listen("127.0.0.1", 0) as socket:
        async with serving(model, codec, backend, settings) as opened:
            server = HttpServer(opened, drain_s=30)
            running = asyncio.create_task(server.serve(sockets=[socket]))
            print(json.dumps({"port": socket.getsockname()[1]}), flush=True)
            scheduler = opened.engine.scheduler
            while await asyncio.to_thread(sys.stdin.readline):
                counts = opened.orchestrator.statistics()
                print(
                    json.dumps(
                        {
                            "busy": opened.engine.busy,
                            "blocks": scheduler.blocks.total - scheduler.blocks.available,
                            "slots": counts.slots_leased + counts.slots_quarantined,
                            "tasks": len(asyncio.all_tasks()),
                            "fds": len(os.listdir("/proc/self/fd")),  # noqa: PTH208
                            "rss_nbytes": resident_nbytes(),
                            "failed": counts.failed,
                            "step_path_allocs": counts.step_path_allocs,
                        }
                    ),
                    flush=True,
                )
            server.stop()
            await running
    backend.close()


# -- this process ---------------------------------------------------------------------------------------------


class Server:
    """The other process, and questions to it."""

    def __init__(self, options: argparse.Namespace, mode: str, step_log: Path) -> None:
        command = [
            sys.executable,
            "-m",
            "tests.bench.serve_load",
            "--serve",
            "--model",
            options.model,
            "--backend",
            options.backend,
        ]
        command += ["--mode", mode, "--batch", str(options.batch), "--step-log", str(step_log)]
        environment = {"OPENBLAS_NUM_THREADS": "1", **os.environ}  # as examples.serve sets it
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.port = int(self._read()["port"])

    def _read(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        found: dict[str, Any] = json.loads(self._process.stdout.readline())
        return found

    def ask(self) -> dict[str, Any]:
        """What it holds now."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._read()

    def stop(self) -> int:
        """Let it end; its status."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        return self._process.wait(60)


def hash_load() -> tuple[list[tuple[str, int]], Callable[[str, int], str]]:
    """Prompts with lengths, and the right answers, for the hash model."""
    prompts = [(f"{i}: " + "tell me more " * (i % 11), 20 + 10 * (i % 10)) for i in range(200)]
    known = {prompt: text_of(answer(*prompt)) for prompt in prompts}
    return prompts, lambda prompt, most: known[prompt, most]


async def story_load() -> tuple[list[tuple[str, int]], Callable[[str, int], str]]:
    """The same for the shipped checkpoint, decoded offline first."""
    model = PagedModel(CHECKPOINT)
    codec = TextCodec(CHECKPOINT, model.config.vocab_size)
    prompts = [(story, 30 + 20 * i) for i in range(3) for story in STORIES]
    requests = [Request(codec.encode(p), most, stop_ids=model.config.eos_token_ids) for p, most in prompts]
    async with Orchestrator(model.programs, "host", max_inflight=2) as orchestrator:
        results = await generate(orchestrator, model, requests)
    known = {}
    for prompt, tokens in zip(prompts, results, strict=True):
        text = GrowingText(codec)
        known[prompt] = "".join(text.push(token) for token in tokens)
    return prompts, lambda prompt, most: known[prompt, most]


def device_share(step_log: Path, begin_ns: int, end_ns: int) -> tuple[float, float, int]:
    """Of the steps that began in the interval: busy share of the device, p50 of a step in ms, and their number."""
    spans = []
    for line in step_log.read_bytes().splitlines():
        record = json.loads(line)
        if record["event"] == "step.completed" and begin_ns <= record["device_start_ns"] <= end_ns:
            spans.append((record["device_start_ns"], record["device_ns"]))
    spans.sort()
    busy = sum(length for _, length in spans)
    wall = spans[-1][0] + spans[-1][1] - spans[0][0]
    return busy / wall, statistics.median(length for _, length in spans) / 1e6, len(spans)


def quantile(values: list[float], share: float) -> float:
    """In milliseconds, by nearest rank."""
    ordered = sorted(values)
    return 1000 * ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else float("nan")


async def measure(options: argparse.Namespace, mode: str, load: Any) -> dict[str, Any]:
    """One mode: warm up, measure, wait until all is quiet, compare what is held."""
    prompts, wanted = load
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "steps.jsonl"
        server = Server(options, mode, log)
        warm = Crowd(server.port, NAME, wanted, prompts, streams=options.streams, seed=2)
        end = time.monotonic() + options.warm_up
        await warm.run(lambda: time.monotonic() > end)
        before = await quiet(server)
        crowd = Crowd(server.port, NAME, wanted, prompts, streams=options.streams)
        begin, begin_ns = time.monotonic(), time.monotonic_ns()
        await crowd.run(lambda: time.monotonic() > begin + options.seconds)
        elapsed = options.seconds
        after = await quiet(server)
        status = server.stop()
        # A second at each end is left out: there the batch fills and empties, which is the clients' doing.
        share, step_ms, steps = device_share(log, begin_ns + 10**9, begin_ns + int((elapsed - 1) * 1e9))
    tokens = sum(1 for at in crowd.arrived_s if at <= begin + elapsed)
    return {
        "mode": mode, "tokens/s": tokens / elapsed, "of bound": share, "step ms": step_ms, "steps": steps,
        "gap p50 ms": quantile(crowd.gaps_s, 0.5), "gap p99 ms": quantile(crowd.gaps_s, 0.99),
        "first p50 ms": quantile(crowd.first_s, 0.5), "first p99 ms": quantile(crowd.first_s, 0.99),
        "survived": crowd.survived, "left": crowd.left, "nonsense": crowd.nonsense, "wrong": len(crowd.wrong),
        "blocks": after["blocks"], "slots": after["slots"], "tasks": after["tasks"] - before["tasks"],
        "fds": after["fds"] - before["fds"], "rss MiB": (after["rss_nbytes"] - before["rss_nbytes"]) / 2**20,
        "failed": after["failed"], "allocs": after["step_path_allocs"], "status": status,
    }  # fmt: skip


def faults(row: dict[str, Any]) -> list[str]:
    """What is wrong with a run of `measure`, one line each: streams, things left behind, steps, memory, exit status."""
    most = dict.fromkeys(("wrong", "blocks", "slots", "tasks", "fds", "failed", "allocs", "status"), 0.0)
    most["rss MiB"] = MOST_GROWTH_MIB
    if row["mode"] == "naive":
        del most["allocs"]  # it allocates for each step: that is what the mode is
    found = [f"{row['mode']}: {name}={row[name]:.4g}, must be at most {limit:g}" for name, limit in most.items()
             if row[name] > limit]  # fmt: skip
    if not row["survived"]:
        found.append(f"{row['mode']}: survived=0, so nothing was compared; measure longer (--seconds)")
    return found


def commit() -> str | None:
    """What is measured: git's name of it, with "-dirty" if files differ from that; None outside of a checkout."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=Path(__file__).parent)
    return done.stdout.strip() or None


async def quiet(server: Server) -> dict[str, Any]:
    """What the server holds once nothing runs any more; after ten seconds what it holds then."""
    for _ in range(100):
        held = await asyncio.to_thread(server.ask)
        if not held["busy"] and not held["blocks"]:
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.3)  # connections of clients that left are closed in the server's next turns
    return await asyncio.to_thread(server.ask)


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--model", choices=("hash", "qwen3"), default="hash")
    parser.add_argument("--backend", default="sim:a5-report")
    parser.add_argument("--mode", default="pipelined,ring,naive")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=20.0)
    parser.add_argument("--warm-up", type=float, default=2.0)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write machine, versions and all figures as JSON")
    parser.add_argument("--step-log", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        await serve(options)
        return
    load_before = os.getloadavg()
    load = hash_load() if options.model == "hash" else await story_load()
    print(f"{options.model} on {options.backend}, {options.streams} streams, {options.seconds:g} s", flush=True)
    rows = []
    for mode in options.mode.split(","):
        rows.append(await measure(options, mode, load))
        print(
            "  ".join(f"{k}={v:.4g}" if isinstance(v, float) else f"{k}={v}" for k, v in rows[-1].items()), flush=True
        )
    if options.out is not None:
        document = {
            "command": "python -m tests.bench.serve_load " + shlex.join(sys.argv[1:]),
            "commit": commit(),
            "machine": machine(),
            "versions": versions() | {name: importlib.metadata.version(name) for name in ("starlette", "uvicorn")},
            "load_before": load_before,
            "load_after": os.getloadavg(),
            "rows": rows,
        }
        options.out.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    found = [fault for row in rows for fault in faults(row)]
    if found:
        sys.exit("\n".join(found))


if __name__ == "__main__":
    asyncio.run(main())
