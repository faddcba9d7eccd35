"""A table, a nested pair of Definitions and a graph that replays them, for the tests of replays."""

from __future__ import annotations

from typing import Any

import numpy as np

from async_orch._graph_format import CHECKSUM_AT, DEFINITION, HEADER, checksum, fingerprint
from async_orch.graph import Definition, GraphBuilder, KernelTable, Recorder
from tests.graph_support import Bytes, pool, reseal

REGIONS = {"workspace": 1024, "output": 64, "weights": 512}


def make_table() -> KernelTable:
    """`add` and `scale`: two in, one out, all float32 but the scale's factor."""
    table = KernelTable()

    def add(a: Any, b: Any, out: Any) -> None:
        with np.errstate(all="ignore"):
            np.add(np.resize(a, out.shape), np.resize(b, out.shape), out=out, casting="unsafe")

    def scale(a: Any, factor: float, out: Any) -> None:
        with np.errstate(all="ignore"):
            np.multiply(np.resize(a, out.shape), factor, out=out, casting="unsafe")

    table.add("add", add, outputs=(2,))
    table.add("scale", scale, outputs=(2,))
    return table


def make_builder(table: KernelTable, **options: Any) -> GraphBuilder:
    return GraphBuilder(None, table, REGIONS, infer=True, **options)


def record_layer(builder: GraphBuilder) -> Definition:
    """y = (x + weight) * factor, by way of a fixed tensor; then its second half is doubled."""

    def layer(recorder: Recorder) -> None:
        x = recorder.parameter("x", (4,), np.float32)
        weight = recorder.parameter("weight", (4,), np.float32, region="weights")
        y = recorder.parameter("y", (4,), np.float32)
        factor = recorder.number("factor", float)
        scratch = builder.tensor("workspace", 512, (4,), np.float32)
        half = recorder.part(y, 8, (2,))
        recorder.task("add", x, weight, scratch)
        recorder.task("scale", scratch, factor, y)
        recorder.task("scale", half, 2, half)

    return builder.record("layer", layer)


def record_pair(builder: GraphBuilder) -> Definition:
    """Two layers one after the other, with the second's factor a constant."""
    layer = record_layer(builder)

    def pair(recorder: Recorder) -> None:
        x = recorder.parameter("x", (4,), np.float32)
        weights = recorder.parameter("weights", (8,), np.float32, region="weights")
        y = recorder.parameter("y", (4,), np.float32)
        factor = recorder.number("factor", float)
        between = builder.tensor("workspace", 768, (4,), np.float32)
        first, second = recorder.part(weights, 0, (4,)), recorder.part(weights, 16, (4,))
        recorder.replay(layer, {"x": x, "weight": first, "y": between, "factor": factor})
        recorder.replay(layer, [between, second, y, 0.5])

    return builder.record("pair", pair)


def build_replays(builder: GraphBuilder, image: Bytes, values: Any = (1, 2, 3, 4), factor: float = 3.0) -> int:
    """input -> pair -> layer -> output, then the output is scaled by 10; bytes used."""
    pair, layer = record_pair(builder), record_layer(builder)
    hidden = builder.tensor("workspace", 0, (4,), np.float32)
    out = builder.tensor("output", 0, (4,), np.float32)
    builder.reset(image)
    given = builder.put(np.array(values, np.float32))
    weights = builder.tensor("weights", 0, (8,), np.float32)
    builder.replay(pair, {"x": given, "weights": weights, "y": hidden, "factor": factor})
    builder.replay(layer, [hidden, builder.tensor("weights", 32, (4,), np.float32), out, factor])
    builder.task("scale", out, 10, out)
    return builder.finish()


def expected(values: Any = (1, 2, 3, 4), factor: float = 3.0) -> list[float]:
    """What `build_replays` leaves in the output with all weights 1."""
    x = np.array(values, np.float32)
    for number in (factor, 0.5, factor):
        x = (x + 1) * number
        x[2:] *= 2
    return [float(value) for value in x * 10]


def memory() -> dict[str, Bytes]:
    """Zeroed memory of the regions, with weights of 1."""
    regions = {name: np.zeros(nbytes, np.uint8) for name, nbytes in REGIONS.items()}
    regions["weights"].view(np.float32)[:] = 1
    return regions


def reseal_definitions(image: Bytes, definitions: Bytes | None = None) -> None:
    """Give Definitions, and the image that names them, the checksums and fingerprints of their bytes as they are.

    `ValueError` for damage to the places themselves.
    """
    changed: dict[int, int] = {}
    for record in pool(image, 6, DEFINITION):
        source = image if record["where"] == 0 else definitions
        start, nbytes = int(record["offset"]), int(record["nbytes"])
        if source is None or start + nbytes > source.size or nbytes < HEADER.itemsize:
            raise ValueError("no such place")
        content = source[start : start + nbytes]
        for used in pool(content, 6, DEFINITION):
            used["fingerprint"] = changed.get(int(used["fingerprint"]), int(used["fingerprint"]))
        header = content[: HEADER.itemsize].view(HEADER)[0]
        first, end = int(header["sections"][1][0]), int(header["image_nbytes"])
        content[CHECKSUM_AT : CHECKSUM_AT + 4].view("<u4")[0] = checksum(content, content[first:end])
        old = int(record["fingerprint"])
        record["fingerprint"] = changed[old] = fingerprint(content)
    reseal(image)
