"""The summary of a log of a million steps: ``python -m tests.bench.analysis [--out DIR]``.

Beside a loop of `json.loads` that computes the same figures, one that only parses, and DuckDB; answers are compared.
Each in a process of its own (`tests.bench.analysis_speed` has the ways). Writing the log takes longer than reading it:
with ``BENCH_LOG=FILE`` in the environment it is kept there and used again.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench._kit import Bench, CheckFailed, Figure, Sample, Samples, main, quotient, single
from tests.bench.analysis_speed import write_log

STEPS = 1_000_000
_folder = tempfile.TemporaryDirectory()
_answers: dict[str, Any] = {}


@functools.cache
def _log() -> Path:
    path = Path(os.environ.get("BENCH_LOG") or Path(_folder.name) / "run.jsonl")
    if not path.exists():
        part = path.with_suffix(".part")
        write_log(part, STEPS)
        part.rename(path)
    return path


def way(name: str) -> Sample:
    command = [sys.executable, "-m", "tests.bench.analysis_speed", "--child", name, str(_log())]
    found = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    # The loop that only parses finds nothing.
    if found["found"] and _answers.setdefault("found", found["found"]) != found["found"]:
        raise CheckFailed(f"{name} gives other figures than the way before it")
    return {"seconds": found["seconds"], "mib": found["mib"]}


def figures(samples: Samples) -> list[Figure]:
    return [
        single(
            samples, "ours", "seconds", "analysis_s", "analysis of a log of a million steps", unit="s", goal=("<=", 10)
        ),
        single(samples, "ours", "mib", "analysis_mib", "its memory", unit="MiB", goal=("<=", 1024)),
        quotient(
            samples, ("json loop", "seconds"), ("ours", "seconds"), "analysis_ratio",
            "a json.loads loop with the same figures / it", unit="x", goal=(">=", 5),
        ),
        quotient(
            samples, ("json.loads alone", "seconds"), ("ours", "seconds"), "analysis_parse_ratio",
            "json.loads alone / it", unit="x",
        ),
        quotient(
            samples, ("duckdb", "seconds"), ("ours", "seconds"), "analysis_duckdb_ratio",
            "DuckDB's read_json with the same figures / it", unit="x", goal=(">=", 1),
        ),
    ]  # fmt: skip


WAYS = ("ours", "json loop", "json.loads alone", "duckdb")
BENCH = Bench("analysis", {name: partial(way, name) for name in WAYS}, figures, rounds=5, about={"steps": STEPS})

if __name__ == "__main__":
    main(BENCH)
