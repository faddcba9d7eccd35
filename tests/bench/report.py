"""Table and chart from the raw JSON: ``python -m tests.bench.report docs/benchmarks``.

Writes ``benchmarks.png`` there, and both tables, of the figures and of their limits, between the markers of
``docs/benchmarks.md`` beside that folder, if there is such a file; otherwise prints them.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path
from typing import Any

from tests.bench._kit import number, raw
from tests.bench.all import BENCHES
from tests.bench.limits import limits_table

TITLES = {
    "overhead": "Overhead: no-op steps, 4 stages, no log",
    "structure": "The least that such a structure can cost, CPU time",
    "overhead_ray": "Ray",
    "overhead_log": "With a step log: 100,000 steps, flushed, 0 dropped",
    "threads": "A device of threads",
    "overlap": "Overlap in real time on `sim`, 3 slots",
    "feed": "Late input",
    "real_memory": "Real memory",
    "opencl_overlap": "A driver's streams: 66.5 MB of workspace, 16 MB of image, a kernel of 1.5 ms (PoCL)",
    "copies": "Copies",
    "growth": "Growth",
    "imports": "Starting",
    "lag": "The event loop beside the builds",
    "analysis": "Analysis",
}
BESIDE = {
    "to_queue_uvloop": (0.75, "on the stock loop <= 0.75 is the goal: uvloop helps the bare pipeline more than us")
}
"""By figure without a goal: above what it is named under the table, and in which words."""
BEGIN, END = "<!-- table -->", "<!-- end of table -->"
LIMITS_BEGIN, LIMITS_END = "<!-- limits -->", "<!-- end of limits -->"


def documents(folder: Path) -> list[dict[str, Any]]:
    return [raw(folder / f"{name}.json") for name in BENCHES if (folder / f"{name}.json").exists()]


def table(found: list[dict[str, Any]]) -> str:
    """One Markdown table; a bold line begins each bench. Then what was missed, again."""
    lines = ["| figure | median | least to most | to reach | |", "|---|---:|---:|---:|---|"]
    for document in found:
        rounds = sum(spell["rounds"] for spell in document["spells"])
        head = f"{rounds} round{'s' if rounds != 1 else ''}, {_commits(document['spells'])}"
        lines.append(f"| **{TITLES[document['bench']]}** ({head}) | | | | |")
        lines += [_row(item) for item in document["figures"] if item["value"] is not None]
        lines += [f"| {name} | - | - | | {why} |" for name, why in document["failed"].items()]
    judged = [item for document in found for item in document["figures"] if item["met"] is not None]
    missed = [
        f"- {item['title']}: {number(item['value'])}, to reach {_goal(item)}" for item in judged if not item["met"]
    ]
    beside = [
        f"- {item['title']}: {number(item['value'])}; {BESIDE[item['name']][1]}"
        for document in found
        for item in document["figures"]
        if item["name"] in BESIDE and item["value"] is not None and item["value"] > BESIDE[item["name"]][0]
    ]
    lines += ["", f"Goals met: {len(judged) - len(missed)} of {len(judged)}.{' Missed:' if missed else ''}"]
    lines += ["", *missed] if missed else []
    lines += ["", "Not counted, since no goal was set, but worth knowing:", "", *beside] if beside else []
    return "\n".join(lines)


def _commits(spells: list[dict[str, Any]]) -> str:
    """The commits that were measured, in order, each once."""
    known = dict.fromkeys(
        f"{spell['commit'][:7]}{' with changes' if spell['dirty'] else ''}" if spell.get("commit") else "not recorded"
        for spell in spells
    )
    return f"commit{'s' if len(known) > 1 else ''} {', '.join(known)}"


def _row(item: dict[str, Any]) -> str:
    unit = {"x": "", "": ""}.get(item["unit"], f" {item['unit']}")
    value, least, most = (number(item[key]) for key in ("value", "least", "most"))
    goal = "" if item["goal"] is None else _goal(item)
    met = {None: "", True: "met", False: "**missed**"}[item["met"]]
    return f"| {item['title']} | {value}{unit} | {least} to {most} | {goal} | {met} |"


def _goal(item: dict[str, Any]) -> str:
    sign, bound = item["goal"]
    return f"{sign} {bound:g}"


def chart(found: list[dict[str, Any]], path: Path) -> None:
    """Left: microseconds a step of each pipeline. Right: what was reached of bounds that were measured or given."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot as plt

    by_name = {document["bench"]: document for document in found}
    figure, (left, right) = plt.subplots(1, 2, figsize=(12, 5.2), layout="constrained")
    costs = {
        name: statistics.median(sample["wall_us"] for sample in samples)
        for bench in ("overhead_ray", "overhead")
        for name, samples in by_name.get(bench, {"samples": {}})["samples"].items()
        if samples and "uvloop" not in name and (bench == "overhead" or name != "async_orch")
    }
    names = sorted(costs, key=lambda name: costs[name], reverse=True)
    labels = [name.removesuffix("/asyncio").replace("queue", "asyncio.Queue") for name in names]
    colours = ["tab:blue" if label == "async_orch" else "tab:gray" for label in labels]
    bars = left.barh(labels, [costs[name] for name in names], color=colours)
    left.bar_label(bars, [number(costs[name]) for name in names], padding=3)
    left.set_xscale("log")
    left.set_xlim(right=max(costs.values(), default=1) * 4)
    left.set_xlabel("microseconds a no-op step, stock event loop, log scale")
    left.set_title("What a step costs (the others have no leases, fences, records)", fontsize=10)
    shares = [
        item
        for bench in ("lag", "copies", "real_memory", "opencl_overlap", "overlap")
        for item in by_name.get(bench, {"figures": []})["figures"]
        if item["value"] is not None and (item["goal"] or ("",))[0] == ">=" and item["goal"][1] <= 1
    ]
    titles = [item["title"].replace(": share of the bound", "") for item in shares]
    colours = ["tab:blue" if item["met"] else "tab:orange" for item in shares]
    bars = right.barh(titles, [item["value"] for item in shares], color=colours)
    right.bar_label(bars, [f"{item['value']:.3f}" for item in shares], padding=3)
    for i, item in enumerate(shares):
        right.plot([item["goal"][1]] * 2, [i - 0.4, i + 0.4], color="black", linewidth=1)
    right.set_xlim(0, 1.15)
    right.set_xlabel("share of the bound; line: goal; orange: missed")
    right.set_title("What is reached of the bound", fontsize=10)
    right.tick_params(axis="y", labelsize=8)
    figure.savefig(path, dpi=110, metadata={"Software": None})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    found = documents(folder)
    chart(found, folder / "benchmarks.png")
    page = folder.parent / "benchmarks.md"
    if page.exists():
        page.write_text(filled(page.read_text("utf-8"), found), "utf-8")
    else:
        print(table(found))
        print(limits_table(found))


def filled(text: str, found: list[dict[str, Any]]) -> str:
    """The page with both tables between their markers. Raises `ValueError` where a marker is missing."""
    for begin, end, whole in ((BEGIN, END, table(found)), (LIMITS_BEGIN, LIMITS_END, limits_table(found))):
        if begin not in text or end not in text:
            raise ValueError(f"the page has no {begin} ... {end} to put a table between")
        before, _, rest = text.partition(begin)
        text = f"{before}{begin}\n{whole}\n{end}{rest.partition(end)[2]}"
    return text


if __name__ == "__main__":
    main()
