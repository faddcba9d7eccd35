"""The backend ``torch`` where there is no accelerator."""

from __future__ import annotations

import asyncio
import sys
from typing import Any

import pytest
from async_orch_backends import torch_accelerator

from async_orch import Orchestrator, SlotSpec, StepProgram, open_backend
from async_orch.abc import ByteArray, Stream
from async_orch.exceptions import BackendUnavailable, ConfigurationError, DeviceError, HotPathAllocation

torch: Any = pytest.importorskip("torch", reason="PyTorch is not installed: pip install 'async-orch[torch]'")

from tests.fakes.fake_torch import fake_torch  # noqa: E402 - needs PyTorch


@pytest.mark.skipif(torch.accelerator.is_available(), reason="this machine has an accelerator")
def test_without_an_accelerator_it_refuses_in_one_line() -> None:
    """PyTorch itself would hand out streams that do nothing."""
    for name in ("torch", "torch:cuda:0", "torch:npu:0"):
        with pytest.raises(BackendUnavailable, match=r"found no accelerator in torch .* or use 'torch:cpu'") as caught:
            open_backend(name)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("npu:0", "'torch:npu:0': the accelerator of this PyTorch is 'cpu'"),
        ("cpu:1", "'torch:cpu:1' is out of range: there are 1 cpu devices"),
        ("cpu:first", "'torch:cpu:first' names no device: give KIND or KIND:INDEX, as 'torch:cuda:0'"),
    ],
)
def test_a_name_without_a_device_is_refused(monkeypatch: pytest.MonkeyPatch, target: str, message: str) -> None:
    """The error says what there is."""
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    with pytest.raises(BackendUnavailable, match=message):
        torch_accelerator.open_backend(target)


def test_the_host_may_be_given_its_index() -> None:
    """It has one device, as others count theirs."""
    backend = open_backend("torch:cpu:0")
    assert backend.info.device == "cpu"
    backend.close()


def test_options_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Unknown ones are named, and so is a stream that is none."""
    with pytest.raises(ConfigurationError, match="got priority"):
        open_backend("torch:cpu", priority=1)
    monkeypatch.setitem(sys.modules, "torch", fake_torch())
    with pytest.raises(ConfigurationError, match=r"copy_stream must be a torch\.Stream, got int"):
        torch_accelerator.open_backend(None, copy_stream=3)


def test_what_is_no_kernel_is_refused() -> None:
    """The error names its type."""
    backend = open_backend("torch:cpu")
    with pytest.raises(DeviceError, match="not int"):
        backend.create_stream("compute").launch(3)
    backend.close()


def test_pytorchs_allocations_in_a_launch_are_seen() -> None:
    """Its allocator is the witness: one tensor too many fails the step, on a fake that counts as PyTorch does."""
    fake = fake_torch()

    class Allocates(StepProgram[int, int]):
        slot = SlotSpec(image_nbytes=64, output_nbytes=64)

        def build(self, step: int, image: Any) -> None:
            image[:] = step

        def launch(self, step: int, slot: Any, stream: Stream) -> None:
            if step == 1:
                fake.empty(64, dtype=torch.uint8, device=fake.device("cpu", 0))
            stream.launch(lambda image, output: output.copy_(image), slot.image, slot.output)

        def collect(self, step: int, output: ByteArray) -> int:
            return int(output[63])

    async def main() -> None:
        backend = torch_accelerator.TorchBackend(fake, torch.device("cpu", 0), {})
        assert backend.info.alloc_visibility == "all"
        async with Orchestrator(Allocates(), backend) as orch:
            assert (await orch.run(0)).output == 0
            with pytest.raises(HotPathAllocation, match="launch of Allocates made the device allocate memory 1 times"):
                await orch.run(1)
            assert (await orch.run(2)).output == 2
        backend.close()

    asyncio.run(main())


def test_an_older_pytorch_sees_its_own_allocations_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the counter the backend says so, and nothing is watched."""
    fake = fake_torch()
    monkeypatch.setattr(fake.accelerator, "memory_stats", lambda device: {})
    backend = torch_accelerator.TorchBackend(fake, torch.device("cpu", 0), {})
    assert backend.info.alloc_visibility == "own"
    assert backend.allocation_counter() is None
    backend.close()


def test_the_counter_is_one_that_pytorch_has() -> None:
    """The name is documented by the installed PyTorch."""
    assert f'"{torch_accelerator._COUNTER}"' in torch.accelerator.memory_stats.__doc__


def test_a_tensor_is_a_view_of_the_slot() -> None:
    """What a kernel gets has the address of the slot's image, so nothing is copied on the way to PyTorch."""
    addresses: list[tuple[int, int]] = []

    class View(StepProgram[int, int]):
        slot = SlotSpec(image_nbytes=64, output_nbytes=64)

        def build(self, step: int, image: Any) -> None:
            image[:] = step

        def launch(self, step: int, slot: Any, stream: Stream) -> None:
            address = slot.image.handle

            def kernel(image: Any, output: Any) -> None:
                addresses.append((image.data_ptr(), address))
                torch.add(image, 1, out=output)

            stream.launch(kernel, slot.image, slot.output)

        def collect(self, step: int, output: ByteArray) -> int:
            return int(output[63])

    async def main() -> list[int]:
        async with Orchestrator(View(), "torch:cpu") as orch:
            return [result.output async for result in orch.map(range(5))]

    assert asyncio.run(main()) == [1, 2, 3, 4, 5]
    assert len(addresses) == 5
    assert all(seen == address for seen, address in addresses)
