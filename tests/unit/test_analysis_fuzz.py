"""Mutated lines: a line is read whole or counted as skipped, and no figure is taken that the text does not hold."""

from __future__ import annotations

import io
import json
import os
import random
import re
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st

from async_orch.analysis import (
    MISSING,
    BindPhase,
    ClockAnchor,
    LogReader,
    Record,
    Span,
    read,
    read_frames,
    summarize,
)
from async_orch.logs import FIELDS, HostOrch, StepRecord, encode_line
from tests.unit.step_records import REPORT_LINE, step_record

SEEDS = (
    REPORT_LINE.encode(),
    b"[mono_ns=41170000][T0x29][TIMING] bind: " + REPORT_LINE.encode() + b" " + REPORT_LINE.encode(),
    encode_line(step_record()).strip(),
    encode_line(step_record(attrs={"note": 'a "quoted" } brace', "n": [1, {"k": None}]}, step_id="r-1")).strip(),
    encode_line(step_record(seq=1)).strip() + REPORT_LINE.encode(),
    b"[mono_ns=411][T0x29][TIMING] f: [STRACE] v=1 pid=41 tid=42 inv=7 hid=9f3c depth=1 name=n ts=119 dur=152 k=v",
    b"[mono_ns=411][T0x29][TIMING] c: [CLOCK_ANCHOR] v=1 pid=41 mono_ns=1000 wall_ns=1700000000000000000",
    b"[mono_ns=411][T0x29][TIMING] bind: bind phase=host_orch start_ns=1500000 dur_ns=847818 tasks=47",
)
MUTATIONS = int(os.environ.get("ASYNC_ORCH_FUZZ_LINES", "2500"))
"""How many mutated lines are tried; 100,000 take some minutes."""

_INTERESTING = (
    b"0",
    b"9",
    b"-",
    b"{",
    b"}",
    b'"',
    b"\\",
    b" ",
    b"\xff",
    b"\x00",
    b"null",
    b"host-orch: ",
    b',"',
    b"e9",
    b".",
)


def objects_in(line: bytes) -> list[dict[str, Any]]:
    """Every JSON object that starts anywhere in the line, by another parser than the reader's."""
    text = line.decode("utf-8", "replace")
    decoder = json.JSONDecoder()
    found: list[dict[str, Any]] = []
    start = text.find("{")
    while start >= 0:
        try:
            value, _ = decoder.raw_decode(text, start)
        except ValueError:
            pass  # no object starts here
        else:
            found.append(value)
        start = text.find("{", start + 1)
    return found


def check(line: bytes) -> list[Record]:
    """Read one mutated line and hold each record against what the text says."""
    reader = LogReader(io.BytesIO(line))
    records = list(reader)
    summarize(records)  # takes whatever the reader lets through
    check_frames(line, records)
    reading = reader.reading
    assert reading.records + reading.clock_anchors == len(records)
    if line.removeprefix(b"\xef\xbb\xbf").strip():
        assert records or reading.skipped or reading.other_events
    for record in records:
        if isinstance(record, HostOrch):
            assert record.line().encode() in line
        elif isinstance(record, Span):
            for key, value in (
                ("inv", record.inv),
                ("depth", record.depth),
                ("ts", record.ts_ns),
                ("dur", record.dur_ns),
            ):
                assert re.search(rb"[ \t]%s=%d(?=[ \t\r]|$)" % (key.encode(), value), line)
        elif isinstance(record, ClockAnchor):
            assert re.search(rb"mono_ns=%d(?=[ \t\r]|$)" % record.mono_ns, line)
            assert re.search(rb"wall_ns=%d(?=[ \t\r]|$)" % record.wall_ns, line)
        elif isinstance(record, BindPhase):
            assert re.search(rb"start_ns=%d(?=[ \t\r]|$)" % record.start_ns, line)
            assert re.search(rb"dur_ns=%d(?=[ \t\r]|$)" % record.dur_ns, line)
        else:
            fields = msgspec.structs.asdict(record)
            assert any({name: held.get(name) for name in FIELDS} == fields for held in objects_in(line))
            assert all(value is None or value >= 0 for name, value in fields.items() if name.endswith("_nbytes"))
    return records


def check_frames(line: bytes, records: list[Record]) -> None:
    """The way by the block takes the same figures from the line, and counts it if it takes none."""
    steps = read_frames(io.BytesIO(line + b"\n")).steps
    taken = [record for record in records if isinstance(record, StepRecord)]
    objects = objects_in(line)
    for row in range(len(steps)):
        figures = {name: None if (value := int(steps.column(name)[row])) == MISSING else value for name in steps}
        assert any({name: held.get(name) for name in figures} == figures for held in objects)
    # Text that no figure depends on is not looked at by the block, so it may take a record that `read` refuses.
    assert len(steps) >= len({(record.run_id, record.seq) for record in taken})


def mutate(line: bytes, rng: random.Random) -> bytes:
    """Change a line in one to four places: cut, drop, repeat, overwrite, splice; never with a line end."""
    data = bytearray(line)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(len(data) + 1)
        to = min(len(data), at + rng.randint(1, 12))
        match rng.randrange(6):
            case 0:
                del data[at:]
            case 1:
                del data[at:to]
            case 2:
                data[at:at] = data[at:to]
            case 3:
                data[at:to] = bytes(rng.choices(range(11, 256), k=to - at))
            case 4:
                data[at : at + 1] = rng.choice(_INTERESTING)
            case _:
                data[at:at] = rng.choice(SEEDS)[rng.randrange(40) :]
    return bytes(data).replace(b"\n", b" ")


def test_mutated_lines_are_read_whole_or_skipped() -> None:
    """Over many thousand mutations, every record read stands in the text, and every other line is counted."""
    rng = random.Random(20260804)
    outcomes = {True: 0, False: 0}
    for _ in range(MUTATIONS):
        outcomes[bool(check(mutate(rng.choice(SEEDS), rng)))] += 1
    assert min(outcomes.values()) > 200  # both ways were taken, so the mutations are neither too weak nor too strong


@settings(max_examples=200)
@given(st.data())
def test_spliced_lines_are_read_whole_or_skipped(data: st.DataObject) -> None:
    """Pieces of good lines in any order, with anything between them, give only records that stand in the text."""
    pieces = data.draw(
        st.lists(
            st.one_of(
                st.sampled_from(SEEDS),
                st.builds(
                    lambda seed, a, b: seed[min(a, b) : max(a, b)], st.sampled_from(SEEDS), *[st.integers(0, 1200)] * 2
                ),
                st.binary(max_size=20),
            ),
            max_size=5,
        )
    )
    check(b"".join(pieces).replace(b"\n", b""))


@given(st.binary(max_size=300))
def test_arbitrary_bytes_never_raise(data: bytes) -> None:
    """Any bytes at all give an empty or partial reading, never an exception."""
    reader = read(io.BytesIO(data))
    assert all(isinstance(record, Record) for record in reader)
    compressed = data.startswith((b"\x1f\x8b", b"\x28\xb5\x2f\xfd"))
    assert compressed or reader.reading.lines == len(data.split(b"\n")) - data.endswith(b"\n") - (not data)
