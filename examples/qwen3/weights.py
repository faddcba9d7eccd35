"""A Qwen3 checkpoint's tensors: names and shapes checked against the config, then laid out in one region."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import numpy.typing as npt

from async_orch import Device
from async_orch.abc import Buffer
from examples.qwen3.config import ModelError, Qwen3Config
from examples.qwen3.shards import READABLE, StoredTensor, find_tensors
from examples.qwen3.wording import counted

__all__ = [
    "EMBEDDING",
    "FINAL_NORM",
    "HEAD",
    "PART_NBYTES",
    "ROPE_COS",
    "ROPE_SIN",
    "Checkpoint",
    "Placement",
    "Progress",
    "expected_shapes",
    "place",
    "rope_tables",
]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
ROPE_COS, ROPE_SIN = "rope.cos", "rope.sin"
PART_NBYTES = 4 << 20
"""Most bytes of float32 that are loaded at once."""

_ALIGNMENT_NBYTES = 64

Progress = Callable[[int, int], None]
"""Called with the bytes that are done and the bytes in all."""


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """Where a float32 tensor lies in its region: first byte and shape."""

    offset: int
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """Size of the tensor."""
        return 4 * math.prod(self.shape)


def expected_shapes(config: Qwen3Config) -> dict[str, tuple[int, ...]]:
    """Name and shape of every tensor that a checkpoint of this config holds; matrices are [out, in]."""
    hidden, inner = config.hidden_size, config.intermediate_size
    shapes: dict[str, tuple[int, ...]] = {EMBEDDING: (config.vocab_size, hidden)}
    for layer in range(config.num_hidden_layers):
        prefix = f"model.layers.{layer}."
        shapes |= {
            f"{prefix}input_layernorm.weight": (hidden,),
            f"{prefix}self_attn.q_proj.weight": (config.q_size, hidden),
            f"{prefix}self_attn.k_proj.weight": (config.kv_size, hidden),
            f"{prefix}self_attn.v_proj.weight": (config.kv_size, hidden),
            f"{prefix}self_attn.q_norm.weight": (config.head_dim,),
            f"{prefix}self_attn.k_norm.weight": (config.head_dim,),
            f"{prefix}self_attn.o_proj.weight": (hidden, config.q_size),
            f"{prefix}post_attention_layernorm.weight": (hidden,),
            f"{prefix}mlp.gate_proj.weight": (inner, hidden),
            f"{prefix}mlp.up_proj.weight": (inner, hidden),
            f"{prefix}mlp.down_proj.weight": (hidden, inner),
        }
    shapes[FINAL_NORM] = (hidden,)
    if not config.tie_word_embeddings:
        shapes[HEAD] = (config.vocab_size, hidden)
    return shapes


def place(shapes: dict[str, tuple[int, ...]]) -> tuple[dict[str, Placement], int]:
    """Lay float32 tensors one behind the other, each aligned to 64 bytes; returns places and total bytes."""
    placed: dict[str, Placement] = {}
    end = 0
    for name, shape in shapes.items():
        placed[name] = Placement(end, shape)
        end += -(-placed[name].nbytes // _ALIGNMENT_NBYTES) * _ALIGNMENT_NBYTES
    return placed, end


def rope_tables(config: Qwen3Config, length: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Cosines and sines [length, head_dim / 2] of the rotary angles position x theta^(-2i / head_dim).

    The angles are formed in float32, as the reference does; forming them in float64 would be more exact and
    differ from it.
    """
    exponent = np.arange(0, config.head_dim, 2, dtype=np.float32) / np.float32(config.head_dim)
    frequency = np.float32(1.0) / np.float32(config.rope_theta) ** exponent
    angle = np.outer(np.arange(length, dtype=np.float32), frequency)
    return np.cos(angle), np.sin(angle)


class Checkpoint:
    """The tensors of a model folder, checked at construction and read in parts.

    Raises `ModelError`, one line, if a file cannot be read, a tensor is missing, or there is one that the config does
    not know, or has another shape or a dtype other than those in `READABLE`.
    """

    def __init__(self, folder: Path, config: Qwen3Config) -> None:
        self.shapes = expected_shapes(config)
        self.path, found = find_tensors(folder)
        if config.tie_word_embeddings:
            found.pop(HEAD, None)  # some writers store the tied head twice
        self._check(found)
        self._stored = {name: found[name] for name in self.shapes}

    def _check(self, found: dict[str, StoredTensor]) -> None:
        for name, shape in self.shapes.items():
            if name not in found:
                raise ModelError(f"{self.path} has no tensor {name} of shape {list(shape)}")
            stored = found[name]
            if stored.shape != shape:
                raise ModelError(
                    f"{stored.path}: tensor {name} has shape {list(stored.shape)}, but config.json asks for "
                    f"{list(shape)}"
                )
            if stored.dtype not in READABLE:
                raise ModelError(
                    f"{stored.path}: tensor {name} has dtype {stored.dtype}; this decoder reads "
                    f"{', '.join(READABLE)}, so take a checkpoint that is not quantized, or convert it"
                )
        unknown = sorted(found.keys() - self.shapes.keys())
        if unknown:
            verb = "does" if len(unknown) == 1 else "do"
            raise ModelError(
                f"{self.path}: {counted(len(unknown), 'tensor')} {verb} not belong to config.json, the first is "
                f"{unknown[0]}"
            )

    @property
    def dtypes(self) -> tuple[str, ...]:
        """The kinds of numbers on disk, for people: ``("bfloat16",)``."""
        return tuple(sorted({READABLE[stored.dtype] for stored in self._stored.values()}))

    @property
    def stored_nbytes(self) -> int:
        """Bytes on disk of all tensors that are loaded."""
        return sum(stored.nbytes for stored in self._stored.values())

    def parts(self) -> Iterator[tuple[str, int, npt.NDArray[np.float32]]]:
        """Name, first byte within the float32 tensor, and values, in the order in which the files hold them.

        No part is larger than `PART_NBYTES`; the files are mapped, so that no more than that is in memory twice.
        """
        step = PART_NBYTES // 4
        for name, stored in sorted(self._stored.items(), key=lambda item: (item[1].path, item[1].offset)):
            elements = stored.map()
            for start in range(0, elements.size, step):
                yield name, 4 * start, stored.widen(elements[start : start + step])

    def upload(
        self, device: Device, region: Buffer, placed: dict[str, Placement], progress: Progress | None = None
    ) -> None:
        """Bring every tensor to its place in the region as float32.

        ``progress(done_nbytes, total_nbytes)`` is called after each part, on the calling thread.
        """
        done, total = 0, 4 * sum(math.prod(shape) for shape in self.shapes.values())
        for name, start, values in self.parts():
            device.upload(region, values, offset=placed[name].offset + start)
            done += values.nbytes
            if progress is not None:
                progress(done, total)
