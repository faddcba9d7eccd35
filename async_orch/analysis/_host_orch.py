"""``host-orch:`` lines: their grammar, their inner consistency, and what can be inferred from one.

The grammar has one form, ``host-orch: orch=N ns H2D=N ns (graph=N ns sm=N ns) alloc=N B copy=N B bw=N MB/s
sm_bw=N MB/s``, anywhere in a physical line; ``-`` stands for a figure that the writer did not know.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from async_orch.logs import HostOrch, bandwidth_mb_per_s

__all__ = ["MARK", "AllocationEstimate", "contradiction", "estimate_allocation", "is_sensible", "parse_at"]

MARK: Final = b"host-orch:"
_MAX: Final = 2**53  # the bound of durations and sizes in a step record too

_FIGURE: Final = rb"(0|[1-9][0-9]*|-)"
_LINE: Final = re.compile(
    rb"host-orch: orch=# ns H2D=# ns \(graph=# ns sm=# ns\) alloc=# B copy=# B bw=# MB/s sm_bw=# MB/s".replace(
        b"#", _FIGURE
    )
)


def _figure(text: bytes) -> int | None:
    if text == b"-":
        return None
    return int(text) if len(text) <= 19 else _MAX + 1  # int() of a long text is slow, and refuses at last


def parse_at(line: bytes, position: int) -> tuple[HostOrch, int] | None:
    """The figures of the line that starts at `position` of `line`, and the position after it.

    None if the text there is cut off or damaged.
    """
    match = _LINE.match(line, position)
    return None if match is None else (HostOrch(*map(_figure, match.groups())), match.end())


def is_sensible(line: HostOrch) -> bool:
    """Whether at least one figure is known, and none is larger than can be meant (2**53)."""
    known = [figure for figure in line if figure is not None]
    return bool(known) and max(known) <= _MAX


def contradiction(line: HostOrch) -> str | None:
    """Say where the figures of a line disagree with each other, or None if they fit.

    `bw` and the sum of `graph` and `sm` follow from other figures of the line. `sm_bw` needs the bytes of the
    task table, which are not on the line, but cannot be more than were copied in all.
    """
    if line.h2d_ns is not None and line.graph_ns is not None and line.sm_ns is not None:
        total = line.graph_ns + line.sm_ns
        if total != line.h2d_ns:
            return f"H2D={line.h2d_ns} ns, but graph + sm = {total} ns"
    bw = bandwidth_mb_per_s(line.copy_nbytes, line.h2d_ns)
    if bw is not None and line.bw is not None and bw != line.bw:
        return f"bw={line.bw} MB/s, but copy x 1000 / H2D = {bw} MB/s"
    sm_nbytes = _least_sm_nbytes(line)
    if sm_nbytes is not None and line.copy_nbytes is not None and sm_nbytes > line.copy_nbytes:
        return f"sm_bw={line.sm_bw} MB/s means at least {sm_nbytes} B for sm, but copy={line.copy_nbytes} B"
    return None


def _least_sm_nbytes(line: HostOrch) -> int | None:
    """The fewest bytes for which ``floor(bytes x 1000 / sm_ns)`` is `sm_bw`."""
    if line.sm_bw is None or not line.sm_ns:
        return None
    return -(-line.sm_bw * line.sm_ns // 1000)


class AllocationEstimate(NamedTuple):
    """How a line's `graph_ns` divides, if the graph's images were copied as fast as the task table.

    `graph_nbytes` is what is left of `copy_nbytes` after the fewest bytes that `sm_bw` allows for the task
    table, `graph_copy_ns` the time they take at `sm_bw`, `alloc_ns` the rest: allocation and memset. The
    roundings of `sm_bw` all go to the copy, so that allocation is not made to look larger than it was.
    """

    graph_nbytes: int
    graph_copy_ns: int
    alloc_ns: int


def estimate_allocation(line: HostOrch) -> AllocationEstimate | None:
    """Divide `graph_ns` into copy and allocation; None where the line does not hold enough to tell.

    A line that allocated no bytes took no time for it, whatever the rates say.
    """
    if line.graph_ns is None or line.alloc_nbytes is None or line.copy_nbytes is None:
        return None
    sm_nbytes = _least_sm_nbytes(line)
    if line.alloc_nbytes == 0:
        return AllocationEstimate(max(line.copy_nbytes - (sm_nbytes or 0), 0), line.graph_ns, 0)
    if sm_nbytes is None or not line.sm_bw:
        return None
    graph_nbytes = max(line.copy_nbytes - sm_nbytes, 0)
    graph_copy_ns = min(-(-graph_nbytes * 1000 // line.sm_bw), line.graph_ns)
    return AllocationEstimate(graph_nbytes, graph_copy_ns, line.graph_ns - graph_copy_ns)
