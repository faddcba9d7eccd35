"""Standard output whose failures are told apart from all others, and whose text the terminal can show."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import IO, Any, cast

from examples.qwen3.wording import one_line

__all__ = ["OutputError", "ReaderGone", "complain", "writing_output"]


class OutputError(Exception):
    """Standard output cannot take what is to be shown; one line that says what to change."""


class ReaderGone(Exception):
    """Whoever read our output has gone away, as ``head`` does when it has enough. Nothing is wrong."""


class _Output:
    """A stream that keeps its first failure for `check`, and takes no more text after it.

    A terminal is redrawn on a thread of rich, where an exception would end in a traceback and nothing else.
    """

    def __init__(self, stream: Any) -> None:
        self._stream = stream
        self._error: OSError | None = None

    def __getattr__(self, name: str) -> Any:  # isatty, encoding and what else rich may ask of a stream
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        if self._error is None:
            try:
                self._stream.write(text)
            except OSError as error:
                self._error = error
        return len(text)

    def flush(self) -> None:
        if self._error is None:
            try:
                self._stream.flush()
            except OSError as error:
                self._error = error

    def check(self) -> None:
        """Flush. Raises `ReaderGone` or `OutputError` if not all that was written has gone out."""
        self.flush()
        if self._error is None:
            return
        _abandon(self._stream)
        if isinstance(self._error, BrokenPipeError):
            raise ReaderGone from self._error
        raise OutputError(
            f"standard output cannot be written: {self._error.strerror or self._error}; make room, or redirect it to "
            "another file"
        ) from self._error


@contextlib.contextmanager
def writing_output(stream: IO[str]) -> Iterator[tuple[IO[str], Callable[[], None]]]:
    """Standard output ``stream`` as a stream that does not raise, and a function that raises what went wrong so far.

    That function is also called at the end, unless an exception is on its way already. Characters that the
    output's encoding lacks show as ``?``.
    """
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="replace")
    output = _Output(stream)
    try:
        yield cast("IO[str]", output), output.check
    except Exception:
        with contextlib.suppress(OutputError, ReaderGone):  # the user should hear of the first one
            output.check()
        raise
    except BaseException:  # --help leaves by SystemExit; a failure to write it shows here or nowhere
        output.check()
        raise
    else:
        output.check()


def complain(message: str) -> None:
    """Print an error as one line on stderr; nowhere if that is closed, least of all among the figures."""
    if sys.stderr is not None:
        with contextlib.suppress(OSError):
            print(f"decode_runner: error: {one_line(message)}", file=sys.stderr, flush=True)


def _abandon(stream: Any) -> None:
    """Keep the interpreter from flushing what is left once more, and complaining, when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, stream.fileno())
        os.close(nowhere)
