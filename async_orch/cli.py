"""The ``async-orch`` command.

Every error that a user can cause is one line on stderr that says what to change, with exit code 2. The commands are
modules of `async_orch._commands`, imported when they are asked for.
"""

from __future__ import annotations

import argparse
import importlib
import io
import signal
import sys
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from async_orch._commands import COMMANDS
from async_orch._commands._shared import UsageError, abandon_stdout, complain, writing

__all__ = ["main"]

_USAGE_ERROR: Final = 2


class _Parser(argparse.ArgumentParser):
    """Reports a wrong argument in one line, without the usage before it."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message}; see `{self.prog} --help`")


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


def _parser(wanted: str | None) -> _Parser:
    """The parser; only the command that is `wanted` gets its arguments, as that imports its module."""
    parser = _Parser(
        prog="async-orch",
        description="Reads the logs of steps that a host prepared for an accelerator, and measures and estimates.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, summary in COMMANDS.items():
        if name != wanted:
            commands.add_parser(name, help=summary, add_help=False)
            continue
        module = _module(name)
        command = commands.add_parser(
            name, help=summary, description=module.DESCRIPTION, epilog=module.EPILOG, allow_abbrev=False
        )
        module.add_arguments(command)
    return parser


def _module(name: str) -> Any:
    return importlib.import_module(f"async_orch._commands.{name}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with `arguments` (default: the process's); gives the exit code.

    0 is success, 2 an error that one line on stderr explains, 1 what a command says it means. 141 (128 + SIGPIPE)
    means that the reader of our output went away, 130 an interrupt: what a shell shows for programs that these
    signals end.
    """
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # a file's name may hold what the terminal cannot show
    try:
        return _run(sys.argv[1:] if arguments is None else arguments)
    except UsageError as error:
        complain(f"async-orch: {error}")
        return _USAGE_ERROR
    except BrokenPipeError:
        abandon_stdout()
        return 128 + signal.SIGPIPE
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _run(arguments: Sequence[str]) -> int:
    if sys.stdout is None:
        # Also for a command that writes to a file: the next file that is opened would get stdout's descriptor.
        raise UsageError("standard output is closed; send it to a file, or to /dev/null")
    try:
        wanted = next((argument for argument in arguments if not argument.startswith("-")), None)
        options = _parser(wanted).parse_args(arguments)
        code: int = _module(options.command).run(options)
        return code
    finally:  # also when --help or --version leaves by SystemExit: a failure to write shows here or nowhere
        with writing():
            sys.stdout.flush()
