"""Columns of text."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

__all__ = ["aligned"]


def aligned(table: Sequence[Sequence[str]], *, left: Sequence[int] = (0,), indent: str = "  ") -> Iterator[str]:
    """Each row as a line, its cells as wide as their column; those of the columns `left` start at the left."""
    widths = [max(len(row[column]) for row in table) for column in range(len(table[0]))]
    for row in table:
        cells = [
            cell.ljust(width) if column in left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield (indent + "  ".join(cells)).rstrip()
