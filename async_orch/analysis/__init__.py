"""What a log says about the steps in it: their parts, cold and warm apart, and what bounds them.

`analyze` does all of it for a file; `read` and `summarize` are its two halves, for code that selects among the
records in between::

    from async_orch.analysis import read, summarize
    from async_orch.logs import StepRecord

    steps = (record for record in read("run.jsonl") if isinstance(record, StepRecord) and record.program == "decode")
    warm = summarize(steps).group("warm")

The package knows the log's schema and nothing of the engine. It reads step records (`async_orch.logs`) and
``host-orch:`` lines, mixed with each other and with anything else.
"""

from __future__ import annotations

from async_orch.analysis._lines import MAX_LINE_NBYTES, ByteSource
from async_orch.analysis._percentiles import Distribution
from async_orch.analysis._reader import Contradiction, LogReader, Reading, Record, read
from async_orch.analysis._summary import (
    FIGURES,
    Analysis,
    Group,
    GroupName,
    Run,
    Summary,
    analyze,
    is_whole,
    summarize,
)
from async_orch.analysis._verdict import Verdict

__all__ = [
    "analyze",
    "read",
    "summarize",
    "is_whole",
    "Analysis",
    "ByteSource",
    "Contradiction",
    "Distribution",
    "FIGURES",
    "Group",
    "GroupName",
    "LogReader",
    "MAX_LINE_NBYTES",
    "Reading",
    "Record",
    "Run",
    "Summary",
    "Verdict",
]
