"""Dimensions of a decoder and of one decode step of it."""

from __future__ import annotations

import dataclasses

__all__ = ["QWEN3_14B", "SHAPES", "Shape"]


@dataclasses.dataclass(frozen=True, slots=True)
class Shape:
    """A Qwen3 dense decoder and the step that is built for it; tensors are bfloat16, held as 16-bit integers.

    Attributes
    ----------
    rows:
        Sequences of a batch, all of them active.
    context:
        Tokens that each sequence holds already.
    capacity:
        Most tokens of a sequence, which sizes its row of the block table.
    block:
        Tokens of a block of the key-value cache.
    """

    name: str
    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    rows: int = 16
    context: int = 3500
    capacity: int = 5504
    block: int = 16

    @property
    def q_width(self) -> int:
        """Elements of a row's queries."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Elements of a row's keys, and of its values."""
        return self.kv_heads * self.head_dim

    @property
    def blocks_a_row(self) -> int:
        """Blocks that a sequence of the capacity takes."""
        return -(-self.capacity // self.block)

    @property
    def weights_nbytes(self) -> int:
        """Bytes of all weights of the layers, of the embedding and of the head."""
        attention = self.hidden * (2 * self.q_width + 2 * self.kv_width)
        norms = 2 * self.hidden + 2 * self.head_dim
        layer = attention + 3 * self.hidden * self.intermediate + norms
        return 2 * (self.layers * layer + 2 * self.vocab * self.hidden + self.hidden)

    @property
    def kv_nbytes(self) -> int:
        """Bytes of the key-value cache: every row at its capacity."""
        return 2 * self.layers * 2 * self.kv_width * self.rows * self.blocks_a_row * self.block


# Source: the model's published configuration (Hugging Face, Qwen/Qwen3-14B, config.json); batch and lengths are those
# of the workload in hw-native-sys/simpler #1841.
QWEN3_14B = Shape(
    "qwen3-14b",
    layers=40,
    hidden=5120,
    heads=40,
    kv_heads=8,
    head_dim=128,
    intermediate=17408,
    vocab=151_936,
)

SHAPES = {QWEN3_14B.name: QWEN3_14B}
