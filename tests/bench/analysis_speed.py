"""How fast a step log is summarized, beside a ``json.loads`` loop and DuckDB that do the same aggregation.

    python -m tests.bench.analysis_speed [--steps 1000000] [--rounds 3] [--keep FILE]

Each way runs in a process of its own, in turn, `rounds` times; printed are the medians of the wall clock, and the
largest memory of the process with its children. All three give count, p50, p90, p99, max and sum of each of the 24
figures that the summary has of such a log, those that follow from several fields included; the answers are compared.
Ours does more: it counts what it cannot read, drops second records of a step, adds up the device's time, and judges.
DuckDB is left out where it is not installed.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import json
import random
import re
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

# Each figure by its fields: in Python, and (with // as it is there too) in DuckDB's SQL.
FIGURES = {
    "orch_ns": "build_ns",
    "h2d_ns": "alloc_ns + h2d_graph_ns + h2d_sm_ns",
    "graph_ns": "alloc_ns + h2d_graph_ns",
    "sm_ns": "h2d_sm_ns",
    "alloc_nbytes": "alloc_nbytes",
    "copy_nbytes": "copy_nbytes",
    "bw": "copy_nbytes * 1000 // (alloc_ns + h2d_graph_ns + h2d_sm_ns)",
    "alloc_ns": "alloc_ns",
    "copy_ns": "h2d_ns",
    "launch_ns": "launch_ns",
    "device_ns": "device_ns",
    "d2h_ns": "d2h_ns",
    "retire_ns": "retire_ns",
    "submit_wait_ns": "accept_ns - submit_ns",
    "build_wait_ns": "build_start_ns - accept_ns",
    "acquire_wait_ns": "acquire_wait_ns",
    "copy_wait_ns": "h2d_start_ns - (acquire_start_ns + acquire_wait_ns)",
    "launch_wait_ns": "launch_start_ns - (acquire_start_ns + acquire_wait_ns)",
    "device_wait_ns": "device_start_ns - greatest(launch_start_ns, h2d_start_ns + h2d_ns)",
    "retire_wait_ns": "retire_start_ns - (device_start_ns + device_ns + d2h_ns)",
    "bubble_ns": "bubble_ns",
    "starved_ns": "starved_ns",
    "total_ns": "total_ns",
    "step_ns": "end_ns - previous_end_ns",
}
_FIELD = r"[a-z]\w+_n\w+"
FIELDS = sorted({name for text in FIGURES.values() for name in re.findall(_FIELD, text)})


def write_log(path: Path, steps: int) -> None:
    rng = random.Random(1)
    now = 10**12
    with path.open("wb") as file:
        for first in range(0, steps, 1000):
            records = []
            for seq in range(first, min(first + 1000, steps)):
                now += 5_200_000 + rng.randrange(100_000)
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
    found = {name: group.figures[name] for name in FIGURES}
    return {name: [known.count, known.p50, known.p90, known.p99, known.max, known.sum] for name, known in found.items()}


def loop(path: str) -> dict[str, list[int]]:
    texts = [re.sub(_FIELD, r"record['\g<0>']", text).replace("greatest", "max") for text in FIGURES.values()]
    figures_of = eval(f"lambda record: ({', '.join(texts)})")  # noqa: S307 - the figures above
    rows: list[tuple[int | None, ...]] = []
    end_ns = None
    with Path(path).open("rb") as file:
        for line in file:
            record = json.loads(line)
            if record["event"] != "step.completed" or record["cold_reason"] is not None:
                continue
            # The first step has neither; any number is as good, it is left out below.
            record["previous_end_ns"] = end_ns or 0
            end_ns = record["end_ns"] = record["accept_ns"] + record["total_ns"]
            rows.append(figures_of(record))
    columns = {name: list(values) for name, values in zip(FIGURES, zip(*rows, strict=True), strict=True)}
    del columns["step_ns"][0]
    columns["bubble_ns"] = [value for value in columns["bubble_ns"] if value is not None]
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
    fields = ", ".join(name for name in FIELDS if name not in ("end_ns", "previous_end_ns"))
    steps = (
        database.read_json(path, format="newline_delimited")
        .filter("event = 'step.completed' and cold_reason is null")
        .project(f"{fields}, accept_ns + total_ns as end_ns, lag(end_ns) over (order by end_ns) as previous_end_ns")
    )
    figures = steps.project(", ".join(f"{text} as f{number}" for number, text in enumerate(FIGURES.values())))
    asked = ", ".join(
        f"count(f{number}), quantile_disc(f{number}, [0.5, 0.9, 0.99]), max(f{number}), sum(f{number})"
        for number in range(len(FIGURES))
    )
    (row,) = figures.aggregate(asked).fetchall()
    parts = [row[first : first + 4] for first in range(0, len(row), 4)]
    return {name: [part[0], *part[1], part[2], int(part[3])] for name, part in zip(FIGURES, parts, strict=True)}


WAYS = {"ours": ours, "json loop": loop, "json.loads alone": bare_loop, "duckdb": duckdb}


def child(way: str, path: str) -> None:
    if way == "duckdb":
        importlib.import_module("duckdb")  # in the time of neither
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
