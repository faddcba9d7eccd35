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

Record and replay
-----------------
A piece of graph that repeats - a decoder layer - is recorded once as a *Definition* and replayed: one GRAPH task each,
whatever its size. The device side expands it::

    def layer(recorder):                                         # called once
        x = recorder.parameter("x", (4, 16), np.float32)         # bound by each replay
        weight = recorder.parameter("weight", (16, 16), np.float32, region="weights")
        eps = recorder.number("eps", float)
        recorder.task("norm", x, eps, scratch)                   # `scratch`: a tensor that all replays share
        recorder.task("linear", scratch, weight, x)

    definition = builder.record("layer", layer)                  # once a program
    content = builder.place_definitions()                        # in `open`: upload it to resident memory

    builder.replay(definition, {"x": x, "weight": w3, "eps": 1e-6})      # each step, any number of times
    run(device_image, regions, definitions=resident)

`unroll` gives the kernel calls of an image with all replays expanded.

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
|        64    8 (u8, u8) offset and number of records of the pools below, in order; the last two are (0, 0) where no
|                         Definition is used
user     any   --         inputs of the step, each at a multiple of 64 bytes. Data: not checked, kernels must
regions  32    S24, u8    name (UTF-8, zero padded) and bytes of each region; number 0 is ``image``
tasks    24    u2         kind: 0, a kernel call; 1, a replay
|        2     u2         flags, 0
|        4     u4         kernel id, its place in the kernel table; of a replay, the number of the Definition
|        8     u4, u4     first entry in the fan-in pool, number of entries
|        16    u4, u4     first entry in the argument pool, number of entries
fanin    4     i4         ids of the tasks to be done before, in any order; an id may be larger than the task's own
args     4     i4         index into the operand pool
operands 32    u1         kind: 0 tensor, 1 int, 2 float; in a Definition also 3, a parameter or a part of one
|        1     u1         dtype: bool, u1, i1, u2, i2, u4, i4, u8, i8, f2, f4, f8 are 0 to 11
|        2     u2         region; of kind 3, the parameter
|        4     u1, 3 u1   number of dimensions, at most 4; then zeros
|        8     i8 or f8   a tensor's byte offset in its region (a multiple of the item size), or a scalar's value
|        16    4 i4       shape, 1 beyond the number of dimensions; elements are contiguous, last dimension fastest
defini-  32    u8         fingerprint: the first 64 bits of BLAKE2b of the Definition's bytes
tions    8     u8, u8     offset and bytes
|        24    u4, u4     0: the offset counts from the image's first byte, 1: from that of resident memory; then 0
carried  any   --         Definitions that are not resident, each at a multiple of 64 bytes
======== ===== ========== ============================================================================================

An operand that many tasks use is stored once. Region 0, the image itself, is readable by kernels within the user area
and never writable. Definitions come before those that replay them.

A Definition has the same layout with the magic ``AORCHDEF``. Its user area is its name, its regions are those of the
image, its tasks name the Definitions of its own pool, of which only the fingerprints count, and in place of the last
pool it has its parameters, as operands with region and offset 0. What a replay binds must have a parameter's kind,
dtype and shape. A part of a parameter lies at its offset behind that of what is bound.
"""

from __future__ import annotations

from async_orch._graph_builder import GraphBuilder
from async_orch._graph_definition import Definition, Parameter
from async_orch._graph_describe import describe
from async_orch._graph_execute import Executor, execute
from async_orch._graph_kernels import Kernel, KernelTable
from async_orch._graph_opencl import OpenCLDispatcher
from async_orch._graph_operands import Operand
from async_orch._graph_record import Recorder
from async_orch._graph_unroll import TensorPlace, UnrolledTask, unroll
from async_orch.exceptions import GraphError, GraphOverflow, ImageCorrupt

__all__ = [
    "Definition",
    "Executor",
    "GraphBuilder",
    "GraphError",
    "GraphOverflow",
    "ImageCorrupt",
    "Kernel",
    "KernelTable",
    "OpenCLDispatcher",
    "Operand",
    "Parameter",
    "Recorder",
    "TensorPlace",
    "UnrolledTask",
    "describe",
    "execute",
    "unroll",
]
