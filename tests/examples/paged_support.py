"""Runs requests through a `PagedModel` and its orchestrator, and judges the tokens by a plain forward pass."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from async_orch import Orchestrator
from async_orch.abc import Backend, ByteArray
from examples.qwen3.paged import BatchOutput, PagedModel, PrefillBatch
from examples.qwen3.paged_run import Request, generate
from tests.examples.support import Array, plain_pass

TOLERANCE = 1e-4


class Recorder:
    """Keeps the logits that each sequence's tokens were chosen from, in the order in which the sequences entered."""

    def __init__(self, model: PagedModel) -> None:
        self.sequences: list[list[Array]] = []
        self._of_row: dict[int, list[Array]] = {}
        for program in (model.prefill, model.decode):
            self._wrap(program)

    def _wrap(self, program: Any) -> None:
        collect = program.collect

        def recording(step: Any, output: ByteArray) -> BatchOutput:
            result: BatchOutput = collect(step, output)
            assert result.logits is not None
            if isinstance(step, PrefillBatch):
                for chunk in step.chunks:
                    if chunk.start == 0:
                        self._of_row[chunk.row] = []
                        self.sequences.append(self._of_row[chunk.row])
            for place, (row, position, _) in enumerate(program.outcomes(step)):
                if position >= 0:
                    self._of_row[row].append(result.logits[place])
            return result

        program.collect = recording


async def run(
    model: PagedModel, requests: Sequence[Request], backend: str | Backend = "host", **options: Any
) -> list[list[int]]:
    """The tokens of each request, with two steps in flight."""
    async with Orchestrator(model.programs, backend, max_inflight=2, **options) as orchestrator:
        tokens = await generate(orchestrator, model, requests)
        assert orchestrator.statistics().step_path_allocs == 0 or options.get("mode") == "naive"
    assert model.blocks.available == model.blocks.total
    return tokens


def check_tokens(folder: Path, prompt: Sequence[int], tokens: Sequence[int], logits: Sequence[Array]) -> None:
    """Logits equal a plain forward pass to `TOLERANCE`, and each token is the most likely one there.

    Where two logits are nearer to each other than the tolerance, either token is right.
    """
    expected = plain_pass(folder, [*prompt, *tokens[:-1]])[len(prompt) - 1 :]
    np.testing.assert_allclose(np.array(logits), expected, rtol=0, atol=TOLERANCE)
    chosen = np.take_along_axis(expected, np.array(tokens)[:, None], axis=1)[:, 0]
    assert (chosen >= expected.max(axis=1) - TOLERANCE).all()


__all__ = ["TOLERANCE", "Recorder", "check_tokens", "run"]
