"""The sizes of a model with a paged cache, and the buckets that steps are padded to."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from examples.qwen3.config import Qwen3Config
from examples.qwen3.weights import ROPE_COS, ROPE_SIN, Placement, expected_shapes, place

__all__ = ["PagedShape", "bucket", "buckets"]


def bucket(number: int, most: int) -> int:
    """The next power of two, but at most ``most``: few shapes of graphs, at most twice the work."""
    return min(1 << max(number - 1, 0).bit_length(), most)


def buckets(most: int) -> Iterator[int]:
    """Every value of `bucket` for 1 to ``most``."""
    size = 1
    while size < most:
        yield size
        size *= 2
    yield most


@dataclasses.dataclass(frozen=True, slots=True)
class PagedShape:
    """The sizes of a model with its cache.

    Regions, in bytes `region_nbytes`: weights (the checkpoint's tensors and the rotary tables, at ``placed``), kv
    (float32 [layers, 2, blocks, block_size, kv_heads, head_dim]) and state (int32 [max_batch]: each row's newest
    token).
    """

    config: Qwen3Config
    block_size: int
    kv_blocks: int
    max_batch: int
    max_context: int
    max_prefill_tokens: int
    placed: dict[str, Placement]
    region_nbytes: dict[str, int]

    @classmethod
    def of(
        cls,
        config: Qwen3Config,
        *,
        block_size: int,
        kv_blocks: int,
        max_batch: int,
        max_context: int,
        max_prefill_tokens: int,
    ) -> PagedShape:
        """Lay the regions out."""
        rope = (max_context, config.head_dim // 2)
        placed, weights_nbytes = place({**expected_shapes(config), ROPE_COS: rope, ROPE_SIN: rope})
        cache_nbytes = 4 * kv_blocks * block_size * config.kv_size
        regions = {
            "weights": weights_nbytes,
            "kv": 2 * config.num_hidden_layers * cache_nbytes,
            "state": 4 * max_batch,
        }
        return cls(config, block_size, kv_blocks, max_batch, max_context, max_prefill_tokens, placed, regions)

    @property
    def table_width(self) -> int:
        """Blocks that the longest sequence has."""
        return -(-self.max_context // self.block_size)

    @property
    def logits_offset(self) -> int:
        """First byte of the logits in a step's output, behind the tokens int32 [max_batch]."""
        return -(-4 * self.max_batch // 64) * 64

    @property
    def output_nbytes(self) -> int:
        """Output of a step that returns every row's logits."""
        return self.logits_offset + self.max_batch * self.logits_nbytes

    @property
    def logits_nbytes(self) -> int:
        """Logits of one row."""
        return 4 * self.config.vocab_size
