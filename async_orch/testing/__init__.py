"""What a test of a program or of a backend needs: devices under control, faults on plan, and checks for leaks.

Nothing here is needed at run time, and importing it needs no more than the package itself; only `conformance_suite`
and `leak_fixture` want pytest, when they are used.
"""

from async_orch.testing._faults import Fault, FaultPlan, Strike
from async_orch.testing._leaks import LeakError, Leaks, leak_check, leak_fixture
from async_orch.testing._manual import ManualBackend, ManualBuffer, ManualStream
from async_orch.testing._manual_fence import ManualFence
from async_orch.testing._suite import Kernels, PythonKernels, conformance_suite
from async_orch.testing._virtual_clock import LoopStuck, VirtualClockLoop, run_virtual

__all__ = [
    "ManualFence",
    "ManualBackend",
    "ManualBuffer",
    "ManualStream",
    "VirtualClockLoop",
    "LoopStuck",
    "run_virtual",
    "Fault",
    "FaultPlan",
    "Strike",
    "leak_check",
    "leak_fixture",
    "Leaks",
    "LeakError",
    "conformance_suite",
    "Kernels",
    "PythonKernels",
]
