"""The bytes of a graph image: record types, header, checksum. The layout is documented in `async_orch.graph`."""

from __future__ import annotations

import hashlib
import struct
import zlib
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from async_orch.exceptions import GraphError

__all__ = [
    "ALIGNMENT",
    "ARG",
    "CHECKSUM_AT",
    "CODE_OF_DTYPE",
    "DEFINITION",
    "DEFINITION_MAGIC",
    "DEFINITION_NAME_NBYTES",
    "DTYPES",
    "FANIN",
    "HEADER",
    "HEADER_NBYTES",
    "IMAGE_REGION",
    "KIND_FLOAT",
    "KIND_INT",
    "KIND_PARAMETER",
    "KIND_TENSOR",
    "MAGIC",
    "MAX_DEPTH",
    "MAX_EXPANDED",
    "MAX_NBYTES",
    "MAX_NDIM",
    "N_SECTIONS",
    "OPERAND",
    "PACK_FLOAT",
    "PACK_HEADER",
    "PACK_TENSOR",
    "REGION",
    "REGION_NAME_NBYTES",
    "SECTION_NAMES",
    "SECTION_NBYTES",
    "TASK",
    "TASK_GRAPH",
    "VERSION",
    "WHERE_CARRIED",
    "WHERE_RESIDENT",
    "Bytes",
    "Section",
    "aligned",
    "checksum",
    "fingerprint",
    "require_bytes",
    "structure_mask",
]

Bytes = NDArray[np.uint8]

MAGIC: Final = b"AORCHGRF"
DEFINITION_MAGIC: Final = b"AORCHDEF"
VERSION: Final = 1
ALIGNMENT: Final = 64
IMAGE_REGION: Final = "image"
REGION_NAME_NBYTES: Final = 24
MAX_NDIM: Final = 4
MAX_NBYTES: Final = 1 << 52
"""Most bytes of a region or tensor: products up to it are exact in float64 and do not overflow 64 bits."""

KIND_TENSOR: Final = 0
KIND_INT: Final = 1
KIND_FLOAT: Final = 2
KIND_PARAMETER: Final = 3
"""In a Definition only: what a replay binds to a parameter, or a part of it."""

TASK_GRAPH: Final = 1
"""The kind of a task that replays a Definition; 0 is a kernel call."""

WHERE_CARRIED: Final = 0
WHERE_RESIDENT: Final = 1

MAX_DEPTH: Final = 64
"""Most Definitions inside each other."""

MAX_EXPANDED: Final = 1 << 22
"""Most tasks, arguments and operands, together, of a graph with all replays expanded."""

DTYPES: Final[tuple[np.dtype[np.generic], ...]] = tuple(
    np.dtype(code) for code in ("?", "u1", "i1", "<u2", "<i2", "<u4", "<i4", "<u8", "<i8", "<f2", "<f4", "<f8")
)
"""Element types; a dtype code is a position in this tuple. New types are appended, never inserted."""

CODE_OF_DTYPE: Final[dict[np.dtype[np.generic], int]] = {dtype: code for code, dtype in enumerate(DTYPES)}

HEADER: Final = np.dtype(
    {
        "names": [
            "magic",
            "version",
            "header_nbytes",
            "image_nbytes",
            "checksum",
            "flags",
            "table",
            "reserved",
            "sections",
        ],
        "formats": ["S8", "<u4", "<u4", "<u8", "<u4", "<u4", "<u8", ("<u8", (3,)), ("<u8", (8, 2))],
        "offsets": [0, 8, 12, 16, 24, 28, 32, 40, 64],
        "itemsize": 192,
    }
)
REGION: Final = np.dtype([("name", f"S{REGION_NAME_NBYTES}"), ("nbytes", "<u8")])
TASK: Final = np.dtype(
    [
        ("kind", "<u2"),
        ("flags", "<u2"),
        ("kernel", "<u4"),
        ("fanin_start", "<u4"),
        ("fanin_count", "<u4"),
        ("arg_start", "<u4"),
        ("arg_count", "<u4"),
    ]
)
FANIN: Final = np.dtype("<i4")
ARG: Final = np.dtype("<i4")
OPERAND: Final = np.dtype(
    {
        "names": ["kind", "dtype", "region", "ndim", "reserved", "offset", "real", "shape"],
        "formats": ["u1", "u1", "<u2", "u1", ("u1", (3,)), "<i8", "<f8", ("<i4", (MAX_NDIM,))],
        "offsets": [0, 1, 2, 4, 5, 8, 8, 16],
        "itemsize": 32,
    }
)
DEFINITION_NAME_NBYTES: Final = 64
DEFINITION: Final = np.dtype(
    [("fingerprint", "<u8"), ("offset", "<u8"), ("nbytes", "<u8"), ("where", "<u4"), ("reserved", "<u4")]
)

HEADER_NBYTES: Final = HEADER.itemsize
CHECKSUM_AT: Final = 24
SECTION_NAMES: Final = ("user", "regions", "tasks", "fanin", "args", "operands", "definitions", "carried")
SECTION_NBYTES: Final = (
    1,
    REGION.itemsize,
    TASK.itemsize,
    FANIN.itemsize,
    ARG.itemsize,
    OPERAND.itemsize,
    DEFINITION.itemsize,
    1,
)
N_SECTIONS: Final = 6
"""Sections that every image has; the other two are (0, 0) where no Definition is used."""

# One struct.pack_into is about a third of the time of assigning a tuple to a structured record.
PACK_HEADER: Final = struct.Struct("<8sIIQIIQ24x16Q")
PACK_TENSOR: Final = struct.Struct("<BBHB3xqiiii")
PACK_FLOAT: Final = struct.Struct("<BBHB3xdiiii")


class Section(NamedTuple):
    """Where a pool lies in the image: byte offset, number of records."""

    offset: int
    n_records: int


def aligned(nbytes: int) -> int:
    """`nbytes` rounded up to the next multiple of 64."""
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def checksum(header: Bytes, pools: Bytes) -> int:
    """CRC-32 of the header without its checksum field, and of everything behind the user area."""
    crc = zlib.crc32(header.data[:CHECKSUM_AT])
    crc = zlib.crc32(header.data[CHECKSUM_AT + 4 : HEADER_NBYTES], crc)
    return zlib.crc32(pools.data, crc)


def fingerprint(content: Bytes) -> int:
    """64-bit hash of a Definition's bytes, by which images and other Definitions name it."""
    return int.from_bytes(hashlib.blake2b(content.data, digest_size=8).digest(), "little")


def structure_mask(operands: NDArray[np.void]) -> NDArray[np.bool_]:
    """For each byte of the operand pool, whether it is structure; the others are scalars' values."""
    mask = np.ones((operands.size, OPERAND.itemsize), np.bool_)
    mask[operands["kind"] != KIND_TENSOR, 8:16] = False
    return mask.reshape(-1)


def require_bytes(array: object, what: str, *, writable: bool) -> Bytes:
    """`array` if it is a contiguous one-dimensional uint8 array (writable if asked), else `GraphError`."""
    if not isinstance(array, np.ndarray):
        raise GraphError(f"{what} must be a numpy uint8 array, got {type(array).__name__}")
    if array.dtype != np.uint8 or array.ndim != 1 or not array.flags.c_contiguous:
        raise GraphError(
            f"{what} must be a contiguous one-dimensional uint8 array, got dtype {array.dtype}, shape {array.shape}; "
            "pass array.reshape(-1).view(numpy.uint8)"
        )
    if writable and not array.flags.writeable:
        raise GraphError(f"{what} is read-only; the builder needs a writable array")
    return array
