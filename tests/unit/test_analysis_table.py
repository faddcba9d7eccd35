"""The table of steps keeps each figure that a record may have, in as little memory as it fits, and no other."""

from __future__ import annotations

import numpy as np
import pytest

from async_orch.analysis import MISSING, Kind, _table
from async_orch.analysis._table import FIGURE_FIELDS, StepTable
from async_orch.logs import SCHEMA, StepRecord
from tests.unit.step_records import step_record


def _column(table: StepTable, name: str) -> list[int]:
    return [value for block in table.blocks()[0] for value in block.columns[name].tolist()]


def _most(name: str) -> int:
    counts = ("seq", "after", "slot", "generation", "alloc_count", "in_flight", "on_device")
    return 2**62 if name in counts or name.endswith(("_start_ns", "submit_ns", "accept_ns")) else 2**53


@pytest.mark.parametrize("name", FIGURE_FIELDS)
@pytest.mark.parametrize("others", [0, 1, None])
def test_a_figure_is_kept_up_to_its_bounds(name: str, others: int | None) -> None:
    """Of steps with figures at and beyond the bounds those within are kept, in order, and the others counted."""
    least = -(2**53) if name == "bubble_ns" else 0
    values = [least, 5, _most(name), least + 1, 7, None, _most(name) - 1]
    beyond = [least - 1, _most(name) + 1, 2**63, -(2**70)]
    table = StepTable()
    steps = [step_record(**{name: value}) for value in values]
    if others is not None:
        steps[1:1] = [step_record(**{name: value}) for value in beyond[others::2]]
    table.extend(steps)
    assert _column(table, name) == [MISSING if value is None else value for value in values]
    assert table.invalid == (0 if others is None else 2)


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
def test_columns_take_the_memory_they_need(values: list[int | None], dtype: type, is_constant: bool) -> None:
    """One value is held once, and values that fit 32 bits in those; all of them as they were."""
    table = StepTable()
    table.extend([step_record(bubble_ns=value) for value in values])
    (block,), _ = table.blocks()
    column = block.columns["bubble_ns"]
    assert (column.dtype, column.strides == (0,)) == (dtype, is_constant)
    assert column.tolist() == [MISSING if value is None else value for value in values]


def test_what_a_table_gave_stays_when_it_starts_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks and kinds that were given do not change with what is added later, and a new start knows none of them."""
    monkeypatch.setattr(_table, "_BLOCK_ROWS", 4)
    table = StepTable()

    def fill(program: str, first: int) -> list[StepRecord]:
        steps = [
            step_record(
                seq=first + number,
                submit_ns=(first + number) << 40,
                program=program,
                schema=99 if number == 3 else SCHEMA,
            )
            for number in range(9)
        ]
        table.extend([*steps, step_record(build_ns=-1, program=program)])
        return [step for step in steps if step.schema == SCHEMA]

    before = fill("p", 0)
    blocks, kinds = table.blocks()
    assert (table.invalid, table.unknown_schema) == (1, 1)
    table.start_anew()
    after = fill("q", 100)
    for steps, some, names in ((before, blocks, kinds), (after, *table.blocks())):
        assert [seq for block in some for seq in block.columns["seq"].tolist()] == [step.seq for step in steps]
        assert [ns for block in some for ns in block.columns["submit_ns"].tolist()] == [s.submit_ns for s in steps]
        assert {names[kind].program for block in some for kind in block.kinds} == {steps[0].program}
        assert len(names) == 1
        assert isinstance(names[0], Kind)
    assert (table.invalid, table.unknown_schema) == (1, 1)
