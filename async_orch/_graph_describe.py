"""A readable dump of a graph image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import (
    DTYPES,
    KIND_FLOAT,
    KIND_TENSOR,
    SECTION_NAMES,
    TASK_GRAPH,
    VERSION,
    WHERE_RESIDENT,
    Bytes,
)
from async_orch._graph_header import read_pools
from async_orch._graph_kernels import KernelTable

__all__ = ["describe"]


def describe(image: Bytes, table: KernelTable | None = None, *, max_tasks: int = 50) -> str:
    """The graph in `image` as text: the pools, then one line a task with kernel, arguments and dependencies.

    Kernels are named if the `table` is given, else numbered. Raises `ImageCorrupt` if the header, the places of the
    pools or the checksum are wrong; wrong entries inside the pools are shown with a question mark.
    """
    pools = read_pools(image)
    lines = [f"task graph image, version {VERSION}, {pools.nbytes} bytes"]
    lines += [
        f"  {name:<8} {section.n_records:>7} at byte {section.offset}"
        for name, section in zip(SECTION_NAMES, pools.sections, strict=False)
    ]
    names = [name.decode("utf-8", "replace") for name in pools.regions["name"].tolist()]
    sizes = pools.regions["nbytes"].tolist()
    lines += [f"  region {index}: {names[index]}, {sizes[index]} bytes" for index in range(1, len(names))]
    lines += [
        f"  definition {number}: {int(record['fingerprint']):#018x}, {int(record['nbytes'])} bytes, "
        f"{'resident at' if record['where'] == WHERE_RESIDENT else 'carried at'} {int(record['offset'])}"
        for number, record in enumerate(pools.definitions)
    ]
    kernel_names = table.names if table is not None else ()
    for position, task in enumerate(pools.tasks[:max_tasks]):
        kernel, arg, n_args, producer, n_fanin = (
            int(task[field]) for field in ("kernel", "arg_start", "arg_count", "fanin_start", "fanin_count")
        )
        if task["kind"] == TASK_GRAPH:
            name = f"replay of definition {kernel}"
        else:
            name = kernel_names[kernel] if kernel < len(kernel_names) else f"kernel {kernel}"
        given = ", ".join(
            _operand(pools.operands, row, names) if 0 <= row < pools.operands.size else f"operand {row}?"
            for row in pools.args[arg : arg + n_args].tolist()
        )
        after = pools.fanin[producer : producer + n_fanin].tolist()
        lines.append(f"  {position}: {name}({given})" + (f" after {after}" if after else ""))
    if pools.tasks.size > max_tasks:
        lines.append(f"  ... {pools.tasks.size - max_tasks} more tasks")
    return "\n".join(lines)


def _operand(operands: NDArray[np.void], index: int, regions: list[str]) -> str:
    row = operands[index]
    if row["kind"] == KIND_FLOAT:
        return repr(float(row["real"]))
    if row["kind"] != KIND_TENSOR:
        return str(int(row["offset"]))
    code, region = int(row["dtype"]), int(row["region"])
    dtype = str(DTYPES[code]) if code < len(DTYPES) else f"dtype {code}?"
    name = regions[region] if region < len(regions) else f"region {region}?"
    shape = "x".join(str(dim) for dim in row["shape"][: int(row["ndim"])])
    return f"{name}+{int(row['offset'])}:{dtype}[{shape}]"
