"""The distributions of many figures of the same steps."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import numpy as np

from async_orch.analysis._columns import Rows, known_of
from async_orch.analysis._cores import cores
from async_orch.analysis._percentiles import Distribution, distribution

__all__ = ["distributions"]

_ROWS_FOR_THREADS: Final = 100_000
_MAX_THREADS: Final = 4  # each holds some columns of its own


def distributions(rows: Rows, figures: Sequence[str]) -> dict[str, Distribution]:
    """A `Distribution` for each of `figures` that at least one row has, in their order."""
    parts = list(rows.parts())

    def distribution_of(figure: str) -> Distribution | None:
        known = np.empty(len(rows), np.int64)
        count = 0
        for part in parts:
            values = known_of(part.figure(figure))
            known[count : count + len(values)] = values
            count += len(values)
        return distribution(known[:count], is_scratch=True)

    if len(rows) < _ROWS_FOR_THREADS:
        found = list(map(distribution_of, figures))
    else:
        # numpy works outside the GIL on columns of this length.
        try:
            with ThreadPoolExecutor(min(cores(), _MAX_THREADS)) as threads:
                found = list(threads.map(distribution_of, figures))
        except RuntimeError:  # no thread can be started: a limit of the system, or the interpreter's exit
            found = list(map(distribution_of, figures))
    return {figure: value for figure, value in zip(figures, found, strict=True) if value is not None}
