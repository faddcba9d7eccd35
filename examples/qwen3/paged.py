"""A Qwen3 model with a paged key-value cache: two programs of one orchestrator, prefill and decode.

::

    model = PagedModel(folder, max_batch=16, block_size=16)
    model.check_memory(backend)                              # ModelError, with numbers, if it does not fit
    async with Orchestrator(model.programs, backend, max_inflight=2) as orch:
        blocks = model.blocks.allocate(model.blocks_for(len(prompt) + 100))
        chunks = model.prompt_chunks(row=0, tokens=prompt, blocks=blocks)
        for chunk in chunks:                                 # or chunks of several prompts in one batch
            handle = await orch.submit(PrefillBatch([chunk]), program="prefill")
        first = (await handle).output.tokens[0]
        position = len(prompt)                               # of the token that was just chosen
        batch = DecodeBatch([DecodeRow(0, position, blocks)])            # its input: FROM_DEVICE
        handle = await orch.submit(batch, program="decode")
        token = (await handle).output.tokens[0]              # the token at position + 1
        model.blocks.free(blocks)                            # or free(blocks, after=[Submitted(batch, handle)])

A sequence has a *row* (0 to max_batch - 1, its own as long as it lives) and *blocks* (any, in any order; two sequences
may share blocks of a common beginning whose length is a multiple of the block size, once these are written). A step may
hold any sequences, so they enter and leave between steps. The caller pads nothing.

The input token of a decode row is where the caller says: a number; `FROM_DEVICE`, what the step launched last for this
row chose greedily, so that a step can be launched before the one before it is done; or `FROM_FEED`, what that step's
collect chose with the row's `Sampler`, bound just before the launch: submit such a step with ``after=`` the last
step that the row was in. Steps are executed in the order of submission, prefill and decode alike.

Logits, hence tokens, depend on a sequence alone: not on the others in the step, its row, its blocks, or how its prompt
was cut into chunks, to the last bit. Prompt tokens and generated ones go through matrix products of different shapes,
so a sequence that is computed again with its generated tokens as part of the prompt may differ in the last bits.

The kernels are numpy's, in float32, for the backends ``host`` and ``sim``; `opencl_paged` has others, for ``opencl``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from async_orch import Device, StepProgram
from async_orch.abc import Backend, Buffer
from examples.qwen3.blocks import BlockAllocator, OutOfBlocks, Submitted
from examples.qwen3.config import ModelError, check_folder, load_config
from examples.qwen3.memory import MemoryEstimate, estimate
from examples.qwen3.paged_graph import RESIDENT
from examples.qwen3.paged_programs import Latest, PagedDecode, PagedPrefill
from examples.qwen3.paged_shape import PagedShape
from examples.qwen3.paged_steps import (
    FROM_DEVICE,
    FROM_FEED,
    TILE,
    BatchOutput,
    DecodeBatch,
    DecodeRow,
    PrefillBatch,
    PrefillChunk,
    Sampler,
    prompt_chunks,
)
from examples.qwen3.weights import ROPE_COS, ROPE_SIN, Checkpoint, Progress, rope_tables

__all__ = [
    "FROM_DEVICE",
    "FROM_FEED",
    "TILE",
    "BatchOutput",
    "BlockAllocator",
    "DecodeBatch",
    "DecodeRow",
    "OutOfBlocks",
    "PagedModel",
    "PrefillBatch",
    "PrefillChunk",
    "Sampler",
    "Submitted",
]

DEFAULT_CONTEXT = 4096
"""Longest sequence where the caller names none and the model has more positions: the cache grows with it."""


class PagedModel:
    """A model folder, its memory on the device, and the two programs that share it.

    Parameters
    ----------
    folder:
        A model folder in the Hugging Face layout: one safetensors file or shards with an index; float32, bfloat16 or
        float16. The weights are float32 on the device.
    block_size:
        Positions in a block of the cache, a multiple of 16.
    kv_blocks:
        Blocks of the cache; by default enough for ``max_batch`` sequences of ``max_context``.
    max_batch:
        Sequences that live at once, and rows of a decode step.
    max_context:
        Positions that a sequence may have, prompt and generated tokens together; by default the model's, at most 4096.
    max_prefill_tokens:
        Prompt tokens of a prefill step, a multiple of 16; each chunk counts rounded up to 16.
    keep_logits:
        Return every row's logits: for tests.
    progress:
        Called with loaded and total bytes while the weights are loaded, on the thread that opens the programs.

    Nothing is loaded before the orchestrator opens the programs, and it is loaded once for both. Raises `ModelError`
    for a folder that cannot be used and `ValueError` for sizes that cannot be.
    """

    prefill_type: ClassVar[type[PagedPrefill]] = PagedPrefill
    decode_type: ClassVar[type[PagedDecode]] = PagedDecode

    def __init__(
        self,
        folder: Path,
        *,
        block_size: int = 16,
        kv_blocks: int | None = None,
        max_batch: int = 16,
        max_context: int | None = None,
        max_prefill_tokens: int = 256,
        keep_logits: bool = False,
        progress: Progress | None = None,
    ) -> None:
        check_folder(folder)
        self.folder = folder
        self.config = load_config(folder)
        self.checkpoint = Checkpoint(folder, self.config)
        positions = self.config.max_position_embeddings
        context = min(positions, DEFAULT_CONTEXT) if max_context is None else max_context
        if not 1 <= context <= positions:
            raise ModelError(f"max_context is {context}; the model has {positions} positions")
        for name, value in (("block_size", block_size), ("max_prefill_tokens", max_prefill_tokens)):
            if value < TILE or value % TILE:
                raise ValueError(f"{name} is {value}; it must be a multiple of {TILE}")
        for name, value in (("max_batch", max_batch), ("kv_blocks", 1 if kv_blocks is None else kv_blocks)):
            if value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 1")
        self.shape = PagedShape.of(
            self.config,
            block_size=block_size,
            kv_blocks=max_batch * -(-context // block_size) if kv_blocks is None else kv_blocks,
            max_batch=max_batch,
            max_context=context,
            max_prefill_tokens=max_prefill_tokens,
        )
        self.blocks = BlockAllocator(self.shape.kv_blocks)
        self.latest = Latest(max_batch)
        self.resident: dict[str, Buffer] = {}
        self._device: Device | None = None
        self._refused = 0
        self._progress = progress
        self.prefill = self.prefill_type(self, keep_logits=keep_logits)
        self.decode = self.decode_type(self, keep_logits=keep_logits)

    @property
    def programs(self) -> dict[str, StepProgram[Any, Any]]:
        """The programs ``"prefill"`` (steps: `PrefillBatch`) and ``"decode"`` (`DecodeBatch`) for `Orchestrator`."""
        return {"prefill": self.prefill, "decode": self.decode}

    def blocks_for(self, positions: int) -> int:
        """Blocks that a sequence of so many positions needs."""
        return -(-positions // self.shape.block_size)

    def prompt_chunks(
        self,
        row: int,
        tokens: Sequence[int],
        blocks: Sequence[int],
        *,
        start: int = 0,
        sampler: Sampler | None = None,
    ) -> list[PrefillChunk]:
        """A prompt in chunks that each fit a prefill step of their own; see `paged_steps.prompt_chunks`."""
        return prompt_chunks(row, tokens, blocks, most=self.shape.max_prefill_tokens, start=start, sampler=sampler)

    def memory(self, *, slots: int = 3, queue_depth: int = 2, build_workers: int = 1) -> MemoryEstimate:
        """What the model will take, with the rings of an orchestrator of these options."""
        return estimate(
            weights=self.shape.placed,
            weights_nbytes=self.shape.region_nbytes["weights"],
            cache_nbytes=self.shape.region_nbytes["kv"],
            slot=self._largest_slot(),
            slots=slots,
            staging=queue_depth + build_workers + 1,
        )

    def check_memory(
        self, backend: Backend, *, slots: int = 3, queue_depth: int = 2, build_workers: int = 1
    ) -> MemoryEstimate:
        """The estimate. Raises `ModelError`, with needed and free memory and what to lower, if it does not fit."""
        needed = self.memory(slots=slots, queue_depth=queue_depth, build_workers=build_workers)
        free_nbytes = backend.free_nbytes()
        block_nbytes = self.shape.region_nbytes["kv"] // self.shape.kv_blocks
        spare = (free_nbytes or 0) - (needed.total_nbytes - needed.cache_nbytes)
        remedy = "give the cache fewer blocks, lower max_context or max_batch, or have fewer slots"
        if spare >= block_nbytes:
            remedy = f"with kv_blocks={spare // block_nbytes} instead of {self.shape.kv_blocks} it fits"
        needed.check(free_nbytes, remedy)
        return needed

    def _largest_slot(self) -> Any:
        specs = [program.slot for program in (self.prefill, self.decode)]
        parts = ("image_nbytes", "workspace_nbytes", "feed_nbytes", "output_nbytes")
        return dataclasses.replace(specs[0], **{part: max(getattr(spec, part) for spec in specs) for part in parts})

    # -- called by the programs ----------------------------------------------------------------------------

    def open(self, device: Device) -> None:
        """Allocate the resident regions and load the weights, unless the other program has had that done."""
        if self._device is device:
            return
        if self._device is not None:
            self._refused += 1  # its close will come, and is not the end of the one that has the model open
            raise ModelError("the model is open in another orchestrator; make a second PagedModel for a second one")
        self._device = device
        for name in RESIDENT:
            self.resident[name] = device.alloc(self.shape.region_nbytes[name], name=name)
        weights, placed = self.resident["weights"], self.shape.placed
        self.checkpoint.upload(device, weights, placed, self._progress)
        for name, values in zip((ROPE_COS, ROPE_SIN), rope_tables(self.config, self.shape.max_context), strict=True):
            device.upload(weights, values, offset=placed[name].offset)
        zeros: npt.NDArray[np.int32] = np.zeros(self.shape.max_batch, np.int32)
        device.upload(self.resident["state"], zeros)
        self.latest.forget()
        self.blocks.device_at_rest()

    def close(self) -> None:
        """Forget the resident buffers; the orchestrator frees them."""
        if self._refused:
            self._refused -= 1
            return
        self.resident.clear()
        self._device = None
