"""The step record: what every accepted step leaves behind, and its two forms in text.

`StepRecord` is the one place where the fields are listed; `FIELDS` is their order. `encode_line` and
`encode_lines` give JSON, one object a line; `host_orch_line` gives the line that host-side runtimes of Ascend
devices print. A reader of either form is `async_orch.analysis`.

Durations are nanoseconds and end in ``_ns``, sizes are bytes and end in ``_nbytes``, starts are readings of
CLOCK_MONOTONIC in nanoseconds and end in ``_start_ns`` (and `submit_ns`, `accept_ns`), so that a log alone
gives the timeline back. None (``null``) means that the step did not get there, or that nobody can measure it;
it never stands for zero.
"""

from __future__ import annotations

import functools
import numbers
import reprlib
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Annotated, Any, Final, Literal, NamedTuple, TypeAlias

import msgspec

__all__ = [
    "SCHEMA",
    "SCHEMAS_READ",
    "FIELDS",
    "StepEvent",
    "StepRecord",
    "HostOrch",
    "bandwidth_mb_per_s",
    "encode_line",
    "encode_lines",
    "format_timestamp",
    "host_orch",
    "host_orch_line",
]

SCHEMA: Final = 2
"""Version of the record's fields. It rises with every change that a reader of older logs could trip over."""

SCHEMAS_READ: Final = (1, 2)
"""Versions that readers take. 1 had no ``staging_copy_ns`` and no ``delta_ns``: they read as None."""

StepEvent: TypeAlias = Literal["step.completed", "step.failed", "step.cancelled", "step.detached"]
StepId: TypeAlias = str | int | float | bool | None

# The bounds hold when a line is decoded, not when the engine makes a record. 2**53 ns are 104 days and 2**53 bytes
# 9 PB: a larger figure is damage, and the sums and bandwidths of what passes stay within 64 bits.
_Amount: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]  # durations and sizes
_Signed: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**53), le=2**53)]
_Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]  # counts and readings of a clock


# A Struct, not a NamedTuple: it is made in a third of the time, and the encoder takes it without a dict in between.
class StepRecord(msgspec.Struct, frozen=True):
    """One step's terminal event: immutable, and made with positional arguments in the order of `FIELDS`.

    What and who
        ``event``: how the step ended; ``step.detached`` ran on the device, but nobody wanted its result any
        more. ``schema``: `SCHEMA`. ``level``: ``info``, ``warning`` or ``error``. ``timestamp``: wall clock
        when the step settled, UTC, see `format_timestamp`. ``run_id``, ``pid``, ``host``: the orchestrator
        that was opened, its process and machine. ``device``: backend and device, such as ``sim:instant``.
        ``program``: its name. ``step_id``: the caller's name of the step. ``seq``: ours, from 0, in order of
        acceptance and launch. ``attrs``: the caller's own key-value pairs. ``after``: seq of the step whose
        output was fed to this one. ``slot``, ``generation``: the device memory it ran in and how often that
        had been leased before. ``cold_reason``: the one-time cost that it paid (``first_launch``,
        ``worker_start``, ``slot_grown``, ``each_step``); None is a warm step.

    Time on the host
        ``submit_ns``: `submit` was called. ``accept_ns``: it was accepted. ``build_start_ns``, ``build_ns``:
        the program's ``build``. ``acquire_start_ns``, ``acquire_wait_ns``: waiting for a free slot.
        ``h2d_start_ns``, ``h2d_ns``: the copy of the image, of which ``h2d_graph_ns`` went to the part that
        describes recorded graphs and ``h2d_sm_ns`` to the step's own task table (their sum is ``h2d_ns``).
        ``h2d_split``: ``measured`` if the two were timed apart, ``bytes`` if one copy was divided in
        proportion to its bytes. ``staging_copy_ns``: an image built in a worker process, copied from the
        memory shared with it into the device's staging. ``delta_ns``: finding what differs from the image that
        the slot holds (``upload="delta"``). ``d2d_ns``: the copy to the fixed address of a captured graph.
        ``feed_wait_ns``, ``feed_ns``: waiting for the previous step's output, and ``feed``.
        ``launch_start_ns``, ``launch_ns``: the program's ``launch``. ``retire_start_ns``, ``retire_ns``:
        from the output's arrival to the end of ``collect``. ``total_ns``: end of retire minus ``accept_ns``.

    Memory
        ``alloc_count``, ``alloc_nbytes``, ``alloc_ns``: device memory allocated on the step path, with its
        first touch; 0 with a ring, None where the backend cannot see allocations. ``copy_nbytes``: bytes
        copied to the device, of which ``sm_nbytes`` are the task table. ``d2h_nbytes``: bytes of output
        copied back, or read in place.

    Time on the device
        ``device_start_ns``, ``device_ns``: the kernels, on the clock that ``device_clock`` names: ``device``
        (the device's own, in host time), ``anchored`` (the device's, shifted to the host's once), ``host``
        (read by the host when a marker was reached), ``none``. ``d2h_ns``: the output's copy, None without one.
        ``bubble_ns``: device start minus end of the step launched before, None for the first. ``starved_ns``:
        the part of the bubble before ``accept_ns``, when the device waited for the caller.

    Load
        ``in_flight``, ``on_device``: steps accepted, and launched, and not yet settled when this one was
        accepted and launched respectively; the step itself counts.

    Failure
        ``error``: the cause in one line of text. ``stage``: where it happened. Both None unless it failed.
    """

    event: StepEvent
    schema: _Count
    level: str
    timestamp: str
    run_id: str
    pid: _Count
    host: str
    device: str
    program: str
    step_id: StepId
    seq: _Count
    attrs: dict[str, Any] | None
    after: _Count | None
    slot: _Count | None
    generation: _Count | None
    cold_reason: str | None
    submit_ns: _Count | None
    accept_ns: _Count | None
    build_start_ns: _Count | None
    build_ns: _Amount | None
    acquire_start_ns: _Count | None
    acquire_wait_ns: _Amount | None
    h2d_start_ns: _Count | None
    h2d_ns: _Amount | None
    h2d_graph_ns: _Amount | None
    h2d_sm_ns: _Amount | None
    h2d_split: Literal["measured", "bytes"] | None
    d2d_ns: _Amount | None
    alloc_count: _Count | None
    alloc_nbytes: _Amount | None
    alloc_ns: _Amount | None
    copy_nbytes: _Amount | None
    sm_nbytes: _Amount | None
    feed_wait_ns: _Amount | None
    feed_ns: _Amount | None
    launch_start_ns: _Count | None
    launch_ns: _Amount | None
    device_start_ns: _Count | None
    device_ns: _Amount | None
    device_clock: Literal["device", "anchored", "host", "none"] | None
    d2h_ns: _Amount | None
    d2h_nbytes: _Amount | None
    retire_start_ns: _Count | None
    retire_ns: _Amount | None
    total_ns: _Amount | None
    bubble_ns: _Signed | None
    starved_ns: _Amount | None
    in_flight: _Count | None
    on_device: _Count | None
    error: str | None
    stage: str | None
    staging_copy_ns: _Amount | None = None
    delta_ns: _Amount | None = None


FIELDS: Final[tuple[str, ...]] = StepRecord.__struct_fields__
"""Names of the record's fields, in order: of the arguments of `StepRecord` and of the keys of a line."""


class HostOrch(NamedTuple):
    """The figures of one ``host-orch:`` line; None where the line shows ``-``.

    ``orch_ns`` is the time to build the graph, ``h2d_ns`` = ``graph_ns`` + ``sm_ns``; ``graph_ns`` holds the
    allocation and first touch of device memory as well as the copy of the graph's images, ``sm_ns`` the copy
    of the step's task table. ``alloc_nbytes`` were allocated, ``copy_nbytes`` copied. ``bw``, ``sm_bw`` are
    `bandwidth_mb_per_s` of all copied bytes over ``h2d_ns``, and of the task table's over ``sm_ns``.
    """

    orch_ns: int | None
    h2d_ns: int | None
    graph_ns: int | None
    sm_ns: int | None
    alloc_nbytes: int | None
    copy_nbytes: int | None
    bw: int | None
    sm_bw: int | None

    def line(self) -> str:
        """The line without a line end: ``host-orch: orch=3678950 ns H2D=...``."""
        orch, h2d, graph, sm, alloc, copy, bw, sm_bw = ("-" if figure is None else figure for figure in self)
        return (
            f"host-orch: orch={orch} ns H2D={h2d} ns (graph={graph} ns sm={sm} ns) "
            f"alloc={alloc} B copy={copy} B bw={bw} MB/s sm_bw={sm_bw} MB/s"
        )


def bandwidth_mb_per_s(nbytes: int | None, duration_ns: int | None) -> int | None:
    """``floor(nbytes * 1000 / duration_ns)``: decimal megabytes a second, as ``host-orch:`` lines round them.

    None if either is unknown or no time passed.
    """
    if nbytes is None or not duration_ns:
        return None
    return nbytes * 1000 // duration_ns


def _sum(first: int | None, second: int | None) -> int | None:
    return None if first is None or second is None else first + second


def host_orch(record: StepRecord) -> HostOrch:
    """A step's figures in the terms of a ``host-orch:`` line.

    A sum with an unknown part is unknown. ``sm_bw`` is known only where the two parts of the copy were timed
    apart: dividing one copy by its bytes gives both parts the same rate, which measures nothing.
    """
    h2d_ns = _sum(record.alloc_ns, _sum(record.h2d_graph_ns, record.h2d_sm_ns))
    measured = record.h2d_split == "measured"
    return HostOrch(
        orch_ns=record.build_ns,
        h2d_ns=h2d_ns,
        graph_ns=_sum(record.alloc_ns, record.h2d_graph_ns),
        sm_ns=record.h2d_sm_ns,
        alloc_nbytes=record.alloc_nbytes,
        copy_nbytes=record.copy_nbytes,
        bw=bandwidth_mb_per_s(record.copy_nbytes, h2d_ns),
        sm_bw=bandwidth_mb_per_s(record.sm_nbytes, record.h2d_sm_ns) if measured else None,
    )


def host_orch_line(record: StepRecord) -> str:
    """The step as a ``host-orch:`` line, see `host_orch`; what is unknown shows as ``-``."""
    return host_orch(record).line()


@functools.lru_cache(maxsize=8)
def _second_text(second: int) -> str:
    return datetime.fromtimestamp(second, tz=UTC).strftime("%Y-%m-%dT%H:%M:%S")


def format_timestamp(wall_ns: int) -> str:
    """`time.time_ns()` in ISO 8601, UTC, microseconds cut off, such as ``2026-08-04T10:00:00.000001Z``."""
    second, rest_ns = divmod(wall_ns, 1_000_000_000)
    return f"{_second_text(second)}.{rest_ns // 1000:06d}Z"


_repr = reprlib.Repr()  # unlike repr, survives objects whose own __repr__ raises, and bounds the length
_repr.maxother = _repr.maxstring = _repr.maxlong = 200
_MAX_DEPTH: Final = 16
_SCALARS: Final = frozenset({str, int, float, bool, type(None)})


def _encode_foreign(value: object) -> StepId:
    """What JSON has no type for: subclasses and numpy scalars by their value, everything else by its repr."""
    if isinstance(value, str):
        return str.__str__(value)
    if isinstance(value, numbers.Integral):
        return int(value)
    if isinstance(value, float):
        return float(value)
    return _repr.repr(value)


_encoder = msgspec.json.Encoder(enc_hook=_encode_foreign)


def _encodable(value: object, depth: int = 0) -> object:
    """A copy of `value` that certainly encodes: no lone surrogates, no circles, no foreign keys or values."""
    if isinstance(value, str):
        return str.__str__(value).encode("utf-8", "backslashreplace").decode("utf-8")
    if type(value) in _SCALARS:
        return value
    if isinstance(value, dict | list | tuple):
        if depth == _MAX_DEPTH:
            return "..."
        if isinstance(value, dict):
            return {
                str(_encodable(key if isinstance(key, str) else _repr.repr(key))): _encodable(item, depth + 1)
                for key, item in list(value.items())
            }
        return [_encodable(item, depth + 1) for item in value]
    return _encodable(_encode_foreign(value))


def _encode_awkward(record: StepRecord) -> bytes:
    return _encoder.encode({name: _encodable(getattr(record, name)) for name in FIELDS}) + b"\n"


def encode_line(record: StepRecord) -> bytes:
    """The record as one JSON object in UTF-8 that ends with the only newline in it.

    A `step_id` that is no JSON scalar is written as its repr (bounded in length), a value inside `attrs` that
    JSON has no type for likewise. No content of a record makes this raise: an observer, or a caller's odd
    `attrs`, must not cost the log a line.
    """
    if type(record.step_id) not in _SCALARS:
        record = msgspec.structs.replace(record, step_id=_encode_foreign(record.step_id))
    try:
        line = _encoder.encode(record) + b"\n"
    except (ValueError, TypeError, RuntimeError):
        return _encode_awkward(record)
    # Only msgspec.Raw inside attrs can carry a newline through; it is copied unseen.
    return line if line.count(b"\n") == 1 else _encode_awkward(record)


def encode_lines(records: Sequence[StepRecord]) -> bytes:
    """The lines of several records, the same bytes as joining `encode_line` of each, at less cost."""
    try:
        if all(type(record.step_id) in _SCALARS for record in records):
            lines = _encoder.encode_lines(records)
            if lines.count(b"\n") == len(records):
                return lines
    except (ValueError, TypeError, RuntimeError):
        pass  # one record of the batch is awkward; encode_line deals with it
    return b"".join(map(encode_line, records))
