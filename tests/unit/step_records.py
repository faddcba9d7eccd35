"""Step records with plausible figures, for the tests of the log and its reader."""

from __future__ import annotations

from typing import Any

from async_orch.logs import FIELDS, SCHEMA, StepRecord

__all__ = ["PERIOD_NS", "REPORT_LINE", "STEPS", "pipelined", "step_record"]

STEPS = 60
PERIOD_NS = 37_000_000

REPORT_LINE = (
    "host-orch: orch=3678950 ns H2D=107075660 ns (graph=105716560 ns sm=1359100 ns) "
    "alloc=66488960 B copy=5543943 B bw=51 MB/s sm_bw=172 MB/s"
)

_FIGURES: dict[str, Any] = {
    "event": "step.completed",
    "schema": SCHEMA,
    "level": "info",
    "timestamp": "2026-08-04T10:00:00.000001Z",
    "run_id": "run-a",
    "pid": 4242,
    "host": "node-7",
    "device": "sim:instant",
    "program": "decode",
    "step_id": 0,
    "seq": 0,
    "slot": 1,
    "generation": 5,
    "submit_ns": 1_000_000,
    "accept_ns": 1_000_100,
    "build_start_ns": 1_000_200,
    "build_ns": 3_678_950,
    "acquire_start_ns": 4_679_150,
    "acquire_wait_ns": 10,
    "h2d_start_ns": 4_679_200,
    "h2d_ns": 32_232_223,
    "h2d_graph_ns": 30_873_123,
    "h2d_sm_ns": 1_359_100,
    "h2d_split": "measured",
    "alloc_count": 0,
    "alloc_nbytes": 0,
    "alloc_ns": 0,
    "copy_nbytes": 5_543_943,
    "sm_nbytes": 233_863,
    "launch_start_ns": 36_911_500,
    "launch_ns": 2_000,
    "device_start_ns": 36_914_000,
    "device_ns": 36_800_000,
    "device_clock": "host",
    "d2h_ns": 900,
    "d2h_nbytes": 64,
    "retire_start_ns": 73_715_000,
    "retire_ns": 1_000,
    "total_ns": 72_715_900,
    "starved_ns": 0,
    "in_flight": 2,
    "on_device": 1,
}


def step_record(**changes: Any) -> StepRecord:
    """A warm step that completed, with every figure that it can have, and `changes` in it."""
    unknown = changes.keys() - set(FIELDS)
    if unknown:
        raise TypeError(f"no such fields: {sorted(unknown)}")
    figures = _FIGURES | changes
    return StepRecord(*(figures.get(name) for name in FIELDS))  # type: ignore[arg-type] # mixed types by position


def pipelined(run_id: str, **changes: Any) -> list[StepRecord]:
    """`STEPS` steps that overlap: each is accepted `PERIOD_NS` after the one before and takes two of them.

    ``changes`` are in each of them.
    """
    starts = [name for name in step_record().__struct_fields__ if name.endswith("_start_ns")]
    starts += ["submit_ns", "accept_ns"]
    base = step_record()
    records = []
    for seq in range(STEPS):
        moved = {name: getattr(base, name) + seq * PERIOD_NS for name in starts}
        figures = {
            **moved,
            "h2d_ns": 30_000_000,
            "acquire_wait_ns": 10,
            "cold_reason": "first_launch" if not seq else None,
        }
        records.append(step_record(run_id=run_id, seq=seq, step_id=f"s{seq}", **(figures | changes)))
    return records
