"""The ``async-orch`` command.

Every error that a user can cause is one line on stderr that says what to change, with exit code 2. A command
imports what it needs when it runs, so that ``async-orch --help`` does not wait for numpy.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final, NoReturn

if TYPE_CHECKING:
    from async_orch.analysis import ByteSource, Reading

__all__ = ["main"]

_USAGE_ERROR: Final = 2


class _UsageError(Exception):
    """What the user gave cannot work; the message is the line to print."""


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise _UsageError(f"{message}; see `{self.prog} --help`")


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> NoReturn:
        from importlib.metadata import PackageNotFoundError, version  # noqa: PLC0415 - slow to import

        try:
            found = version("async-orch")
        except PackageNotFoundError:
            found = "(not installed)"
        print(f"async-orch {found}")
        parser.exit()


def _parser() -> _Parser:
    parser = _Parser(
        prog="async-orch",
        description="Reads the logs of steps that a host prepared for an accelerator.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    analyze = commands.add_parser(
        "analyze",
        allow_abbrev=False,
        help="show where the steps' time went and what bounds them",
        description="Shows count, p50, p90, p99 and max of each part of a step, cold and warm steps apart, and "
        "what bounds them. Reads step logs (step_log=) and host-orch: lines, mixed with anything.",
        epilog="Percentiles are by nearest rank. Exit code: 0, or 2 if nothing in FILE could be used.",
    )
    analyze.add_argument("file", metavar="FILE", help="the log, or - for standard input")
    analyze.add_argument(
        "--format",
        choices=("table", "json", "host-orch"),
        default="table",
        help="a table for people, one JSON object, or each step as a host-orch: line (default: %(default)s)",
    )
    return parser


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's); gives the exit code, 0 or 2.

    141 (128 + SIGPIPE) means that the reader of our output went away, 130 an interrupt: what a shell shows for
    programs that these signals end.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold what the terminal cannot show
    try:
        return _run(arguments)
    except _UsageError as error:
        print("async-orch:", " ".join(str(error).splitlines()), file=sys.stderr)
        return _USAGE_ERROR
    except BrokenPipeError:
        _abandon_stdout()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(arguments: Sequence[str] | None) -> int:
    try:
        options = _parser().parse_args(arguments)
        return _analyze(options.file, options.format)
    finally:  # also when --help or --version leaves by SystemExit: a failure to write shows here or nowhere
        with _writing():
            sys.stdout.flush()


def _abandon_stdout() -> None:
    """Keep the interpreter from flushing what is left once more, and complaining, when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def _analyze(file: str, form: str) -> int:
    from async_orch.analysis import Analysis, read, summarize  # noqa: PLC0415 - imports numpy
    from async_orch.analysis import _render as render  # noqa: PLC0415

    name = "standard input" if file == "-" else _printable(file)
    reader = read(_stdin() if file == "-" else file)
    written = 0
    try:
        if form == "host-orch":
            for line in render.host_orch_lines(reader):
                with _writing():
                    sys.stdout.write(line)
                written += 1
        else:
            analysis = Analysis(summary=summarize(reader), reading=reader.reading)
            if analysis.reading.records:
                text = render.as_json(analysis, name) if form == "json" else render.as_table(analysis, name)
                with _writing():
                    sys.stdout.write(text)
                written += 1
    except BrokenPipeError:
        raise
    except OSError as error:
        raise _UsageError(f"cannot read {name}: {error.strerror or error}; {_remedy(error)}") from error
    reading = reader.reading
    if not reading.records:
        raise _UsageError(f"{name}: {_nothing_usable(reading)}")
    if not written:
        raise _UsageError(f"{name}: no step ran to its end, so there is no line to show; use --format table")
    if form == "host-orch" and (reading.skipped or reading.contradictions):
        print(f"{name}: {render.reading_line(reading)}", file=sys.stderr)
    return 0


def _stdin() -> ByteSource:
    if sys.stdin is None:  # pythonw and some supervisors close it
        raise _UsageError("standard input is closed; give the path of a log")
    return sys.stdin.buffer


@contextlib.contextmanager
def _writing() -> Iterator[None]:
    """Tell trouble with the output from trouble with the log, which an `OSError` alone does not."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        _abandon_stdout()
        raise _UsageError(f"cannot write the output: {error.strerror or error}; send it elsewhere") from error


def _printable(name: str) -> str:
    return name if name.isprintable() else ascii(name)


def _remedy(error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return "give a file in it"
    if isinstance(error, PermissionError):
        return "make it readable, or pipe it into `async-orch analyze -`"
    return "give the path of a log, or - for standard input"


def _nothing_usable(reading: Reading) -> str:
    wanted = "give a log that step_log= wrote, or text that holds host-orch: lines"
    if reading.lines == 0:
        return f"it is empty; {wanted}"
    if reading.hint is not None:
        return f"nothing in it can be read; {reading.hint}"
    seen = [f"{count} {kind.replace('_', ' ')}" for kind, count in reading.skipped.items()]
    if reading.other_events:
        seen.append(f"{reading.other_events} other event{'s' if reading.other_events != 1 else ''}")
    lines = f"{reading.lines} line{'s' if reading.lines != 1 else ''}"
    return f"no step record and no whole host-orch: line in its {lines} ({', '.join(seen) or 'all blank'}); {wanted}"
