"""Blocks of the cache: each has one owner, and comes back when the device is done with it, not before."""

from __future__ import annotations

from pathlib import Path

import pytest

from async_orch import Orchestrator
from async_orch.testing import ManualBackend
from examples.qwen3.blocks import BlockAllocator, OutOfBlocks, Submitted
from examples.qwen3.paged import DecodeBatch, DecodeRow, PagedModel
from tests.examples.support import make_checkpoint
from tests.programs import settle


def test_every_block_is_given_once() -> None:
    """All blocks can be had, none twice, and one too many is refused with numbers and leaves the rest free."""
    blocks = BlockAllocator(5)
    taken = blocks.allocate(2)
    with pytest.raises(OutOfBlocks, match="4 blocks of the key-value cache are needed, 3 of 5 are free"):
        blocks.allocate(4)
    assert sorted([*taken, *blocks.allocate(3)]) == [0, 1, 2, 3, 4]
    assert blocks.available == 0
    blocks.free(taken)
    assert sorted(blocks.allocate(2)) == sorted(taken)


def test_a_block_that_nobody_has_cannot_be_freed() -> None:
    """Freeing twice, and freeing what never was, are slips that say so."""
    blocks = BlockAllocator(2)
    (block,) = blocks.allocate(1)
    blocks.free([block])
    for wrong in (block, 7, -1):
        with pytest.raises(ValueError, match=f"block {wrong} is freed, but nobody has it"):
            blocks.free([wrong])
    assert blocks.available == 2


async def test_blocks_come_back_behind_the_fence_of_a_cancelled_step(tmp_path: Path) -> None:
    """A handle that was cancelled settles at once, but the blocks of its step wait until the device has left it."""
    make_checkpoint(tmp_path)
    model, backend = PagedModel(tmp_path, max_batch=1, kv_blocks=2), ManualBackend()
    async with Orchestrator(model.programs, backend) as orchestrator:
        own = model.blocks.allocate(2)
        batch = DecodeBatch([DecodeRow(0, 0, own, token=1)])
        step = Submitted(batch, await orchestrator.submit(batch, program="decode"))
        assert step.handle.status == "launched"
        step.handle.cancel()
        assert step.handle.done()
        model.blocks.free(own, [step])
        assert (model.blocks.available, model.blocks.waiting) == (0, 2)
        backend.copy.run()
        backend.compute.run()
        await settle()
        assert (model.blocks.available, model.blocks.waiting) == (2, 0)


async def test_blocks_of_a_step_that_never_ran_come_back(tmp_path: Path) -> None:
    """A step that was cancelled in the queue, or failed to build, holds nothing back."""
    make_checkpoint(tmp_path)
    model, backend = PagedModel(tmp_path, max_batch=1, kv_blocks=4), ManualBackend()
    async with Orchestrator(model.programs, backend, slots=1) as orchestrator:
        first = DecodeBatch([DecodeRow(0, 0, model.blocks.allocate(1), token=1)])
        second = DecodeBatch([DecodeRow(0, 1, model.blocks.allocate(1))])
        wrong = DecodeBatch([DecodeRow(0, 99, model.blocks.allocate(1))])
        steps = [Submitted(b, await orchestrator.submit(b, program="decode")) for b in (first, second, wrong)]
        steps[1].handle.cancel()
        for step in steps[1:]:
            model.blocks.free(step.batch.rows[0].blocks, [step])  # type: ignore[union-attr]
        assert steps[2].handle.exception() is not None
        assert (model.blocks.available, model.blocks.waiting) == (3, 0)
        backend.copy.run()
        backend.compute.run()
        await steps[0].handle
        model.blocks.free(first.rows[0].blocks, [steps[0]])
        assert model.blocks.available == 4
