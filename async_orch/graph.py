"""Task graphs that a host builds into an image and a device runs from it.

A *task* is one call of a *kernel* with tensors and scalars as arguments. `GraphBuilder` writes a whole graph into
a step's image; `execute` reads the image on the device side, checks every bound, and runs the tasks in dependency
order. Nothing but the image's bytes, the regions' memory and the `KernelTable` has to be on the device side.

API::

    table = KernelTable()

    @table.kernel("add", outputs=(2,))          # positions of the arguments that the kernel writes
    def add(a, b, out):                         # tensors arrive as numpy views, scalars as int or float
        np.add(a, b, out=out)                   # views that are not outputs are read-only

    builder = GraphBuilder(None, table, {"workspace": 4096, "output": 64}, max_tasks=1024)   # once a program
    x = builder.tensor("workspace", 0, (4, 16), np.float32)      # -> Operand, valid for the builder's life

    builder.reset(image)                                         # each step: a writable uint8 array (staging)
    tokens = builder.put(np.array([1, 2, 3, 4], np.int32))       # -> Operand, valid for this step
    operand, view = builder.reserve((4, 64), np.int32)           # the same, to be filled in place
    first = builder.task("add", x, x, y)                         # -> task id (0, 1, 2, ...)
    builder.task("scale", y, 0.5, z, after=first)                # int | Sequence[int]; Python scalars as they are
    nbytes = builder.finish()                                    # bytes used: return this from `build`

    execute(device_image, {"workspace": ..., "output": ...}, table)   # uint8 arrays; a sequence in order works too
    print(describe(device_image))

``GraphBuilder(..., infer=True)`` derives the dependencies from the bytes that tasks read and write; ``after=`` adds
to them. The region named ``"image"`` is the image itself: kernels may read it (inputs of `put`), never write it.
A graph that does not fit raises `GraphOverflow`, a wrong argument `GraphError`, a damaged image `ImageCorrupt`.
"""

from __future__ import annotations

from async_orch._graph_builder import GraphBuilder, Operand
from async_orch._graph_describe import describe
from async_orch._graph_execute import Executor, execute
from async_orch._graph_kernels import Kernel, KernelTable
from async_orch.exceptions import GraphError, GraphOverflow, ImageCorrupt

__all__ = [
    "Executor",
    "GraphBuilder",
    "GraphError",
    "GraphOverflow",
    "ImageCorrupt",
    "Kernel",
    "KernelTable",
    "Operand",
    "describe",
    "execute",
]
