"""Backend ``sim``: a device whose operations take the time that a profile says.

Time is a schedule. An operation starts when it was enqueued, what it depends on has ended and its stream is free,
whichever is last; it ends its cost later, and no fence shows before that. Its effect on memory is real and happens
at the start; an effect that takes longer than the cost moves the end.

With ``clock="real"`` a stream is a thread that sleeps and, for the last stretch, spins yielding the GIL. With
``clock="virtual"`` it is a schedule on the event loop's clock, for tests on a loop whose clock jumps.

A profile with ``"adversary": true``, such as ``sim:adversary``, makes early reuse of memory visible instead:
see `AdversaryBackend`.
"""

from __future__ import annotations

from typing import Any

from async_orch.exceptions import ConfigurationError

from ._adversary import AdversaryBackend
from ._sim_backend import SimBackend
from .sim_profile import load_profile

__all__ = ["AdversaryBackend", "SimBackend", "open_backend"]

_OPTIONS = ("clock", "compute_stream", "copy_stream", "faults", "loop")


def open_backend(target: str | None = None, **options: Any) -> SimBackend:
    """Open ``sim`` with the profile that ``target`` names: one that is shipped, or a path ending in ``.json``.

    Options
    -------
    clock:
        ``"virtual"`` follows the running event loop's clock, or that of ``loop``, instead of ``"real"`` time.
    faults:
        What shall go wrong: an `async_orch.testing.FaultPlan`.
    compute_stream, copy_stream:
        Streams of the caller's to use instead of new ones; closing the backend leaves them open.

    Raises `BackendUnavailable` for an unknown profile and `ConfigurationError` for a broken one or a bad option.
    """
    unknown = sorted(set(options) - set(_OPTIONS))
    if unknown:
        raise ConfigurationError(f"backend 'sim' takes the options {', '.join(_OPTIONS)}, got {', '.join(unknown)}")
    profile = load_profile(target)
    kind = AdversaryBackend if profile.adversary else SimBackend
    return kind(profile, **options)
