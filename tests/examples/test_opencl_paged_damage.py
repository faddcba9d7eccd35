"""Images of paged steps that were damaged at random: refused, or run within the bounds of the device's memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_orch._graph_format import DEFINITION, OPERAND
from async_orch.exceptions import ImageCorrupt
from examples.qwen3.paged import FROM_FEED, DecodeBatch, DecodeRow, PrefillBatch, PrefillChunk
from tests.examples.support import make_checkpoint
from tests.graph_support import Bytes, pool

pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

from examples.qwen3.opencl_paged import OpenCLPagedModel, paged_operations
from tests.graph_opencl_support import GraphDevice

OPERANDS, DEFINITIONS = 5, 6
WILD = (-(1 << 31), -2, -1, 0, 1, 3, 15, 16, 17, 64, 259, 1 << 16, (1 << 31) - 1)
STEPS = {
    "decode": DecodeBatch([DecodeRow(0, 20, [3, 1], 5), DecodeRow(2, 7, [0]), DecodeRow(1, 33, [4, 2, 5], FROM_FEED)]),
    "prefill": PrefillBatch([PrefillChunk(0, 16, list(range(20)), [3, 1, 2]), PrefillChunk(2, 0, [5, 6, 7], [0])]),
}


class Damaged:
    """A program's kernel, without checksums, in memory with two kinds of guards behind each region."""

    def __init__(self, folder: Path, name: str) -> None:
        model = OpenCLPagedModel(folder, max_batch=4, kv_blocks=6, max_context=60, max_prefill_tokens=48)
        program: Any = model.programs[name]
        image = np.zeros(program.slot.image_nbytes, np.uint8)
        self.image: Bytes = image[: program.graphs.write(STEPS[name], image, [0, 1])]
        regions = program.graphs.region_nbytes
        self.devices = [
            GraphDevice(
                table=program.graphs.table,
                operations=paged_operations(),
                checksum=False,
                regions=regions,
                guard=guard,
            )
            for guard in (0x3C, 0xFF)  # as numbers: 0.0115 and 1010580540; not a number and -1
        ]
        rng = np.random.default_rng(1)
        self.contents: dict[str, Bytes] = {
            region: rng.integers(0, 250, nbytes // 4, np.int32).view(np.uint8)
            if region in ("state", "feed")
            else rng.standard_normal(nbytes // 4).astype(np.float32).view(np.uint8)
            for region, nbytes in regions.items()
        }

    def run(self, image: Bytes) -> bool:
        """Whether the image runs. It must do the same whatever lies behind the regions, and not write there."""
        outcomes: list[tuple[str, dict[str, Bytes]]] = []
        for device in self.devices:
            try:
                outcomes.append(("", device.run(image, self.contents)))
            except ImageCorrupt as exc:
                outcomes.append((str(exc), {}))
        (refusal, first), (other_refusal, second) = outcomes
        assert refusal == other_refusal
        for region, memory in first.items():
            np.testing.assert_array_equal(memory, second[region], err_msg=region)
        return not refusal

    def close(self) -> None:
        for device in self.devices:
            device.close()


@pytest.fixture(scope="module", params=list(STEPS))
def damaged(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Damaged]:
    """One program's step."""
    folder = tmp_path_factory.mktemp("model")
    make_checkpoint(folder, seed=3)
    opened = Damaged(folder, request.param)
    yield opened
    opened.close()


def test_the_whole_image_runs(damaged: Damaged) -> None:
    """Nothing is wrong with it."""
    assert damaged.run(damaged.image)


def test_random_inputs_are_refused_or_stay_within_bounds(damaged: Damaged) -> None:
    """Tokens, rows, positions, tables and tiles, which no checksum covers, with any numbers in place of some."""
    rng = np.random.default_rng(2)
    start, nbytes = damaged.image[64:80].view("<u8").tolist()
    ran = 0
    for _ in range(150):
        image = damaged.image.copy()
        words = image[start : start + nbytes // 4 * 4].view("<i4")
        for at in rng.integers(0, words.size, rng.integers(1, 3)):
            words[at] = rng.choice(WILD)
        ran += damaged.run(image)
    assert 0 < ran < 150


def test_random_bits_are_refused_or_stay_within_bounds(damaged: Damaged) -> None:
    """Bits changed anywhere behind the header's first fields."""
    rng = np.random.default_rng(3)
    ran = 0
    for _ in range(150):
        image = damaged.image.copy()
        for at in rng.integers(64, image.size, rng.integers(1, 4)):
            image[at] ^= 1 << int(rng.integers(0, 8))
        ran += damaged.run(image)
    assert 0 < ran < 150


def test_other_shapes_are_refused_or_stay_within_bounds(damaged: Damaged) -> None:
    """A tensor's shape or place changed to another, within its region too: operations compare what belongs together."""
    rng = np.random.default_rng(4)
    refused = 0
    for _ in range(150):
        image = damaged.image.copy()
        (layer,) = pool(image, DEFINITIONS, DEFINITION)
        recorded = image[int(layer["offset"]) :][: int(layer["nbytes"])]
        operands = pool(recorded if rng.integers(2) else image, OPERANDS, OPERAND)
        row = operands[int(rng.integers(operands.size))]
        shape = row["shape"]
        at = int(rng.integers(max(1, int(row["ndim"]))))
        if rng.integers(2):
            shape[at] = rng.choice((0, 1, max(int(shape[at]) - 1, 0), int(shape[at]) // 2, int(shape[at]) + 1))
        else:
            row["offset"] = int(row["offset"]) // 8 * 4
        refused += not damaged.run(image)
    assert refused > 20
