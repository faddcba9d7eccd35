"""How fast a step log is summarized, beside a ``json.loads`` loop and DuckDB that do the same aggregation.

    python -m tests.bench.analysis_speed [--steps 1000000] [--rounds 3] [--keep FILE]

Each way runs in a process of its own, in turn, `rounds` times; printed are the medians of the wall clock, and the
largest memory of the process with its children. All three give count, p50, p90, p99, max and sum of the same figures;
the answers are compared. DuckDB is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from async_orch.analysis import analyze
from async_orch.logs import encode_lines
from tests.unit.step_records import step_record

FIGURES = (
    "build_ns", "acquire_wait_ns", "h2d_ns", "launch_ns", "device_ns", "d2h_ns", "retire_ns", "total_ns", "alloc_ns",
    "alloc_nbytes", "copy_nbytes", "bubble_ns", "starved_ns",
)  # fmt: skip
OURS = {"build_ns": "orch_ns", "h2d_ns": "copy_ns"}


def write_log(path: Path, steps: int) -> None:
    rng = random.Random(1)
    now = 10**12
    with path.open("wb") as file:
        for first in range(0, steps, 1000):
            records = []
            for seq in range(first, min(first + 1000, steps)):
                now += 5_000_000 + rng.randrange(100_000)
                records.append(
                    step_record(
                        run_id="0123456789abcdef0123456789abcdef", seq=seq, step_id=seq,
                        generation=seq // 3, slot=seq % 3,
                        submit_ns=now, accept_ns=now + 100, build_start_ns=now + 200,
                        build_ns=2_000_000 + rng.randrange(99_999), acquire_start_ns=now + 2_300_000,
                        acquire_wait_ns=rng.randrange(9_999), h2d_start_ns=now + 2_310_000, h2d_ns=3_000_000,
                        h2d_graph_ns=2_900_000, h2d_sm_ns=100_000, h2d_split="bytes", launch_start_ns=now + 2_311_000,
                        device_start_ns=now + 5_400_000, device_ns=5_000_000 + rng.randrange(9_999),
                        retire_start_ns=now + 10_500_000, total_ns=10_600_000 + rng.randrange(500_000),
                        bubble_ns=rng.randrange(99_999) if seq else None,
                    )
                )  # fmt: skip
            file.write(encode_lines(records))


def ours(path: str) -> dict[str, list[int]]:
    group = analyze(path).summary.group("warm")
    assert group is not None
    found = {}
    for name in FIGURES:
        known = group.figures[OURS.get(name, name)]
        found[name] = [known.count, known.p50, known.p90, known.p99, known.max, known.sum]
    return found


def loop(path: str) -> dict[str, list[int]]:
    columns: dict[str, list[int]] = {name: [] for name in FIGURES}
    with Path(path).open("rb") as file:
        for line in file:
            record = json.loads(line)
            for name, values in columns.items():
                value = record[name]
                if value is not None:
                    values.append(value)
    found = {}
    for name, values in columns.items():
        values.sort()
        count = len(values)
        ranks = [values[-(-percent * count // 100) - 1] for percent in (50, 90, 99)]
        found[name] = [count, *ranks, values[-1], sum(values)]
    return found


def bare_loop(path: str) -> dict[str, list[int]]:
    with Path(path).open("rb") as file:
        for line in file:
            json.loads(line)
    return {}


def duckdb(path: str) -> dict[str, list[int]]:
    database: Any = importlib.import_module("duckdb")
    asked = ", ".join(
        f"count({name}), quantile_disc({name}, [0.5, 0.9, 0.99]), max({name}), sum({name})" for name in FIGURES
    )
    (row,) = database.read_json(path, format="newline_delimited").aggregate(asked).fetchall()
    parts = [row[first : first + 4] for first in range(0, len(row), 4)]
    return {name: [part[0], *part[1], part[2], int(part[3])] for name, part in zip(FIGURES, parts, strict=True)}


WAYS = {"ours": ours, "json loop": loop, "json.loads alone": bare_loop, "duckdb": duckdb}


def child(way: str, path: str) -> None:
    start = time.perf_counter()
    found = WAYS[way](path)
    seconds = time.perf_counter() - start
    memory = sum(resource.getrusage(who).ru_maxrss for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    print(json.dumps({"seconds": seconds, "mib": memory / 1024, "found": found}))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--keep", type=Path, help="use this log, or write it there if it is not there yet")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(*options.child)
        return
    with tempfile.TemporaryDirectory() as folder:
        path = options.keep or Path(folder) / "run.jsonl"
        if not path.exists():
            write_log(path, options.steps)
        ways = [way for way in WAYS if way != "duckdb" or importlib.util.find_spec("duckdb")]
        results: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for _ in range(options.rounds):
            for way in ways:
                command = [sys.executable, "-m", "tests.bench.analysis_speed", "--child", way, str(path)]
                results[way].append(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))
        expected = results["json loop"][0]["found"]
        base = statistics.median(run["seconds"] for run in results["ours"])
        print(f"{path.stat().st_size / 1e6:.0f} MB, median of {options.rounds}")
        for way, runs in results.items():
            seconds = statistics.median(run["seconds"] for run in runs)
            answers = "answers equal" if runs[0]["found"] == expected else ""
            memory = max(run["mib"] for run in runs)
            print(f"{way:18} {seconds:7.2f} s  {memory:6.0f} MiB  {seconds / base:5.2f} x ours  {answers}")


if __name__ == "__main__":
    main()
