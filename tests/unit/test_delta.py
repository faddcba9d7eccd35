"""Shadows: what of an image has to be copied."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_orch._delta import BLOCK_NBYTES, CHUNK_NBYTES, MAX_COPIES, Delta, Shadow
from async_orch.abc import ByteArray
from async_orch.exceptions import DeviceError, OutOfDeviceMemory
from async_orch.testing import ManualFence


def known(image: ByteArray, nbytes: int | None = None) -> Shadow:
    """A shadow that knows the device to hold ``image``."""
    shadow = Shadow(image.size)
    shadow.compare(image, image.size if nbytes is None else nbytes, 0)
    settle(shadow)
    return shadow


def settle(shadow: Shadow, error: BaseException | None = None) -> None:
    """The copies went well, or failed with ``error``, and the slot is free."""
    fence = ManualFence()
    fence.finish(error)
    shadow.copied(fence)
    shadow.settle()


def changed(image: ByteArray, *places: int) -> ByteArray:
    """A copy of ``image`` with these bytes changed."""
    other = image.copy()
    for place in places:
        other[place] ^= 0xFF
    return other


def test_the_first_image_is_copied_whole_and_the_same_one_again_not_at_all() -> None:
    """A fresh slot holds nothing known; an image that it holds needs no copy."""
    image = np.arange(1000, dtype=np.uint8)
    shadow = Shadow(1000)
    assert shadow.compare(image, 1000, 0) == Delta(((0, 1000),))
    settle(shadow)
    assert shadow.compare(image, 1000, 0) == Delta(())


def test_a_changed_byte_costs_its_block() -> None:
    """Ranges are whole blocks, also at the borders of the chunks that are compared at a time."""
    image = np.zeros(3 * CHUNK_NBYTES, np.uint8)
    for place in (0, 63, 64, CHUNK_NBYTES - 1, CHUNK_NBYTES, image.size - 1):
        block = place // BLOCK_NBYTES * BLOCK_NBYTES
        assert known(image).compare(changed(image, place), image.size, 0).ranges == ((block, BLOCK_NBYTES),)


def test_a_gap_is_closed_if_copying_it_is_no_dearer_than_another_copy() -> None:
    """Ranges ``overhead`` bytes apart are one copy, ranges further apart are two."""
    image = np.zeros(100 * BLOCK_NBYTES, np.uint8)
    other = changed(image, 0, 5 * BLOCK_NBYTES)
    assert known(image).compare(other, image.size, 4 * BLOCK_NBYTES).ranges == ((0, 6 * BLOCK_NBYTES),)
    apart = known(image).compare(other, image.size, 4 * BLOCK_NBYTES - 1)
    assert apart.ranges == ((0, BLOCK_NBYTES), (5 * BLOCK_NBYTES, BLOCK_NBYTES))
    assert (apart.nbytes, apart.nbytes_below(BLOCK_NBYTES + 1)) == (128, 64)
    assert apart.nbytes_below(5 * BLOCK_NBYTES + 10) == 74


def test_all_goes_in_one_copy_where_that_is_no_dearer() -> None:
    """Two copies of half the image each cost one overhead more than one copy of all of it."""
    image = np.zeros(16 * BLOCK_NBYTES, np.uint8)
    other = changed(image, 0, 15 * BLOCK_NBYTES)
    assert len(known(image).compare(other, image.size, 13 * BLOCK_NBYTES).ranges) == 2
    assert known(image).compare(other, image.size, 14 * BLOCK_NBYTES).ranges == ((0, image.size),)


@pytest.mark.parametrize("tail", [0, 17])
def test_there_are_never_more_than_so_many_copies(tail: int) -> None:
    """With more differing ranges the smallest gaps are copied along."""
    image = np.zeros(1000 * BLOCK_NBYTES + tail, np.uint8)
    blocks = [n * n for n in range(31)]
    other = changed(image, *(block * BLOCK_NBYTES for block in blocks), *([image.size - 1] if tail else []))
    ranges = known(image).compare(other, image.size, 0).ranges
    assert len(ranges) == MAX_COPIES - (1 if not tail else 0)
    assert ranges[1][0] == 17 * 17 * BLOCK_NBYTES


@pytest.mark.parametrize("end", [1, 63, 64, 65, 700])
def test_sizes_need_not_be_multiples_of_anything(end: int) -> None:
    """A change in the last bytes of an odd image is found; bytes behind the image are not looked at."""
    image = np.zeros(end + 9, np.uint8)
    shadow = known(image, end)
    assert shadow.compare(changed(image, end), end, 0).ranges == ()
    settle(shadow)
    start, nbytes = shadow.compare(changed(image, end - 1), end, 0).ranges[-1]
    assert (start + nbytes, nbytes <= BLOCK_NBYTES) == (end, True)


def test_a_longer_image_brings_what_was_not_known() -> None:
    """Growing within the slot copies the new end only; shrinking forgets nothing."""
    image = np.arange(640, dtype=np.uint8)
    shadow = known(image, 300)
    assert shadow.compare(image, 500, 0).ranges == ((300, 200),)
    settle(shadow)
    assert shadow.compare(image, 100, 0).ranges == ()
    settle(shadow)
    assert shadow.compare(image, 640, 0).ranges == ((500, 140),)


def test_nothing_is_known_until_the_copies_went_well() -> None:
    """A failed copy, one whose fence is pending, one that was never made: the next image is copied whole."""
    image = np.zeros(640, np.uint8)
    whole = Delta(((0, 640),))
    shadow = known(image)
    shadow.compare(changed(image, 3), 640, 0)
    settle(shadow, DeviceError("short"))
    assert shadow.compare(image, 640, 0) == whole
    shadow.copied(ManualFence())
    shadow.settle()
    assert shadow.compare(image, 640, 0) == whole
    shadow.settle()
    assert shadow.compare(image, 640, 0) == whole


def test_a_step_that_never_got_to_comparing_changes_nothing() -> None:
    """A slot that is given back unused is still known; `forget` ends that."""
    image = np.zeros(640, np.uint8)
    shadow = known(image)
    shadow.settle()
    assert shadow.compare(image, 640, 0) == Delta(())
    settle(shadow)
    shadow.forget()
    assert shadow.compare(image, 640, 0) == Delta(((0, 640),))


def test_an_empty_image_needs_no_copy() -> None:
    """A step that uses nothing of its image copies nothing."""
    shadow = Shadow(64)
    assert shadow.compare(np.zeros(64, np.uint8), 0, 10) == Delta(())


def test_a_shadow_that_does_not_fit_says_so() -> None:
    """Host memory that cannot be had is an error of this library, before the first step."""
    with pytest.raises(OutOfDeviceMemory, match=r"no host memory for the shadow of an image of \d+ B"):
        Shadow(1 << 62)


@given(data=st.data(), overhead=st.sampled_from([0, 64, 200, 1 << 40]))
def test_copying_the_ranges_makes_the_device_equal(data: st.DataObject, overhead: int) -> None:
    """After any sequence of images of any used sizes, the used part of the device image is the image's."""
    capacity = data.draw(st.integers(1, 4000))
    device = np.full(capacity, 0xDD, np.uint8)
    shadow = Shadow(capacity)
    image = np.zeros(capacity, np.uint8)
    for _ in range(data.draw(st.integers(1, 6))):
        places = data.draw(st.lists(st.integers(0, capacity - 1), max_size=80))
        image = changed(image, *places)
        used = data.draw(st.integers(0, capacity))
        failed = data.draw(st.sampled_from([False, False, False, True]))
        delta = shadow.compare(image, used, overhead)
        ends = 0
        assert len(delta.ranges) <= MAX_COPIES
        for start, nbytes in delta.ranges:
            assert start >= ends, "ranges are in order and apart"
            assert nbytes > 0
            ends = start + nbytes
            device[start:ends] = image[start:ends]
        assert ends <= used
        assert np.array_equal(device[:used], image[:used])
        if failed:
            device[: used // 2] = 0xEE
        settle(shadow, DeviceError("failed") if failed else None)
