"""Kernels that cope with any arguments, a small graph made of them, and a way to change an image consistently."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_format import CHECKSUM_AT, HEADER, checksum
from async_orch.graph import GraphBuilder, KernelTable, Operand

Bytes = NDArray[np.uint8]
REGIONS = {"workspace": 4096, "output": 256}


def total(value: Any) -> float:
    """A number made of an argument of any kind; every bit pattern gives one."""
    with np.errstate(all="ignore"):
        return float(np.asarray(value).sum(dtype=np.float64))


def make_table() -> KernelTable:
    """`add` and `sub` (two in, one out), `fill` (a scalar in, one out), `note` (any number in, none out)."""
    table = KernelTable()

    def assign(out: NDArray[Any], value: float) -> None:
        with np.errstate(all="ignore"):
            out.reshape(-1).view(np.uint8)[...] = int(abs(np.nan_to_num(value))) & 0x7F

    @table.kernel("add", outputs=(2,))
    def add(a: Any, b: Any, out: NDArray[Any]) -> None:
        assign(out, total(a) + total(b))

    @table.kernel("sub", outputs=(2,))
    def sub(a: Any, b: Any, out: NDArray[Any]) -> None:
        assign(out, total(a) - total(b))

    @table.kernel("fill", outputs=(1,))
    def fill(value: Any, out: NDArray[Any]) -> None:
        assign(out, total(value))

    @table.kernel("note", outputs=())
    def note(*values: Any) -> None:
        for value in values:
            total(value)

    return table


def tensors(builder: GraphBuilder, count: int, region: str = "workspace") -> list[Operand]:
    """`count` disjoint uint8 tensors of four elements."""
    return [builder.tensor(region, 64 * index, (4,), np.uint8) for index in range(count)]


def build_sample(image: Bytes, table: KernelTable) -> int:
    """Fill two tensors, add them, subtract an input of the step, leave the result in the output; bytes used."""
    builder = GraphBuilder(image, table, REGIONS)
    a, b, c = tensors(builder, 3)
    (out,) = tensors(builder, 1, "output")
    given = builder.put(np.array([1, 2], np.int32))
    first = builder.task("fill", 5, a)
    second = builder.task("fill", 3.0, b)
    third = builder.task("add", a, b, c, after=(first, second))
    fourth = builder.task("sub", c, given, out, after=third)
    builder.task("note", given, 1.5, out, after=[fourth])
    return builder.finish()


SAMPLE_RESULT = 4 * (5 + 3) * 4 - 3 & 0x7F
"""What `build_sample` leaves in each output byte: fills of 5 and 3, four elements each, summed; minus 1 + 2."""


def memory() -> dict[str, Bytes]:
    """Zeroed memory of the sample's regions."""
    return {name: np.zeros(nbytes, np.uint8) for name, nbytes in REGIONS.items()}


def reseal(image: Bytes) -> Bytes:
    """Give an image the checksum of its bytes, as somebody would who writes wrong images on purpose."""
    header = image[: HEADER.itemsize].view(HEADER)[0]
    start, end = int(header["sections"][1][0]), int(header["image_nbytes"])
    image[CHECKSUM_AT : CHECKSUM_AT + 4].view("<u4")[0] = checksum(image, image[start:end])
    return image


def pool(image: Bytes, index: int, record: np.dtype[Any]) -> NDArray[Any]:
    """A writable view of one of an image's pools."""
    offset, count = (int(value) for value in image[: HEADER.itemsize].view(HEADER)[0]["sections"][index])
    view: NDArray[Any] = image[offset : offset + count * record.itemsize].view(record)
    return view


def set_field(entries: NDArray[Any], field: str, row: int, value: Any) -> None:
    """Change one field of one of a pool's records; a pool of plain numbers has none, and "" stands for them."""
    (entries[field] if field else entries)[row] = value
