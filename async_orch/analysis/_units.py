"""Figures as text, rounded half up by integer arithmetic: the same digits on every machine."""

from __future__ import annotations

__all__ = ["bandwidth", "duration", "duration_number", "in_unit", "share", "size"]


def _rounded(value: int, unit: int, decimals: int) -> str:
    scale = 10**decimals
    scaled = (2 * abs(value) * scale + unit) // (2 * unit)
    sign = "-" if value < 0 and scaled else ""
    whole, fraction = divmod(scaled, scale)
    return f"{sign}{whole}.{fraction:0{decimals}d}"


def duration_number(nanoseconds: int) -> str:
    """Milliseconds without the unit: two decimals, more below 1 ms so that small figures do not vanish."""
    magnitude = abs(nanoseconds)
    decimals = 2 if magnitude >= 995_000 or magnitude == 0 else 3 if magnitude >= 99_500 else 4
    return _rounded(nanoseconds, 1_000_000, decimals)


def duration(nanoseconds: int) -> str:
    """Nanoseconds as milliseconds: ``107.08 ms``."""
    return f"{duration_number(nanoseconds)} ms"


def size(nbytes: int) -> str:
    """Bytes as decimal megabytes, ``66.49 MB``; below 0.1 MB as they are."""
    if abs(nbytes) < 100_000:
        return f"{nbytes} B"
    return f"{_rounded(nbytes, 1_000_000, 2)} MB"


def bandwidth(mb_per_s: int) -> str:
    """Decimal megabytes a second: ``51 MB/s``."""
    return f"{mb_per_s} MB/s"


def share(part: float) -> str:
    """A part of one in percent: ``83.1 %``."""
    return f"{100 * part:.1f} %"


def in_unit(value: int, unit: str) -> str:
    """A figure in the unit that its name has: ``ns``, ``B`` or ``MB/s``."""
    return {"ns": duration, "B": size, "MB/s": bandwidth}[unit](value)
