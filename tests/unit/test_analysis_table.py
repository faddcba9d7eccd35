"""The table of steps keeps each figure that a record may have, in as little memory as it fits, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from async_orch.analysis import MISSING, _table
from async_orch.analysis._fields import FIGURE_FIELDS
from async_orch.analysis._table import StepTable
from async_orch.logs import SCHEMA, StepRecord
from tests.unit.step_records import step_record


def _column(table: StepTable, name: str) -> list[int]:
    return [value for block in table.blocks()[0] for value in block.columns[name].tolist()]


def _most(name: str) -> int:
    counts = ("seq", "after", "slot", "generation", "alloc_count", "in_flight", "on_device")
    return 2**62 if name in counts or name.endswith(("_start_ns", "submit_ns", "accept_ns")) else 2**53


@pytest.mark.parametrize("name", FIGURE_FIELDS)
def test_a_figure_is_kept_up_to_its_bounds(name: str) -> None:
    """Of steps with figures at and beyond the bounds those within are kept, in order, and the others counted."""
    least, most = -(2**53) if name == "bubble_ns" else 0, _most(name)
    within = [step_record(**{name: value}) for value in (5, least, most, least + 1, 7, most - 1)]
    lacking = step_record(**{name: None})
    other = step_record(**{"build_ns" if name != "build_ns" else "seq": -1})
    strange = step_record(schema=99)
    for steps in (within, [lacking, *within], [lacking, lacking]):
        for beyond in (None, least - 1, most + 1, 2**63, -(2**70)):
            table = StepTable()
            bad = [] if beyond is None else [step_record(**{name: beyond}), other, strange]
            table.extend(steps[:1] + bad + steps[1:])
            expected = [getattr(step, name) for step in steps]
            assert _column(table, name) == [MISSING if value is None else value for value in expected]
            assert (table.invalid, table.unknown_schema) == ((2, 1) if bad else (0, 0))


@pytest.mark.parametrize(
    ("values", "dtype", "is_constant"),
    [
        ([4, 4, 4], np.int64, True),
        ([None, None], np.int64, True),
        ([0, 2**31 - 1], np.int32, False),
        ([0, 2**31], np.int64, False),
        ([-(2**31), 1], np.int32, False),
        ([-(2**31) - 1, 1], np.int64, False),
        ([None, 1], np.int64, False),
    ],
)
@pytest.mark.parametrize("has_damage", [False, True])
def test_columns_take_the_memory_they_need(
    values: list[int | None], dtype: type, is_constant: bool, has_damage: bool
) -> None:
    """One value is held once, and values that fit 32 bits in those, whatever a step has that is dropped."""
    table = StepTable()
    steps = [step_record(bubble_ns=value) for value in values]
    table.extend([*steps, step_record(bubble_ns=2**60)][: len(values) + has_damage])
    (block,), _ = table.blocks()
    column = block.columns["bubble_ns"]
    assert column.dtype == np.dtype(dtype)
    assert (column.strides == (0,)) is is_constant
    assert column.tolist() == [MISSING if value is None else value for value in values]


def test_what_a_table_gave_stays_when_it_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and kinds that were given do not change with what is added later, and a new start knows none of them."""
    monkeypatch.setattr(_table, "_BLOCK_ROWS", 4)
    table = StepTable()

    def fill(programs: str, first: int) -> list[StepRecord]:
        steps = [
            step_record(
                seq=first + number,
                submit_ns=(first + number) << 40,
                program=programs[number],
                schema=99 if number == 3 else SCHEMA,
            )
            for number in range(9)
        ]
        table.extend([*steps, step_record(build_ns=-1, program=programs[0])])
        return [step for step in steps if step.schema == SCHEMA]

    before = fill("ababababa", 0)
    blocks, kinds = table.blocks()
    assert (table.invalid, table.unknown_schema) == (1, 1)
    table.start_anew()
    after = fill("ccddccddc", 100)
    for steps, some, names in ((before, blocks, kinds), (after, *table.blocks())):
        assert [seq for block in some for seq in block.columns["seq"].tolist()] == [step.seq for step in steps]
        assert [ns for block in some for ns in block.columns["submit_ns"].tolist()] == [s.submit_ns for s in steps]
        assert [names[kind].program for block in some for kind in block.kinds] == [step.program for step in steps]
        assert len(names) == 2
    assert (table.invalid, table.unknown_schema) == (1, 1)
