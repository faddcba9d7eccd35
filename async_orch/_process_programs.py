"""What a worker process needs to make the programs: pickled once, before anything is opened, or refused."""

from __future__ import annotations

import os
import pickle
import sys
from collections.abc import Mapping
from typing import Any

from async_orch._engine_program import EngineAdapter, unwrap
from async_orch._process_main import main_module
from async_orch._process_wire import Hello
from async_orch._program import StepProgram
from async_orch.exceptions import ConfigurationError

__all__ = ["portable_programs"]

PLATFORM = sys.platform


def portable_programs(programs: Mapping[str, StepProgram[Any, Any]]) -> Hello:
    """The programs as worker processes get them. Raises `ConfigurationError` with what to change."""
    if PLATFORM == "linux" and not hasattr(os, "memfd_create"):
        raise ConfigurationError(
            "build_in='process' needs os.memfd_create (memory that has no name and is inherited), which this Python "
            "was built without: it takes Linux 3.17 and glibc 2.27 or newer where Python is built; use another build "
            "of Python, or build_in='thread'"
        )
    if PLATFORM != "linux":
        raise ConfigurationError(
            f"build_in='process' needs Linux (memory that has no name and is inherited), this is {PLATFORM}; use "
            "build_in='thread'"
        )
    main = main_module()
    pickles, types = [], []
    for name, program in programs.items():
        types.append(type(unwrap(program)).__qualname__)
        what = f"program {name!r} ({types[-1]}) cannot be made in a worker process"
        if isinstance(program, EngineAdapter):
            raise ConfigurationError(
                f"{what}: prepare() of an EngineProgram fills the engine's own memory, which lies in this process; use "
                "build_in='thread'"
            )
        try:
            pickled = pickle.dumps(program)
        except Exception as exc:
            raise ConfigurationError(
                f"{what}: {type(exc).__name__}: {exc}; define the class on the top level of a module, and leave out by "
                "__getstate__ or __reduce__ what cannot be pickled"
            ) from exc
        if b"_main__" in pickled and main.refusal is not None:
            raise ConfigurationError(f"{what}: {main.refusal}")
        pickles.append(pickled)
    return Hello(list(programs), types, pickles, main, [os.fsencode(argument) for argument in sys.argv])
