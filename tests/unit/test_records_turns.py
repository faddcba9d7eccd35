"""The log's writer lets others have the GIL, and lines stay whole after a write that broke off."""

from __future__ import annotations

import asyncio
import io
import itertools
import json
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from async_orch import _records
from async_orch._targets import FileTarget, targets_for
from async_orch.logs import StepRecord
from tests.unit.step_records import step_record

PROMISED_NS = 200_000


class Clock:
    """Stands in for `time` in `_records`: time passes only where a test says so, and each offer of the GIL is kept."""

    def __init__(self) -> None:
        self.now_ns = 0
        self.offers = 0
        self.let_go_ns: list[int] = []

    def monotonic_ns(self) -> int:
        return self.now_ns

    thread_time_ns = monotonic_ns

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def sleep(self, seconds: float) -> None:
        assert seconds == 0, "the writer has nothing to wait for here"
        self.offers += 1
        self.let_go_ns.append(self.now_ns)

    def longest_ns(self) -> int:
        """The longest time without letting go of the GIL, the beginning and the end included."""
        marks = [0, *self.let_go_ns, self.now_ns]
        return max(after - before for before, after in itertools.pairwise(marks))


class Encoding:
    """A target whose `write` takes 3 us a record in one piece, as encoding does, and may end with a system call."""

    name = "encoding"

    def __init__(self, clock: Clock, lets_go: bool) -> None:
        self._clock = clock
        self.lets_go = lets_go
        self.records: list[StepRecord] = []

    def write(self, records: Sequence[StepRecord]) -> None:
        self._clock.now_ns += 3_000 * len(records)
        if self.lets_go:
            self._clock.let_go_ns.append(self._clock.now_ns)
        self.records.extend(records)

    def write_event(self, event: dict[str, Any]) -> None:
        """Takes no time."""

    def close(self) -> None:
        """Nothing to close."""


async def _written(
    monkeypatch: pytest.MonkeyPatch, count: int, target: Callable[[Clock], Any], make_ns: int = 8_000
) -> tuple[Clock, Any]:
    """A writer, whose records take 8 us to make, has written ``count`` of them to the target."""
    clock = Clock()
    monkeypatch.setattr(_records, "time", clock)

    def make(step: Any) -> StepRecord:
        clock.now_ns += make_ns
        return step_record(seq=step.seq)

    def anchor() -> dict[str, Any]:
        put.wait(60.0)  # the writer finds everything there: it does not wait for more, which lets go of the GIL too
        return {}

    put = threading.Event()
    taken = target(clock)
    writer = _records.RecordWriter(make, [taken], asyncio.get_running_loop(), anchor)  # type: ignore[arg-type]
    try:
        for seq in range(count):
            writer.put(SimpleNamespace(seq=seq))  # type: ignore[arg-type]
        put.set()
        await writer.flush()
    finally:
        assert writer.close(60.0)
    return clock, taken


@pytest.mark.parametrize("lets_go", [True, False])
@pytest.mark.parametrize("make_ns", [0, 1_000, 4_000, 8_000])
async def test_the_writer_lets_go_of_the_gil_before_what_is_promised_is_over(
    make_ns: int, lets_go: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However slowly records are made and encoded, others may have the GIL every 200 us, and every 32 records."""
    clock, target = await _written(monkeypatch, 500, lambda clock: Encoding(clock, lets_go), make_ns)
    assert [record.seq for record in target.records] == list(range(500))
    assert clock.now_ns == 500 * (make_ns + 3_000)
    assert 0 < clock.longest_ns() <= PROMISED_NS
    assert clock.offers >= 500 // 32, "offers that a thread can wake up in, not system calls only"


async def test_slow_observers_let_others_have_the_gil(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the calls of an observer that takes 60 us for each record the GIL is offered as well."""

    def observers(clock: Clock) -> Any:
        def observe(record: StepRecord) -> None:
            clock.now_ns += 60_000

        return targets_for(None, [observe])[0]

    clock, _ = await _written(monkeypatch, 100, observers)
    assert clock.now_ns == 100 * 68_000
    assert 0 < clock.longest_ns() <= PROMISED_NS


class Tearing(io.RawIOBase):
    """A file that takes half of the second write and then has no space, until it is given some."""

    def __init__(self) -> None:
        self.data = b""
        self.writes = 0

    def write(self, data: Any) -> int:
        self.writes += 1
        if self.writes == 3:
            raise OSError(28, "No space left on device")
        taken = bytes(data[: len(data) // 2] if self.writes == 2 else data)
        self.data += taken
        return len(taken)


def test_only_the_torn_line_is_lost(tmp_path: Path) -> None:
    """After a write that broke off inside a line the next one begins a line of its own."""
    target = FileTarget(tmp_path / "run.jsonl")
    target._file.close()
    target._file = file = Tearing()  # type: ignore[assignment]
    target.write([step_record(seq=0)])
    with pytest.raises(OSError, match="No space left"):
        target.write([step_record(seq=1)])
    target.write([step_record(seq=2)])
    target.write([step_record(seq=3)])
    first, torn, *rest = file.data.splitlines()
    assert [json.loads(line)["seq"] for line in (first, *rest)] == [0, 2, 3]
    with pytest.raises(json.JSONDecodeError):
        json.loads(torn)
    assert not file.data.count(b"\n\n")
