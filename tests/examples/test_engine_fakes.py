"""The fakes that the engine examples run on show misuse: an index used too early, a wrong order, a moved address."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import closing

import numpy as np
import pytest

from async_orch import open_backend
from examples.engines import fake_device, fake_graphs
from examples.engines.fake_device import FakeDevice
from examples.engines.fake_graphs import CapturedGraph, NextTokens
from examples.engines.fake_worker import GARBAGE, PLACEHOLDER, FakeWorker, Run, WorkerMisuse
from examples.engines.persistent_inputs import SLOTS, ModelRunner


def test_fake_device_shows_buffers_reused_early() -> None:
    """Inputs rewritten before their event, and an output read before or after it was handed on, are wrong."""
    device = FakeDevice()
    runner = ModelRunner(device)
    runner.open()
    first = runner.dispatch(runner.prepare([1], 0))
    runner.prepare([2], 0)  # index 0 again, although nothing was reclaimed
    assert runner.reclaim(first, 1.0) != [4]
    assert device.early_reuses == 1
    pinned, _ = runner.dispatch(runner.prepare([3], 1))
    assert int(pinned[0]) == fake_device.SCRIBBLE
    with device.lock:
        runner.close()
    assert device.pinned_buffers == 2 * SLOTS


def _wrong_order(worker: FakeWorker) -> None:
    first, second = worker.begin(0), worker.begin(1)
    worker.submit(second, 1)
    worker.submit(first, 1)


def _third_in_flight(worker: FakeWorker) -> None:
    for slot in range(3):
        worker.submit(worker.begin(slot), 1)


def _double_wait(worker: FakeWorker) -> None:
    run = worker.begin(0)
    worker.submit(run, 1)
    worker.wait(run, 1.0)
    worker.wait(run, 1.0)


def _wait_for_the_newest(worker: FakeWorker) -> None:
    runs = [worker.begin(0), worker.begin(1)]
    for run in runs:
        worker.submit(run, 1)
    worker.wait(runs[1], 1.0)


def _stale_generation(worker: FakeWorker) -> None:
    stale = worker.begin(0)
    worker.begin(0)
    worker.submit(stale, 1)


def _slot_reused_early(worker: FakeWorker) -> None:
    worker.submit(worker.begin(0), 1)
    worker.begin(0)


@pytest.mark.parametrize(
    ("misuse", "message"),
    [
        (_wrong_order, "run 1 was submitted after run 2"),
        (_third_in_flight, "would be number 3 in flight"),
        (_double_wait, "the oldest in flight is None"),
        (_wait_for_the_newest, "wait for run 2, but the oldest in flight is 1"),
        (_stale_generation, "submit with generation 1 of slot 0, which is at 2"),
        (_slot_reused_early, "slot 0 began anew while its run was in flight"),
    ],
)
def test_fake_worker_refuses_wrong_use(misuse: Callable[[FakeWorker], None], message: str) -> None:
    """Each wrong use raises, and is kept for tests that do not see the exception."""
    worker = FakeWorker(3)
    with pytest.raises(WorkerMisuse, match=message):
        misuse(worker)
    assert len(worker.misuses) == 1


def test_fake_worker_gives_garbage_behind_a_failed_run() -> None:
    """A placeholder behind a failed run has no token to stand for."""
    worker = FakeWorker(2, fail={1})
    runs: list[Run] = []
    for slot, token in enumerate((1, PLACEHOLDER)):
        runs.append(worker.begin(slot))
        worker.submit(runs[-1], token)
    with pytest.raises(ArithmeticError):
        worker.wait(runs[0], 1.0)
    assert worker.wait(runs[1], 1.0) == GARBAGE


def test_fake_graphs_use_their_input_up() -> None:
    """A replay without a new copy to the captured region gives wrong tokens."""
    running = threading.Event()
    running.set()
    with closing(open_backend("sim:instant")) as backend:
        stream = backend.create_stream("compute")
        tokens, output = backend.alloc(4), backend.alloc(4)
        tokens.array.view(np.int32)[0] = 1
        graph = CapturedGraph(NextTokens(1, running), tokens, output)
        values = []
        for _ in range(2):
            graph.replay(stream, tokens, output)
            stream.synchronize(1.0)
            values.append(int(output.array.view(np.int32)[0]))
        assert values[0] == 4
        assert values[1] != 4
        assert int(tokens.array.view(np.int32)[0]) == fake_graphs.SCRIBBLE
