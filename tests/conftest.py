"""What holds for every test: no time limits but pytest's, and structlog as a fresh process has it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog
from hypothesis import settings

settings.register_profile("async_orch", deadline=None)  # how long an example takes says how busy the machine is
settings.load_profile("async_orch")


@pytest.fixture(autouse=True)
def unconfigured_structlog() -> Iterator[None]:
    """Undo what a test does to structlog: ``capture_logs`` leaves it configured, and then events are printed."""
    yield
    structlog.reset_defaults()
