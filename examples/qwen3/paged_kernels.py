"""The kernels of the paged programs in numpy, beside those of `kernels` that they share.

The cache is [blocks, block_size, kv_heads, head_dim]; position p of a sequence lies in block ``table[p // block_size]``
at ``p % block_size``. A decode step has `n` rows, padded to a bucket; a padding row has row and position -1, and zeros
throughout. A prefill step has tiles of `TILE` prompt tokens: ``tiles`` int32 [tiles, 3] says which block table a tile
uses (-1: a padding tile), its first position and how many of its tokens count.

A row, and a tile, is computed by itself and in a shape of its own, so its values depend on its sequence alone, to the
last bit: never on batch mates, places in a batch, or how a prompt was cut.
"""

from __future__ import annotations

import numpy as np

from async_orch.graph import Kernel, KernelTable
from examples.qwen3.kernels import F32, I32, add, linear, parts, rms_norm, rope, swiglu
from examples.qwen3.paged_steps import FROM_DEVICE, FROM_FEED, TILE

__all__ = [
    "choose",
    "embed_next",
    "embed_prompt",
    "linear_tiles",
    "paged_append",
    "paged_attention",
    "paged_kernel_table",
    "take_rows",
    "tile_append",
    "tile_attention",
]


def embed_next(out: F32, table: F32, tokens: I32, resident: I32, fed: I32, rows: I32) -> None:
    """Embedding of each row's input token: out [n, hidden], table [vocab, hidden], tokens and rows [n].

    A token may be `FROM_DEVICE`, then it is ``resident[row]``, or `FROM_FEED`, then it is ``fed``'s of the same place.
    """
    known = np.where(tokens == FROM_FEED, fed[: tokens.size], tokens)
    known = np.where(tokens == FROM_DEVICE, resident[rows], known)
    known[rows < 0] = 0
    np.take(table, known, axis=0, out=out)
    out[rows < 0] = 0


def embed_prompt(out: F32, table: F32, tokens: I32) -> None:
    """Embedding of prompt tokens: out [n, hidden]; zeros where a token is -1, beyond a chunk's end."""
    np.take(table, np.maximum(tokens, 0), axis=0, out=out)
    out[tokens < 0] = 0


def linear_tiles(out: F32, x: F32, weight: F32) -> None:
    """x @ weight.T for whole tiles: x [tiles * TILE, inputs]."""
    tiles, results = x.reshape(-1, TILE, x.shape[1]), out.reshape(-1, TILE, out.shape[1])
    for part in parts(weight):
        np.matmul(tiles, weight[part].T, out=results[:, :, part])


def paged_append(keys: F32, values: F32, k: F32, v: F32, tables: I32, positions: I32) -> None:
    """Store each row's new key and value, k and v [n, kv_heads * head_dim]; tables [n, blocks a sequence]."""
    _, size, heads, head_dim = keys.shape
    rows = np.flatnonzero(positions >= 0)
    blocks, places = tables[rows, positions[rows] // size], positions[rows] % size
    keys[blocks, places] = k[rows].reshape(-1, heads, head_dim)
    values[blocks, places] = v[rows].reshape(-1, heads, head_dim)


def paged_attention(out: F32, q: F32, keys: F32, values: F32, tables: I32, positions: I32) -> None:
    """Attention of each row's new token over the row's own blocks; out and q [n, heads * head_dim].

    Query head h reads KV head h // (heads / kv_heads). Source: Ainslie et al., GQA, 2023.
    """
    kv_heads, head_dim = keys.shape[2:]
    queries = (q * np.float32(head_dim**-0.5)).reshape(q.shape[0], kv_heads, -1, head_dim)
    mixed = out.reshape(queries.shape)
    for index, position in enumerate(positions.tolist()):
        if position < 0:
            mixed[index] = 0
            continue
        own_keys, own_values = _gathered(keys, values, tables[index], position + 1)
        scores = np.matmul(queries[index], own_keys.transpose(0, 2, 1))
        np.matmul(_softmax(scores), own_values, out=mixed[index])


def tile_append(keys: F32, values: F32, k: F32, v: F32, tables: I32, tiles: I32) -> None:
    """Store the keys and values of each tile's tokens, k and v [tiles * TILE, kv_heads * head_dim]."""
    _, size, heads, head_dim = keys.shape
    for index, (table, start, count) in enumerate(tiles.tolist()):
        if table < 0:
            continue
        rows = slice(index * TILE, index * TILE + count)
        positions = np.arange(start, start + count)
        blocks, places = tables[table, positions // size], positions % size
        keys[blocks, places] = k[rows].reshape(-1, heads, head_dim)
        values[blocks, places] = v[rows].reshape(-1, heads, head_dim)


def tile_attention(out: F32, q: F32, keys: F32, values: F32, tables: I32, tiles: I32) -> None:
    """Causal attention of each tile's tokens over their sequence, all that lies before them included."""
    kv_heads, head_dim = keys.shape[2:]
    scaled = (q * np.float32(head_dim**-0.5)).reshape(-1, TILE, kv_heads, q.shape[1] // (kv_heads * head_dim), head_dim)
    mixed = out.reshape(scaled.shape)
    for index, (table, start, count) in enumerate(tiles.tolist()):
        if table < 0:
            mixed[index] = 0
            continue
        end = start + count
        own_keys, own_values = _gathered(keys, values, tables[table], end)
        queries = scaled[index].transpose(1, 2, 0, 3).reshape(kv_heads, -1, head_dim)  # rows: query head, then token
        scores = np.matmul(queries, own_keys.transpose(0, 2, 1)).reshape(kv_heads, -1, TILE, end)
        hidden = np.arange(end) > np.arange(start, start + TILE)[:, None]
        np.copyto(scores, np.float32(-np.inf), where=hidden)
        weighed = np.matmul(_softmax(scores).reshape(kv_heads, -1, end), own_values)
        mixed[index] = weighed.reshape(kv_heads, -1, TILE, head_dim).transpose(2, 0, 1, 3)


def _gathered(keys: F32, values: F32, table: I32, length: int) -> tuple[F32, F32]:
    """A sequence's first ``length`` keys and values, [kv_heads, length, head_dim] each, out of its blocks."""
    _, size, heads, head_dim = keys.shape
    blocks = table[: -(-length // size)]
    own_keys = keys.take(blocks, axis=0).reshape(-1, heads, head_dim)[:length].transpose(1, 0, 2)
    own_values = values.take(blocks, axis=0).reshape(-1, heads, head_dim)[:length].transpose(1, 0, 2)
    return own_keys, own_values


def _softmax(scores: F32) -> F32:
    """Softmax over the last axis, in place."""
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    scores /= scores.sum(axis=-1, keepdims=True)
    return scores


def take_rows(out: F32, x: F32, indices: I32) -> None:
    """out[i] = x[indices[i]]; zeros where an index is -1."""
    np.take(x, np.maximum(indices, 0), axis=0, out=out)
    out[indices < 0] = 0


def choose(resident: I32, tokens: I32, logits: F32, rows: I32) -> None:
    """Greedy choice of each row: to ``resident`` [max_batch], where the next step reads it, and to ``tokens``.

    ``tokens`` [max_batch] is the step's output for the host, in the step's order; -1 for padding. logits [n, vocab].
    """
    chosen = logits.argmax(axis=1)
    real = rows >= 0
    resident[rows[real]] = chosen[real]
    tokens[:] = -1
    tokens[: rows.size][real] = chosen[real]


def paged_kernel_table() -> KernelTable:
    """The kernels of both programs under their names."""
    table = KernelTable()
    one_output: tuple[Kernel, ...] = (
        embed_next,
        embed_prompt,
        rms_norm,
        linear,
        linear_tiles,
        rope,
        paged_attention,
        tile_attention,
        swiglu,
        add,
        take_rows,
    )
    for kernel in one_output:
        table.add(kernel.__name__, kernel, outputs=(0,))
    for kernel in (paged_append, tile_append, choose):
        table.add(kernel.__name__, kernel, outputs=(0, 1))
    return table
