"""Letting time pass in tests: only where it is virtual, so that no test waits for a clock on the wall."""

from __future__ import annotations

import asyncio

from async_orch.testing import VirtualClockLoop

__all__ = ["pass_time"]


async def pass_time(duration_s: float) -> None:
    """Go on when the virtual clock has moved on by ``duration_s``. Raises `TypeError` on a loop in real time."""
    loop = asyncio.get_running_loop()
    if not isinstance(loop, VirtualClockLoop):
        raise TypeError(f"{type(loop).__name__} keeps real time; run this under run_virtual()")
    passed = loop.create_future()
    loop.call_later(duration_s, passed.set_result, None)
    await passed
