"""Task graphs that a host builds into an image and a device runs from it.

A *task* is one call of a *kernel* with tensors and scalars as arguments. `GraphBuilder` writes a whole graph into a
step's image; `execute` reads the image on the device side, checks every bound, and runs the tasks in dependency order.
The device side needs the image's bytes, the memory of the regions and the `KernelTable`, and nothing else.

::

    table = KernelTable()

    @table.kernel("add", outputs=(2,))          # positions of the arguments that the kernel writes
    def add(a, b, out):                         # tensors arrive as numpy views, scalars as int or float
        np.add(a, b, out=out)                   # views that are not outputs are read-only

    builder = GraphBuilder(None, table, {"workspace": 4096, "output": 64}, max_tasks=1024)   # once a program
    x = builder.tensor("workspace", 0, (4, 16), np.float32)      # -> Operand, valid for the builder's life

    builder.reset(image)                                         # each step: a writable uint8 array (staging)
    tokens = builder.put(np.array([1, 2, 3, 4], np.int32))       # -> Operand, valid for this step
    operand, view = builder.reserve((4, 64), np.int32)           # the same, to be filled in place
    first = builder.task("embed", tokens, weights, x)            # -> task id (0, 1, 2, ...)
    builder.task("scale", x, 0.5, y, after=first)                # one id or a sequence; numbers as they are
    nbytes = builder.finish()                                    # bytes used: return this from `build`

    run = Executor(table)                                        # once a device
    run(device_image, {"workspace": ..., "output": ...})         # uint8 arrays by name, or in the builder's order
    print(describe(device_image, table))

``GraphBuilder(..., infer=True)`` derives the dependencies from the bytes that tasks read and write; ``after=`` adds to
them. A graph that does not fit raises `GraphOverflow`, a wrong argument `GraphError`, a damaged image `ImageCorrupt`.

`OpenCLDispatcher` is the device side in OpenCL C: one launch walks the whole graph in device memory.

Layout of an image, version 1
-----------------------------
All numbers are little-endian. The image holds no addresses, so it may lie anywhere; offsets count from its first byte.
Every pool begins at a multiple of 64 bytes, in the order of the table, is as long as what is used, and has zeros behind
it up to the next. Task i's arguments and dependencies begin where those of task i - 1 end.

======== ===== ========== ============================================================================================
part     bytes field      meaning
======== ===== ========== ============================================================================================
header   0     S8         magic ``AORCHGRF``
|        8     u4         version, 1
|        12    u4         bytes of the header, 192
|        16    u8         bytes of the image, a multiple of 64
|        24    u4         CRC-32 of the header without this field, and of everything behind the user area
|        28    u4         flags, 0
|        32    u8         fingerprint of the kernel table
|        40    3 u8       0
|        64    8 (u8, u8) offset and number of records of the pools below, in order; the last two, for recorded graphs,
|                         are 0 in this version
user     any   --         inputs of the step, each at a multiple of 64 bytes. Data: not checked, kernels must
regions  32    S24, u8    name (UTF-8, zero padded) and bytes of each region; number 0 is ``image``
tasks    24    u2         kind: 0, a kernel call (others are for recorded graphs)
|        2     u2         flags, 0
|        4     u4         kernel id, its place in the kernel table
|        8     u4, u4     first entry in the fan-in pool, number of entries
|        16    u4, u4     first entry in the argument pool, number of entries
fanin    4     i4         ids of the tasks to be done before, in any order; an id may be larger than the task's own
args     4     i4         index into the operand pool
operands 32    u1         kind: 0 tensor, 1 int, 2 float
|        1     u1         dtype: bool, u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8 are 0 to 11
|        2     u2         region
|        4     u1, 3 u1   number of dimensions, at most 4; then zeros
|        8     i8 or f8   a tensor's byte offset in its region (a multiple of the item size), or a scalar's value
|        16    4 i4       shape, 1 beyond the number of dimensions; elements are contiguous, last dimension fastest
======== ===== ========== ============================================================================================

An operand that many tasks use is stored once. Region 0, the image itself, is readable by kernels within the user area
and never writable.
"""

from __future__ import annotations

from async_orch._graph_builder import GraphBuilder
from async_orch._graph_describe import describe
from async_orch._graph_execute import Executor, execute
from async_orch._graph_kernels import Kernel, KernelTable
from async_orch._graph_opencl import OpenCLDispatcher
from async_orch._graph_operands import Operand
from async_orch.exceptions import GraphError, GraphOverflow, ImageCorrupt

__all__ = [
    "Executor",
    "GraphBuilder",
    "GraphError",
    "GraphOverflow",
    "ImageCorrupt",
    "Kernel",
    "KernelTable",
    "OpenCLDispatcher",
    "Operand",
    "describe",
    "execute",
]
