"""The device really runs the image: from its bytes alone in a fresh process, and differently once it is changed."""

import subprocess
import sys
from pathlib import Path

import numpy as np

from async_orch.abc import ByteArray
from async_orch.graph import ImageCorrupt, describe
from examples.qwen3.kernels import kernel_table
from examples.qwen3.program import Qwen3Decode
from examples.qwen3.schedule import Schedule
from tests.examples.support import SerialDevice, make_checkpoint

FRESH_PROCESS = """
import sys
import numpy as np
from async_orch.graph import execute
from examples.qwen3.kernels import kernel_table

with np.load(sys.argv[1]) as file:
    memory = {name: file[name].copy() for name in file.files}
image = memory.pop("image")
execute(image, memory, kernel_table())
print(*memory["output"].view(np.int32).tolist())
"""


def prepared(folder: Path) -> tuple[SerialDevice, list[int]]:
    """A device with the last step of a decode copied in but not launched, and the tokens that step chooses."""
    make_checkpoint(folder, seed=5)
    schedule = Schedule([[10, 11], [12, 13]], 5, 64)
    steps = list(schedule)
    device, other = (SerialDevice(Qwen3Decode(folder, batch=2, capacity=schedule.capacity)) for _ in range(2))
    for step in steps[:-1]:
        device.run(step)
        other.run(step)
    device.copy_in(steps[-1])
    return device, other.run(steps[-1]).tokens.tolist()


def launch(device: SerialDevice) -> list[int]:
    """Run the image as it lies in device memory; returns the tokens of the output."""
    resident = (device.program.resident[name].array for name in ("weights", "kv", "state"))
    device.program.run(device.image.array, device.workspace.array, device.output.array, *resident)
    return [int(token) for token in device.output.array.view(np.int32)]


def test_a_fresh_process_runs_the_image(tmp_path: Path) -> None:
    """A process with only the image's bytes, the resident buffers and the kernel table chooses the same tokens."""
    device, expected = prepared(tmp_path / "model")
    resident = device.program.resident
    file = tmp_path / "device.npz"
    np.savez(
        file,
        image=device.image.array[: device.used],
        workspace=np.full_like(device.workspace.array, 0xDD),
        output=np.full_like(device.output.array, 0xDD),
        weights=resident["weights"].array,
        kv=resident["kv"].array,
        state=resident["state"].array,
    )
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run(
        [sys.executable, "-c", FRESH_PROCESS, str(file)], cwd=root, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert [int(word) for word in done.stdout.split()] == expected


def test_all_images_can_be_built_before_the_first_step_runs(tmp_path: Path) -> None:
    """A build needs no earlier step's result: images built ahead give the tokens of images built in turn."""
    make_checkpoint(tmp_path, seed=8)
    schedule = Schedule([[10, 11], [12, 13, 14]], 5, 64)
    in_turn, ahead = (SerialDevice(Qwen3Decode(tmp_path, batch=2, capacity=schedule.capacity)) for _ in range(2))
    expected = [in_turn.run(step).tokens.tolist() for step in schedule]
    images = []
    for step in schedule:
        ahead.copy_in(step)
        images.append(ahead.image.array.copy())
    found = []
    for image in images:
        ahead.image.array[:] = image
        found.append(launch(ahead))
    assert found == expected


def task_table(image: ByteArray) -> tuple[int, int]:
    """First byte and number of the task records, from the image's header."""
    start, count = image[64 + 2 * 16 : 64 + 3 * 16].view("<u8").tolist()
    return start, count


def test_a_changed_kernel_id_in_device_memory_shows(tmp_path: Path) -> None:
    """After the copy, another kernel's id in any task of the image is refused or gives other bytes."""
    device, expected = prepared(tmp_path / "model")
    start, count = task_table(device.image.array)
    assert count == device.program.graph.max_tasks
    kv = device.program.resident["kv"].array
    original, kv_before = device.image.array.copy(), kv.copy()
    state = device.program.resident["state"].array
    state_before = state.copy()
    for task in range(count):
        device.image.array[:] = original
        kv[:], state[:] = kv_before, state_before
        kernel = device.image.array[start + task * 24 + 4 : start + task * 24 + 8].view("<u4")
        kernel[0] = (kernel[0] + 1) % len(kernel_table())
        try:
            changed = launch(device)
        except (ImageCorrupt, ValueError):
            continue
        assert changed != expected
    device.image.array[:] = original
    kv[:], state[:] = kv_before, state_before
    assert launch(device) == expected


def test_every_operation_is_a_task(tmp_path: Path) -> None:
    """The image lists each operation of the decoder as a task of its own, in kernels of the table."""
    device, _ = prepared(tmp_path / "model")
    text = describe(device.image.array)
    layers = device.program.config.num_hidden_layers
    for name, times in {
        "embed": 1,
        "rms_norm": 4 * layers + 1,
        "linear": 7 * layers + 1,
        "rope": 2 * layers,
        "kv_append": layers,
        "attention": layers,
        "swiglu": layers,
        "add": 2 * layers,
        "argmax": 1,
    }.items():
        kernel_id = kernel_table().id_of(name)
        start, count = task_table(device.image.array)
        kernels = device.image.array[start : start + 24 * count].view("<u4")[1::6]
        assert int((kernels == kernel_id).sum()) == times, text
