"""The decoder against a slow plain implementation, on random checkpoints, without an engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from async_orch.exceptions import GraphError, GraphOverflow
from examples.qwen3 import decode_graph, kernels
from examples.qwen3.config import ModelError
from examples.qwen3.graph_parts import write_layer
from examples.qwen3.kernels import linear, swiglu
from examples.qwen3.paged_kernels import linear_tiles
from examples.qwen3.program import Qwen3Decode, SlotMemory
from examples.qwen3.schedule import DecodeStep, Schedule
from tests.examples.support import SIZES, SerialDevice, make_checkpoint, plain_decode, serial_decode

PROMPTS = ([7, 8, 9], [4], [200, 100, 50, 25, 12], [31, 32])


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"num_key_value_heads": 4}, id="gqa1"),
        pytest.param({"num_key_value_heads": 2}, id="gqa2"),
        pytest.param({"num_key_value_heads": 1}, id="gqa4"),
        pytest.param({"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 4}, id="gqa8"),
        pytest.param({"tie_word_embeddings": False}, id="untied"),
        pytest.param({"rope_theta": 1_000_000.0, "rms_norm_eps": 1e-5}, id="theta"),
    ],
)
def test_tokens_and_logits_equal_a_plain_decoder(tmp_path: Path, changes: dict[str, Any]) -> None:
    """For each shape of model a ragged batch gives the plain decoder's tokens, and its logits to 1e-4."""
    make_checkpoint(tmp_path, seed=1, **changes)
    tokens, logits = serial_decode(tmp_path, PROMPTS, 8)
    for row, prompt in enumerate(PROMPTS):
        expected, expected_logits = plain_decode(tmp_path, prompt, 8)
        assert tokens[row] == expected
        np.testing.assert_allclose(logits[row], expected_logits, rtol=0, atol=1e-4)


def test_logits_do_not_depend_on_batch_mates(tmp_path: Path) -> None:
    """A row's logits in a batch equal, bit for bit, those of the row decoded alone."""
    make_checkpoint(tmp_path, seed=2)
    _, together = serial_decode(tmp_path, PROMPTS, 6)
    for row, prompt in enumerate(PROMPTS):
        _, alone = serial_decode(tmp_path, [prompt], 6)
        np.testing.assert_array_equal(together[row], alone[0])


def test_a_read_of_activations_that_nobody_wrote_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A layer that lost its first norm does not read what an earlier step left there: its graph is refused."""
    make_checkpoint(tmp_path, seed=2)

    def without_first_norm(task: Callable[..., int], *args: Any, **options: Any) -> None:
        calls = iter(range(100))
        write_layer(lambda *call, **more: task(*call, **more) if next(calls) else -1, *args, **options)

    monkeypatch.setattr(decode_graph, "write_layer", without_first_norm)
    with pytest.raises(
        GraphError, match=r"\(linear\), argument 1: reads bytes .* of region 'workspace', which no earlier"
    ):
        Qwen3Decode(tmp_path, batch=2, capacity=16)


def test_a_head_stored_twice_is_ignored_when_tied(tmp_path: Path) -> None:
    """A tied checkpoint that also stores its head decodes like one that does not."""
    make_checkpoint(tmp_path, seed=3)
    before = serial_decode(tmp_path, PROMPTS[:1], 4)[0]
    tensors = load_file(tmp_path / "model.safetensors")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    save_file(tensors, tmp_path / "model.safetensors")
    assert serial_decode(tmp_path, PROMPTS[:1], 4)[0] == before


def test_float16_weights_are_read(tmp_path: Path) -> None:
    """A float16 checkpoint decodes as the float32 one with the same values does."""
    make_checkpoint(tmp_path / "half", seed=4)
    make_checkpoint(tmp_path / "full", seed=4)
    half = {n: v.astype(np.float16) for n, v in load_file(tmp_path / "half" / "model.safetensors").items()}
    save_file(half, tmp_path / "half" / "model.safetensors")
    full = {name: value.astype(np.float32) for name, value in half.items()}
    save_file(full, tmp_path / "full" / "model.safetensors")
    _, logits = serial_decode(tmp_path / "half", PROMPTS, 4)
    _, expected = serial_decode(tmp_path / "full", PROMPTS, 4)
    np.testing.assert_array_equal(np.array(logits), np.array(expected))


@pytest.mark.parametrize("kernel", [linear, linear_tiles])
def test_weights_larger_than_a_part_give_the_same_product(monkeypatch: pytest.MonkeyPatch, kernel: Any) -> None:
    """Worked on in parts, a product is right, and each row's (or tile's) bits are those that it has alone."""
    monkeypatch.setattr(kernels, "PART_NBYTES", 4 * 50 * 40)
    rng = np.random.default_rng(0)
    x, weight = rng.standard_normal((48, 50), np.float32), rng.standard_normal((130, 50), np.float32)
    assert [part.stop - part.start for part in kernels.parts(weight)] == [32] * 5
    out = np.empty((48, 130), np.float32)
    kernel(out, x, weight)
    np.testing.assert_allclose(out, x.astype(np.float64) @ weight.T.astype(np.float64), rtol=0, atol=1e-4)
    alone = np.empty_like(out)
    for start in range(0, 48, 16):
        kernel(alone[start : start + 16], x[start : start + 16], weight)
    np.testing.assert_array_equal(out, alone)


def test_swiglu_of_very_negative_gates_is_zero() -> None:
    """Gates whose exponential overflows give 0, silently; others the formula's value."""
    gate = np.array([[-200.0, -1.0, 2.0]], np.float32)
    out = np.empty_like(gate)
    swiglu(out, gate, np.full_like(gate, 3.0))
    expected = [[0.0, -3.0 / (1 + np.exp(1.0)), 6.0 / (1 + np.exp(-2.0))]]
    np.testing.assert_allclose(out, expected, rtol=1e-6)


def test_the_schedule_feeds_prompts_and_lets_finished_rows_go() -> None:
    """Rows take prompt tokens from the host, later ones from the device, and leave once they have their results."""
    steps = list(Schedule([[5, 6, 7], [9]], tokens=2, max_positions=10))
    assert [step.rows.tolist() for step in steps] == [[0, 1], [0, 1], [0], [0]]
    assert [step.forced.tolist() for step in steps] == [[5, 9], [6, -1], [7], [-1]]
    assert [step.generates.tolist() for step in steps] == [[False, True], [False, True], [True], [True]]
    assert [step.positions.tolist() for step in steps] == [[0, 0], [1, 1], [2], [3]]


@pytest.mark.parametrize(
    ("prompts", "tokens", "message"),
    [
        ([[1], []], 2, "prompt 2 is empty"),
        ([[1] * 9], 2, "prompt 1 is too long: 9 tokens and 2 to generate, but the model has 10 positions"),
        ([], 2, "there is no prompt"),
        ([[1]], 0, "tokens must be at least 1, got 0"),
    ],
)
def test_a_schedule_that_cannot_run_is_refused(prompts: list[list[int]], tokens: int, message: str) -> None:
    """Empty and overlong prompts are refused with numbers before anything runs."""
    with pytest.raises(ModelError, match=message):
        Schedule(prompts, tokens, max_positions=10)


def test_a_slot_that_is_too_small_is_refused_with_numbers(tmp_path: Path) -> None:
    """An image or a workspace smaller than the graph needs is refused at construction, naming both sizes."""
    make_checkpoint(tmp_path)
    fits = Qwen3Decode(tmp_path, batch=1, capacity=8)
    for resource in ("image", "workspace"):
        needed = getattr(fits.slot, f"{resource}_nbytes")
        memory = SlotMemory(**{f"{resource}_nbytes": needed - 1})
        with pytest.raises(GraphOverflow, match=f"{resource} needs {needed} B, .* has {needed - 1} B"):
            Qwen3Decode(tmp_path, batch=1, capacity=8, memory=memory)


def test_the_image_is_written_anew_and_padded_on_request(tmp_path: Path) -> None:
    """A build over garbage gives the same bytes as over zeros, and a padded image reports its padded size."""
    make_checkpoint(tmp_path)
    program = Qwen3Decode(tmp_path, batch=2, capacity=8, memory=SlotMemory(image_nbytes=100_000))
    step = next(iter(Schedule([[1, 2], [3]], 2, 10)))
    images = [np.full(100_000, fill, np.uint8) for fill in (0, 0xDD)]
    used = program.graph_nbytes
    assert [program.build(step, image) for image in images] == [(100_000, used), (100_000, used)]
    np.testing.assert_array_equal(images[0][:used], images[1][:used])


def test_a_step_of_another_program_is_refused(tmp_path: Path) -> None:
    """A step with more rows or later positions than the program was made for fails to build, with numbers."""
    make_checkpoint(tmp_path)
    program = Qwen3Decode(tmp_path, batch=1, capacity=4)
    image = np.empty(program.slot.image_nbytes, np.uint8)
    two, late = np.array([0, 1], np.int32), np.array([4], np.int32)
    one, yes = np.array([0], np.int32), np.array([True])
    with pytest.raises(ValueError, match="2 rows up to position 1 for a program of 1 rows and 4 positions"):
        program.build(DecodeStep(two, two, two, np.array([True, True])), image)
    with pytest.raises(ValueError, match="1 rows up to position 4"):
        program.build(DecodeStep(one, late, one, yes), image)


def test_output_leaves_rows_that_are_not_active_out(tmp_path: Path) -> None:
    """In a step of some rows the others' token is -1, so no stale token can be taken for a result."""
    make_checkpoint(tmp_path)
    schedule = Schedule([[1, 2, 3], [4]], 1, SIZES["max_position_embeddings"])
    device = SerialDevice(Qwen3Decode(tmp_path, batch=2, capacity=schedule.capacity))
    outputs = [device.run(step).tokens.tolist() for step in schedule]
    assert outputs[0][1] >= 0
    assert outputs[2][1] == -1
