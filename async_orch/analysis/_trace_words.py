"""What a trace says of a step beside its times: how its caller called it, its attributes, its error."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, TypeAlias

from async_orch.analysis._frames import StepFrame
from async_orch.analysis._reader import read
from async_orch.analysis._shown import shown_json
from async_orch.analysis._sources import Source
from async_orch.logs import StepRecord

__all__ = ["Words", "words_of"]

Words: TypeAlias = dict[tuple[str, int], dict[str, Any]]
"""By run and seq: what is shown with the step."""

_MOST: Final = 1_000
"""Characters of each: a trace repeats them at every stage."""


def words_of(steps: StepFrame, sources: Iterable[Source]) -> Words:
    """Read the logs of `steps` once more for what their columns do not hold; as far as the last of the steps.

    A step that is not found there any more has no words. Raises `OSError` where a log cannot be read.
    """
    runs = [kind.run_id for kind in steps.kinds]
    wanted = {(runs[kind], seq) for kind, seq in zip(steps.kind.tolist(), steps.column("seq").tolist(), strict=True)}
    found: Words = {}
    for record in read(*sources):
        if isinstance(record, StepRecord) and (record.run_id, record.seq) in wanted:
            found[record.run_id, record.seq] = _of(record)
            if len(found) == len(wanted):
                break
    return found


def _of(record: StepRecord) -> dict[str, Any]:
    said: dict[str, Any] = {}
    if record.step_id != record.seq:  # else it is the seq, which is shown anyway
        said["step_id"] = record.step_id
    if record.attrs:
        said["attrs"] = record.attrs
    if record.error is not None:
        said["error"] = record.error
    return {name: _cut(value) for name, value in said.items()}


def _cut(value: Any) -> Any:
    text = value if isinstance(value, str) else shown_json(value)
    return value if len(text) <= _MOST else f"{text[:_MOST]}..."
