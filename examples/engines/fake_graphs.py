"""Fake captured graphs: kernel launches that were recorded once, with the addresses that their buffers had then.

A replay with buffers at other addresses raises, and a replay takes its input along: afterwards the input region holds
0xDD, so that a step whose input was not copied there gives wrong tokens.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from async_orch.abc import Buffer, ByteArray, Stream

__all__ = ["SCRIBBLE", "AddressChanged", "CapturedGraph", "NextTokens"]

SCRIBBLE = int(np.frombuffer(b"\xdd" * 4, np.int32)[0])
"""What a token reads as in an input region that was used before."""


class AddressChanged(RuntimeError):
    """A replay would read or write where the captured buffers no longer are."""


class CapturedGraph:
    """A launch of ``kernel`` on ``buffers``, the first of which is the input."""

    def __init__(self, kernel: Callable[..., None], *buffers: Buffer) -> None:
        self._kernel = kernel
        self._buffers = buffers
        self._frozen = [buffer.handle for buffer in buffers]

    def replay(self, stream: Stream, *buffers: Buffer) -> None:
        """Enqueue the captured launch; ``buffers`` are where the caller's data lies now."""
        now = [buffer.handle for buffer in buffers]
        if now != self._frozen:
            where = [f"{a:#x} is now {b:#x}" for a, b in zip(self._frozen, now, strict=True) if a != b]
            raise AddressChanged(f"captured address {'; '.join(where)}: capture again, or keep the data in place")
        stream.launch(self._run, *self._buffers)

    def _run(self, first: ByteArray, *others: Any) -> None:
        self._kernel(first, *others)
        first.fill(0xDD)


class NextTokens:
    """A model for batches of one size; clear ``running`` and it hangs. Token -1 raises."""

    def __init__(self, batch: int, running: threading.Event) -> None:
        self.batch = batch
        self._running = running

    def __call__(self, tokens: ByteArray, output: ByteArray) -> None:
        self._running.wait()
        rows = tokens.view(np.int32)[: self.batch]
        if (rows == -1).any():
            raise ValueError("token -1 is not in the vocabulary")
        output.view(np.int32)[: self.batch] = rows * 3 + 1
