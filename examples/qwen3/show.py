"""Progress and growing text on a terminal; plain lines elsewhere; nothing at all when asked to be quiet."""

from __future__ import annotations

from collections.abc import Sequence
from types import TracebackType
from typing import Self

from rich.console import Console, Group
from rich.live import Live
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text

from examples.qwen3.tokenizer import GrowingText
from examples.qwen3.wording import visible

__all__ = ["Display"]


class Display:
    """Shows one mode's decode while it runs; a context manager.

    On a terminal a bar, one more while weights are loaded, and every prompt with its text so far are redrawn some
    times a second, on a thread of rich; elsewhere the finished texts are printed once. ``console=None`` shows nothing.
    """

    def __init__(
        self,
        console: Console | None,
        mode: str,
        steps: int,
        prompts: Sequence[str],
        texts: Sequence[GrowingText],
    ) -> None:
        self._console = console
        self._mode = mode
        self._prompts = prompts
        self._texts = texts
        self._progress = Progress(
            TextColumn(f"{mode:>9}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("steps"),
            TimeRemainingColumn(),
        )
        self._task = self._progress.add_task(mode, total=steps)
        self._loading = Progress(TextColumn("  loading"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        self._weights = self._loading.add_task("weights", total=None, visible=False)
        self._live: Live | None = None
        if console is not None and console.is_terminal:
            self._live = Live(
                console=console, get_renderable=self._render, refresh_per_second=10, vertical_overflow="crop"
            )

    def _lines(self) -> list[Text]:
        return [
            Text.assemble((visible(prompt), "dim"), visible(str(text)))
            for prompt, text in zip(self._prompts, self._texts, strict=True)
        ]

    def _render(self) -> Group:
        return Group(self._loading, self._progress, *self._lines())

    def loaded(self, done_nbytes: int, total_nbytes: int) -> None:
        """Show how far the weights are loaded; the bar goes when they are."""
        unfinished = done_nbytes < total_nbytes
        self._loading.update(self._weights, total=total_nbytes, completed=done_nbytes, visible=unfinished)

    def step_done(self, *_: object) -> None:
        """Move the bar by one step; the texts are read when they are drawn next."""
        self._progress.advance(self._task)

    def __enter__(self) -> Self:
        if self._live is not None:
            self._live.start(refresh=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.stop()
        elif self._console is not None and kind is None:
            self._console.print(f"{self._mode}:", highlight=False)
            for line in self._lines():
                self._console.print(line, soft_wrap=True)
