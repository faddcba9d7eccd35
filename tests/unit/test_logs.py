"""The step record and its two forms in text."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from async_orch.logs import (
    FIELDS,
    SCHEMA,
    HostOrch,
    StepRecord,
    bandwidth_mb_per_s,
    encode_line,
    encode_lines,
    format_timestamp,
    host_orch,
    host_orch_line,
)
from tests.unit.step_records import REPORT_LINE, step_record

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_AMOUNT = st.integers(0, 2**53)


class _Unspeakable:
    def __repr__(self) -> str:
        raise RuntimeError("no")


def _circle() -> dict[str, Any]:
    attrs: dict[str, Any] = {}
    attrs["self"] = attrs
    return attrs


def test_line_has_every_field_in_order() -> None:
    """A line holds exactly the record's fields, in the order of FIELDS, null where the record has None."""
    record = step_record(cold_reason=None)
    loaded = json.loads(encode_line(record))
    assert tuple(loaded) == FIELDS
    assert loaded == msgspec.structs.asdict(record)
    assert loaded["cold_reason"] is None
    assert loaded["schema"] == SCHEMA


def test_fields_keep_their_order_and_later_ones_come_last() -> None:
    """Positional construction follows FIELDS, which nobody may reorder without raising the schema."""
    assert FIELDS[:5] == ("event", "schema", "level", "timestamp", "run_id")
    assert FIELDS[-6:] == ("in_flight", "on_device", "error", "stage", "staging_copy_ns", "delta_ns")
    assert len(FIELDS) == 53


def test_record_is_immutable() -> None:
    """An observer cannot change a record that other observers get too."""
    with pytest.raises(AttributeError):
        step_record().seq = 3  # type: ignore[misc]


@pytest.mark.parametrize(
    ("step_id", "written"),
    [
        (17, 17),
        ("request 4\nstep 2", "request 4\nstep 2"),
        (1.5, 1.5),
        (True, True),
        (None, None),
        (2**70, 2**70),
        (("a", 1), "('a', 1)"),
        (b"raw", "b'raw'"),
        (np.int64(9), 9),
        (np.float32(0.5), repr(np.float32(0.5))),
        (_EPOCH, repr(_EPOCH)),
    ],
)
def test_step_id_is_a_scalar_or_its_repr(step_id: object, written: object) -> None:
    """A step id that JSON has a scalar for is written as that, any other by its repr."""
    assert json.loads(encode_line(step_record(step_id=step_id)))["step_id"] == written


@pytest.mark.parametrize(
    "changes",
    [
        {"attrs": {"text": "a\nb\r\u2028\x85\x00"}},
        {"attrs": {"raw": msgspec.Raw(b"[1,\n2]")}},
        {"attrs": {"lone": "\ud800", "\udfff": 1}},
        {"attrs": {(1, 2): object(), None: {1, 2}, 5: b"x"}},
        {"attrs": {"array": np.arange(3), "scalar": np.int32(3), "nan": float("nan")}},
        {"attrs": _circle()},
        {"attrs": {"who": _Unspeakable()}},
        {"step_id": _Unspeakable()},
        {"step_id": "\udc80"},
        {"error": "lone \ud800 surrogate", "event": "step.failed"},
    ],
    ids=lambda changes: ascii(sorted(changes))[:40],
)
def test_any_content_is_one_whole_line(changes: dict[str, Any]) -> None:
    """Whatever a caller puts into a step, its line is one JSON object that ends with the only newline in it."""
    record = step_record(**changes)
    line = encode_line(record)
    assert line.endswith(b"}\n")
    assert line.count(b"\n") == 1
    loaded = json.loads(line)
    assert tuple(loaded) == FIELDS
    assert loaded["build_ns"] == record.build_ns


def test_batch_is_the_lines_joined() -> None:
    """encode_lines gives the bytes of encode_line of each, also with an awkward record among them."""
    plain = [step_record(seq=seq) for seq in range(3)]
    awkward = [step_record(attrs={"raw": msgspec.Raw(b"1\n")}), step_record(step_id=(1,)), step_record(error="\ud800")]
    assert encode_lines([]) == b""
    for batch in (plain, [*plain, awkward[0]], [*awkward, *plain]):
        assert encode_lines(batch) == b"".join(map(encode_line, batch))


@given(
    build=_AMOUNT,
    alloc=_AMOUNT,
    graph=_AMOUNT,
    sm=_AMOUNT,
    alloc_nbytes=_AMOUNT,
    copy_nbytes=_AMOUNT,
    sm_nbytes=_AMOUNT,
)
def test_line_of_any_figures_is_exact(
    build: int, alloc: int, graph: int, sm: int, alloc_nbytes: int, copy_nbytes: int, sm_nbytes: int
) -> None:
    """graph holds the allocation, H2D is graph + sm, and the bandwidths are floors of exact quotients."""
    record = step_record(
        build_ns=build,
        alloc_ns=alloc,
        h2d_graph_ns=graph,
        h2d_sm_ns=sm,
        h2d_ns=graph + sm,
        alloc_nbytes=alloc_nbytes,
        copy_nbytes=copy_nbytes,
        sm_nbytes=sm_nbytes,
    )
    h2d = alloc + graph + sm
    bw = copy_nbytes * 1000 // h2d if h2d else "-"
    sm_bw = sm_nbytes * 1000 // sm if sm else "-"
    assert host_orch_line(record) == (
        f"host-orch: orch={build} ns H2D={h2d} ns (graph={alloc + graph} ns sm={sm} ns) "
        f"alloc={alloc_nbytes} B copy={copy_nbytes} B bw={bw} MB/s sm_bw={sm_bw} MB/s"
    )


def test_report_figures_give_the_report_line() -> None:
    """A step with the report's figures is the report's line, character by character."""
    record = step_record(alloc_ns=74_843_437, alloc_nbytes=66_488_960)
    assert host_orch_line(record) == REPORT_LINE


@pytest.mark.parametrize("split", ["bytes", None])
def test_sm_bandwidth_is_never_invented(split: str | None) -> None:
    """Where the copy was divided by its bytes, or nobody says how, sm_bw shows as a dash."""
    assert host_orch_line(step_record(h2d_split=split)).endswith(" sm_bw=- MB/s")


@pytest.mark.parametrize(
    ("unknown", "dashes"),
    [
        ("build_ns", {"orch_ns"}),
        ("alloc_ns", {"h2d_ns", "graph_ns", "bw"}),
        ("h2d_graph_ns", {"h2d_ns", "graph_ns", "bw"}),
        ("h2d_sm_ns", {"h2d_ns", "sm_ns", "bw", "sm_bw"}),
        ("alloc_nbytes", {"alloc_nbytes"}),
        ("copy_nbytes", {"copy_nbytes", "bw"}),
        ("sm_nbytes", {"sm_bw"}),
    ],
)
def test_unknown_part_makes_the_sum_unknown(unknown: str, dashes: set[str]) -> None:
    """A figure that needs a null field is unknown, never computed as if the field were 0."""
    figures = host_orch(step_record(**{unknown: None}))
    assert {name for name in HostOrch._fields if getattr(figures, name) is None} == dashes
    assert figures.line().count("=-") == len(dashes)


def test_bandwidth_of_no_time_is_unknown() -> None:
    """No time passed, or an operand is unknown: there is no bandwidth, rather than an infinite one or a crash."""
    assert bandwidth_mb_per_s(5, 0) is None
    assert bandwidth_mb_per_s(None, 5) is None
    assert bandwidth_mb_per_s(5, None) is None
    assert bandwidth_mb_per_s(0, 5) == 0


@given(st.integers(0, 4_000_000_000 * 10**9))
def test_timestamp_is_the_instant_cut_to_microseconds(wall_ns: int) -> None:
    """A timestamp parses back to its instant in UTC, with the nanoseconds cut off."""
    text = format_timestamp(wall_ns)
    assert text.endswith("Z")
    assert datetime.fromisoformat(text) == _EPOCH + timedelta(microseconds=wall_ns // 1000)


def test_decoder_of_the_record_refuses_what_cannot_be_meant() -> None:
    """Negative and absurd durations are refused by the record's own types when a line is decoded."""
    decoder = msgspec.json.Decoder(StepRecord)
    for value in (-1, 2**53 + 1, 1.5, "7"):
        line = encode_line(step_record()).replace(b'"build_ns":3678950', f'"build_ns":{json.dumps(value)}'.encode())
        with pytest.raises(msgspec.ValidationError):
            decoder.decode(line)
