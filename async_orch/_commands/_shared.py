"""What the commands share: errors in one line, reading logs, writing output."""

from __future__ import annotations

import contextlib
import os
import stat
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

if TYPE_CHECKING:
    import argparse

    from async_orch.analysis import LogFrames, Reading, Source

__all__ = [
    "ReadError",
    "UsageError",
    "abandon_stdout",
    "add_logs",
    "complain",
    "load",
    "name_of",
    "nothing_usable",
    "open_source",
    "reading_errors",
    "refuse_own_input",
    "warn_left_out",
    "write",
    "write_file",
    "writing",
]


class UsageError(Exception):
    """What the user gave cannot work; the message is the line to print."""


class ReadError(UsageError):
    """An input cannot be opened or read; where there are others, those are still of use."""


def add_logs(parser: argparse.ArgumentParser) -> None:
    """The argument for one or more logs."""
    parser.add_argument(
        "files", metavar="FILE", nargs="+", help="a log, also gzip or zstd; - for standard input; several are joined"
    )


def printable(name: str) -> str:
    """A file's name as it can be shown in one line."""
    return name if name.isprintable() else ascii(name)


def name_of(files: Sequence[str]) -> str:
    """The name that output gives to what was read."""
    first = "standard input" if files[0] == "-" else printable(files[0])
    return first if len(files) == 1 else f"{first} and {len(files) - 1} more"


def open_source(file: str) -> Source:
    """What to read for an argument."""
    if file != "-":
        return file
    if sys.stdin is None:  # pythonw and some supervisors close it
        raise ReadError("standard input is closed; give the path of a log")
    return sys.stdin.buffer


def load(files: Sequence[str]) -> LogFrames:
    """Read logs into frames; one that cannot be read is named on stderr and in `Reading.unread`, the others count.

    Raises `UsageError` where nothing in any of them is of use.
    """
    from async_orch.analysis import Scanner  # noqa: PLC0415 - imports numpy

    scanner = Scanner()
    unread: list[ReadError] = []
    for file in files:
        try:
            with reading_errors(file):
                scanner.read(open_source(file))
        except ReadError as error:
            scanner.leave_out(str(error))
            unread.append(error)
    frames = scanner.frames()
    if not frames.reading.records:
        if len(unread) == len(files):
            raise UsageError(f"{unread[0]}{_others(len(files) - 1)}") from unread[0]
        why = "".join(f"; {error}" for error in unread)
        raise UsageError(f"{name_of(files)}: {nothing_usable(frames.reading)}{why}")
    warn_left_out(unread, len(files))
    return frames


def warn_left_out(errors: Sequence[UsageError], inputs: int) -> None:
    """Say on stderr which inputs gave nothing, where others did: one line each, with how many there are."""
    for error in errors:
        complain(f"async-orch: {error}; left out, {len(errors)} of {inputs} inputs")


def _others(count: int) -> str:
    return "" if not count else f"; nor can the other {count} input{'s' if count != 1 else ''}"


def refuse_own_input(output: str, files: Sequence[str]) -> None:
    """`UsageError` if writing `output` would destroy one of the inputs, under whatever name or link it goes.

    Call it before anything is read. Pipes and devices are let through: there is nothing in them to destroy.
    """
    written = _status(output, sys.stdout)
    if written is None or not stat.S_ISREG(written.st_mode):
        return
    for file in files:
        read = _status(file, sys.stdin)
        if read is not None and os.path.samestat(read, written):
            where = "standard output" if output == "-" else f"-o {printable(output)}"
            raise UsageError(f"{where} is the input {name_of([file])} itself; pass -o another file")


def _status(file: str, stream: TextIO | None) -> os.stat_result | None:
    """What a path, or the `stream` that ``-`` stands for, leads to; None if to nothing."""
    try:
        if file != "-":
            return Path(file).stat()
        return None if stream is None else os.fstat(stream.fileno())
    except (OSError, ValueError):  # not there, or a stream without a descriptor
        return None


def complain(text: str) -> None:
    """Write one line to stderr, whatever is in the text; nowhere, and not to stdout, where stderr is closed."""
    if sys.stderr is None:
        return
    line = " ".join(text.splitlines())
    print("".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line), file=sys.stderr)


@contextlib.contextmanager
def reading_errors(file: str) -> Iterator[None]:
    """Turn an `OSError` of reading `file` into the line to print."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        name = name_of([file])
        raise ReadError(f"cannot read {name}: {error.strerror or error}; {_remedy(error)}") from error


def _remedy(error: OSError) -> str:
    if isinstance(error, IsADirectoryError):
        return "give a file in it"
    if isinstance(error, PermissionError):
        return "make it readable, or pipe it into `async-orch analyze -`"
    if error.errno == 0:
        return "or decompress it first"
    return "give the path of a log, or - for standard input"


def nothing_usable(reading: Reading) -> str:
    """Why a log that was read gives nothing, and what would."""
    wanted = "give a log that step_log= wrote, or text that holds host-orch: or [STRACE] lines"
    if reading.damaged:
        return f"{reading.damaged[0]}, and nothing before that can be used; give a whole file"
    if reading.lines == 0:
        return f"it is empty; {wanted}"
    if reading.hint is not None:
        return f"nothing in it can be read; {reading.hint}"
    seen = [f"{count} {kind.replace('_', ' ')}" for kind, count in reading.skipped.items()]
    if reading.other_events:
        seen.append(f"{reading.other_events} other event{'s' if reading.other_events != 1 else ''}")
    if reading.clock_anchors:
        seen.append(f"{reading.clock_anchors} clock anchor{'s' if reading.clock_anchors != 1 else ''}")
    lines = f"{reading.lines} line{'s' if reading.lines != 1 else ''}"
    return f"no step record and no whole host-orch: line in its {lines} ({', '.join(seen) or 'all blank'}); {wanted}"


@contextlib.contextmanager
def writing(where: str | None = None) -> Iterator[None]:
    """Tell trouble with the output from trouble with the log, which an `OSError` alone does not."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        if where is None:
            abandon_stdout()
            raise UsageError(f"cannot write the output: {error.strerror or error}; send it elsewhere") from error
        raise UsageError(f"cannot write {printable(where)}: {error.strerror or error}; pass -o another file") from error


def write(text: str) -> None:
    """Write to standard output."""
    with writing():
        sys.stdout.write(text)


def write_file(path: str, data: bytes) -> None:
    """Write a file whole, or standard output for ``-``."""
    if path == "-":
        with writing():
            sys.stdout.buffer.write(data)
            sys.stdout.buffer.flush()
        return
    with writing(path):
        Path(path).write_bytes(data)


def abandon_stdout() -> None:
    """Keep the interpreter from flushing what is left once more, and complaining, when it exits."""
    with contextlib.suppress(OSError, ValueError):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
