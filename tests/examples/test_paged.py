"""The paged programs: tokens and logits against a plain forward pass, and what must not change them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from async_orch import Orchestrator, open_backend
from async_orch.exceptions import BuildError, DeviceLost, LaunchError, OrchError
from async_orch.testing import Fault, FaultPlan, ManualBackend
from examples.qwen3.config import ModelError
from examples.qwen3.paged import FROM_FEED, DecodeBatch, DecodeRow, PagedModel, PrefillBatch, PrefillChunk, Submitted
from examples.qwen3.paged_run import Request, generate
from examples.qwen3.paged_steps import prompt_chunks
from examples.qwen3.sampling import TopP
from tests.examples.paged_support import Recorder, check_tokens, run
from tests.examples.support import Array, make_checkpoint, store_as

RNG = np.random.default_rng(11)
LENGTHS = (3, 1, 16, 17, 40, 31, 32, 5, 2, 64, 9, 21, 7, 33, 48, 12)
PROMPTS = [RNG.integers(0, 250, length).tolist() for length in LENGTHS]
POSITIONS = 300


@pytest.mark.parametrize(
    ("changes", "dtype", "batch", "block_size"),
    [
        pytest.param({"num_key_value_heads": 4}, "float32", 16, 16, id="gqa1-batch16"),
        pytest.param({"num_key_value_heads": 2}, "bfloat16", 5, 64, id="gqa2-bfloat16-blocks64"),
        pytest.param({"num_key_value_heads": 1}, "float16", 3, 16, id="gqa4-float16"),
        pytest.param(
            {"num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 4, "tie_word_embeddings": False},
            "bfloat16",
            1,
            16,
            id="gqa8-untied-batch1",
        ),
    ],
)
async def test_tokens_and_logits_equal_a_plain_forward_pass(
    tmp_path: Path, changes: dict[str, Any], dtype: str, batch: int, block_size: int
) -> None:
    """200 tokens after each of a ragged batch of prompts are the most likely ones, with logits to 1e-4."""
    make_checkpoint(tmp_path, seed=1, max_position_embeddings=POSITIONS, **changes)
    if dtype != "float32":
        store_as(tmp_path, dtype, shards=2)
    model = PagedModel(tmp_path, block_size=block_size, max_batch=batch, max_prefill_tokens=64, keep_logits=True)
    recorder = Recorder(model)
    tokens = await run(model, [Request(prompt, 200) for prompt in PROMPTS[:batch]])
    for row in range(batch):
        assert len(tokens[row]) == 200
        check_tokens(tmp_path, PROMPTS[row], tokens[row], recorder.sequences[row])


async def logits_of(folder: Path, requests: list[Request], **options: Any) -> dict[int, Array]:
    """Logits [tokens, vocab] by the prompt's length, which is the request's name here."""
    options = {"max_batch": len(requests), "max_prefill_tokens": 64} | options
    model = PagedModel(folder, keep_logits=True, **options)
    recorder = Recorder(model)
    await run(model, requests)
    return {len(request.prompt): np.array(recorder.sequences[row]) for row, request in enumerate(requests)}


async def test_logits_depend_on_the_sequence_alone(tmp_path: Path) -> None:
    """Bit for bit the same: alone, among others in any row, in other blocks, and however the prompt was cut."""
    make_checkpoint(tmp_path, seed=2, max_position_embeddings=POSITIONS)
    together = await logits_of(tmp_path, [Request(prompt, 20) for prompt in PROMPTS[:11]])
    backwards = await logits_of(tmp_path, [Request(prompt, 20) for prompt in PROMPTS[10::-1]])
    finer = await logits_of(tmp_path, [Request(prompt, 20) for prompt in PROMPTS[:11]], max_prefill_tokens=16)
    larger = await logits_of(tmp_path, [Request(prompt, 20) for prompt in PROMPTS[:11]], block_size=64)
    for prompt in PROMPTS[:11]:
        alone = (await logits_of(tmp_path, [Request(prompt, 20)]))[len(prompt)]
        for others in (together, backwards, finer, larger):
            np.testing.assert_array_equal(others[len(prompt)], alone)


async def test_sequences_enter_and_leave_between_steps(tmp_path: Path) -> None:
    """With rows and blocks for a few, more requests than that all get the tokens that they get alone."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    requests = [Request(prompt, 3 + 5 * number % 17) for number, prompt in enumerate(PROMPTS)]
    few = PagedModel(tmp_path, max_batch=3, kv_blocks=9, max_prefill_tokens=32)
    tokens = await run(few, requests)
    one = PagedModel(tmp_path, max_batch=1)
    assert tokens == [(await run(one, [request]))[0] for request in requests]


async def test_a_sampler_on_the_host_gives_the_same_tokens_in_any_batch(tmp_path: Path) -> None:
    """Tokens drawn on the host and fed late are those of the sequence alone, beside greedy rows too."""
    make_checkpoint(tmp_path, seed=4, max_position_embeddings=POSITIONS)
    samplers = [TopP(temperature=0.8, top_p=0.9, seed=7), None, TopP(seed=1), None]
    requests = [Request(PROMPTS[n], 12, sampler) for n, sampler in enumerate(samplers)]
    together = await run(PagedModel(tmp_path, max_batch=4, max_prefill_tokens=32), requests)
    assert together == [(await run(PagedModel(tmp_path, max_batch=1), [request]))[0] for request in requests]
    assert together[0] != (await run(PagedModel(tmp_path, max_batch=1), [Request(PROMPTS[0], 12)]))[0]


async def test_a_step_launches_before_the_token_that_it_starts_from_is_on_the_host(tmp_path: Path) -> None:
    """With the token kept on the device, step N + 1 is on the device together with step N."""
    make_checkpoint(tmp_path, seed=3)
    model = PagedModel(tmp_path, max_batch=1)
    seen: list[int] = []
    await run(
        model, [Request(PROMPTS[0], 30)], "sim:adversary", observers=[lambda record: seen.append(record.on_device)]
    )
    assert max(seen) == 2


async def test_stop_ids_end_a_sequence_and_are_not_returned(tmp_path: Path) -> None:
    """A sequence ends before its stop id; the step that was on its way by then changes nothing."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    full = (await run(PagedModel(tmp_path, max_batch=1), [Request(PROMPTS[2], 30)]))[0]
    stop = full[12]
    expected = full[: full.index(stop)]
    requests = [Request(PROMPTS[2], 30, stop_ids={stop}), Request(PROMPTS[3], 5), Request(PROMPTS[2], 30)]
    stopped, _, after = await run(PagedModel(tmp_path, max_batch=1), requests)
    assert stopped == expected
    assert after == full


async def test_blocks_are_shared_by_sequences_with_a_common_beginning(tmp_path: Path) -> None:
    """A second sequence that starts from the first one's blocks has the logits of a whole prefill."""
    make_checkpoint(tmp_path, seed=6, max_position_embeddings=POSITIONS)
    prompt = PROMPTS[9]  # 64 tokens: three whole blocks and the last one
    model = PagedModel(tmp_path, max_batch=2, keep_logits=True)
    async with Orchestrator(model.programs, "host") as orchestrator:
        first, own = model.blocks.allocate(4), model.blocks.allocate(1)
        (whole,) = model.prompt_chunks(0, prompt, first)
        (rest,) = model.prompt_chunks(1, prompt, [*first[:3], *own], start=48)
        outputs = [(await orchestrator.run(PrefillBatch([chunk]), program="prefill")).output for chunk in (whole, rest)]
    np.testing.assert_array_equal(outputs[0].logits, outputs[1].logits)


async def test_steps_that_cannot_run_are_refused_with_numbers(tmp_path: Path) -> None:
    """Each slip fails that step alone, in build, and says what was wrong."""
    make_checkpoint(tmp_path)
    model = PagedModel(tmp_path, max_batch=2, kv_blocks=4, max_context=40, max_prefill_tokens=32)
    decode: list[tuple[list[DecodeRow], str]] = [
        ([], "a step of 0 rows for a model with max_batch 2"),
        ([DecodeRow(0, 1, [0]), DecodeRow(0, 2, [1])], r"a row is in the step twice: \[0, 0\]"),
        ([DecodeRow(2, 1, [0])], "row 2 for a model with max_batch 2"),
        ([DecodeRow(1, 16, [0])], "row 1: 1 blocks of 16 positions for position 16, which needs 2"),
        ([DecodeRow(1, 16, [0, 4])], "row 1: block 4 of a cache of 4 blocks"),
        ([DecodeRow(1, 40, [0, 1, 2])], "row 1: positions 40 to 40 for a model with max_context 40"),
        ([DecodeRow(1, 3, [0], token=259)], "row 1: token 259 is not in the vocabulary of 259"),
    ]
    prefill: list[tuple[list[PrefillChunk], str]] = [
        ([PrefillChunk(0, 0, [], [0])], "row 0: a chunk has no tokens"),
        ([PrefillChunk(0, 0, [-1], [0])], "row 0: token -1 is not in the vocabulary"),
        ([PrefillChunk(0, 8, [1], [0])], "chunk from position 8 to 9; chunks start at multiples of 16"),
        ([PrefillChunk(0, 0, [1], [0], last=False)], "only the last of a prompt may end elsewhere"),
        ([PrefillChunk(0, 0, [1] * 33, [0, 1, 2])], "chunks of 48 tokens, .* max_prefill_tokens 32"),
    ]
    async with Orchestrator(model.programs, "sim:instant") as orchestrator:
        for rows, message in decode:
            with pytest.raises(BuildError, match=message):
                await orchestrator.run(DecodeBatch(rows), program="decode")
        for chunks, message in prefill:
            with pytest.raises(BuildError, match=message):
                await orchestrator.run(PrefillBatch(chunks), program="prefill")
        with pytest.raises(LaunchError, match="FROM_FEED, but the step was submitted without after="):
            await orchestrator.run(DecodeBatch([DecodeRow(0, 1, [0], FROM_FEED)]), program="decode")
        first = await orchestrator.submit(PrefillBatch([PrefillChunk(0, 0, [5], [0])]), program="prefill")
        with pytest.raises(OrchError, match="row 0: no token for position 2, the newest one is for 1"):
            await orchestrator.run(DecodeBatch([DecodeRow(0, 2, [0], FROM_FEED)]), program="decode", after=first)


async def test_requests_and_sizes_that_cannot_run_are_refused(tmp_path: Path) -> None:
    """Nothing starts, and the message has the numbers."""
    make_checkpoint(tmp_path)
    model = PagedModel(tmp_path, max_batch=1, kv_blocks=1, max_context=40)
    async with Orchestrator(model.programs, "sim:instant") as orchestrator:
        for request, message in (
            (Request([], 3), "request 1 has 0 prompt tokens and asks for 3 more"),
            (Request([1] * 38, 4), "request 1 needs 41 positions, max_context is 40"),
            (Request([1] * 14, 4), "request 1 needs 2 blocks, the cache has 1"),
        ):
            with pytest.raises(ModelError, match=message):
                await generate(orchestrator, model, [request])
    with pytest.raises(ModelError, match="max_context is 65; the model has 64 positions"):
        PagedModel(tmp_path, max_context=65)
    with pytest.raises(ValueError, match="block_size is 8; it must be a multiple of 16"):
        PagedModel(tmp_path, block_size=8)
    with pytest.raises(ValueError, match="kv_blocks is 0; it must be at least 1"):
        PagedModel(tmp_path, kv_blocks=0)


async def test_weights_are_loaded_once_for_both_programs(tmp_path: Path) -> None:
    """Progress goes to the end once; a model that is open cannot be opened a second time, but later it can."""
    make_checkpoint(tmp_path)
    seen: list[tuple[int, int]] = []
    model = PagedModel(tmp_path, progress=lambda done, total: seen.append((done, total)))
    async with Orchestrator(model.programs, "sim:instant") as orchestrator:
        assert orchestrator.statistics().resident_nbytes == sum(model.shape.region_nbytes.values())
        assert [done for done, _ in seen] == sorted({done for done, _ in seen})
        assert seen[-1][0] == seen[-1][1] > 0
        with pytest.raises(ModelError, match="open in another orchestrator"):
            async with Orchestrator(model.programs, "sim:instant"):
                pass
        assert len(await generate(orchestrator, model, [Request([1], 2)])) == 1
    assert len(await run(model, [Request([1], 2)])) == 1


async def test_a_model_that_does_not_fit_says_which_cache_would(tmp_path: Path) -> None:
    """The estimate is what is then allocated, and the refusal names a number of blocks with which it fits."""
    make_checkpoint(tmp_path)
    model = PagedModel(tmp_path, max_batch=2, kv_blocks=50)
    backend = open_backend("sim:instant")
    needed = model.check_memory(backend)
    async with Orchestrator(model.programs, backend) as orchestrator:
        resident = orchestrator.statistics().resident_nbytes
        assert needed.weights_nbytes + needed.cache_nbytes + 4 * 2 == resident
        slots = needed.total_nbytes - needed.loading_nbytes - resident
        assert 0 < (backend.allocated_nbytes or 0) - resident < slots
    backend.close()
    small = ProfiledMemory(needed.total_nbytes - 1)
    with pytest.raises(
        ModelError, match=r"the model needs .*: weights .* are free; with kv_blocks=49 instead of 50 it"
    ):
        model.check_memory(small)
    assert PagedModel(tmp_path, max_batch=2, kv_blocks=49).check_memory(small).total_nbytes <= small.nbytes
    with pytest.raises(ModelError, match="take a smaller model: its weights alone do not fit"):
        model.check_memory(ProfiledMemory(1000))
    with pytest.raises(ModelError, match="lower max_context or max_batch"):
        model.check_memory(ProfiledMemory(needed.weights_nbytes + needed.loading_nbytes))
    small.close()


class ProfiledMemory(ManualBackend):
    """A device with so much memory."""

    def __init__(self, nbytes: int) -> None:
        super().__init__()
        self.nbytes = nbytes

    def free_nbytes(self) -> int:
        return self.nbytes


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"build_in": "thread", "launch_in": "thread", "collect_in": "thread"}, id="threads"),
        pytest.param(
            {"build_in": "process"},
            id="process",
            marks=pytest.mark.skipif(sys.platform != "linux", reason="builds in worker processes are for Linux"),
        ),
        pytest.param({"mode": "naive"}, id="naive"),
        pytest.param({"slots": 1, "queue_depth": 1}, id="one-slot"),
    ],
)
async def test_tokens_are_the_same_wherever_hooks_run(tmp_path: Path, options: dict[str, Any]) -> None:
    """On a device that shows memory reused too early, in each setting, greedy and sampled tokens are those of host."""
    make_checkpoint(tmp_path, seed=8, max_position_embeddings=POSITIONS)
    samplers = [None, TopP(seed=5), None]
    requests = [Request(PROMPTS[n], 6, sampler) for n, sampler in enumerate(samplers)]
    expected = await run(PagedModel(tmp_path, max_batch=3), requests)
    model = PagedModel(tmp_path, max_batch=2, kv_blocks=4, max_prefill_tokens=16)
    assert await run(model, requests, "sim:adversary", **options) == expected


async def test_a_failed_step_is_run_again_from_the_last_known_token(tmp_path: Path) -> None:
    """After a decode step whose kernels failed, the same position given by number goes on as if nothing had been."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    model = PagedModel(tmp_path, max_batch=1)
    expected = (await run(model, [Request(PROMPTS[2], 6)]))[0]
    backend = open_backend("sim:instant", faults=FaultPlan(Fault(action="raise", operation="launch", nth=3)))
    async with Orchestrator(model.programs, backend) as orchestrator:
        blocks = model.blocks.allocate(2)
        (chunk,) = model.prompt_chunks(0, PROMPTS[2], blocks)
        tokens = (await orchestrator.run(PrefillBatch([chunk]), program="prefill")).output.tokens.tolist()
        failures = 0
        while len(tokens) < 6:
            row = DecodeRow(0, len(PROMPTS[2]) + len(tokens) - 1, blocks, tokens[-1])
            try:
                tokens += (await orchestrator.run(DecodeBatch([row]), program="decode")).output.tokens.tolist()
            except LaunchError:
                failures += 1
    backend.close()
    assert (tokens, failures) == (expected, 1)


async def test_a_reopened_device_has_the_model_again(tmp_path: Path) -> None:
    """After a lost device the weights are loaded anew, waiting blocks are free, and requests get their tokens."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    model = PagedModel(tmp_path, max_batch=2)
    requests = [Request(prompt, 5) for prompt in PROMPTS[:3]]
    expected = await run(model, requests)
    backend = open_backend("sim:instant", faults=FaultPlan(Fault(action="lose_device", operation="launch", nth=2)))
    async with Orchestrator(model.programs, backend) as orchestrator:
        blocks = model.blocks.allocate(1)
        (chunk,) = model.prompt_chunks(0, [5], blocks)
        await orchestrator.run(PrefillBatch([chunk]), program="prefill")
        batch = DecodeBatch([DecodeRow(0, 1, blocks)])
        handle = await orchestrator.submit(batch, program="decode")
        with pytest.raises(DeviceLost):
            await handle
        model.blocks.free(blocks, [Submitted(batch, handle)])
        await orchestrator.reopen()
        assert model.blocks.available == model.blocks.total
        assert await generate(orchestrator, model, requests) == expected
    backend.close()


async def test_a_failure_gives_rows_and_blocks_back(tmp_path: Path) -> None:
    """When a step fails, its error comes out of generate, every block is free again, and the next requests run."""
    make_checkpoint(tmp_path, seed=3, max_position_embeddings=POSITIONS)
    model = PagedModel(tmp_path, max_batch=2)
    requests = [Request(prompt, 5) for prompt in PROMPTS[:3]]
    expected = await run(model, requests)
    backend = open_backend("sim:instant", faults=FaultPlan(Fault(action="raise", operation="launch", nth=4)))
    async with Orchestrator(model.programs, backend, max_inflight=2) as orchestrator:
        with pytest.raises(LaunchError):
            await generate(orchestrator, model, requests)
        await orchestrator.drain()
        assert (model.blocks.available, model.blocks.waiting) == (model.blocks.total, 0)
        assert await generate(orchestrator, model, requests) == expected
    backend.close()


def test_chunks_cover_a_prompt_from_its_start() -> None:
    """Chunks follow each other and the last one says so; starts and sizes that cannot be are refused with numbers."""
    chunks = prompt_chunks(3, list(range(50)), [0, 1, 2, 3], most=32, start=16)
    assert [(chunk.start, len(chunk.tokens), chunk.last) for chunk in chunks] == [(16, 32, False), (48, 2, True)]
    for start in (-16, 8, 50, 64):
        with pytest.raises(ValueError, match=f"start {start} of a prompt of 50 tokens; it must be a multiple of 16"):
            prompt_chunks(0, list(range(50)), [0], most=32, start=start)
    with pytest.raises(ValueError, match="chunks of 24 tokens; it must be a multiple of 16"):
        prompt_chunks(0, [1], [0], most=24)
