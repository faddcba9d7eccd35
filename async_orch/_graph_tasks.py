"""The tasks, arguments and dependencies of a step's graph while it is built, within their limits."""

from __future__ import annotations

from collections.abc import Sequence
from operator import index
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from async_orch._graph_arguments import refuse_after, shown
from async_orch._graph_format import ARG, HEADER_NBYTES, TASK
from async_orch._graph_pool import IntPool
from async_orch._graph_refuse import refuse_overflow
from async_orch.exceptions import GraphError

__all__ = ["TaskPools"]

_TASK_NBYTES = TASK.itemsize
_INT_NBYTES = ARG.itemsize
_NOTHING: Final = ()
"""The default of `after`, which most tasks have. CPython has one empty tuple; another one takes the longer way."""


class TaskPools:
    """What `finish` will write; arguments are handles. `user_end` is where the inputs in the image end."""

    def __init__(self, max_tasks: int, max_fanin: int, max_args: int) -> None:
        self._max_tasks = max_tasks
        self.max_fanin = max_fanin
        self._max_args = max_args
        self._image_nbytes = 0
        self.n_tasks = 0
        self.tasks = IntPool("I")  # six fields a task, as in the image
        self.args = IntPool("q")
        self.fanin = IntPool("i")
        self.replayed: set[int] = set()
        self.n_expanded = 0
        self.user_end = HEADER_NBYTES

    def clear(self, image_nbytes: int) -> None:
        """Start the graph of an image of that many bytes."""
        self._image_nbytes = image_nbytes
        self.n_tasks = 0
        for pool in (self.tasks, self.args, self.fanin):
            pool.clear()
        self.replayed.clear()
        self.n_expanded = 0
        self.user_end = HEADER_NBYTES

    def append(self, kind: int, number: int, name: str, operands: Sequence[Any], after: int | Sequence[int]) -> int:
        """Add a task whose arguments are handles, in order; refuses wrong producers, and what does not fit."""
        task_id = self.n_tasks
        n_args = len(operands)
        args = self.args
        fanin = self.fanin
        arg_tail = args.tail
        arg_start = args.flushed + len(arg_tail)
        arg_end = arg_start + n_args
        fanin_start = fanin_end = fanin.flushed + len(fanin.tail)
        n_fanin = 0
        producers: Sequence[int] = _NOTHING
        if after is not _NOTHING:
            producers = (after,) if isinstance(after, int) else after
            try:
                n_fanin = len(producers)
                for producer in producers:
                    if not 0 <= index(producer) < task_id:
                        raise GraphError(
                            f"task {task_id} ({name}): after={shown(producer)} is not an earlier task's id"
                        )
            except TypeError:
                refuse_after(f"task {task_id} ({name})", after)
            fanin_end += n_fanin
        if (
            task_id >= self._max_tasks
            or arg_end > self._max_args
            or fanin_end > self.max_fanin
            or self.user_end + _TASK_NBYTES * (task_id + 1) + _INT_NBYTES * (arg_end + fanin_end) > self._image_nbytes
        ):
            self._refuse(1, n_args, n_fanin)
        self.tasks.tail += (kind, number, fanin_start, n_fanin, arg_start, n_args)
        arg_tail += operands
        if n_fanin:
            fanin.tail += producers
        self.n_tasks = task_id + 1
        return task_id

    def extend(self, tasks: NDArray[np.uint32], args: NDArray[np.int64], fanin: NDArray[np.int32]) -> range:
        """Add tasks whose fields count from 0 among themselves; their ids. Refuses what does not fit."""
        first, n_args, n_fanin = self.n_tasks, self.args.total, self.fanin.total
        last = first + len(tasks)
        if (
            last > self._max_tasks
            or n_args + args.size > self._max_args
            or n_fanin + fanin.size > self.max_fanin
            or self.user_end + _TASK_NBYTES * last + _INT_NBYTES * (n_args + args.size + n_fanin + fanin.size)
            > self._image_nbytes
        ):
            self._refuse(len(tasks), args.size, fanin.size)
        self.tasks.extend((tasks + np.array((0, 0, n_fanin, 0, n_args, 0), np.uint32)).reshape(-1))
        self.args.extend(args)
        self.fanin.extend(fanin + np.int32(first))
        self.n_tasks = last
        return range(first, last)

    def _refuse(self, n_tasks: int, n_args: int, n_fanin: int) -> None:
        pools = (
            ("tasks", self.n_tasks, self._max_tasks, n_tasks),
            ("args", self.args.total, self._max_args, n_args),
            ("fanin", self.fanin.total, self.max_fanin, n_fanin),
        )
        refuse_overflow(self.n_tasks, pools, self.user_end, self._image_nbytes)
