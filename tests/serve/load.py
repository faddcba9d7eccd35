"""A crowd of clients: streams that are compared token by token, some that leave, some that send nonsense.

Clients are plain sockets: a full HTTP library would take more of the machine than the server.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Crowd", "Outcome", "stream"]

NONSENSE = (
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 4\r\n\r\n\xff\xfe{}",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: 2\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 999\r\n\r\n{",  # and leaves
    b"\x16\x03\x01\x00\xa5\x01\x00\x00\xa1\x03\x03",
    b"GET /v1/nothing HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n",
)


@dataclass
class Outcome:
    """What one stream gave: its text, when each piece came, and whether it was whole."""

    text: str = ""
    arrivals_s: list[float] = field(default_factory=list)
    finished: bool = False
    error: str = ""


async def stream(port: int, model: str, prompt: str, max_tokens: int, *, leave_after: int | None = None) -> Outcome:
    """A greedy streamed completion; with ``leave_after`` the client closes the connection after so many pieces."""
    body = json.dumps(
        {"model": model, "prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "stream": True}
    ).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    outcome = Outcome()
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(head.encode() + body)
        while line := await reader.readline():
            if not line.startswith(b"data: "):
                if line.startswith(b"HTTP/1.1 ") and not line.startswith(b"HTTP/1.1 200"):
                    outcome.error = line.decode().strip()
                continue
            if line.startswith(b"data: [DONE]"):
                outcome.finished = True
                break
            data = json.loads(line[6:])
            if "error" in data:
                outcome.error = data["error"]["code"]
                break
            text = data["choices"][0]["text"]
            if text:
                outcome.text += text
                outcome.arrivals_s.append(time.monotonic())
            if leave_after is not None and len(outcome.arrivals_s) >= leave_after:
                break
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
    return outcome


class Crowd:
    """``streams`` clients at once, each asking at least once, and again and again until ``until()`` says True.

    A quarter of the requests leave in the middle, and beside every eighth request nonsense is sent. What survives is
    compared with ``wanted(prompt, max_tokens)``.
    """

    def __init__(
        self,
        port: int,
        model: str,
        wanted: Callable[[str, int], str],
        prompts: list[tuple[str, int]],
        *,
        streams: int = 64,
        seed: int = 1,
    ) -> None:
        self._port = port
        self._model = model
        self._wanted = wanted
        self._prompts = prompts
        self._streams = streams
        self._random = random.Random(seed)
        self.survived = 0
        self.left = 0
        self.nonsense = 0
        self.wrong: list[str] = []
        self.tokens = 0
        self.arrived_s: list[float] = []
        self.gaps_s: list[float] = []
        self.first_s: list[float] = []

    async def run(self, until: Callable[[], bool]) -> None:
        """All clients, to the end of their last request."""
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self._streams):
                tasks.create_task(self._client(until))

    async def _client(self, until: Callable[[], bool]) -> None:
        while True:
            prompt, most = self._random.choice(self._prompts)
            leave = self._random.randint(1, max(1, most // 2)) if self._random.random() < 0.25 else None
            if self._random.random() < 0.125:
                await self._send_nonsense()
            started = time.monotonic()
            outcome = await stream(self._port, self._model, prompt, most, leave_after=leave)
            self.tokens += len(outcome.arrivals_s)
            times = outcome.arrivals_s
            self.arrived_s += times
            self.gaps_s += [later - earlier for earlier, later in itertools.pairwise(times)]
            self.first_s += [times[0] - started] if times else []
            if leave is not None and not outcome.finished and not outcome.error:
                self.left += 1
            elif outcome.error or not outcome.finished:
                self.wrong.append(f"{prompt[:30]!r}: {outcome.error or 'cut off'}")
            elif outcome.text != self._wanted(prompt, most):
                self.wrong.append(f"{prompt[:30]!r}: {outcome.text!r}")
            else:
                self.survived += 1
            if until():
                return

    async def _send_nonsense(self) -> None:
        self.nonsense += 1
        data = self._random.choice(NONSENSE)
        _, writer = await asyncio.open_connection("127.0.0.1", self._port)
        writer.write(data)
        with contextlib.suppress(OSError):
            await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
