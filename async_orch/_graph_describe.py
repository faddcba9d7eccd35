"""A readable dump of a graph image."""

from __future__ import annotations

import numpy as np

from async_orch._graph_check import read_sections
from async_orch._graph_format import (
    ARG,
    DTYPES,
    FANIN,
    KIND_FLOAT,
    KIND_TENSOR,
    OPERAND,
    REGION,
    SECTION_NAMES,
    TASK,
    VERSION,
    Bytes,
)
from async_orch._graph_kernels import KernelTable

__all__ = ["describe"]


def describe(image: Bytes, table: KernelTable | None = None, *, max_tasks: int = 50) -> str:
    """The graph in `image` as text: the pools, then one line a task with its kernel, arguments and dependencies.

    Kernels are named if the `table` is given, else numbered. Raises `ImageCorrupt` if header, places of the pools or
    checksum are wrong; wrong entries inside the pools are shown as they are.
    """
    sections = read_sections(image)
    regions, tasks, fanin, args, operands = (
        image[section.offset : section.offset + section.count * record.itemsize].view(record)
        for section, record in zip(sections[1:], (REGION, TASK, FANIN, ARG, OPERAND), strict=True)
    )
    end = int(image[16:24].view("<u8")[0])
    lines = [f"task graph image, version {VERSION}, {end} bytes"]
    lines += [
        f"  {name:<8} {section.count:>7} at byte {section.offset}"
        for name, section in zip(SECTION_NAMES, sections, strict=False)
    ]
    names = [bytes(name).decode("utf-8", "replace") for name in regions["name"]]
    lines += [
        f"  region {position}: {name}, {nbytes} bytes"
        for position, (name, nbytes) in enumerate(zip(names[1:], regions["nbytes"][1:], strict=True), 1)
    ]
    kernel_names = table.names if table is not None else ()
    for position, task in enumerate(tasks[:max_tasks]):
        kernel = int(task["kernel"])
        name = kernel_names[kernel] if kernel < len(kernel_names) else f"kernel {kernel}"
        first_arg, first_fanin = int(task["arg_start"]), int(task["fanin_start"])
        given = ", ".join(
            _operand(operands[arg], names) if 0 <= arg < operands.size else f"operand {arg}?"
            for arg in args[first_arg : first_arg + int(task["arg_count"])].tolist()
        )
        after = fanin[first_fanin : first_fanin + int(task["fanin_count"])].tolist()
        lines.append(f"  {position}: {name}({given})" + (f" after {after}" if after else ""))
    if tasks.size > max_tasks:
        lines.append(f"  ... {tasks.size - max_tasks} more tasks")
    return "\n".join(lines)


def _operand(row: np.void, regions: list[str]) -> str:
    if row["kind"] == KIND_FLOAT:
        return repr(float(row["real"]))
    if row["kind"] != KIND_TENSOR:
        return str(int(row["offset"]))
    code, region = int(row["dtype"]), int(row["region"])
    dtype = str(DTYPES[code]) if code < len(DTYPES) else f"dtype {code}?"
    name = regions[region] if region < len(regions) else f"region {region}?"
    shape = "x".join(str(dim) for dim in row["shape"][: int(row["ndim"])])
    return f"{name}+{int(row['offset'])}:{dtype}[{shape}]"
