"""The paged programs on OpenCL: the host's tokens, one launch a step, and steps whose images were damaged."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_orch import Orchestrator, Slot
from async_orch.abc import Stream
from async_orch.exceptions import CollectError, DeviceLost, ImageCorrupt, LaunchError
from examples.qwen3.options import CHECKPOINT
from examples.qwen3.paged import FROM_FEED, DecodeBatch, DecodeRow, PagedModel, PrefillBatch
from examples.qwen3.paged_run import Request, generate
from examples.qwen3.sampling import TopP
from tests.examples.paged_support import Recorder, check_tokens, run
from tests.examples.support import make_checkpoint

pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")

import pyopencl
from async_orch_backends.opencl import open_backend

from examples.qwen3.opencl_paged import OpenCLPagedDecode, OpenCLPagedModel
from tests.opencl_enqueues import Enqueues

RNG = np.random.default_rng(12)
LENGTHS = (3, 1, 16, 17, 40, 31, 32, 5, 100)
PROMPTS = [RNG.integers(0, 250, length).tolist() for length in LENGTHS]
POSITIONS = 200


@pytest.mark.parametrize(
    ("batch", "sizes"),
    [
        pytest.param(4, {"block_size": 16, "max_prefill_tokens": 32}, id="batch4-blocks16-chunks32"),
        pytest.param(3, {"block_size": 64, "kv_blocks": 7, "max_prefill_tokens": 256}, id="batch3-blocks64-few"),
        pytest.param(9, {"block_size": 16, "max_prefill_tokens": 112}, id="batch9-blocks16-chunks112"),
    ],
)
async def test_the_shipped_model_says_what_it_says_on_the_host(batch: int, sizes: dict[str, Any]) -> None:
    """Prompts of many lengths that enter and leave: equal tokens, logits to 1e-5 of the largest one."""
    requests = [Request(prompt, 3 + 7 * number % 30) for number, prompt in enumerate(PROMPTS)]
    found: list[tuple[list[list[int]], Recorder]] = []
    for kind, backend in ((PagedModel, "host"), (OpenCLPagedModel, "opencl")):
        model = kind(CHECKPOINT, max_batch=batch, max_context=POSITIONS, keep_logits=True, **sizes)
        recorder = Recorder(model)
        found.append((await run(model, requests, backend), recorder))
    (tokens, expected), (on_device, logits) = found
    assert on_device == tokens
    for own, wanted in zip(logits.sequences, expected.sequences, strict=True):
        np.testing.assert_allclose(np.array(own), np.array(wanted), rtol=0, atol=1e-5 * np.abs(wanted).max())


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"num_key_value_heads": 4}, id="gqa1"),
        pytest.param({"num_key_value_heads": 1}, id="gqa4"),
        pytest.param(
            {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 4, "tie_word_embeddings": False},
            id="gqa8-untied",
        ),
    ],
)
async def test_tokens_and_logits_equal_a_plain_forward_pass(tmp_path: Path, changes: dict[str, Any]) -> None:
    """Sizes that no vector divides, and each ratio of query to key-value heads: the most likely tokens, to 1e-4."""
    make_checkpoint(tmp_path, seed=1, max_position_embeddings=POSITIONS, **changes)
    model = OpenCLPagedModel(tmp_path, max_batch=5, max_prefill_tokens=48, keep_logits=True)
    recorder = Recorder(model)
    tokens = await run(model, [Request(prompt, 60) for prompt in PROMPTS[:5]], "opencl")
    for row in range(5):
        check_tokens(tmp_path, PROMPTS[row], tokens[row], recorder.sequences[row])


async def test_logits_depend_on_the_sequence_alone(tmp_path: Path) -> None:
    """Bit for bit the same: alone, among others in any row, in other blocks, and however the prompt was cut."""
    make_checkpoint(tmp_path, seed=2, max_position_embeddings=POSITIONS)

    async def logits_of(requests: list[Request], **options: Any) -> dict[int, Any]:
        sizes: dict[str, Any] = {"max_batch": len(requests), "max_prefill_tokens": 64} | options
        model = OpenCLPagedModel(tmp_path, keep_logits=True, **sizes)
        recorder = Recorder(model)
        await run(model, requests, "opencl")
        return {len(request.prompt): np.array(recorder.sequences[row]) for row, request in enumerate(requests)}

    requests = [Request(prompt, 12) for prompt in PROMPTS[:7]]
    settings = [
        await logits_of(requests),
        await logits_of(requests[::-1], max_prefill_tokens=16),
        await logits_of(requests, block_size=64),
    ]
    for request in requests:
        alone = await logits_of([request])
        for others in settings:
            np.testing.assert_array_equal(others[len(request.prompt)], alone[len(request.prompt)])


@pytest.mark.parametrize("image_at", ["shared", "slot"])
async def test_a_step_is_one_launch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, image_at: Any) -> None:
    """A step enqueues one kernel, which reads its image and leaves its output in place; numpy multiplies nothing.

    Where its image is not shared, a copy of it too.
    """
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    requests = [Request(prompt, 6) for prompt in PROMPTS[:5]]
    expected = await run(PagedModel(tmp_path, max_batch=2), requests)
    model = OpenCLPagedModel(tmp_path, max_batch=2)
    for program in model.programs.values():
        program.slot = dataclasses.replace(program.slot, image_at=image_at)
    enqueues = Enqueues(monkeypatch)

    def refused(*args: Any, **options: Any) -> None:
        raise RuntimeError("numpy.matmul was called on the device's behalf")

    programs: list[str] = []
    observers = [lambda record: programs.append(record.program)]
    async with Orchestrator(model.programs, "opencl", max_inflight=2, observers=observers) as orchestrator:
        monkeypatch.setattr(np, "matmul", refused)
        enqueues.names.clear()
        assert await generate(orchestrator, model, requests) == expected
        counts = enqueues.counts
    assert {"prefill", "decode"} == set(programs)
    n_steps = len(programs)
    copies = {} if image_at == "shared" else {"_enqueue_write_buffer": n_steps}
    assert counts == {"enqueue_nd_range_kernel": n_steps, **copies}


async def test_the_kernel_has_run_when_the_model_is_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Opening launches each program's kernel once, so that no step pays for a first run."""
    make_checkpoint(tmp_path, seed=3)
    enqueues = Enqueues(monkeypatch)
    async with Orchestrator(OpenCLPagedModel(tmp_path, max_batch=1).programs, "opencl"):
        assert enqueues.counts["enqueue_nd_range_kernel"] == 2


@pytest.mark.parametrize("options", [{}, {"mode": "naive"}, {"build_in": "thread", "launch_in": "thread"}])
async def test_tokens_chosen_on_the_host_are_fed_late(tmp_path: Path, options: dict[str, Any]) -> None:
    """Beside greedy rows, whose tokens stay on the device, sampled ones are those of the sequence alone, as on host."""
    make_checkpoint(tmp_path, seed=4, max_position_embeddings=POSITIONS)
    samplers = [TopP(temperature=0.8, top_p=0.9, seed=7), None, TopP(seed=1), None]
    requests = [Request(PROMPTS[n], 10, sampler) for n, sampler in enumerate(samplers)]
    together = await run(OpenCLPagedModel(tmp_path, max_batch=3, max_prefill_tokens=32), requests, "opencl", **options)
    assert together == await run(PagedModel(tmp_path, max_batch=4), requests)


def user_words(image: Any) -> Any:
    """The inputs of a step's image as int32: tokens, positions, block tables, rows."""
    start, nbytes = image[64:80].view("<u8").tolist()
    return image[start : start + nbytes // 4 * 4].view("<i4")


def flip_a_record(image: Any) -> None:
    image[-100] ^= 0x20


def all_inputs_are(value: int) -> Any:
    def damage(image: Any) -> None:
        user_words(image)[:] = value

    return damage


@pytest.mark.parametrize(
    ("how", "words"),
    [
        pytest.param(flip_a_record, "checksum", id="a-record"),
        pytest.param(all_inputs_are(1 << 30), r"refused its arguments \(kernel 'embed_next'\)", id="large-inputs"),
        pytest.param(all_inputs_are(-7), r"refused its arguments \(kernel 'embed_next'\)", id="negative-inputs"),
        pytest.param(all_inputs_are(5), r"refused its arguments \(kernel 'embed_next'\)", id="rows-that-are-not"),
    ],
)
async def test_a_damaged_image_fails_its_step_alone(tmp_path: Path, how: Any, words: str) -> None:
    """The step is `ImageCorrupt`, with what was wrong; the position given again by number goes on as on host."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    expected = (await run(PagedModel(tmp_path, max_batch=1), [Request(PROMPTS[2], 6)]))[0]

    class DamagedDecode(OpenCLPagedDecode):
        built = 0

        def build(self, step: DecodeBatch, image: Any) -> Any:
            built = super().build(step, image)
            self.built += 1
            if self.built == 3:
                how(image[: built.nbytes])
            return built

    class DamagedModel(OpenCLPagedModel):
        decode_type = DamagedDecode

    model = DamagedModel(tmp_path, max_batch=1)
    async with Orchestrator(model.programs, "opencl") as orchestrator:
        blocks = model.blocks.allocate(2)
        (chunk,) = model.prompt_chunks(0, PROMPTS[2], blocks)
        tokens = (await orchestrator.run(PrefillBatch([chunk]), program="prefill")).output.tokens.tolist()
        failures: list[BaseException | None] = []
        while len(tokens) < 6:
            row = DecodeRow(0, len(PROMPTS[2]) + len(tokens) - 1, blocks, tokens[-1])
            try:
                tokens += (await orchestrator.run(DecodeBatch([row]), program="decode")).output.tokens.tolist()
            except CollectError as exc:
                failures.append(exc.__cause__)
    assert tokens == expected
    (failure,) = failures
    assert isinstance(failure, ImageCorrupt)
    assert re.search(words, str(failure))


async def test_a_step_that_needs_the_feed_and_has_none_is_refused(tmp_path: Path) -> None:
    """A token from the host without ``after=`` fails the launch with words, here too, and the next step runs."""
    make_checkpoint(tmp_path, seed=3)
    model = OpenCLPagedModel(tmp_path, max_batch=1)
    async with Orchestrator(model.programs, "opencl") as orchestrator:
        blocks = model.blocks.allocate(1)
        with pytest.raises(LaunchError, match="FROM_FEED, but the step was submitted without after="):
            await orchestrator.run(DecodeBatch([DecodeRow(0, 0, blocks, FROM_FEED)]), program="decode")
        result = await orchestrator.run(DecodeBatch([DecodeRow(0, 0, blocks, 7)]), program="decode")
        assert 0 <= result.output.tokens[0] < model.config.vocab_size


async def test_a_reopened_device_has_the_model_again(tmp_path: Path) -> None:
    """After a hang the kernels are built in the new context and the weights loaded anew: requests get their tokens."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    requests = [Request(prompt, 5) for prompt in PROMPTS[:3]]
    expected = await run(PagedModel(tmp_path, max_batch=2), requests)
    backend = open_backend()
    backend.close_timeout_s = 0.05
    gate, kept = pyopencl.UserEvent(backend.context), list[Any]()

    class HangsOnce(OpenCLPagedDecode):
        def launch(self, step: DecodeBatch, slot: Slot, stream: Stream) -> int:
            if not kept:
                kept.append(pyopencl.enqueue_barrier(stream.native, wait_for=[gate]))
            return super().launch(step, slot, stream)

    class HangingModel(OpenCLPagedModel):
        decode_type = HangsOnce

    model = HangingModel(tmp_path, max_batch=2)
    async with Orchestrator(model.programs, backend, fence_timeout_s=3.0) as orchestrator:
        with pytest.raises(DeviceLost):
            await orchestrator.run(DecodeBatch([DecodeRow(0, 0, [0], 7)]), program="decode")
        await orchestrator.reopen()
        assert await generate(orchestrator, model, requests) == expected
    backend.close()
    gate.set_status(pyopencl.command_execution_status.COMPLETE)
    kept[0].wait()
