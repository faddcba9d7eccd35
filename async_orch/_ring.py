"""Rings of preallocated buffers, and the leases that give one step the exclusive right to one of them.

The ring, not the queue or the step, owns the table of outstanding leases. Everything here is synchronous: a
lease is granted, ended or parked in one indivisible move on the loop's thread; nobody waits inside.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Generic, TypeVar

import msgspec

from async_orch.abc import Fence
from async_orch.exceptions import StaleLease

__all__ = ["Lease", "Ring"]

ItemT = TypeVar("ItemT")
LeaseT = TypeVar("LeaseT", bound="Lease[Any]")


class Ring(Generic[ItemT]):
    """A fixed set of buffers, handed out first-in first-out (or last-in first-out, which shows early reuse).

    An index is in exactly one of four places: free, leased, parked until its fences are done, quarantined.
    ``on_free(item)`` is called whenever a buffer has come back for good, before it can be leased again.
    """

    __slots__ = ("_fifo", "_quarantined", "free_indices", "generations", "items", "on_free", "parked")

    def __init__(
        self,
        items: Sequence[ItemT],
        *,
        fifo: bool = True,
        on_free: Callable[[ItemT], None] | None = None,
    ) -> None:
        self.items: list[ItemT] = list(items)
        self._fifo = fifo
        self.on_free = on_free
        self.free_indices: deque[int] = deque(range(len(items)))
        """The buffers that can be leased now, live: the same object for the life of the ring."""
        self.generations = [0] * len(items)
        self.parked: dict[int, tuple[Fence, ...]] = {}
        """Buffers given back whose fences are awaited, live as well."""
        self._quarantined: set[int] = set()

    @property
    def take(self) -> Callable[[], int]:
        """Function: the index of a free buffer, now leased at ``generations[index]``; `IndexError` if there is none.

        To be kept by whoever leases often: it is the queue's own method.
        """
        return self.free_indices.popleft if self._fifo else self.free_indices.pop

    def lease(self, index: int) -> Lease[ItemT]:
        """The lease that `take` began, as an object: for those who outlive the call."""
        return Lease(self, index, self.generations[index])

    def give_back(self, index: int) -> None:
        """End the lease of ``index`` that `take` began; nothing uses the buffer any more."""
        self.generations[index] += 1
        if self.on_free is not None:
            self.on_free(self.items[index])
        self.free_indices.append(index)

    def acquire_as(self, kind: type[LeaseT]) -> LeaseT | None:
        """A lease, of the given class, of a free buffer or one whose fences are done; None if there is none."""
        free = self.free_indices
        if not free and not (self.parked and self.poll()):
            return None
        index = free.popleft() if self._fifo else free.pop()
        return kind(self, index, self.generations[index])

    def owns(self, lease: Lease[ItemT]) -> bool:
        """Whether the lease is the current one of its buffer."""
        return self.generations[lease.index] == lease.generation

    def release(self, lease: Lease[ItemT], fences: Sequence[Fence] = ()) -> None:
        """End a lease; the buffer is free once all ``fences`` are done. Does nothing for an ended lease."""
        index = lease.index
        generations = self.generations
        if generations[index] != lease.generation:
            return
        # Only the next `acquire` hands this generation out, so the lease is stale from here on.
        generations[index] += 1
        if fences:
            pending = tuple(fence for fence in fences if not fence.query())
            if pending:
                self.parked[index] = pending
                return
        if self.on_free is not None:
            self.on_free(self.items[index])
        self.free_indices.append(index)

    def _put_back(self, index: int) -> None:
        if self.on_free is not None:
            self.on_free(self.items[index])
        self.free_indices.append(index)

    def poll(self) -> bool:
        """Free the parked buffers whose fences are done; True if there was one."""
        if not self.parked:
            return False
        done = [index for index, fences in self.parked.items() if all(f.query() for f in fences)]
        for index in done:
            del self.parked[index]
            self._put_back(index)
        return bool(done)

    def quarantine(self, lease: Lease[ItemT]) -> None:
        """End a lease and take its buffer out of use for good: somebody may still touch it. Idempotent."""
        if self.owns(lease):
            self.generations[lease.index] += 1
            self._quarantined.add(lease.index)

    def add(self, item: ItemT) -> None:
        """One more buffer, free."""
        self.generations.append(0)
        self.items.append(item)
        self.free_indices.append(len(self.items) - 1)

    def is_free(self, index: int) -> bool:
        """Whether nobody has the buffer, and no fence is awaited."""
        return index in self.free_indices

    def parked_fences(self) -> list[Fence]:
        """The fences that parked buffers still wait for."""
        return [f for fences in self.parked.values() for f in fences if not f.query()]

    @property
    def free(self) -> int:
        """Buffers that can be leased now."""
        return len(self.free_indices)

    @property
    def leased(self) -> int:
        """Buffers leased, or parked until their last fence is done."""
        return len(self.items) - len(self.free_indices) - len(self._quarantined)

    @property
    def quarantined(self) -> int:
        """Buffers taken out of use for good."""
        return len(self._quarantined)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<Ring of {len(self.items)}: {self.free} free, {self.leased} leased, {self.quarantined} quarantined>"


class Lease(msgspec.Struct, Generic[ItemT], eq=False):
    """The exclusive right to one buffer of a ring, until `release`.

    ``index`` says which buffer, ``generation`` how often it had been leased before; the pair names the lease.
    Any access through a lease that has ended raises `StaleLease`.
    """

    _ring: Ring[ItemT]  # a Struct is made in half the time that an __init__ takes, and every step makes some
    index: int
    generation: int

    @property
    def item(self) -> ItemT:
        """What is leased. Raises `StaleLease` after the lease has ended."""
        ring = self._ring
        if ring.generations[self.index] != self.generation:
            raise StaleLease(
                f"lease of buffer {self.index}, generation {self.generation}, has ended (the buffer is at "
                f"generation {ring.generations[self.index]}); do not keep a slot after the hook it was given to"
            )
        return ring.items[self.index]

    def release(self, *fences: Fence) -> None:
        """End the lease; the buffer is reused only after ``fences``. Synchronous and idempotent."""
        self._ring.release(self, fences)

    def quarantine(self) -> None:
        """End the lease and take the buffer out of use for good. Idempotent."""
        self._ring.quarantine(self)

    @property
    def ring(self) -> Ring[ItemT]:
        """The ring that the buffer belongs to."""
        return self._ring

    @property
    def ended(self) -> bool:
        """Whether the lease has ended."""
        return not self._ring.owns(self)

    def __repr__(self) -> str:
        state = "ended" if self.ended else "held"
        return f"<Lease of buffer {self.index}, generation {self.generation}, {state}>"
