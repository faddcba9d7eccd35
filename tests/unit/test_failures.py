"""A step that fails takes nothing with it (policy fail_step)."""

from __future__ import annotations

import traceback
from typing import Any

import numpy as np
import pytest

from async_orch import Device, Orchestrator, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.exceptions import (
    BuildError,
    CollectError,
    CopyError,
    DeviceError,
    DeviceLost,
    HotPathAllocation,
    LaunchError,
    OrchestratorClosed,
    OutOfDeviceMemory,
    OutputEscaped,
    StepError,
)
from async_orch.testing import ManualBackend
from tests.programs import Hooked, Square

BACKENDS = ["sim:instant", "host"]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(
    ("hook", "kind", "stage"),
    [
        ("build", BuildError, "build"),
        ("launch", LaunchError, "launch"),
        ("kernel", LaunchError, "device"),
        ("collect", CollectError, "retire"),
    ],
)
async def test_a_failing_hook_fails_its_step_and_no_other(
    backend: str, hook: str, kind: type[StepError], stage: str
) -> None:
    """The failed step raises one exception with stage, step and cause; its neighbours complete; leases are back."""
    async with Orchestrator(Hooked(**{hook: {2}}), backend) as orch:
        handles = [await orch.submit(i, step_id=f"s{i}") for i in range(5)]
        for i, handle in enumerate(handles):
            if i != 2:
                assert (await handle).output == i * i
                continue
            with pytest.raises(kind, match="step 's2'") as caught:
                await handle
            assert (caught.value.stage, caught.value.step_id, caught.value.seq) == (stage, "s2", 2)
            root = caught.value.__cause__
            while root is not None and root.__cause__ is not None:
                root = root.__cause__
            assert isinstance(root, ArithmeticError)
            assert str(root) == f"{hook} of 2"
        statistics = orch.statistics()
        assert (statistics.completed, statistics.failed, statistics.slots_leased) == (4, 1, 0)
        assert statistics.staging_leased == 0


async def test_each_awaiter_gets_a_fresh_exception() -> None:
    """Awaiting a failed handle a hundred times does not grow a traceback."""
    async with Orchestrator(Hooked(build={0}), "sim:instant") as orch:
        handle = await orch.submit(0)
        seen: list[BaseException] = []
        for _ in range(100):
            with pytest.raises(BuildError) as caught:
                await handle
            seen.append(caught.value)
        assert len({id(e) for e in seen}) == 100
        assert len(traceback.extract_tb(seen[-1].__traceback__)) < 10
        assert seen[0].__cause__ is seen[99].__cause__


async def test_failed_unretrieved_counts_failures_nobody_looked_at() -> None:
    """A failure counts until somebody awaits it or asks for the exception; asking twice counts once."""
    async with Orchestrator(Hooked(build={0, 1}), "sim:instant") as orch:
        first, second = await orch.submit(0), await orch.submit(1)
        assert orch.statistics().failed_unretrieved == 2
        assert isinstance(first.exception(), BuildError)
        first.exception()
        assert orch.statistics().failed_unretrieved == 1
        with pytest.raises(BuildError):
            await second
        assert orch.statistics().failed_unretrieved == 0


@pytest.mark.parametrize("value", [-1, 9, "many", 2.5])
async def test_build_may_not_return_what_is_no_size_of_its_image(value: Any) -> None:
    """Sizes beyond the image, negative or no integers are refused with the numbers."""

    class Odd(Square):
        def build(self, step: int, image: Any) -> int | None:
            return value  # type: ignore[no-any-return]

    async with Orchestrator(Odd(), "sim:instant") as orch:
        with pytest.raises(BuildError) as caught:
            await orch.run(0)
        if isinstance(value, int):
            assert f"build returned {value} bytes used, the image has 8" in str(caught.value)


async def test_launch_may_not_return_more_output_than_there_is() -> None:
    """Output bytes beyond output_nbytes fail the step with both numbers."""

    class Odd(Square):
        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            return 9

    async with Orchestrator(Odd(), "sim:instant") as orch:
        with pytest.raises(LaunchError, match="9 output bytes, output_nbytes is 8"):
            await orch.run(0)
        assert orch.statistics().slots_leased == 0


def _views(output: ByteArray) -> dict[str, Any]:
    return {
        "slice": output[2:4],
        "typed": output.view(np.int32),
        "memoryview": output.data,
        "list": [1, [output]],
        "dict": {"a": (output[:1],)},
    }


@pytest.mark.parametrize("form", ["slice", "typed", "memoryview", "list", "dict"])
async def test_collect_may_not_return_memory_of_the_output_view(form: str) -> None:
    """A result that the next step would overwrite raises OutputEscaped."""

    class Escapes(Square):
        def collect(self, step: int, output: ByteArray) -> Any:
            return _views(output)[form]

    async with Orchestrator(Escapes(), "sim:instant") as orch:
        with pytest.raises(OutputEscaped, match="return a copy"):
            await orch.run(0)


async def test_copies_of_the_output_are_fine() -> None:
    """What collect copied is the caller's."""

    class Copies(StepProgram[int, dict[str, Any]]):
        slot = SlotSpec(image_nbytes=0, output_nbytes=8)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            stream.launch(_fill, slot.output, step)
            return None

        def collect(self, step: int, output: ByteArray) -> dict[str, Any]:
            return {"array": output.copy(), "bytes": output.tobytes(), "n": np.int64(3)}

    async with Orchestrator(Copies(), "sim:instant") as orch:
        result = await orch.run(2)
        assert result.output["array"].tolist() == [2] * 8


def _fill(output: ByteArray, value: int) -> None:
    output[:] = value


async def test_the_output_view_is_read_only() -> None:
    """collect cannot write into pinned memory by mistake."""

    class Writes(Square):
        def collect(self, step: int, output: ByteArray) -> int:
            output[0] = 1
            return 0

    async with Orchestrator(Writes(), "sim:instant") as orch:
        with pytest.raises(CollectError, match="read-only"):
            await orch.run(0)


@pytest.mark.parametrize("hook", ["build", "launch", "collect"])
async def test_allocating_on_the_step_path_raises(hook: str) -> None:
    """With strict_alloc the guard fires in every hook, and names what to do (promise 1)."""

    class Allocates(Square):
        def alloc(self, here: str) -> None:
            if here == hook and self.device is not None:
                self.device.alloc(128, name="scratch")

        def build(self, step: int, image: Any) -> int | None:
            self.alloc("build")
            return super().build(step, image)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            self.alloc("launch")
            return super().launch(step, slot, stream)

        def collect(self, step: int, output: ByteArray) -> int:
            self.alloc("collect")
            return super().collect(step, output)

    async with Orchestrator(Allocates(), "sim:instant") as orch:
        with pytest.raises(HotPathAllocation, match=r"alloc\(128, name='scratch'\) on the step path"):
            await orch.run(0)
        assert orch.statistics().resident_nbytes == 0
    async with Orchestrator(Allocates(), "sim:instant", strict_alloc=False) as orch:
        await orch.run(0)
        assert orch.statistics().step_path_allocs == 1
        assert orch.statistics().resident_nbytes == 128


async def test_a_copy_that_the_device_refuses_fails_its_step() -> None:
    """An exception of the driver at enqueue is the step's, as CopyError, and the slot comes back."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend) as orch:
        backend.copy.refuse = DeviceError("copy engine busy")
        handle = await orch.submit(0)
        with pytest.raises(CopyError, match="copy engine busy"):
            await handle
        backend.copy.refuse = None
        handle = await orch.submit(1)
        backend.copy.run()
        backend.compute.run()
        assert (await handle).output == 1


async def test_a_lost_device_fails_everyone_and_names_the_step_at_the_root() -> None:
    """Every step in flight, everyone waiting to submit and every later submit gets DeviceLost."""
    backend = ManualBackend()
    async with Orchestrator(Square(), backend, slots=2, queue_depth=1) as orch:
        handles = [await orch.submit(i, step_id=f"s{i}") for i in range(3)]
        backend.compute.refuse = DeviceLost("bus error")
        backend.copy.run()
        fences = [payload for kind, payload in backend.compute.ops if kind == "record"]
        backend.compute.ops.clear()
        for fence in fences:
            fence.finish(DeviceLost("bus error"))
        for handle in handles:
            with pytest.raises(DeviceLost, match=r"device lost at step 's0' \(seq 0\): bus error"):
                await handle
        with pytest.raises(DeviceLost):
            await orch.submit(9)
        with pytest.raises(DeviceLost):
            orch.submit_nowait(9)


async def test_use_outside_async_with_raises() -> None:
    """Before entering and after leaving, every call says so instead of hanging."""
    orch = Orchestrator(Square(), "sim:instant")
    with pytest.raises(OrchestratorClosed, match="not open yet"):
        await orch.submit(1)
    async with orch:
        await orch.run(1)
    with pytest.raises(OrchestratorClosed, match="closed"):
        orch.submit_nowait(1)
    with pytest.raises(OrchestratorClosed, match="entered once"):
        await orch.__aenter__()


async def test_a_failing_open_frees_everything_and_still_closes_the_program() -> None:
    """Nothing stays allocated when program.open raises; close runs all the same."""

    class Broken(Square):
        def open(self, device: Device) -> None:
            super().open(device)
            device.alloc(64)
            raise OSError("weights are missing")

    backend, program = ManualBackend(), Broken()
    with pytest.raises(OSError, match="weights are missing"):
        async with Orchestrator(program, backend):
            pass
    assert backend.live == []
    assert program.calls == ["open", "close"]
    assert all(stream.closed for stream in backend.streams.values())
    assert not backend.closed


async def test_rings_that_do_not_fit_are_refused_with_what_to_lower() -> None:
    """Out of memory at open says what a slot needs, and leaves nothing allocated."""

    class Big(StepProgram[int, None]):
        slot = SlotSpec(image_nbytes=0, workspace_nbytes=600)

        def launch(self, step: int, slot: Slot, stream: Stream) -> int | None:
            return None

    backend = ManualBackend(capacity_nbytes=1000)
    with pytest.raises(MemoryError, match=r"slot 2 of 3 does not fit: each needs 600 B .*lower slots"):
        async with Orchestrator(Big(), backend):
            pass
    assert backend.live == []


@pytest.mark.parametrize("backend", ["host", "sim:instant"])
async def test_staging_that_does_not_fit_says_what_to_lower(backend: str) -> None:
    """An image beyond the machine's memory is refused before anything is allocated, with needs, free and the remedy."""

    class Huge(Square):
        slot = SlotSpec(image_nbytes=10**13, output_nbytes=8)

    with pytest.raises(
        MemoryError, match=r"(the rings do not fit: 3 slots need 3\d+ B.*free|staging buffer 1 of).*lower"
    ):
        async with Orchestrator(Huge(), backend):
            pass


async def test_a_slot_that_can_never_fit_is_refused_at_open_in_mode_naive() -> None:
    """There each step allocates its own, so none has to fit beside others; but one must."""

    class Two(ManualBackend):
        def free_nbytes(self) -> int:
            return self.capacity_nbytes - self.allocated_nbytes

    class Big(Square):
        slot = SlotSpec(image=Square.slot.image, workspace_nbytes=600, output_nbytes=8)

    needed = 8 + 600 + 8
    small = Two(capacity_nbytes=needed - 1)
    with pytest.raises(
        OutOfDeviceMemory, match=rf"a slot does not fit: it needs {needed} B .*, {needed - 1} B are free"
    ):
        async with Orchestrator(Big(), small, mode="naive"):
            pass
    assert small.live == []
    async with Orchestrator(Big(), Two(capacity_nbytes=needed), mode="naive", slots=3):
        pass


async def test_host_memory_that_runs_out_for_staging_is_named_as_such() -> None:
    """A backend that cannot tell what is free fails at the staging buffer, and the message says which and how large."""

    class Tight(ManualBackend):
        def alloc_host(self, nbytes: int, *, name: str = "") -> Buffer:
            if name.startswith("staging"):
                raise OutOfDeviceMemory("none left")
            return super().alloc_host(nbytes, name=name)

    backend = Tight()
    with pytest.raises(
        MemoryError, match=r"staging buffer 1 of \d+ does not fit in host memory: each needs 8 B; lower"
    ):
        async with Orchestrator(Square(), backend):
            pass
    assert backend.live == []
