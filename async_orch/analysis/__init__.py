"""What logs say about the steps in them: their parts, cold and warm apart, and what bounds them.

`analyze` does all of it for some files. `read_frames` and `summarize_frames` are its two halves: between them stand
`LogFrames`, the log in columns, for a notebook to go on from. `read` gives records one at a time, for code that
selects among them, and `summarize` takes such records::

    from async_orch.analysis import read, summarize
    from async_orch.logs import StepRecord

    steps = (record for record in read("run.jsonl") if isinstance(record, StepRecord) and record.program == "decode")
    warm = summarize(steps).group("warm")

The package knows the log's schema and nothing of the engine. It reads step records (`async_orch.logs`),
``host-orch:`` lines, ``[STRACE]`` spans, ``[CLOCK_ANCHOR]`` and ``bind phase=`` lines, mixed with each other and with
anything else, as text, gzip or zstd.

What it names is loaded when it is first asked for: the processes that read parts of a log start in half the time.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from async_orch.analysis._bubbles import Bubble, longest_bubbles
    from async_orch.analysis._compare import Change, Comparison, GroupComparison, compare
    from async_orch.analysis._consistency import StepContradictions
    from async_orch.analysis._estimate import Estimate, EstimateError, StepSizes, estimate
    from async_orch.analysis._fields import MISSING, Kind
    from async_orch.analysis._figures import FIGURES
    from async_orch.analysis._frames import StepFrame
    from async_orch.analysis._limits import Finding, Limit, LimitError, check, limits_from
    from async_orch.analysis._lines import MAX_LINE_NBYTES
    from async_orch.analysis._log_frames import LogFrames
    from async_orch.analysis._markers import BindPhase, ClockAnchor, Span
    from async_orch.analysis._model import Setting, StepCost
    from async_orch.analysis._overlap import Overlap
    from async_orch.analysis._percentiles import Distribution
    from async_orch.analysis._pieces import Record
    from async_orch.analysis._reader import LogReader, read
    from async_orch.analysis._reading import Contradiction, Reading
    from async_orch.analysis._report import report_page
    from async_orch.analysis._scan import Scanner, read_frames
    from async_orch.analysis._sources import ByteSource, Source
    from async_orch.analysis._spans import PhaseSummary, SpanGroup
    from async_orch.analysis._summary import (
        Analysis,
        Group,
        GroupName,
        Run,
        Summary,
        analyze,
        is_whole,
        summarize,
        summarize_frames,
    )
    from async_orch.analysis._trace import MAX_TRACE_STEPS, TraceExtent, chrome_trace, strace_lines
    from async_orch.analysis._verdict import Verdict
    from async_orch.analysis._whatif import Prediction, WhatIf, WhatIfError, whatif

__all__ = [
    "analyze",
    "check",
    "chrome_trace",
    "compare",
    "estimate",
    "limits_from",
    "longest_bubbles",
    "read",
    "read_frames",
    "summarize",
    "summarize_frames",
    "whatif",
    "is_whole",
    "report_page",
    "strace_lines",
    "Analysis",
    "BindPhase",
    "Bubble",
    "ByteSource",
    "Change",
    "ClockAnchor",
    "Comparison",
    "Contradiction",
    "Distribution",
    "Estimate",
    "EstimateError",
    "FIGURES",
    "Finding",
    "Group",
    "GroupComparison",
    "GroupName",
    "Kind",
    "Limit",
    "LimitError",
    "LogFrames",
    "LogReader",
    "MAX_LINE_NBYTES",
    "MAX_TRACE_STEPS",
    "MISSING",
    "Overlap",
    "PhaseSummary",
    "Prediction",
    "Reading",
    "Record",
    "Run",
    "Scanner",
    "Setting",
    "Source",
    "Span",
    "SpanGroup",
    "StepContradictions",
    "StepCost",
    "StepFrame",
    "StepSizes",
    "Summary",
    "TraceExtent",
    "Verdict",
    "WhatIf",
    "WhatIfError",
]

_HOME = {
    "analyze": "_summary",
    "check": "_limits",
    "chrome_trace": "_trace",
    "compare": "_compare",
    "estimate": "_estimate",
    "limits_from": "_limits",
    "longest_bubbles": "_bubbles",
    "read": "_reader",
    "read_frames": "_scan",
    "summarize": "_summary",
    "summarize_frames": "_summary",
    "whatif": "_whatif",
    "is_whole": "_summary",
    "report_page": "_report",
    "strace_lines": "_trace",
    "Analysis": "_summary",
    "BindPhase": "_markers",
    "Bubble": "_bubbles",
    "ByteSource": "_sources",
    "Change": "_compare",
    "ClockAnchor": "_markers",
    "Comparison": "_compare",
    "Contradiction": "_reading",
    "Distribution": "_percentiles",
    "Estimate": "_estimate",
    "EstimateError": "_estimate",
    "FIGURES": "_figures",
    "Finding": "_limits",
    "Group": "_summary",
    "GroupComparison": "_compare",
    "GroupName": "_summary",
    "Kind": "_fields",
    "Limit": "_limits",
    "LimitError": "_limits",
    "LogFrames": "_log_frames",
    "LogReader": "_reader",
    "MAX_LINE_NBYTES": "_lines",
    "MAX_TRACE_STEPS": "_trace",
    "MISSING": "_fields",
    "Overlap": "_overlap",
    "PhaseSummary": "_spans",
    "Prediction": "_whatif",
    "Reading": "_reading",
    "Record": "_pieces",
    "Run": "_summary",
    "Scanner": "_scan",
    "Setting": "_model",
    "Source": "_sources",
    "Span": "_markers",
    "SpanGroup": "_spans",
    "StepContradictions": "_consistency",
    "StepCost": "_model",
    "StepFrame": "_frames",
    "StepSizes": "_estimate",
    "Summary": "_summary",
    "TraceExtent": "_trace",
    "Verdict": "_verdict",
    "WhatIf": "_whatif",
    "WhatIfError": "_whatif",
}

if not TYPE_CHECKING:  # type checkers see the imports above; a __getattr__ would make them accept any name

    def __getattr__(name: str) -> Any:
        home = _HOME.get(name)
        if home is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f"{__name__}.{home}"), name)
        globals()[name] = value  # the next look-up does not come here
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
