"""Calls of pyACL: return codes become exceptions, and each thread works in the backend's context."""

from __future__ import annotations

import importlib
from typing import Any, Final

from async_orch.exceptions import BackendUnavailable, DeviceError, DeviceLost, OutOfDeviceMemory

from ._acl_codes import NAMES, NO_MEMORY, STICKY

__all__ = ["Acl", "acl_error", "load_acl"]

_INITIALIZED_BEFORE: Final = 100002


def load_acl() -> Any:
    """The module ``acl``, initialised; `BackendUnavailable` with what to install where it is missing or broken."""
    try:
        module = importlib.import_module("acl")
    except ModuleNotFoundError as exc:
        raise BackendUnavailable(
            "backend 'ascend' needs pyACL, the module 'acl', which comes with Ascend CANN and not from PyPI: install "
            "the CANN toolkit and run `source .../ascend-toolkit/set_env.sh`"
        ) from exc
    except ImportError as exc:
        raise BackendUnavailable(f"backend 'ascend' cannot import pyACL: {' '.join(str(exc).split())}") from exc
    code = module.init()
    if code not in (0, _INITIALIZED_BEFORE):
        raise BackendUnavailable(f"no Ascend driver works here: {acl_error(code, 'acl.init')}")
    return module


def acl_error(code: int, what: str) -> DeviceError:
    """The exception for a return code, which it names."""
    text = f"{what} failed: {NAMES.get(code, 'an error that this version does not know')} ({code})"
    if code in STICKY:
        return DeviceLost(text)
    return OutOfDeviceMemory(text) if code in NO_MEMORY else DeviceError(text)


class Acl:
    """One context on one device. `call` runs in it, whichever thread calls.

    A context belongs to a thread, not to a call, and another library may have changed it since; setting it takes less
    than looking.
    """

    def __init__(self, module: Any, device_id: int, context: int | None = None) -> None:
        self.module = module
        self.device_id = device_id
        self._owned = context is None
        self.context: int
        if context is not None:
            self.context = context
        else:
            code = module.rt.set_device(device_id)
            if code:
                raise acl_error(code, f"acl.rt.set_device({device_id})")
            self.context, code = module.rt.create_context(device_id)
            if code:
                raise acl_error(code, f"acl.rt.create_context({device_id})")

    def code(self, name: str, *args: Any) -> int:
        """Call ``acl.rt.NAME``, which gives nothing but a return code."""
        result: int = self.enter(name)(*args)
        return result

    def call(self, name: str, *args: Any) -> None:
        """The same; raises unless the code is 0."""
        code = self.code(name, *args)
        if code:
            raise acl_error(code, f"acl.rt.{name}")

    def value(self, name: str, *args: Any) -> Any:
        """Call ``acl.rt.NAME``, which gives a value and a return code; the value."""
        *values, code = self.enter(name)(*args)
        if code:
            raise acl_error(code, f"acl.rt.{name}")
        return values[0] if len(values) == 1 else values

    def enter(self, name: str) -> Any:
        """The function ``acl.rt.NAME``, with the calling thread in our context."""
        runtime = self.module.rt
        code = runtime.set_context(self.context)
        if code:
            raise acl_error(code, "acl.rt.set_context")
        return getattr(runtime, name)

    def close(self) -> None:
        """Destroy the context, unless it is the caller's. The process stays initialised: others may use it too."""
        if self._owned:
            self.module.rt.destroy_context(self.context)
