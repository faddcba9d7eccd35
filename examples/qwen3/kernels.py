"""The decoder's kernels in numpy: plain functions over arrays of device memory, float32 throughout.

A step works on the batch rows that still want tokens: `n` active rows out of `batch`. `rows` and `positions`,
int32 [n], say which rows these are and how many tokens each holds already. Every kernel treats each row by
itself, so a row's values depend on that row alone, to the last bit: never on its batch mates, nor on how many
there are. What a kernel writes comes first in its parameters.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from async_orch.graph import Kernel, KernelTable

__all__ = [
    "kernel_table",
    "add",
    "argmax",
    "attention",
    "embed",
    "kv_append",
    "linear",
    "parts",
    "rms_norm",
    "rope",
    "swiglu",
]

PART_NBYTES = 512 << 10
"""Part of a weight that is worked on at a time: half of the second-level cache of common processors."""

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]


def embed(out: F32, table: F32, forced: I32, resident: I32, rows: I32) -> None:
    """Embedding of each row's input token: out [n, hidden], table [vocab, hidden].

    ``forced`` [n] holds the tokens that the host knows (the prompt's); where it is negative the token is the
    one that the step before left on the device in ``resident`` [batch].
    """
    tokens = np.where(forced < 0, resident[rows], forced)
    np.take(table, tokens, axis=0, out=out)


def rms_norm(out: F32, x: F32, weight: F32, eps: float) -> None:
    """x / sqrt(mean(x^2) + eps) * weight over groups of ``len(weight)`` elements of each row.

    With a weight as wide as a row this is RMSNorm; with one of head_dim it is Qwen3's norm of each q or k
    head. Source: Zhang and Sennrich, Root Mean Square Layer Normalization, 2019.
    """
    groups = x.reshape(-1, weight.shape[0])
    scale = np.matmul(groups[:, None, :], groups[:, :, None])[:, 0]
    scale /= np.float32(weight.shape[0])
    scale += np.float32(eps)
    np.sqrt(scale, out=scale)
    result = out.reshape(groups.shape)
    np.divide(groups, scale, out=result)
    result *= weight


def linear(out: F32, x: F32, weight: F32) -> None:
    """x @ weight.T: out [n, outputs], x [n, inputs], weight [outputs, inputs].

    A stack of n products of one row each: one product of n rows might sum in an order that depends on n. A weight goes
    through the cache once for all rows, not once for each.
    """
    for part in parts(weight):
        np.matmul(x[:, None, :], weight[part].T, out=out[:, None, part])


def parts(weight: F32) -> Iterator[slice]:
    """Ranges of a weight's outputs that each fit in a core's own cache; they depend on the weight's shape alone."""
    outputs, inputs = weight.shape
    step = outputs if weight.nbytes <= PART_NBYTES else max(16, PART_NBYTES // (4 * inputs) // 16 * 16)
    for start in range(0, outputs, step):
        yield slice(start, start + step)


def rope(x: F32, cosine: F32, sine: F32, positions: I32) -> None:
    """Rotate, in place, element i with i + head_dim / 2 of each head by the angle of the row's position.

    x [n, heads * head_dim]; cosine and sine [capacity, head_dim / 2].
    Source: Su et al., RoFormer, 2021, in the half-split form that Qwen3's weights expect.
    """
    half = cosine.shape[1]
    pairs = x.reshape(x.shape[0], -1, 2, half)
    cos, sin = cosine.take(positions, axis=0)[:, None, :], sine.take(positions, axis=0)[:, None, :]
    first, second = pairs[:, :, 0], pairs[:, :, 1]
    turned = first * cos
    turned -= second * sin
    second *= cos
    second += first * sin
    first[...] = turned


def kv_append(keys: F32, values: F32, k: F32, v: F32, rows: I32, positions: I32) -> None:
    """Store the new keys and values, k and v [n, kv_heads * head_dim], in the caches.

    keys and values [batch, kv_heads, capacity, head_dim].
    """
    _, heads, _, head_dim = keys.shape
    keys[rows, :, positions] = k.reshape(-1, heads, head_dim)
    values[rows, :, positions] = v.reshape(-1, heads, head_dim)


def attention(out: F32, q: F32, keys: F32, values: F32, rows: I32, positions: I32) -> None:
    """Grouped-query attention of each row's new token over the row's own cache, positions 0 to its own.

    out and q [n, heads * head_dim], keys and values [batch, kv_heads, capacity, head_dim]. Query head h reads
    the cache of KV head h // (heads / kv_heads). Source: Ainslie et al., GQA, 2023.
    """
    _, kv_heads, _, head_dim = keys.shape
    queries = (q * np.float32(head_dim**-0.5)).reshape(q.shape[0], kv_heads, -1, head_dim)
    mixed = out.reshape(queries.shape)
    for index, (row, position) in enumerate(zip(rows.tolist(), positions.tolist(), strict=True)):
        length = position + 1
        scores = np.matmul(queries[index], keys[row, :, :length].transpose(0, 2, 1))
        scores -= scores.max(axis=-1, keepdims=True)
        np.exp(scores, out=scores)
        scores /= scores.sum(axis=-1, keepdims=True)
        np.matmul(scores, values[row, :, :length], out=mixed[index])


def swiglu(out: F32, gate: F32, up: F32) -> None:
    """silu(gate) * up, all [n, intermediate]. Source: Shazeer, GLU Variants Improve Transformer, 2020."""
    np.negative(gate, out=out)
    with np.errstate(over="ignore"):  # a gate below -88 overflows to infinity, and gate / infinity is right
        np.exp(out, out=out)
    out += np.float32(1.0)
    np.divide(gate, out, out=out)
    out *= up


def add(x: F32, y: F32) -> None:
    """x += y, the residual connection."""
    x += y


def argmax(resident: I32, tokens: I32, logits: F32, rows: I32) -> None:
    """Greedy choice of each active row: its token goes to ``resident`` [batch], where the next step reads it.

    ``tokens`` [batch] is the step's output for the host; rows that are not active get -1. logits [n, vocab].
    """
    chosen = logits.argmax(axis=1)
    resident[rows] = chosen
    tokens[:] = -1
    tokens[rows] = chosen


def kernel_table() -> KernelTable:
    """The kernels under their names; the device side looks a task's kernel up here by its number."""
    table = KernelTable()
    one_output: tuple[Kernel, ...] = (embed, rms_norm, linear, rope, attention, swiglu, add)
    for kernel in one_output:
        table.add(kernel.__name__, kernel, outputs=(0,))
    for kernel in (kv_append, argmax):
        table.add(kernel.__name__, kernel, outputs=(0, 1))
    return table
