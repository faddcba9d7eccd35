"""The device side in OpenCL C: the source of a kernel that runs a task graph from device memory in one launch."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

import numpy as np

from async_orch._graph_format import DEFINITION_MAGIC, IMAGE_REGION, MAGIC, REGION_NAME_NBYTES, VERSION, Bytes
from async_orch._graph_kernels import KernelTable
from async_orch.abc import Buffer
from async_orch.exceptions import GraphError, ImageCorrupt

__all__ = ["OpenCLDispatcher"]

_DONE: Final = 1
# What the status says, in the order of its codes, which begin at 2. Here {place} counts records and {value} is what was
# found; the names are those of the layout in `async_orch.graph`.
_REASONS: Final = {
    "BAD_MAGIC": "image header: magic is {bits:#018x}, must be the bytes AORCHGRF",
    "BAD_VERSION": f"image header: version is {{value}}, must be {VERSION}",
    "BAD_HEADER_NBYTES": "image header: header_nbytes is {value}, must be 192",
    "BAD_IMAGE_NBYTES": "image header: image_nbytes is {value}, must lie between the header's size and the memory's",
    "BAD_FLAGS": "image header: flags is {value}, must be 0",
    "BAD_RESERVED": "image header: reserved is not 0",
    "BAD_TABLE": "image header: kernel table is {bits:#018x}, the device's is another; register the same kernels in "
    "the same order on both sides",
    "BAD_SECTION": "image header: the offset of pool {place} is {value}; a pool begins at a multiple of 64 behind the "
    "one before, within the image",
    "BAD_COUNT": "image header: pool {place} has {value} records, which do not fit the image or the device's regions",
    "BAD_CHECKSUM": "image header: checksum is {bits:#010x}, the bytes give another",
    "BAD_REGION_NAME": "image: regions.name[{place}] is not the device's region of that number",
    "BAD_REGION_NBYTES": "image: regions.nbytes[{place}] is {value}, more than the device's memory of that region",
    "BAD_TASK_KIND": "image: tasks.kind[{place}] is {value}, must be 0 (a kernel call), or 1 with Definitions",
    "BAD_TASK_FLAGS": "image: tasks.flags[{place}] is {value}, must be 0",
    "BAD_KERNEL": "image: tasks.kernel[{place}] is {value}, not a kernel of the table, nor a Definition",
    "BAD_FANIN_START": "image: tasks.fanin_start[{place}] is {value}, must be where the range before ends, in the pool",
    "BAD_FANIN_COUNT": "image: tasks.fanin_count add up to {value} at task {place}, not to the size of the pool",
    "BAD_ARG_START": "image: tasks.arg_start[{place}] is {value}, must be where the range before ends, in the pool",
    "BAD_ARG_COUNT": "image: tasks.arg_count[{place}] (or the sum up to it) is {value}, not the kernel's or the pool's",
    "BAD_FANIN": "image: fanin[{place}] is {value}, must be an earlier task: this device runs tasks as listed",
    "BAD_ARG": "image: args[{place}] is {value}, not an operand",
    "BAD_OUTPUT": "image: args[{place}] is operand {value}, an output, so it must be a tensor outside the image",
    "BAD_KIND": "image: operands.kind[{place}] is {value}, must be at most 2, in a Definition 3",
    "BAD_DTYPE": "image: operands.dtype[{place}] is {value}, must be at most 11",
    "BAD_REGION": "image: operands.region[{place}] is {value}, not a region of the image, or a parameter",
    "BAD_NDIM": "image: operands.ndim[{place}] is {value}, must be at most 4",
    "BAD_ZEROS": "image: operands.reserved[{place}] is not 0",
    "BAD_SHAPE": "image: operands.shape[{place}], which begins with {value}, has a size that is negative, not 1 beyond "
    "ndim, or too large",
    "BAD_OFFSET": "image: operands.offset[{place}] is {value}: not a multiple of the item size, or the tensor does not "
    "lie within its region or parameter",
    "BAD_WHERE": "image: definitions.where[{place}] is {value}, must be 0 (carried in the image), with 0 behind it; "
    "resident Definitions do not run on this device",
    "BAD_PLACE": "image: definitions[{place}] begins at {value}; it must be carried as a whole, at a multiple of 64",
    "BAD_NESTED": "image header: it replays {value} others, and replays in replays do not run on this device; write "
    "the inner ones' tasks out",
    "BAD_REGIONS": "image: its regions differ from the image's",
    "BAD_PARAMETER": "image: parameters.region[{place}] is {value}; it and the offset must be 0",
    "BAD_BOUND_COUNT": "image: tasks.arg_count[{place}] is {value}, not the number of the Definition's parameters",
    "BAD_BINDING": "image: task {place} binds to parameter {value} what differs from it in kind, dtype or shape",
    "BAD_REPLAY_OUTPUT": "image: task {place} replays a Definition whose task {value} would write to the image or a "
    "number",
    "BAD_EXPANDED": "image: the replays of its {value} tasks expand to more than 4194304 tasks, arguments and operands",
    "REFUSED": "task {place} of a task graph{within}: the operation refused its arguments (kernel {kernel!r})",
}
_NAMES: Final = tuple(_REASONS)
_SOURCES: Final = ("_graph_opencl.cl", "_graph_opencl_check.cl", "_graph_opencl_run.cl")
_DECLARED: Final = re.compile(r"^\s*OPERATION\((\w+)\)", re.MULTILINE)


class OpenCLDispatcher:
    """Runs a whole task graph in one launch: a kernel reads the image in device memory and calls operations by id.

    Parameters
    ----------
    table:
        The kernels, registered as on the host; all with ``outputs=`` declared. Their Python functions are not called.
    regions:
        The regions' names in the order of the `GraphBuilder`.
    operations:
        OpenCL C with one ``OPERATION(name) { ...; return true; }`` for each kernel of the table. It gets ``arg``,
        its ``n_args`` arguments (see ``Arg`` in the source), and ``lane`` and ``lanes``: it does every ``lanes``-th
        element from ``lane`` on. ``REQUIRE(condition);`` refuses arguments that the operation cannot work on; it must
        check shapes, and every index that it reads from memory, before it uses them.
    lanes:
        Work-items of the one work-group. 1 is right for a CPU, where it leaves the other cores to copies.
    verify_checksum:
        Compare the image's CRC-32 as well, by one lane. All else is checked in any case.

    The image's tasks run in the order in which they are listed, so each may depend on earlier ones only. Replays run if
    the image carries their Definitions and these replay no others; resident ones (`GraphBuilder.place_definitions`) are
    refused. The device needs 64-bit floats (``cl_khr_fp64``). To build and launch it::

        dispatcher = OpenCLDispatcher(table, ("workspace", "output"), OPERATIONS)
        program = pyopencl.Program(stream.context, dispatcher.source).build()
        kernel = pyopencl.Kernel(program, dispatcher.kernel_name)
        kernel.set_scalar_arg_dtypes(dispatcher.argument_types)
        run = NDRange(kernel, dispatcher.size, dispatcher.size)
        stream.launch(run, *dispatcher.arguments(slot.image, {"workspace": ..., "output": ...}, slot.output, 64))
        dispatcher.check(output[64:80])           # in collect

    Raises `GraphError` for a kernel without an operation, an operation without a kernel, or a name that is none in C.
    """

    STATUS_NBYTES: Final = 16
    """Bytes that `check` takes: where they lie is up to the caller, at a multiple of 8."""

    kernel_name: Final = "run_graph"
    """The kernel in the program that `source` makes."""

    def __init__(
        self,
        table: KernelTable,
        regions: Sequence[str],
        operations: str,
        *,
        lanes: int = 1,
        verify_checksum: bool = True,
    ) -> None:
        _check_operations(table, operations)
        if lanes < 1:
            raise GraphError(f"lanes={lanes} must be at least 1")
        self.size = (lanes,)
        """Global and local size of the launch."""
        self._names = table.names
        self._regions = tuple(regions)
        folder = files("async_orch")
        body = "\n".join(folder.joinpath(name).read_text("utf-8") for name in _SOURCES)
        constants = self._constants(table, lanes=lanes, verify_checksum=verify_checksum)
        self.source = "\n".join((constants, body, operations, _switch(self._names)))
        """The program's text."""

    def _constants(self, table: KernelTable, *, lanes: int, verify_checksum: bool) -> str:
        arities, masks, fingerprint = table.summary()
        most = int(arities.max(initial=1))
        names = [name.encode().ljust(REGION_NAME_NBYTES, b"\0") for name in (IMAGE_REGION, *self._regions)]
        parameters = "".join(f", global uchar *region_{i}, ulong nbytes_{i}" for i in range(1, len(names)))
        memory = " ".join(
            f"memory.start[{i}] = region_{i}; memory.nbytes[{i}] = nbytes_{i};" for i in range(1, len(names))
        )
        definitions = {
            "GRAPH_MAGIC": f"{int.from_bytes(MAGIC, 'little'):#x}UL",
            "GRAPH_DEFINITION_MAGIC": f"{int.from_bytes(DEFINITION_MAGIC, 'little'):#x}UL",
            "GRAPH_VERSION": VERSION,
            "GRAPH_TABLE": f"{fingerprint:#x}UL",
            "GRAPH_N_KERNELS": len(table),
            "GRAPH_N_REGIONS": len(names),
            "GRAPH_MAX_ARGS": most if int(arities.min(initial=0)) >= 0 else max(most, 16),
            "GRAPH_LANES": lanes,
            "GRAPH_CHECKSUM": int(verify_checksum),
            "GRAPH_PARAMETERS": parameters,
            "GRAPH_MEMORY": memory,
        }
        codes = ", ".join(("DONE = 1", *_NAMES))
        rows = ", ".join("{" + ", ".join(map(str, name)) + "}" for name in names)
        return "\n".join(
            (
                *(f"#define {name} {value}" for name, value in definitions.items()),
                f"enum {{ {codes} }};",
                f"constant int ARITIES[{len(table)}] = {{{_listed(arities.tolist())}}};",
                f"constant long OUTPUTS[{len(table)}] = {{{_listed(masks.tolist(), 'L')}}};",
                f"constant uchar REGION_NAMES[{len(names)}][{REGION_NAME_NBYTES}] = {{{rows}}};",
                f"constant uint CRC_TABLE[256] = {{{_listed(_crc_table(), 'u')}}};",
            )
        )

    def arguments(
        self, image: Buffer, regions: Mapping[str, Buffer], status: Buffer, status_offset: int = 0
    ) -> tuple[Any, ...]:
        """What to launch the kernel with: buffers, and numpy scalars of the types that it declares.

        `STATUS_NBYTES` bytes of ``status`` from ``status_offset`` on, a multiple of 8, say afterwards how it ended.
        Raises `GraphError` if a region is missing or the status does not fit.
        """
        if status_offset % 8 or not 0 <= status_offset <= status.nbytes - self.STATUS_NBYTES:
            raise GraphError(
                f"the status of {self.STATUS_NBYTES} B at offset {status_offset} must lie at a multiple of 8 within "
                f"{status!r}"
            )
        missing = [name for name in self._regions if name not in regions]
        if missing:
            raise GraphError(f"no memory was given for the regions {', '.join(missing)}")
        found: list[Any] = [image, np.uint64(image.nbytes), status, np.uint64(status_offset)]
        for name in self._regions:
            found += [regions[name], np.uint64(regions[name].nbytes)]
        return tuple(found)

    @property
    def argument_types(self) -> list[type[np.uint64] | None]:
        """For ``pyopencl.Kernel.set_scalar_arg_dtypes``, so that a launch takes less time; None is a buffer."""
        return [None, np.uint64] * (2 + len(self._regions))

    def check(self, status: Bytes) -> None:
        """Raise `ImageCorrupt`, with field, place and value, unless the graph ran to its end.

        ``status`` are the `STATUS_NBYTES` bytes as the device left them.
        """
        word, place = (int(word) for word in status[:8].view("<i4"))
        value = int(status[8:16].view("<i8")[0])
        if word == _DONE:
            return
        owner, code = divmod(word, 1 << 16)
        if owner < 0 or not _DONE < code < _DONE + 1 + len(_NAMES):
            raise ImageCorrupt(
                f"a task graph's status is {word}, which is none: it did not run, or others wrote to its status"
            )
        reason = _REASONS[_NAMES[code - _DONE - 1]]
        if owner:
            reason = reason.replace("AORCHGRF", "AORCHDEF").replace("image", f"definition {owner - 1}", 1)
        position, kernel_id = divmod(value, 1 << 32)
        kernel = self._names[kernel_id] if kernel_id < len(self._names) else kernel_id
        within = f" (task {position - 1} of its Definition)" if position > 0 else ""
        raise ImageCorrupt(reason.format(place=place, value=value, bits=value % 2**64, kernel=kernel, within=within))


def _check_operations(table: KernelTable, operations: str) -> None:
    found = _DECLARED.findall(operations)
    wrong = [name for name in table.names if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII)]
    if wrong:
        raise GraphError(f"kernel name {wrong[0]!r} cannot be an OpenCL operation: use letters, digits and underscores")
    missing = [name for name in table.names if name not in found]
    if missing:
        raise GraphError(f"the operations lack OPERATION({missing[0]}); each kernel of the table needs one")
    extra = [name for name in found if name not in table]
    if extra:
        raise GraphError(f"OPERATION({extra[0]}) has no kernel; {table.unknown(extra[0])}")
    open_ended = [entry.name for entry in table.entries if entry.outputs is None]
    if open_ended:
        raise GraphError(f"kernel {open_ended[0]!r} does not say what it writes; register it with outputs=")
    if not len(table):
        raise GraphError("the kernel table is empty; register the kernels first")


def _switch(names: Sequence[str]) -> str:
    cases = "\n".join(
        f"    case {i}: return operation_{name}(arg, n_args, lane, lanes);" for i, name in enumerate(names)
    )
    return (
        "bool call_operation(uint kernel_id, const Arg *arg, uint n_args, uint lane, uint lanes) {\n"
        f"    switch (kernel_id) {{\n{cases}\n    }}\n    return false;\n}}\n"
    )


def _listed(values: Sequence[int], suffix: str = "") -> str:
    return ", ".join(f"{value}{suffix}" for value in values)


def _crc_table() -> list[int]:
    """The 256 entries of CRC-32 byte by byte: the reversed polynomial 0xEDB88320, as in `zlib.crc32`."""
    table = []
    for entry in range(256):
        for _ in range(8):
            entry = entry >> 1 ^ (0xEDB88320 if entry & 1 else 0)  # noqa: PLW2901 - the entry in the making
        table.append(entry)
    return table
