"""Images with one wrong field: what the device side says about each."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from async_orch._graph_format import ARG, CHECKSUM_AT, FANIN, OPERAND, REGION, TASK
from async_orch.graph import ImageCorrupt, execute
from tests.graph_support import Bytes, build_sample, make_table, memory, pool, reseal, set_field


def sample() -> Bytes:
    image = np.zeros(1 << 14, np.uint8)
    return image[: build_sample(image, make_table())]


CASES: list[tuple[int, Any, str, int, Any, str]] = [
    (2, TASK, "kind", 1, 1, r"tasks.kind\[1\] is 1, must be 0"),
    (2, TASK, "flags", 0, 2, r"tasks.flags\[0\] is 2, must be 0"),
    (2, TASK, "kernel", 4, 4, r"tasks.kernel\[4\] is 4, must be below 4"),
    (2, TASK, "fanin_start", 3, 1, r"tasks.fanin_start\[3\] is 1, must be where the range before ends"),
    (2, TASK, "fanin_count", 4, 2, r"tasks.fanin_count add up to 5, must be 4"),
    (2, TASK, "fanin_count", 4, 0xFFFFFFFF, r"tasks.fanin_count add up to 4294967298, must be 4"),
    (2, TASK, "arg_start", 0, 1, r"tasks.arg_start\[0\] is 1"),
    (2, TASK, "arg_count", 4, 4, r"tasks.arg_count add up to 14, must be 13"),
    (2, TASK, "kernel", 0, 0, r"tasks.arg_count\[0\] is 2, differs from the kernel's"),
    (3, FANIN, "", 0, 5, r"fanin\[0\] is 5, must lie in 0 to 4"),
    (3, FANIN, "", 3, -1, r"fanin\[3\] is -1, must lie in 0 to 4"),
    (4, ARG, "", 2, -1, r"args\[2\] is -1, must lie in 0 to 7"),
    (4, ARG, "", 2, 8, r"args\[2\] is 8, must lie in 0 to 7"),
    (5, OPERAND, "kind", 0, 3, r"operands.kind\[0\] is 3, must be at most 2"),
    (5, OPERAND, "dtype", 0, 12, r"operands.dtype\[0\] is 12, must be below 12"),
    (5, OPERAND, "region", 0, 3, r"operands.region\[0\] is 3, must be below 3"),
    (5, OPERAND, "region", 0, 0, r"args\[1\] is 0, is an output|operands.offset\[0\] is 0, must lie in 192 to"),
    (5, OPERAND, "ndim", 0, 5, r"operands.ndim\[0\] is 5, must be at most 4"),
    (5, OPERAND, "ndim", 0, 0, r"operands.shape\[0\] is .*, must be 1 beyond ndim"),
    (5, OPERAND, "reserved", 0, (0, 1, 0), r"operands.reserved\[0\] is .*, must be 0"),
    (5, OPERAND, "shape", 0, (-4, 1, 1, 1), r"operands.shape\[0\] is .*, must not be negative"),
    (5, OPERAND, "shape", 0, (4097, 1, 1, 1), r"operands.offset\[0\] is 0, must lie in 0 to -1 for 4097 bytes in"),
    (5, OPERAND, "offset", 0, 4093, r"operands.offset\[0\] is 4093, must lie in 0 to 4092 for 4 bytes in region 1"),
    (5, OPERAND, "offset", 0, -1, r"operands.offset\[0\] is -1, must lie in 0 to 4092"),
    (5, OPERAND, "offset", 0, (1 << 63) - 1, r"operands.offset\[0\] is 9223372036854775807"),
    (1, REGION, "nbytes", 1, 5000, r"regions.nbytes\[1\] is 5000, must be at most 4096"),
    (1, REGION, "name", 1, b"\xff\xfe", r"regions.name\[1\] is b'\\xff\\xfe', must be one of"),
    (1, REGION, "name", 0, b"imago", r"regions.name\[0\] is \[b'imago'\], must be 'image'"),
]


@pytest.mark.parametrize(("index", "record", "field", "row", "value", "message"), CASES)
def test_a_wrong_field_is_named(index: int, record: Any, field: str, row: int, value: Any, message: str) -> None:
    """An image with a right checksum and one wrong field is refused, with the field, its value and its bound."""
    image = sample()
    set_field(pool(image, index, record), field, row, value)
    regions = memory()
    with pytest.raises(ImageCorrupt, match=message):
        execute(reseal(image), regions, make_table())
    assert not any(array.any() for array in regions.values())


def test_a_shape_whose_size_overflows_is_refused() -> None:
    """Dimensions whose product exceeds 64 bits do not wrap around to a size that fits."""
    image = sample()
    row = pool(image, 5, OPERAND)[0:1]
    row["ndim"] = 4
    for shape in ((1 << 30, 1 << 30, 1 << 4, 1), (0x7FFFFFFF,) * 4, (1 << 16,) * 4, (0, *(0x7FFFFFFF,) * 3)):
        row["shape"] = shape
        with pytest.raises(ImageCorrupt, match=r"operands.shape\[0\] is .*, must not exceed 4503599627370496 bytes"):
            execute(reseal(image), memory(), make_table())


def test_an_unaligned_tensor_is_refused() -> None:
    """A tensor's offset must be a multiple of its item size."""
    image = sample()
    row = pool(image, 5, OPERAND)[0:1]
    row["dtype"], row["offset"] = 6, 2
    with pytest.raises(ImageCorrupt, match=r"operands.offset\[0\] is 2, must be a multiple of the item size"):
        execute(reseal(image), memory(), make_table())


@pytest.mark.parametrize(
    ("at", "value", "message"),
    [
        (0, b"X", r"magic is b'XORCHGRF', must be b'AORCHGRF'"),
        (8, b"\x02", r"version is 2, must be 1"),
        (12, b"\x00", r"header_nbytes is 0, must be 192"),
        (16, b"\xff\xff\xff\xff\xff\xff\xff\xff", r"image_nbytes is 18446744073709551615, must lie in 192 to \d+"),
        (16, b"\x01\x00", r"image_nbytes is 1, must lie in 192"),
        (28, b"\x01", r"flags is 1, must be 0"),
        (40, b"\x01", r"reserved is .*, must be"),
        (64, b"\xc1", r"user.offset is 193, must be a multiple of 64 in 192"),
        (72, b"\xff\xff\xff\xff\xff\xff\xff\xff", r"user.count is 18446744073709551615, must be at most"),
        (96, b"\x00\x00", r"tasks.offset is 0, must be a multiple of 64 in"),
        (104, b"\xff\xff", r"tasks.count is 65535, must be at most"),
        (160, b"\x40", r"definitions.offset is 64, must be a multiple of 64 in 896 to 896"),
        (176, b"\x40", r"carried.offset is 64, must be a multiple of 64 in 896 to 896"),
        (24, b"\x00\x00\x00\x00", r"checksum is 0x00000000, the bytes give 0x"),
    ],
)
def test_a_wrong_header_is_named(at: int, value: bytes, message: str) -> None:
    """Every header field is compared with its bound before it is used, and the message has both."""
    image = sample()
    image[at : at + len(value)] = np.frombuffer(value, np.uint8)
    with pytest.raises(ImageCorrupt, match=message):
        execute(image, memory(), make_table())


@pytest.mark.parametrize("nbytes", [0, 1, 191, 192, 500])
def test_a_truncated_image_is_refused(nbytes: int) -> None:
    """An array that ends before the image does is refused."""
    with pytest.raises(ImageCorrupt, match=r"image"):
        execute(sample()[:nbytes], memory(), make_table())


def test_any_changed_byte_behind_the_user_area_or_in_the_header_is_refused() -> None:
    """The checksum catches each single flipped byte of header and pools."""
    image, table = sample(), make_table()
    for at in (*range(192), *range(256, image.size)):
        image[at] ^= 0xFF
        with pytest.raises(ImageCorrupt):
            execute(image, memory(), table)
        image[at] ^= 0xFF
    assert image[CHECKSUM_AT : CHECKSUM_AT + 4].any()
    execute(image, memory(), table)
