"""Every exception that async_orch raises on purpose.

All of them derive from `OrchError`, so one ``except`` clause is enough for a caller who does not care which.
Where a built-in exception says the same thing to code that has never heard of this library, the class derives
from it too: `StepTimeout` is a `TimeoutError`, `OutOfDeviceMemory` a `MemoryError`.
"""

from __future__ import annotations

__all__ = [
    "BackendUnavailable",
    "BuildError",
    "CollectError",
    "ConfigurationError",
    "CopyError",
    "DependencyFailed",
    "DeviceError",
    "DeviceLost",
    "GraphError",
    "GraphOverflow",
    "HotPathAllocation",
    "ImageCorrupt",
    "LaunchError",
    "MisuseError",
    "OrchError",
    "OrchestratorClosed",
    "OutOfDeviceMemory",
    "OutputEscaped",
    "PipelineFailed",
    "RemoteError",
    "StaleLease",
    "StepCancelled",
    "StepError",
    "StepTimeout",
    "WorkerDied",
]


class OrchError(Exception):
    """Base of all exceptions of this library."""


class ConfigurationError(OrchError, ValueError):
    """An argument or a combination of arguments cannot work; raised before anything starts."""


class BackendUnavailable(OrchError):
    """The named backend does not exist or cannot run on this machine; the message says what to install."""


class OrchestratorClosed(OrchError, RuntimeError):
    """The orchestrator is not open: not entered yet, being left, or closed."""


class MisuseError(OrchError, RuntimeError):
    """A call from where it cannot work: another loop, thread, task or process, or from inside a barrier."""


class PipelineFailed(OrchError, RuntimeError):
    """The pipeline stopped accepting steps because of an earlier failure, which is the ``__cause__``."""


class DeviceError(OrchError):
    """A driver call, a copy or a kernel failed; the driver's own exception is the ``__cause__``."""


class DeviceLost(DeviceError):
    """The device is gone or hung; nothing more can be launched until `Orchestrator.reopen`."""


class OutOfDeviceMemory(DeviceError, MemoryError):
    """An allocation did not fit; the message gives needed and, where known, free bytes."""


class HotPathAllocation(OrchError, RuntimeError):
    """Device memory was requested on the step path while ``strict_alloc`` is on (promise 1)."""


class StaleLease(OrchError, RuntimeError):
    """A lease was used after it had ended; its buffer may belong to another step by now (promise 2)."""


class OutputEscaped(OrchError, RuntimeError):
    """``collect`` returned memory of the output view, which the next step would overwrite (promise 2)."""


class GraphError(OrchError, ValueError):
    """A task graph cannot be built as asked; the message names the task and the argument."""


class GraphOverflow(GraphError):
    """A task graph does not fit its image: names the resource, and what is used, available and requested."""


class ImageCorrupt(OrchError, ValueError):
    """The device side refused an image: a field is out of its bounds."""


class RemoteError(OrchError):
    """Stands for an exception of a worker process that could not be brought over, because it cannot be pickled.

    ``type_name`` is the module and name of its type. A note holds the traceback.
    """

    def __init__(self, message: str, *, type_name: str) -> None:
        super().__init__(message)
        self.type_name = type_name


class StepError(OrchError):
    """A step did not give a result.

    Attributes
    ----------
    stage:
        ``"submit"``, ``"build"``, ``"acquire"``, ``"h2d"``, ``"launch"``, ``"device"`` or ``"retire"``.
    step_id:
        The caller's name of the step.
    seq:
        The number given at acceptance, or -1 if the step was never accepted.

    The hook's or driver's own exception is the ``__cause__``. Each awaiter of a handle gets an exception
    object of its own, so that tracebacks do not grow with the number of awaits.
    """

    def __init__(self, message: str, *, stage: str, step_id: object, seq: int) -> None:
        super().__init__(message)
        self.stage = stage
        self.step_id = step_id
        self.seq = seq


class BuildError(StepError):
    """``build`` raised, or returned a size that is no size."""


class WorkerDied(BuildError):
    """The worker process that built the step ended before it answered: killed, out of memory, or crashed.

    Attributes
    ----------
    pid:
        Its process id.
    exit_code:
        As of `subprocess.Popen.returncode`: the exit status, or minus the number of the signal that killed it. None if
        the status could not be had.
    """

    def __init__(self, message: str, *, stage: str, step_id: object, seq: int, pid: int, exit_code: int | None) -> None:
        super().__init__(message, stage=stage, step_id=step_id, seq=seq)
        self.pid = pid
        self.exit_code = exit_code


class CopyError(StepError):
    """Acquiring the slot or copying the image to it failed."""


class LaunchError(StepError):
    """``launch`` raised, or the device reported a failure of the step's kernels."""


class CollectError(StepError):
    """Copying the output back or ``collect`` failed."""


class StepCancelled(StepError):
    """The step was removed or detached by ``cancel()``, by leaving ``map``, or by closing."""


class StepTimeout(StepError, TimeoutError):
    """The step's ``timeout_s`` passed before it settled."""


class DependencyFailed(StepError):
    """A step needed the output of a step that failed or was removed.

    ``root_step_id`` names the step at the root; its failure is the ``__cause__``.
    """

    def __init__(self, message: str, *, stage: str, step_id: object, seq: int, root_step_id: object) -> None:
        super().__init__(message, stage=stage, step_id=step_id, seq=seq)
        self.root_step_id = root_step_id
