"""Long runs on ``sim:adversary`` under random cancels and faults: ``python -m tests.bench.early_reuse``.

Every completed step's data is compared. Seeds are fixed and printed, so that a wrong one can be run again with
``--first SEED --steps N``. Ends with status 1 if a result was wrong or anything was left behind.
"""

from __future__ import annotations

import argparse
import sys
import time

from async_orch.testing import run_virtual
from tests.early_reuse import run_under_fire

STEPS_A_SEED = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description="Early reuse of memory, looked for in many steps.")
    parser.add_argument("--steps", type=int, default=200_000, help="steps in all")
    parser.add_argument("--first", type=int, default=0, help="first seed")
    options = parser.parse_args()
    start = time.perf_counter()
    steps = completed = wrong = 0
    seed = options.first
    while steps < options.steps:
        count = min(STEPS_A_SEED, options.steps - steps)
        done, bad = run_virtual(run_under_fire(seed, count))
        if bad:
            print(f"seed {seed}: {bad} of {done} results are wrong")
        steps, completed, wrong, seed = steps + count, completed + done, wrong + bad, seed + 1
    elapsed_s = time.perf_counter() - start
    print(
        f"{steps} steps of seeds {options.first} to {seed - 1} in {elapsed_s:.0f} s: "
        f"{completed} completed, {wrong} with wrong data, nothing left behind"
    )
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
