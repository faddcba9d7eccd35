"""Rings and leases."""

from __future__ import annotations

import pytest

from async_orch import Lease
from async_orch._ring import Ring
from async_orch.exceptions import StaleLease
from async_orch.testing import ManualFence


def acquire(ring: Ring[str]) -> Lease[str]:
    lease = ring.acquire_as(Lease)
    assert lease is not None
    return lease


def test_a_ring_hands_out_each_buffer_once_and_then_none() -> None:
    """No buffer is leased twice at a time."""
    ring = Ring(["a", "b"])
    first, second = acquire(ring), acquire(ring)
    assert {first.item, second.item} == {"a", "b"}
    assert ring.acquire_as(Lease) is None
    assert ring.leased == 2


def test_access_through_an_ended_lease_raises() -> None:
    """A lease kept after its end cannot reach the buffer, even once another step has it."""
    ring = Ring(["a"])
    old = acquire(ring)
    old.release()
    with pytest.raises(StaleLease, match="buffer 0, generation 0, has ended"):
        _ = old.item
    new = acquire(ring)
    assert new.generation == 1
    assert new.item == "a"
    with pytest.raises(StaleLease, match="is at generation 1"):
        _ = old.item


def test_release_is_idempotent_and_a_stale_release_frees_nothing() -> None:
    """A double free, and a late free by the previous owner, leave the present lease alone (vLLM #33377)."""
    ring = Ring(["a"])
    old = acquire(ring)
    old.release()
    old.release()
    assert ring.free == 1
    new = acquire(ring)
    old.release()
    assert ring.free == 0
    assert not new.ended


def test_a_buffer_waits_for_all_its_fences() -> None:
    """A released buffer is free only once its last fence is done, in whatever order they end."""
    ring = Ring(["a"])
    first, second = ManualFence(), ManualFence()
    lease = acquire(ring)
    lease.release(first, second)
    assert lease.ended
    assert (ring.free, ring.leased) == (0, 1)
    second.finish()
    assert not ring.poll()
    first.finish()
    assert ring.poll()
    assert (ring.free, ring.leased) == (1, 0)


def test_a_failed_fence_frees_its_buffer_too() -> None:
    """Failed work is over: its buffer comes back."""
    ring = Ring(["a"])
    fence = ManualFence()
    acquire(ring).release(fence)
    fence.finish(RuntimeError("kernel failed"))
    assert ring.poll()
    assert ring.free == 1


def test_buffers_are_reused_first_in_first_out() -> None:
    """The buffer that has rested longest is next, so that a late reader has the most time."""
    ring = Ring(["a", "b"])
    acquire(ring).release()
    assert acquire(ring).item == "b"


def test_a_last_in_first_out_ring_reuses_at_once() -> None:
    """With ``fifo=False`` the buffer just returned is next, which shows early reuse soonest."""
    ring = Ring(["a", "b"], fifo=False)
    first = acquire(ring)
    item = first.item
    first.release()
    assert acquire(ring).item == item


def test_on_free_is_called_when_the_buffer_is_really_back() -> None:
    """The hook that frees memory in mode naive runs after the fence, before the next lease."""
    freed: list[str] = []
    ring = Ring(["a"], on_free=freed.append)
    fence = ManualFence()
    acquire(ring).release(fence)
    assert freed == []
    fence.finish()
    ring.poll()
    assert freed == ["a"]


def test_repr_shows_the_counts_and_the_state() -> None:
    """A ring and a lease say in a debugger what they are."""
    ring = Ring(["a", "b"])
    lease = acquire(ring)
    assert repr(ring) == "<Ring of 2: 1 free, 1 leased, 0 quarantined>"
    assert repr(lease) == "<Lease of buffer 0, generation 0, held>"
    lease.release()
    assert "ended" in repr(lease)
