"""All benches, each in a process of its own, then table and chart: ``python -m tests.bench.all --out docs/benchmarks``.

About twelve minutes on two cores. ``--append`` adds rounds; ``--skip analysis growth`` leaves benches out. Nothing else
should run meanwhile: the ratios are taken within rounds and survive that, the times do not.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

BENCHES = (
    "overhead", "structure", "overhead_ray", "overhead_log", "threads", "overlap", "feed", "real_memory",
    "opencl_overlap", "copies", "growth", "imports", "lag", "analysis",
)  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--rounds", type=int, help="default: each bench's own")
    parser.add_argument("--skip", nargs="*", choices=BENCHES, default=())
    parser.add_argument("--append", action="store_true")
    options = parser.parse_args()
    more = [] if options.rounds is None else ["--rounds", str(options.rounds)]
    more += ["--append"] if options.append else []
    failed = []
    for name in BENCHES:
        if name in options.skip:
            continue
        print(f"\n{name}", flush=True)
        command = [sys.executable, "-m", f"tests.bench.{name}", "--out", str(options.out), *more]
        if subprocess.run(command, check=False).returncode:
            failed.append(name)
    subprocess.run([sys.executable, "-m", "tests.bench.report", str(options.out)], check=True)
    if failed:
        print(f"\nwith failed checks or not run to their end: {', '.join(failed)}")
    sys.exit(1 if failed else 0)


if __name__ == "__main__":
    main()
