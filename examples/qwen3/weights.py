"""A Qwen3 checkpoint's tensors: names and shapes checked against the config, then laid out in one region."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from examples.qwen3.config import WEIGHTS_FILE, ModelError, Qwen3Config
from examples.qwen3.wording import counted

__all__ = [
    "EMBEDDING",
    "FINAL_NORM",
    "HEAD",
    "ROPE_COS",
    "ROPE_SIN",
    "Checkpoint",
    "Placement",
    "expected_shapes",
    "place",
    "rope_tables",
]

EMBEDDING = "model.embed_tokens.weight"
FINAL_NORM = "model.norm.weight"
HEAD = "lm_head.weight"
ROPE_COS, ROPE_SIN = "rope.cos", "rope.sin"
_READABLE = ("F32", "F16")
_ALIGNMENT_NBYTES = 64


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
    """The tensors of a `model.safetensors`, checked at construction and read one at a time.

    Raises `ModelError`, one line, if the file cannot be read, lacks a tensor, holds one that the config does
    not know, or has one with another shape or a dtype other than F32 or F16.
    """

    def __init__(self, folder: Path, config: Qwen3Config) -> None:
        self.path = folder / WEIGHTS_FILE
        self.shapes = expected_shapes(config)
        with self._open() as file:
            found = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118  not a mapping
            if config.tie_word_embeddings:
                found.pop(HEAD, None)  # some writers store the tied head twice
            self._check({name: (tuple(part.get_shape()), part.get_dtype()) for name, part in found.items()})

    def _open(self) -> Any:
        try:
            return safe_open(self.path, framework="numpy")
        except OSError as exc:
            raise ModelError(f"{self.path} cannot be read: {exc.strerror or exc}") from exc
        except SafetensorError as exc:
            raise ModelError(f"{self.path} cannot be read as safetensors: {exc}") from exc

    def _check(self, found: dict[str, tuple[tuple[int, ...], str]]) -> None:
        for name, shape in self.shapes.items():
            if name not in found:
                raise ModelError(f"{self.path} has no tensor {name} of shape {list(shape)}")
            found_shape, dtype = found[name]
            if found_shape != shape:
                raise ModelError(
                    f"{self.path}: tensor {name} has shape {list(found_shape)}, but config.json asks for {list(shape)}"
                )
            if dtype not in _READABLE:
                raise ModelError(
                    f"{self.path}: tensor {name} has dtype {dtype}; this decoder reads "
                    f"{' and '.join(_READABLE)}, so convert the checkpoint to float32"
                )
        unknown = sorted(found.keys() - self.shapes.keys())
        if unknown:
            verb = "does" if len(unknown) == 1 else "do"
            raise ModelError(
                f"{self.path}: {counted(len(unknown), 'tensor')} {verb} not belong to config.json, the first is "
                f"{unknown[0]}"
            )

    def tensors(self) -> Iterator[tuple[str, npt.NDArray[np.float32]]]:
        """Each tensor's name and values as float32, one at a time."""
        with self._open() as file:
            for name in self.shapes:
                yield name, file.get_tensor(name).astype(np.float32, copy=False)
