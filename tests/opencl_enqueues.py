"""Counts what pyopencl hands to the driver."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyopencl
import pytest

__all__ = ["Enqueues"]

cl: Any = pyopencl


class Enqueues:
    """Counts the driver's enqueue functions where pyopencl calls them."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        for name in dir(cl._cl):
            if "enqueue" in name and callable(getattr(cl._cl, name)) and not isinstance(getattr(cl._cl, name), type):
                monkeypatch.setattr(cl._cl, name, self._counted(name, getattr(cl._cl, name)))

    def _counted(self, name: str, function: Any) -> Any:
        def call(*args: Any, **options: Any) -> Any:
            self.names.append(name)
            return function(*args, **options)

        return call

    @property
    def counts(self) -> dict[str, int]:
        """Calls so far by the function's name."""
        return dict(Counter(self.names))
