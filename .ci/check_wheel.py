"""Run in an environment with nothing but the wheel: what is in it, and does it work?"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import async_orch
import async_orch.testing  # must not need pytest
from async_orch import Orchestrator, Slot, SlotSpec, StepProgram, available_backends
from async_orch.abc import Stream
from async_orch.graph import KernelTable, OpenCLDispatcher

PACKAGES = ("async_orch/", "async_orch_backends/", "async_orch-")


class Nothing(StepProgram[int, None]):
    slot = SlotSpec(image_nbytes=0)

    def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
        return None


async def run_one_step(backend: str) -> int:
    async with Orchestrator(Nothing(), backend) as orch:
        return (await orch.run(0)).seq


def main() -> None:
    names = zipfile.ZipFile(sys.argv[1]).namelist()
    strangers = [name for name in names if not name.startswith(PACKAGES)]
    if strangers:
        sys.exit(f"the wheel holds files that do not belong in it: {strangers[:5]}")
    for package in ("async_orch", "async_orch_backends"):
        if f"{package}/py.typed" not in names:
            sys.exit(f"the wheel lacks {package}/py.typed")
    if Path(async_orch.__file__).is_relative_to(Path.cwd()):
        sys.exit("async_orch was imported from the working directory, not from the wheel")
    if not {"host", "sim"} <= set(available_backends()):
        sys.exit(f"backends host and sim are not found: {available_backends()}")
    for backend in ("host", "sim:instant", "sim:a5-report"):
        if asyncio.run(run_one_step(backend)) != 0:
            sys.exit(f"the first step on {backend} has a wrong number")
    table = KernelTable()
    table.add("none", lambda: None, outputs=())
    if "kernel" not in OpenCLDispatcher(table, (), "OPERATION(none) { return true; }").source:
        sys.exit("the wheel lacks the dispatcher's OpenCL source")
    command = Path(sysconfig.get_path("scripts")) / "async-orch"
    subprocess.run([command, "--version"], check=True)
    print(f"wheel: {len(names)} files, runs a step on host and sim")


if __name__ == "__main__":
    main()
