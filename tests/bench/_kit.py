"""What the benches share: rounds in turn, medians, ratios taken within a round, the machine, raw JSON.

A bench is a module with a `BENCH`. `python -m tests.bench.NAME --out DIR` measures it and writes ``DIR/NAME.json`` with
every sample; ``--append`` adds rounds to what is there, so that a long bench can be measured in short spells.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib.metadata
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from async_orch._bench import CheckFailed

__all__ = [
    "Bench",
    "CheckFailed",
    "Figure",
    "NotInstalled",
    "Samples",
    "main",
    "number",
    "on_loop",
    "paired",
    "quotient",
    "raw",
    "refuse",
    "single",
    "versions",
]

Sample = dict[str, float]
Samples = Mapping[str, Sequence[Sample]]
"""By variant, one for each round."""

PACKAGES = (
    "anyio", "numpy", "msgspec", "structlog", "uvloop", "aiostream", "aiometer", "pypeln", "spdl-core", "ray",
    "pyopencl", "pocl-binary-distribution",
)  # fmt: skip


class NotInstalled(Exception):
    """A variant cannot run here; the message says what it needs."""


@dataclass(frozen=True, slots=True)
class Figure:
    """One line of the table. ``goal`` is what to reach, as (``"<="`` or ``">="``, value); value None: not measured."""

    name: str
    title: str
    value: float | None
    least: float | None = None
    most: float | None = None
    unit: str = ""
    goal: tuple[str, float] | None = None
    note: str = ""

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None without a goal or a value."""
        if self.goal is None or self.value is None:
            return None
        sign, bound = self.goal
        return self.value <= bound if sign == "<=" else self.value >= bound


@dataclass(frozen=True, slots=True)
class Bench:
    """A bench: variants that are run in turn, and the figures that come out of their samples.

    A variant's function does one round and gives its sample; it raises `CheckFailed` if the work was not done.
    """

    name: str
    variants: Mapping[str, Callable[[], Sample]]
    figures: Callable[[Samples], list[Figure]]
    rounds: int = 7
    about: dict[str, Any] = field(default_factory=dict)


def on_loop(work: Callable[[], Coroutine[Any, Any, Any]], loop: str = "asyncio") -> Any:
    """Run a coroutine on a fresh event loop, ``"asyncio"`` or ``"uvloop"``."""
    factory = None
    if loop == "uvloop":
        try:
            import uvloop
        except ModuleNotFoundError as error:
            raise NotInstalled("uvloop") from error
        factory = uvloop.new_event_loop
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(work())


def refuse(package: str) -> NoReturn:
    """What an optional peer raises where it is not installed."""
    raise NotInstalled(package)


def single(
    samples: Samples, variant: str, key: str, name: str, title: str, *, scale: float = 1.0, **more: Any
) -> Figure:
    """The median of one key of a variant."""
    values = [sample[key] * scale for sample in samples.get(variant, ())]
    return _figure(name, title, values, **more)


def quotient(
    samples: Samples, over: tuple[str, str], under: tuple[str, str], name: str, title: str, **more: Any
) -> Figure:
    """The median of the rounds' ratios of (variant, key) to (variant, key)."""
    pairs = paired(samples, over[0], under[0])
    return _figure(name, title, [one[over[1]] / other[under[1]] for one, other in pairs], **more)


def paired(samples: Samples, one: str, other: str) -> list[tuple[Sample, Sample]]:
    """Two variants' samples round by round; none if one of them has none.

    Raises `ValueError` if both have some and not equally many: it would pair samples of different rounds.
    """
    first, second = samples.get(one, ()), samples.get(other, ())
    if not first or not second:
        return []
    if len(first) != len(second):
        raise ValueError(f"{one} has {len(first)} rounds and {other} {len(second)}: measure both again")
    return list(zip(first, second, strict=True))


def _figure(name: str, title: str, values: list[float], **more: Any) -> Figure:
    if not values:
        return Figure(name, title, None, **more)
    return Figure(name, title, statistics.median(values), min(values), max(values), **more)


def raw(path: Path) -> dict[str, Any]:
    """A bench's JSON."""
    document: dict[str, Any] = json.loads(path.read_text("utf-8"))
    return document


def number(value: float) -> str:
    """Three or four digits of it, for a table."""
    digits = next((count for limit, count in ((2, 3), (10, 2), (1000, 1)) if abs(value) < limit), 0)
    return f"{value:.{digits}f}"


def versions() -> dict[str, str]:
    """Versions of what takes part, where it is installed."""
    found = {"python": platform.python_version()}
    for name in PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def machine() -> dict[str, Any]:
    """The machine, in words."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text("utf-8", "replace").splitlines() if info.exists() else []
    known = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    return {
        "cpu": known.get("model name", platform.machine()),
        "family": f"family {known.get('cpu family', '?')}, model {known.get('model', '?')}",
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "system": f"{platform.system()} {platform.release()}",
    }


MEASURED = ("async_orch", "backends", "tests/bench", "pyproject.toml")
"""What a figure may depend on: whether these differ from the commit counts, not whether a page or a JSON does."""


def commit() -> dict[str, Any]:
    """What is measured: the commit, and whether the code differs from it; None and None outside a git checkout."""
    root = Path(__file__).resolve().parents[2]
    try:
        head = _git(root, "rev-parse", "HEAD").strip()
        changed = _git(root, "status", "--porcelain", "--", *MEASURED).strip()
    except (OSError, subprocess.CalledProcessError):
        return {"commit": None, "dirty": None}
    return {"commit": head, "dirty": bool(changed)}


def _git(root: Path, *arguments: str) -> str:
    return subprocess.run(["git", "-C", str(root), *arguments], check=True, capture_output=True, text=True).stdout


def measure(bench: Bench, rounds: int, only: Sequence[str]) -> tuple[dict[str, list[Sample]], dict[str, str]]:
    """Run the variants in turn, each round beginning with another one; gives samples, and why some have none."""
    names = [name for name in bench.variants if not only or any(part in name for part in only)]
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    failed: dict[str, str] = {}
    for number in range(rounds):
        first = number % len(names)
        for name in [*names[first:], *names[:first]]:
            if name in failed:
                continue
            try:
                samples[name].append(bench.variants[name]())
            except NotInstalled as error:
                failed[name] = f"not run: needs {error}"
            except CheckFailed as error:
                failed[name] = f"check failed: {error}"
            if name in failed:
                samples[name].clear()  # no figure from a variant that failed a check in any round
    return samples, failed


def main(bench: Bench) -> None:
    """Measure, print the figures, and keep the samples."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.bench.{bench.name}")
    parser.add_argument("--rounds", type=int, default=bench.rounds, help="default: %(default)s")
    parser.add_argument("--out", type=Path, help=f"folder for {bench.name}.json")
    parser.add_argument("--append", action="store_true", help="add the rounds to those in the file")
    parser.add_argument("--only", nargs="+", default=(), metavar="PART", help="variants with this in their name")
    options = parser.parse_args()
    if options.append and options.only:
        parser.error("--append with --only would pair samples of different rounds; leave one of them out")
    started, load, measured = time.time(), os.getloadavg(), commit()
    samples, failed = measure(bench, options.rounds, options.only)
    seconds = time.time() - started
    spell = {"started": started, "seconds": seconds, "rounds": options.rounds, "load_before": load} | measured
    path = None if options.out is None else options.out / f"{bench.name}.json"
    spells = [spell]
    if options.append and path is not None and path.exists():
        before = raw(path)
        spells = [*before["spells"], spell]
        failed = before["failed"] | failed
        samples = {
            name: [] if name in failed else [*before["samples"].get(name, []), *samples.get(name, [])]
            for name in dict.fromkeys([*before["samples"], *samples])
        }
    document = {
        "bench": bench.name,
        "command": f"python -m tests.bench.{bench.name}",
        "machine": machine(),
        "versions": versions(),
        "spells": spells,
        "about": bench.about,
        "failed": failed,
        "figures": [asdict(figure) | {"met": figure.met} for figure in bench.figures(samples)],
        "samples": samples,
    }
    show(document)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(document, indent=1) + "\n", "utf-8")
    sys.exit(1 if any(why.startswith("check failed") for why in failed.values()) else 0)


def show(document: dict[str, Any]) -> None:
    """Figures and failures as text."""
    for item in document["figures"]:
        if item["value"] is None:
            continue
        goal = ""
        if item["goal"] is not None:
            sign, bound = item["goal"]
            goal = f"  goal {sign} {bound:g}: {'met' if item['met'] else 'MISSED'}"
        spread = f"({item['least']:.3f} to {item['most']:.3f})"
        print(f"{item['title']:64} {item['value']:10.3f} {item['unit']:8} {spread}{goal}")
    for name, why in document["failed"].items():
        print(f"{name}: {why}")
