"""What a launch on OpenCL is, and what is wrong with one that the driver refuses."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

__all__ = ["NUMBERS", "NDRange", "advice"]

NUMBERS = (int, float, np.generic)


class NDRange(NamedTuple):
    """What ``stream.launch`` takes on the backend ``opencl``: a kernel and the sizes that it runs with.

    Attributes
    ----------
    kernel:
        A ``pyopencl.Kernel``. Its arguments are those of ``launch``: device buffers, and numpy scalars of the type
        that the kernel declares. With ``kernel.set_scalar_arg_dtypes([None, numpy.int32])``, None for a buffer, a
        launch with numbers takes about half the time, they may be plain ones, and a wrong type is refused.
    global_size:
        Work-items in each of 1 to 3 dimensions.
    local_size:
        Work-items of a group; None leaves it to the driver.
    """

    kernel: Any
    global_size: Sequence[int]
    local_size: Sequence[int] | None = None


def advice(device: Any, launch: NDRange, args: Sequence[Any], *, by_driver: bool) -> str:
    """What to change about a launch that was refused, by the driver or by pyopencl; "" where that is not seen here.

    Drivers give a number, and pyopencl speaks of code that it has generated.
    """
    kernel, global_size, local_size = launch
    for name, sizes in (("global_size", global_size), ("local_size", local_size)):
        if sizes is None and name == "local_size":
            continue
        if not isinstance(sizes, Sequence) or not all(isinstance(n, int | np.integer) for n in sizes):
            return f"{name}={sizes!r} must be a tuple of 1 to 3 ints, such as (64,)"
        if not 1 <= len(sizes) <= 3 or min(sizes) < 1:
            return f"{name}={tuple(sizes)} must be 1 to 3 ints of at least 1"
    if len(args) != kernel.num_args:
        return f"it declares {kernel.num_args} arguments, and launch() was given {len(args)}"
    if local_size is not None:
        if len(local_size) != len(global_size):
            return f"global_size={tuple(global_size)} and local_size={tuple(local_size)} must have as many dimensions"
        if any(whole % part for whole, part in zip(global_size, local_size, strict=True)):
            return f"local_size={tuple(local_size)} must divide global_size={tuple(global_size)}"
        most = device.max_work_group_size
        if math.prod(local_size) > most:
            return f"local_size={tuple(local_size)} is {math.prod(local_size)} work-items, the device takes {most}"
    plain = [i for i, arg in enumerate(args) if isinstance(arg, int | float) and not isinstance(arg, np.generic)]
    if plain and by_driver:  # pyopencl would have packed it, had it been told the types
        return (
            f"argument {plain[0]} is a plain {type(args[plain[0]]).__name__}: pass a numpy scalar of the type that the "
            "kernel declares, or tell pyopencl the types with kernel.set_scalar_arg_dtypes"
        )
    return ""
