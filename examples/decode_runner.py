"""Decode text with a small Qwen3 in three modes and show what each of them costs.

    python -m examples.decode_runner --prompt "Once upon a time" --tokens 64

The modes run the same code path: naive allocates and frees a step's device memory each step, ring allocates
once, pipelined also builds and copies the next steps while the device runs the current one.

    python -m examples.decode_runner --shape qwen3-14b --backend sim:a5-report

shows the step of a large model instead, without its weights, on a simulated device.
"""

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, get_args

if not __package__:  # started as a file: the package lies one folder up
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

# The host backend's device is one thread. Idle threads of numpy's BLAS spin on the cores that building and copying
# need, so it gets none unless the user asks for them; numpy reads this when it is first imported.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

from rich.console import Console

from async_orch import OrchError, open_backend
from async_orch.abc import Backend
from async_orch.exceptions import StepError
from examples.large.runner import main as run_large
from examples.qwen3.config import ModelError, check_folder, load_config
from examples.qwen3.decode import Mode, decode
from examples.qwen3.figures import ModeRun
from examples.qwen3.options import Options, parse_options
from examples.qwen3.output import OutputError, ReaderGone, complain, writing_output
from examples.qwen3.program import Qwen3Decode
from examples.qwen3.report import IDLE_SHARE, assumptions, json_object, support, table
from examples.qwen3.schedule import Schedule
from examples.qwen3.show import Display
from examples.qwen3.steplog import start_log
from examples.qwen3.tokenizer import GrowingText, TextCodec
from examples.qwen3.wording import counted, visible

__all__ = ["main"]

MODE_VARIABLE = "ASYNC_ORCH_MODE"


class LogError(Exception):
    """The decode went well, but its step log is incomplete."""


def _decode_all(
    options: Options, backend: Backend, console: Console | None, check_output: Callable[[], None]
) -> list[ModeRun]:
    """Every mode one after the other, each with an orchestrator, a program and resident memory of its own."""
    check_folder(options.model)
    config = load_config(options.model)
    codec = TextCodec(options.model, config.vocab_size)
    schedule = Schedule(
        [codec.encode(prompt) for prompt in options.prompts], options.tokens, config.max_position_embeddings
    )
    start_log(options.log)
    program_type = _program_type(backend)
    runs = []
    for mode in options.modes:
        texts = [GrowingText(codec, config.eos_token_ids) for _ in options.prompts]
        display = Display(console, mode, len(schedule), options.prompts, texts)
        program = program_type(
            options.model,
            batch=schedule.batch,
            capacity=schedule.capacity,
            memory=options.memory,
            progress=display.loaded,
        )
        slots = 1 if mode == "naive" else options.slots  # naive has one at a time, whatever was asked for
        program.check_memory(backend, slots=slots, queue_depth=options.queue_depth)

        def show_token(row: int, token: int, texts: Sequence[GrowingText] = texts) -> None:
            texts[row].push(token)

        with display:
            runs.append(
                asyncio.run(
                    decode(
                        program,
                        schedule,
                        backend,
                        mode=mode,
                        slots=options.slots,
                        queue_depth=options.queue_depth,
                        step_log=options.log,
                        on_token=show_token,
                        on_step=display.step_done,
                    )
                )
            )
        check_output()
    return runs


def _program_type(backend: Backend) -> type[Qwen3Decode]:
    """The decoder with kernels for the device: in OpenCL C where that is what runs there, else in numpy."""
    if backend.info.backend != "opencl":
        return Qwen3Decode
    from examples.qwen3.opencl import OpenCLDecode  # noqa: PLC0415 - needs pyopencl, which the backend has imported

    return OpenCLDecode


def _check_environment(options: Options) -> None:
    """Refuse to show one mode's figures under another's name."""
    forced = os.environ.get(MODE_VARIABLE)
    if forced and options.modes != (forced,):
        remedy = f"unset it, or pass --mode {forced}" if forced in get_args(Mode) else "unset it: it names no mode"
        raise ModelError(f"{MODE_VARIABLE}={forced} is set and overrides --mode; {remedy}")


def _run(options: Options, output: IO[str], check_output: Callable[[], None]) -> None:
    _check_environment(options)
    console = None if options.json else Console(file=output, highlight=False, markup=False, emoji=False)
    backend = open_backend(options.backend)
    try:
        runs = _decode_all(options, backend, console, check_output)
        words, assumed = support(backend.info), assumptions(backend.info)
    finally:
        backend.close()
    dropped = sum(run.records_dropped for run in runs)
    if console is None:
        print(json.dumps(json_object(runs, words)), file=output)
    else:
        _show(options, console, runs, words, assumed)
    if dropped:
        raise LogError(f"{counted(dropped, 'step record')} could not be written to {options.log}: is the disk full?")


def _show(options: Options, console: Console, runs: list[ModeRun], words: str, assumed: str) -> None:
    work = f"{counted(len(options.prompts), 'prompt')} x {counted(options.tokens, 'token')}"
    console.print(f"{visible(options.backend)}: {words}; {work}, --memory {options.memory_name}", soft_wrap=True)
    if assumed:
        console.print(assumed, soft_wrap=True)
    console.print(table(runs))
    console.print(IDLE_SHARE, soft_wrap=True)
    console.print(f"step log: {visible(str(options.log))}", soft_wrap=True)


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code.

    0; 1 if the decode failed, or its log or output could not be written; 2 if it could not begin; 130 after an
    interrupt and 141 (128 + SIGPIPE) if the reader of the output went away, as shells show these signals.
    """
    arguments = sys.argv[1:] if argv is None else argv
    if any(argument.partition("=")[0] == "--shape" for argument in arguments):
        return run_large(arguments)
    if sys.stdout is None:  # started with `>&-`, or without a console: nothing has been lost yet
        complain("standard output is closed; redirect it to a file, or to /dev/null")
        return 2
    try:
        with writing_output(sys.stdout) as (output, check_output):
            with contextlib.redirect_stdout(output):  # argparse prints --help, and passes over what goes wrong
                options = parse_options(argv)
            _run(options, output, check_output)
    except (ModelError, OrchError, OSError) as error:
        cause = f": {error.__cause__}" if isinstance(error, StepError) and error.__cause__ else ""
        complain(f"{error}{cause}")
        return 1 if isinstance(error, StepError) else 2
    except (LogError, OutputError) as error:
        complain(str(error))
        return 1
    except ReaderGone:
        return 141
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
