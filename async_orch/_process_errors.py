"""Exceptions on their way out of a worker process: type, message and traceback come along."""

from __future__ import annotations

import io
import pickle
import traceback
from typing import Any

import msgspec

from async_orch.exceptions import RemoteError

__all__ = ["CallersUnpickler", "Failure", "describe", "revive", "unpickle"]

TRACEBACK_CHARACTERS = 32_768
"""Of a longer traceback the beginning and the end are kept."""

TEXT_CHARACTERS = 65_536
"""Of a longer text of an exception the beginning and the end are kept."""

PICKLED_NBYTES = 262_144
"""An exception that is larger is not sent but described: reading it would keep the caller's event loop busy."""


class Failure(msgspec.Struct, frozen=True, array_like=True):
    """An exception in a form that always arrives; ``unsent`` says why ``pickled`` is empty, where it is."""

    pickled: bytes
    type_name: str
    text: str
    traceback: str
    unsent: str = "it cannot be pickled"


class CallersUnpickler(pickle.Unpickler):
    """Finds classes of the module that the caller runs, which in a worker has another name.

    There it is ``__mp_main__``, as in the workers of `multiprocessing`, since its ``__main__`` guard must not hold.
    """

    def find_class(self, module: str, name: str, /) -> Any:
        return super().find_class("__main__" if module == "__mp_main__" else module, name)


def unpickle(data: bytes) -> Any:
    """Read what a worker pickled."""
    return CallersUnpickler(io.BytesIO(data)).load()


def describe(error: BaseException) -> Failure:
    """In the worker: put an exception in a form that arrives."""
    kind, unsent = type(error), "it cannot be pickled"
    try:
        pickled = pickle.dumps(error)
        if type(pickle.loads(pickled)) is not kind:  # noqa: S301 - our own bytes
            pickled = b""
        if len(pickled) > PICKLED_NBYTES:
            unsent = f"pickled it has {len(pickled)} bytes, more than the {PICKLED_NBYTES} that are sent"
            pickled = b""
    except Exception:  # noqa: BLE001 - the caller's class decides what goes wrong here; its words are sent instead
        pickled = b""
    try:
        text = str(error)
    except Exception as exc:  # noqa: BLE001 - as above
        text = f"its text cannot be had: {type(exc).__name__}"
    story = "".join(traceback.format_exception(error)).rstrip()
    text, story = _shortened(text, TEXT_CHARACTERS, " "), _shortened(story, TRACEBACK_CHARACTERS, "\n")
    module = "" if kind.__module__ == "builtins" else f"{kind.__module__}."
    # Half surrogates, which the wire does not take, may stand in any text.
    type_name, words, story = (_encodable(each) for each in (module + kind.__qualname__, text, story))
    return Failure(pickled, type_name, words, story, unsent)


def _shortened(text: str, characters: int, space: str) -> str:
    if len(text) <= characters:
        return text
    half = characters // 2
    return f"{text[:half]}{space}... {len(text) - 2 * half} characters left out ...{space}{text[-half:]}"


def _encodable(text: str) -> str:
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def revive(failure: Failure, pid: int) -> BaseException:
    """In the caller's process: the exception, or a `RemoteError` in its place; a note says where it was raised."""
    error: BaseException | None = None
    why = failure.unsent
    if failure.pickled:
        try:
            error = unpickle(failure.pickled)
        except Exception as exc:  # noqa: BLE001 - an exception that this process cannot read must not hide the failure
            why = f"it cannot be read here: {type(exc).__name__}: {exc}"
    if not isinstance(error, BaseException):
        error = RemoteError(f"{failure.type_name}: {failure.text} ({why})", type_name=failure.type_name)
    error.add_note(f"raised in worker process {pid}:\n{failure.traceback}")
    return error
