"""The caller's ``__main__`` in a worker process: whether it can be imported there, and importing it."""

from __future__ import annotations

import ast
import os
import runpy
import sys
import types
from pathlib import Path
from typing import Any

from async_orch._process_wire import MainModule
from async_orch.exceptions import ConfigurationError

__all__ = ["IMPORTED_NAME", "CallersMain", "main_module"]

IMPORTED_NAME = "__mp_main__"
"""The name of the caller's ``__main__`` in a worker, so that its guard does not hold; that of `multiprocessing` too."""


def main_module() -> MainModule:
    """In the caller's process: how a worker imports what runs here as ``__main__``."""
    module = sys.modules["__main__"]
    spec, path = getattr(module, "__spec__", None), getattr(module, "__file__", None)
    if path is None or (spec is None and not Path(path).is_file()):  # python < script.py: "<stdin>", which is no file
        return MainModule(
            refusal="it is defined in __main__, which has no file that a worker process could import (an interactive "
            "session, python -c, or standard input); define it in a module and import it from there"
        )
    path = str(Path(path).absolute())
    if not _is_guarded(path):
        return MainModule(
            refusal=f"it is defined in {_text(path)}, which has no 'if __name__ == \"__main__\":', so that a worker "
            "would run all of it again; put what is to run once behind that line, or define the program in a module"
        )
    return MainModule(None if spec is None else spec.name, os.fsencode(path))


def _text(path: str) -> str:
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def _is_guarded(path: str) -> bool:
    """Whether the module compares ``__name__`` on its top level."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return False
    return any(
        isinstance(statement, ast.If)
        and any(isinstance(node, ast.Name) and node.id == "__name__" for node in ast.walk(statement.test))
        for statement in tree.body
    )


class CallersMain:
    """In a worker: the caller's ``__main__``, imported when something of it is asked for, and not before."""

    def __init__(self, main: MainModule) -> None:
        self._main = main
        self._imported = False

    def import_once(self) -> None:
        """Import it under `IMPORTED_NAME`. Raises `ConfigurationError` if it cannot be, and what its import raises."""
        main = self._main
        if self._imported:
            return
        if main.refusal is not None or main.path is None:
            raise ConfigurationError(main.refusal or "the caller has no __main__ that could be imported")
        namespace: dict[str, Any]
        if main.name is not None:
            namespace = runpy.run_module(main.name, run_name=IMPORTED_NAME, alter_sys=True)
        else:
            namespace = runpy.run_path(os.fsdecode(main.path), run_name=IMPORTED_NAME)
        module = types.ModuleType(IMPORTED_NAME)
        module.__dict__.update(namespace)
        # As __main__ too: this is what the caller's pickles call it.
        sys.modules["__main__"] = sys.modules[IMPORTED_NAME] = module
        self._imported = True
