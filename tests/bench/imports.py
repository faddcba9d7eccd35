"""What starting costs: ``python -m tests.bench.imports [--out DIR]``.

Each sample is a fresh interpreter. `import async_orch` alone loads nothing; what an application pays is ``from
async_orch import Orchestrator, StepProgram, SlotSpec``, held against importing the four libraries that the package
depends on. Rich is kept out, since structlog imports it where it is installed. Then opening on ``host`` and the first
step, and ``async-orch --help``.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import time
from functools import partial

from tests.bench._kit import Bench, CheckFailed, Figure, Sample, Samples, main, quotient, single

NO_RICH = "import sys; sys.modules['rich'] = None"
TIMED = """
import time; start = time.perf_counter_ns()
{code}
import json; spent = time.perf_counter_ns() - start
print(json.dumps({{"ms": spent / 1e6}}))
"""
OPENED = """
import time; start = time.perf_counter_ns()
import asyncio
from async_orch import Orchestrator, SlotSpec, StepProgram
class Program(StepProgram):
    slot = SlotSpec(image_nbytes=64, output_nbytes=8)
    def build(self, step, image): image[:8].view("i8")[0] = step
    def launch(self, step, slot, stream): stream.launch(kernel, slot.image, slot.output)
    def collect(self, step, output): return int(output.view("i8")[0])
def kernel(image, output): output[:8] = image[:8]
async def main():
    imported = time.perf_counter_ns()
    async with Orchestrator(Program(), "host") as orch:
        opened = time.perf_counter_ns()
        found = await orch.run(42)
        stepped = time.perf_counter_ns()
    return imported, opened, stepped, found.output
imported, opened, stepped, output = asyncio.run(main())
import json
print(json.dumps({"output": output, "open_ms": (opened - imported) / 1e6, "step_ms": (stepped - opened) / 1e6,
                  "all_ms": (stepped - start) / 1e6}))
"""
CODES = {
    "nothing": "pass",
    "dependencies": "import anyio, numpy, structlog, msgspec",
    "package": "import async_orch",
    "names": "from async_orch import Orchestrator, StepProgram, SlotSpec",
}


# Installed packages have their bytecode; a checkout has it after the first import, unless this variable forbids it.
ENVIRONMENT = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}


@functools.cache
def _compiled() -> None:
    """Have the bytecode of the checkout written, as it is in an installed package."""
    for code in (OPENED, "import async_orch.cli, async_orch.analysis"):
        subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, env=ENVIRONMENT)


def _child(code: str) -> dict[str, float]:
    _compiled()
    command = [sys.executable, "-c", f"{NO_RICH}\n{code}"]
    done = subprocess.run(command, check=True, capture_output=True, env=ENVIRONMENT)
    sample: dict[str, float] = json.loads(done.stdout)
    return sample


def imported(name: str) -> Sample:
    return _child(TIMED.format(code=CODES[name]))


def opened() -> Sample:
    sample = _child(OPENED)
    if sample.pop("output") != 42:
        raise CheckFailed("the first step did not come back")
    return sample


def command() -> Sample:
    _compiled()
    start = time.perf_counter_ns()
    done = subprocess.run(
        [sys.executable, "-m", "async_orch", "--help"], check=True, capture_output=True, env=ENVIRONMENT
    )
    if b"analyze" not in done.stdout:
        raise CheckFailed("--help printed something else")
    return {"ms": (time.perf_counter_ns() - start) / 1e6}


def figures(samples: Samples) -> list[Figure]:
    return [
        single(
            samples, "dependencies", "ms", "import_dependencies", "import anyio, numpy, structlog, msgspec", unit="ms"
        ),
        single(samples, "names", "ms", "import_names", "from async_orch import Orchestrator, ...", unit="ms"),
        quotient(
            samples, ("names", "ms"), ("dependencies", "ms"), "import_ratio", "its import / that of its dependencies",
            unit="x", goal=("<=", 1.3),
        ),
        single(samples, "package", "ms", "import_package", "import async_orch, nothing used", unit="ms"),
        single(samples, "opened", "open_ms", "open", "open on host, small slots", unit="ms"),
        single(samples, "opened", "step_ms", "first_step", "the first step", unit="ms"),
        single(samples, "command", "ms", "help", "async-orch --help, a whole process", unit="ms"),
    ]  # fmt: skip


BENCH = Bench(
    "imports",
    {**{name: partial(imported, name) for name in CODES if name != "nothing"}, "opened": opened, "command": command},
    figures,
    rounds=11,
    about=CODES,
)

if __name__ == "__main__":
    main(BENCH)
