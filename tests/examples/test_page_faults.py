"""A witness from outside for allocation: page faults that the kernel counts, not counters of ours."""

import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from examples.qwen3.decode import Mode
from tests.examples.support import make_checkpoint

ROOT = Path(__file__).resolve().parents[2]
# A count is taken when a result is consumed; by then the engine may be up to a window of five steps further on. Over
# sixty steps that blurs the mean by less than a tenth.
WARM_UP_STEPS = 6

COUNT_FAULTS = """
import asyncio, json, resource, sys
from pathlib import Path
from examples.qwen3.decode import decode
from examples.qwen3.program import REPORT, Qwen3Decode
from examples.qwen3.schedule import Schedule

counts = []
schedule = Schedule([[7, 8, 9], [4]], 60, 64)
program = Qwen3Decode(Path(sys.argv[1]), batch=2, capacity=schedule.capacity, memory=REPORT)
count = lambda *_: counts.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt)
asyncio.run(decode(program, schedule, "host", mode=sys.argv[2], on_step=count))
print(json.dumps(counts))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="host's memory opts out of huge pages on Linux only")
@pytest.mark.parametrize("mode", get_args(Mode))
def test_only_naive_touches_fresh_pages(tmp_path: Path, mode: Mode) -> None:
    """With the report's sizes a warm step takes 15,000 minor faults or more in naive, under 50 in the others."""
    make_checkpoint(tmp_path)
    done = subprocess.run(
        [sys.executable, "-c", COUNT_FAULTS, str(tmp_path), mode],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    counts = json.loads(done.stdout)[WARM_UP_STEPS:]
    faults_per_step = (counts[-1] - counts[0]) / (len(counts) - 1)
    if mode == "naive":
        assert faults_per_step >= 15_000
    else:
        assert faults_per_step < 50
