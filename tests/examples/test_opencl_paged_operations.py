"""Each operation of the paged programs in OpenCL C: numpy's result, and arguments that it refuses."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from async_orch.exceptions import ImageCorrupt
from async_orch.graph import GraphBuilder, execute
from examples.qwen3.paged import FROM_FEED
from examples.qwen3.paged_kernels import paged_kernel_table
from examples.qwen3.paged_steps import FROM_DEVICE, TILE

pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from examples.qwen3.opencl_paged import paged_operations
from tests.graph_opencl_support import GraphDevice

TABLE = paged_kernel_table()
REGIONS = {"floats": 1 << 16, "words": 256}
CACHE = (5, 16, 2, 6)
TABLES = [[4, 1], [2, 0]]
ROWS = 2 * TILE


class Floats(tuple[int, ...]):
    """Shape of a tensor of random floats in device memory."""

    __slots__ = ()


class Words(list[int]):
    """Integers in device memory, where operations may write them."""

    __slots__ = ()


Given = Floats | Words | Sequence[Any] | float
CALLS: dict[str, list[Given]] = {
    "embed_next": [
        Floats((4, 10)),
        Floats((30, 10)),
        [7, FROM_DEVICE, FROM_FEED, 0],
        Words([1, 2, 29, 4]),
        Words([5, 6, 28, 8]),
        [0, 2, 3, -1],
    ],
    "embed_prompt": [Floats((3, 10)), Floats((30, 10)), [29, 0, -1]],
    "rope": [Floats((3, 24)), Floats((40, 6)), Floats((40, 6)), [0, 39, 5]],
    "linear": [Floats((7, 6)), Floats((7, 21)), Floats((6, 21))],
    "linear_tiles": [Floats((ROWS, 5)), Floats((ROWS, 20)), Floats((5, 20))],
    "paged_append": [Floats(CACHE), Floats(CACHE), Floats((2, 12)), Floats((2, 12)), TABLES, [17, -1]],
    "tile_append": [
        Floats(CACHE),
        Floats(CACHE),
        Floats((ROWS, 12)),
        Floats((ROWS, 12)),
        TABLES,
        [[1, 16, 5], [-1, -1, -1]],
    ],
    "paged_attention": [Floats((2, 24)), Floats((2, 24)), Floats(CACHE), Floats(CACHE), TABLES, [17, -1]],
    "tile_attention": [
        Floats((ROWS, 24)),
        Floats((ROWS, 24)),
        Floats(CACHE),
        Floats(CACHE),
        TABLES,
        [[0, 0, 16], [1, 16, 16]],
    ],
    "take_rows": [Floats((3, 8)), Floats((5, 8)), [4, -1, 0]],
    "choose": [Words([9, 9, 9, 9]), Words([8, 8, 8, 8]), Floats((3, 11)), [2, -1, 0]],
}

REFUSED: list[tuple[str, int, Given]] = [
    ("embed_next", 0, Floats((4, 9))),
    ("embed_next", 2, [30, 0, 0, 0]),
    ("embed_next", 2, [-3, 0, 0, 0]),
    ("embed_next", 3, Words([1, 2, 30, 4])),
    ("embed_next", 4, Words([1, 2, -1, 4])),
    ("embed_next", 4, Words([1, 2, 3])),
    ("embed_next", 5, [0, 2, 4, -1]),
    ("embed_next", 5, [0, 2, 3, -2]),
    ("embed_next", 5, [0, 2, 3]),
    ("embed_prompt", 2, [30, 0, -1]),
    ("embed_prompt", 2, [0, 0, -2]),
    ("embed_prompt", 2, [0, 0]),
    ("embed_prompt", 0, Floats((3, 11))),
    ("rope", 3, [0, 40, 5]),
    ("rope", 3, [0, -2, 5]),
    ("linear", 0, Floats((7, 7))),
    ("linear", 1, Floats((8, 21))),
    ("linear", 2, Floats((6, 20))),
    ("linear_tiles", 0, Floats((ROWS - 1, 5))),
    ("linear_tiles", 2, Floats((6, 20))),
    ("paged_append", 0, Floats((5, 16, 2, 7))),
    ("paged_append", 1, Floats((4, 16, 2, 6))),
    ("paged_append", 2, Floats((2, 13))),
    ("paged_append", 3, Floats((3, 12))),
    ("paged_append", 4, [[5, 1], [2, 0]]),
    ("paged_append", 4, [[4, -1], [2, 0]]),
    ("paged_append", 4, [[4, 1]]),
    ("paged_append", 4, [4, 1]),
    ("paged_append", 5, [32, -1]),
    ("paged_append", 5, [17, -2]),
    ("paged_append", 5, [17, (1 << 31) - 1]),
    ("paged_append", 5, [17]),
    ("tile_append", 2, Floats((ROWS + 1, 12))),
    ("tile_append", 4, [[4, 1], [2, 5]]),
    ("tile_append", 5, [[2, 16, 5], [-1, -1, -1]]),
    ("tile_append", 5, [[-2, 16, 5], [-1, -1, -1]]),
    ("tile_append", 5, [[1, -1, 5], [-1, -1, -1]]),
    ("tile_append", 5, [[1, 17, 16], [-1, -1, -1]]),
    ("tile_append", 5, [[1, 0, 17], [-1, -1, -1]]),
    ("tile_append", 5, [[1, 16, -1], [-1, -1, -1]]),
    ("tile_append", 5, [[1, (1 << 31) - 1, 16], [-1, -1, -1]]),
    ("tile_append", 5, [[1, 16, 5]]),
    ("tile_append", 5, [[1, 16], [0, 0]]),
    ("paged_attention", 0, Floats((2, 12))),
    ("paged_attention", 1, Floats((3, 24))),
    ("paged_attention", 2, Floats((5, 16, 3, 6))),
    ("paged_attention", 4, [[4, 5], [2, 0]]),
    ("paged_attention", 5, [32, -1]),
    ("tile_attention", 2, Floats((5, 16, 2, 5))),
    ("tile_attention", 5, [[0, 0, 16], [2, 16, 16]]),
    ("tile_attention", 5, [[0, 0, 16]]),
    ("take_rows", 0, Floats((3, 9))),
    ("take_rows", 2, [5, -1, 0]),
    ("take_rows", 2, [4, -2, 0]),
    ("take_rows", 2, [4, -1]),
    ("choose", 1, Words([8, 8])),
    ("choose", 2, Floats((2, 11))),
    ("choose", 3, [4, -1, 0]),
    ("choose", 3, [2, -2, 0]),
]


@pytest.fixture(scope="module")
def device() -> Iterator[GraphDevice]:
    """All operations on one lane."""
    opened = GraphDevice(table=TABLE, operations=paged_operations(), regions=REGIONS)
    yield opened
    opened.close()


def made(kernel: str, given: list[Given]) -> tuple[Any, dict[str, Any]]:
    """The image of a graph of one task, and the regions' contents."""
    image = np.zeros(1 << 13, np.uint8)
    builder = GraphBuilder(image, TABLE, REGIONS)
    rng = np.random.default_rng(5)
    contents = {name: np.zeros(nbytes, np.uint8) for name, nbytes in REGIONS.items()}
    ends = dict.fromkeys(REGIONS, 0)
    operands = []
    for one in given:
        if isinstance(one, Floats | Words):
            region = "floats" if isinstance(one, Floats) else "words"
            is_float = isinstance(one, Floats)
            values: Any = rng.standard_normal(one).astype(np.float32) if is_float else np.array(one, np.int32)
            operands.append(builder.tensor(region, ends[region], values.shape, values.dtype))
            contents[region][ends[region] : ends[region] + values.nbytes] = values.reshape(-1).view(np.uint8)
            ends[region] += values.nbytes
        else:
            operands.append(builder.put(np.array(one, np.int32)))
    builder.task(kernel, *operands)
    return image[: builder.finish()], contents


@pytest.mark.parametrize("kernel", list(CALLS))
@pytest.mark.parametrize("lanes", [1, 3])
def test_the_result_is_numpys(kernel: str, lanes: int) -> None:
    """Up to rounding, whatever the number of lanes; no other byte is touched."""
    image, contents = made(kernel, CALLS[kernel])
    opened = GraphDevice(table=TABLE, operations=paged_operations(), regions=REGIONS, lanes=lanes)
    found = opened.run(image, contents)
    opened.close()
    execute(image, contents, TABLE)
    np.testing.assert_allclose(found["floats"].view("<f4"), contents["floats"].view("<f4"), rtol=0, atol=1e-5)
    np.testing.assert_array_equal(found["words"], contents["words"])


@pytest.mark.parametrize(("kernel", "position", "given"), REFUSED)
def test_what_does_not_fit_is_refused(device: GraphDevice, kernel: str, position: int, given: Given) -> None:
    """Shapes that do not belong together, and tokens, rows, positions, blocks and tiles that there are not."""
    arguments = list(CALLS[kernel])
    arguments[position] = given
    image, contents = made(kernel, arguments)
    with pytest.raises(ImageCorrupt, match=rf"refused its arguments \(kernel '{kernel}'\)"):
        device.run(image, contents)
