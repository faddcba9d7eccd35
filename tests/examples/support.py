"""Random tiny checkpoints, a slow plain decoder to compare with, and a serial driver without an engine."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import numpy.typing as npt
from safetensors import TensorSpec, serialize_file
from safetensors.numpy import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from async_orch import Device, Slot
from async_orch.abc import Buffer, ByteArray, Stream
from examples.qwen3.program import DecodeOutput, Qwen3Decode
from examples.qwen3.schedule import Schedule

SIZES: dict[str, Any] = {
    "vocab_size": 259,
    "hidden_size": 24,
    "intermediate_size": 40,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 10,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-6,
    "rope_theta": 10_000.0,
    "tie_word_embeddings": True,
}
END_OF_TEXT = 256

Array = npt.NDArray[Any]


def byte_tokenizer() -> Tokenizer:
    """A byte-level tokenizer without merges: token b is byte number b of the alphabet, 256 ends a text."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE({character: n for n, character in enumerate(alphabet)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(["<|end|>"])
    return tokenizer


def make_checkpoint(folder: Path, *, seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Write a random model folder with `SIZES` and the ``changes``; returns what went into `config.json`."""
    config = {"model_type": "qwen3", "hidden_act": "silu", "eos_token_id": END_OF_TEXT, **SIZES, **changes}
    rng = np.random.default_rng(seed)
    hidden, inner, head_dim = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    q, kv = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim

    def matrix(rows: int, columns: int) -> Array:
        return (rng.standard_normal((rows, columns)) / math.sqrt(columns)).astype(np.float32)

    def norm(width: int) -> Array:
        return rng.uniform(0.5, 1.5, width).astype(np.float32)

    tensors = {
        "model.embed_tokens.weight": matrix(config["vocab_size"], hidden),
        "model.norm.weight": norm(hidden),
    }
    if not config["tie_word_embeddings"]:
        tensors["lm_head.weight"] = matrix(config["vocab_size"], hidden)
    for layer in range(config["num_hidden_layers"]):
        tensors |= {
            f"model.layers.{layer}.{name}.weight": value
            for name, value in {
                "input_layernorm": norm(hidden),
                "post_attention_layernorm": norm(hidden),
                "self_attn.q_proj": matrix(q, hidden),
                "self_attn.k_proj": matrix(kv, hidden),
                "self_attn.v_proj": matrix(kv, hidden),
                "self_attn.o_proj": matrix(hidden, q),
                "self_attn.q_norm": norm(head_dim),
                "self_attn.k_norm": norm(head_dim),
                "mlp.gate_proj": matrix(inner, hidden),
                "mlp.up_proj": matrix(inner, hidden),
                "mlp.down_proj": matrix(hidden, inner),
            }.items()
        }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    save_file(tensors, folder / "model.safetensors")
    byte_tokenizer().save(str(folder / "tokenizer.json"))
    return config


def store_as(folder: Path, dtype: str, *, shards: int = 0) -> None:
    """Rewrite a folder's weights, rounded to "bfloat16" or "float16"; with ``shards`` files of them and an index."""
    tensors = load_file(folder / "model.safetensors")
    raw: dict[str, Array] = {
        name: _bfloat16(value) if dtype == "bfloat16" else value.astype(dtype) for name, value in tensors.items()
    }
    (folder / "model.safetensors").unlink()
    files: dict[str, dict[str, Array]] = {}
    for number, name in enumerate(raw):
        file = f"model-{number % shards + 1:05d}-of-{shards:05d}.safetensors" if shards else "model.safetensors"
        files.setdefault(file, {})[name] = raw[name]
    for file, parts in files.items():
        specs = {
            name: TensorSpec(dtype=dtype, shape=part.shape, data_ptr=part.ctypes.data, data_len=part.nbytes)
            for name, part in parts.items()
        }
        serialize_file(specs, folder / file)
    if shards:
        table = {name: file for file, parts in files.items() for name in parts}
        index = {"metadata": {"total_size": sum(part.nbytes for part in raw.values())}, "weight_map": table}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")


def _bfloat16(values: Array) -> Array:
    """The bits of the nearest bfloat16, ties to even."""
    bits = values.view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def stored_weights(folder: Path) -> dict[str, Array]:
    """Every tensor of a folder in float64, however it is stored; read on its own way, byte by byte."""
    found: dict[str, Array] = {}
    for path in folder.glob("*.safetensors"):
        raw = path.read_bytes()
        start = 8 + int.from_bytes(raw[:8], "little")
        header = json.loads(raw[8:start])
        header.pop("__metadata__", None)
        for name, part in header.items():
            begin, end = part["data_offsets"]
            data = raw[start + begin : start + end]
            if part["dtype"] == "BF16":  # two zero bytes below each two
                data = b"".join(b"\0\0" + data[i : i + 2] for i in range(0, len(data), 2))
            dtype = "<f2" if part["dtype"] == "F16" else "<f4"
            found[name] = np.frombuffer(data, dtype).reshape(part["shape"]).astype(np.float64)
    return found


def plain_pass(folder: Path, ids: Sequence[int]) -> Array:
    """Logits [len(ids), vocab] of one whole forward pass in float64, without a cache: `plain_logits` for long texts."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = stored_weights(folder)
    head_dim, eps, length = config["head_dim"], config["rms_norm_eps"], len(ids)
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]
    angles = np.outer(np.arange(length), 1 / config["rope_theta"] ** (np.arange(0, head_dim, 2) / head_dim))
    turn = np.exp(1j * angles)[:, None]
    future = np.triu(np.ones((length, length), np.bool_), 1)

    def norm(x: Array, weight: Array) -> Array:
        normed: Array = x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight
        return normed

    def rotate(x: Array) -> Array:
        turned = (x[..., : head_dim // 2] + 1j * x[..., head_dim // 2 :]) * turn
        return np.concatenate((turned.real, turned.imag), axis=-1)

    x = weights["model.embed_tokens.weight"][list(ids)]
    for layer in range(config["num_hidden_layers"]):
        w = {n.split(f"layers.{layer}.")[1]: v for n, v in weights.items() if f"layers.{layer}." in n}
        y = norm(x, w["input_layernorm.weight"])
        q, k, v = ((y @ w[f"self_attn.{n}_proj.weight"].T).reshape(length, -1, head_dim) for n in ("q", "k", "v"))
        q, k = (rotate(norm(part, w[f"self_attn.{n}_norm.weight"])) for n, part in (("q", q), ("k", k)))
        mixed = np.empty((length, heads, head_dim))
        for head in range(heads):
            source = head * kv_heads // heads
            scores = q[:, head] @ k[:, source].T / math.sqrt(head_dim)
            scores[future] = -np.inf
            shares = np.exp(scores - scores.max(axis=1, keepdims=True))
            mixed[:, head] = shares / shares.sum(axis=1, keepdims=True) @ v[:, source]
        x = x + mixed.reshape(length, -1) @ w["self_attn.o_proj.weight"].T
        y = norm(x, w["post_attention_layernorm.weight"])
        gate, up = y @ w["mlp.gate_proj.weight"].T, y @ w["mlp.up_proj.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * up) @ w["mlp.down_proj.weight"].T
    head_name = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    logits: Array = norm(x, weights["model.norm.weight"]) @ weights[head_name].T
    return logits


def plain_logits(folder: Path, ids: Sequence[int]) -> Array:
    """Logits [vocab] after ``ids``: a whole forward pass in float64, one head and one position at a time."""
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    weights = {name: value.astype(np.float64) for name, value in load_file(folder / "model.safetensors").items()}
    head_dim, eps = config["head_dim"], config["rms_norm_eps"]
    heads, kv_heads = config["num_attention_heads"], config["num_key_value_heads"]

    def norm(x: Array, weight: Array) -> Array:
        normed: Array = x / np.sqrt(np.mean(x * x) + eps) * weight
        return normed

    def rotate(x: Array, position: int) -> Array:
        turned = np.empty_like(x)
        for i in range(head_dim // 2):
            angle = position / config["rope_theta"] ** (2 * i / head_dim)
            a, b = x[i], x[i + head_dim // 2]
            turned[i] = a * math.cos(angle) - b * math.sin(angle)
            turned[i + head_dim // 2] = b * math.cos(angle) + a * math.sin(angle)
        return turned

    def attend(prefix: str, xs: list[Array]) -> list[Array]:
        def split(x: Array, name: str) -> Array:
            return (weights[f"{prefix}{name}_proj.weight"] @ x).reshape(-1, head_dim)

        q_norm, k_norm = weights[f"{prefix}q_norm.weight"], weights[f"{prefix}k_norm.weight"]
        qs = [[rotate(norm(h, q_norm), t) for h in split(x, "q")] for t, x in enumerate(xs)]
        ks = [[rotate(norm(h, k_norm), t) for h in split(x, "k")] for t, x in enumerate(xs)]
        vs = [split(x, "v") for x in xs]
        mixed = []
        for t in range(len(xs)):
            parts = []
            for head in range(heads):
                source = head * kv_heads // heads
                scores = [qs[t][head] @ ks[s][source] / math.sqrt(head_dim) for s in range(t + 1)]
                shares = np.exp(np.array(scores) - max(scores))
                shares /= shares.sum()
                parts.append(shares @ np.array([vs[s][source] for s in range(t + 1)]))
            mixed.append(weights[f"{prefix}o_proj.weight"] @ np.concatenate(parts))
        return mixed

    xs = [weights["model.embed_tokens.weight"][token] for token in ids]
    for layer in range(config["num_hidden_layers"]):
        prefix = f"model.layers.{layer}."
        normed = [norm(x, weights[f"{prefix}input_layernorm.weight"]) for x in xs]
        xs = [x + y for x, y in zip(xs, attend(f"{prefix}self_attn.", normed), strict=True)]
        for t, x in enumerate(xs):
            y = norm(x, weights[f"{prefix}post_attention_layernorm.weight"])
            gate, up = (weights[f"{prefix}mlp.{name}_proj.weight"] @ y for name in ("gate", "up"))
            xs[t] = x + weights[f"{prefix}mlp.down_proj.weight"] @ (gate / (1 + np.exp(-gate)) * up)
    head_name = "model.embed_tokens.weight" if config["tie_word_embeddings"] else "lm_head.weight"
    logits: Array = weights[head_name] @ norm(xs[-1], weights["model.norm.weight"])
    return logits


def plain_decode(folder: Path, prompt: Sequence[int], tokens: int) -> tuple[list[int], Array]:
    """Greedy tokens after one prompt, and the logits [tokens, vocab] that each was chosen from."""
    ids, rows = list(prompt), []
    for _ in range(tokens):
        rows.append(plain_logits(folder, ids))
        ids.append(int(np.argmax(rows[-1])))
    return ids[len(prompt) :], np.array(rows)


class ArrayBuffer(Buffer):
    """Memory of a numpy array."""

    def __init__(self, nbytes: int, name: str = "") -> None:
        super().__init__(nbytes, name)
        self._array: ByteArray = np.full(nbytes, 0xDD, np.uint8)

    @property
    def is_host(self) -> bool:
        return False

    @property
    def array(self) -> ByteArray:
        return self._array

    @property
    def handle(self) -> int:
        return int(self._array.ctypes.data)

    def free(self) -> None:
        self._array = np.empty(0, np.uint8)


class SerialDevice:
    """Runs a program's steps one after the other on the calling thread; also its own stream and slot."""

    def __init__(self, program: Qwen3Decode) -> None:
        self.program = program
        spec = program.slot
        self.staging = ArrayBuffer(spec.image_nbytes, "staging")
        self.image = ArrayBuffer(spec.image_nbytes, "image")
        self.workspace = ArrayBuffer(spec.workspace_nbytes, "workspace")
        self.output = ArrayBuffer(spec.output_nbytes, "output")
        self.used = 0
        program.open(cast(Device, self))

    def alloc(self, nbytes: int, *, name: str = "") -> ArrayBuffer:
        return ArrayBuffer(nbytes, name)

    def upload(self, buffer: Buffer, data: Array, *, offset: int = 0) -> None:
        raw = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer.array[offset : offset + raw.nbytes] = raw

    def launch(self, kernel: Any, *args: Any, cost_ns: int | None = None) -> None:
        kernel(*(arg.array if isinstance(arg, Buffer) else arg for arg in args))

    def copy_in(self, step: Any) -> None:
        """Build a step and copy its image to the device."""
        self.used = self.program.build(step, self.staging.array).nbytes
        self.image.array[: self.used] = self.staging.array[: self.used]

    def run(self, step: Any) -> DecodeOutput:
        """Build, copy, launch and collect a step."""
        self.copy_in(step)
        self.program.launch(step, cast(Slot, self), cast(Stream, self))
        return self.program.collect(step, self.output.array)


def serial_decode(folder: Path, prompts: Sequence[Sequence[int]], tokens: int) -> tuple[list[list[int]], list[Array]]:
    """Each prompt's tokens, and the logits [tokens, vocab] they were chosen from, through `SerialDevice`."""
    schedule = Schedule(prompts, tokens, 10_000)
    program = Qwen3Decode(folder, batch=schedule.batch, capacity=schedule.capacity, keep_logits=True)
    device = SerialDevice(program)
    chosen: list[list[int]] = [[] for _ in prompts]
    logits: list[list[Array]] = [[] for _ in prompts]
    for step in schedule:
        output = device.run(step)
        if output.logits is None:
            raise RuntimeError("the program did not keep its logits")
        for index, row in enumerate(step.rows):
            if step.generates[index]:
                chosen[row].append(int(output.tokens[row]))
                logits[row].append(output.logits[index])
    return chosen, [np.array(rows) for rows in logits]
