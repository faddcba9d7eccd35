"""One program, or several under names: what an orchestrator was given, checked and made alike."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from async_orch._engine_program import EngineAdapter, EngineProgram
from async_orch._program import StepProgram, validate_growth, validate_program
from async_orch.exceptions import ConfigurationError

__all__ = ["named_programs"]


def named_programs(program: object, *, grows: bool) -> dict[str, StepProgram[Any, Any]]:
    """Programs by name; a single one is called ``"default"``. Raises `TypeError` or `ConfigurationError`."""
    given: Mapping[Any, object] = program if isinstance(program, Mapping) else {"default": program}
    if not given:
        raise ConfigurationError("no program given: the mapping is empty")
    programs: dict[str, StepProgram[Any, Any]] = {}
    for name, each in given.items():
        if not isinstance(name, str) or not name:
            raise TypeError(f"a program is named by a non-empty string, got {name!r}")
        if isinstance(each, EngineProgram):
            programs[name] = EngineAdapter(each)
            continue
        validated = validate_program(each)
        if grows:
            validate_growth(validated)
        programs[name] = validated
    kinds = {isinstance(each, EngineAdapter) for each in programs.values()}
    if len(kinds) > 1:
        raise ConfigurationError(
            "EngineProgram and StepProgram cannot share an orchestrator: an engine's device is its own"
        )
    return programs
