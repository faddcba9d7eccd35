"""The paged Qwen3 model as the server sees it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from async_orch import StepProgram
from async_orch.abc import Backend
from examples.qwen3.blocks import BlockAllocator
from examples.qwen3.paged import PagedModel
from examples.qwen3.tokenizer import TextCodec
from examples.serve.scheduler import Limits
from examples.serve.text import TokenizerCodec

__all__ = ["ServedQwen3"]


class ServedQwen3:
    """A `PagedModel` with its tokenizer, with kernels for ``backend``: in OpenCL C for ``opencl``, else numpy's.

    Raises `ModelError` for a folder that cannot be used.
    """

    def __init__(
        self, folder: Path, backend: Backend, *, batch: int, context: int | None, kv_blocks: int | None
    ) -> None:
        self.model = _model_type(backend)(folder, max_batch=batch, max_context=context, kv_blocks=kv_blocks)
        config, shape = self.model.config, self.model.shape
        self.codec = TokenizerCodec(TextCodec(folder, config.vocab_size), config.eos_token_ids)
        self.limits = Limits(shape.max_batch, shape.max_context, shape.max_prefill_tokens, shape.block_size)

    @property
    def programs(self) -> Mapping[str, StepProgram[Any, Any]]:
        """``prefill`` and ``decode``."""
        return self.model.programs

    @property
    def blocks(self) -> BlockAllocator:
        """The cache's blocks."""
        return self.model.blocks


def _model_type(backend: Backend) -> type[PagedModel]:
    if backend.info.backend != "opencl":
        return PagedModel
    from examples.qwen3.opencl_paged import OpenCLPagedModel  # noqa: PLC0415 - needs pyopencl, which the backend has

    return OpenCLPagedModel
