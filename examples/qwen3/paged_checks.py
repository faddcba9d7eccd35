"""What a step must fulfil before its graph is written; each refusal names the row, with numbers."""

from __future__ import annotations

from collections.abc import Sequence

from examples.qwen3.paged_shape import PagedShape
from examples.qwen3.paged_steps import FROM_FEED, TILE, DecodeBatch, PrefillBatch

__all__ = ["check_decode", "check_prefill"]


def check_decode(shape: PagedShape, batch: DecodeBatch) -> None:
    """Raise `ValueError` for a decode step that the model was not made for."""
    _check_rows(shape, [row.row for row in batch.rows])
    for row in batch.rows:
        name = f"row {row.row}"
        if not FROM_FEED <= row.token < shape.config.vocab_size:
            raise ValueError(f"{name}: token {row.token} is not in the vocabulary of {shape.config.vocab_size}")
        _check_span(shape, name, row.position, row.position + 1, row.blocks)


def check_prefill(shape: PagedShape, batch: PrefillBatch) -> None:
    """Raise `ValueError` for a prefill step that the model was not made for."""
    _check_rows(shape, [chunk.row for chunk in batch.chunks])
    for chunk in batch.chunks:
        name = f"row {chunk.row}"
        if not len(chunk.tokens):
            raise ValueError(f"{name}: a chunk has no tokens")
        for token in chunk.tokens:
            if not 0 <= token < shape.config.vocab_size:
                raise ValueError(f"{name}: token {token} is not in the vocabulary of {shape.config.vocab_size}")
        end = chunk.start + len(chunk.tokens)
        if chunk.start % TILE or (end % TILE and not chunk.last):
            raise ValueError(
                f"{name}: a chunk from position {chunk.start} to {end}; chunks start at multiples of {TILE}, and only "
                "the last of a prompt may end elsewhere"
            )
        _check_span(shape, name, chunk.start, end, chunk.blocks)
    tokens = sum(TILE * -(-len(chunk.tokens) // TILE) for chunk in batch.chunks)
    if tokens > shape.max_prefill_tokens:
        raise ValueError(
            f"chunks of {tokens} tokens, each rounded up to {TILE}, for a model with max_prefill_tokens "
            f"{shape.max_prefill_tokens}; spread them over steps"
        )


def _check_rows(shape: PagedShape, rows: Sequence[int]) -> None:
    if not 1 <= len(rows) <= shape.max_batch:
        raise ValueError(f"a step of {len(rows)} rows for a model with max_batch {shape.max_batch}")
    if len(set(rows)) != len(rows):
        raise ValueError(f"a row is in the step twice: {sorted(rows)}")
    for row in rows:
        if not 0 <= row < shape.max_batch:
            raise ValueError(f"row {row} for a model with max_batch {shape.max_batch}; rows are 0 to max_batch - 1")


def _check_span(shape: PagedShape, name: str, start: int, end: int, blocks: Sequence[int]) -> None:
    if not 0 <= start < end <= shape.max_context:
        raise ValueError(f"{name}: positions {start} to {end - 1} for a model with max_context {shape.max_context}")
    needed = -(-end // shape.block_size)
    if len(blocks) < needed:
        raise ValueError(
            f"{name}: {len(blocks)} blocks of {shape.block_size} positions for position {end - 1}, which needs {needed}"
        )
    for block in blocks[:needed]:
        if not 0 <= block < shape.kv_blocks:
            raise ValueError(f"{name}: block {block} of a cache of {shape.kv_blocks} blocks")
