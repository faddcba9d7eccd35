"""The sizes of a Qwen3 decoder, read from `config.json` in the Hugging Face layout and checked."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

__all__ = ["CONFIG_FILE", "MODEL_FILES", "ModelError", "Qwen3Config", "check_folder", "load_config", "read_object"]

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
GENERATION_FILE = "generation_config.json"
TOKENIZER_FILE = "tokenizer.json"
MODEL_FILES = (CONFIG_FILE, WEIGHTS_FILE, TOKENIZER_FILE)

_SIZES = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
)


class ModelError(ValueError):
    """A model folder, a checkpoint or a prompt cannot be used; one line that says what to change."""


@dataclasses.dataclass(frozen=True, slots=True)
class Qwen3Config:
    """Sizes of a dense Qwen3 decoder; the names are those of `config.json`.

    `head_dim` is independent of `hidden_size / num_attention_heads`. `eos_token_ids` may be empty; those of
    `generation_config.json`, where there are some, go before those of `config.json`.
    """

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    tie_word_embeddings: bool
    eos_token_ids: tuple[int, ...] = ()

    @property
    def q_size(self) -> int:
        """Width of all query heads together."""
        return self.num_attention_heads * self.head_dim

    @property
    def kv_size(self) -> int:
        """Width of all key (or value) heads together."""
        return self.num_key_value_heads * self.head_dim


def check_folder(folder: Path) -> None:
    """Raise `ModelError` if `folder` is no folder, or naming the files that it lacks or that are no files."""
    try:
        if not folder.is_dir():
            wrong = "is not a folder" if folder.exists() else "does not exist"
            raise ModelError(f"model folder {folder} {wrong}; pass --model the folder of a Qwen3 checkpoint")
        sharded = not (folder / WEIGHTS_FILE).exists() and (folder / INDEX_FILE).exists()
        wanted = [INDEX_FILE if sharded and name == WEIGHTS_FILE else name for name in MODEL_FILES]
        missing = [name for name in wanted if not (folder / name).exists()]
        others = [name for name in wanted if name not in missing and not (folder / name).is_file()]
    except OSError as exc:
        raise ModelError(f"model folder {folder} cannot be read: {exc.strerror}") from exc
    needs = f"it needs the files {', '.join(MODEL_FILES)} (or shards and their {INDEX_FILE})"
    if missing:
        raise ModelError(f"model folder {folder} has no {' and no '.join(missing)}; {needs}")
    if others:
        kind = "folder" if (folder / others[0]).is_dir() else "special file"
        raise ModelError(f"{folder / others[0]} is a {kind}, not a regular file; model folder {folder}: {needs}")


def read_object(path: Path) -> dict[str, Any]:
    """The object that a JSON file holds. Raises `ModelError` if the file cannot be read, or holds something else."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
    except OSError as exc:
        raise ModelError(f"{path} cannot be read: {exc.strerror}") from exc
    except (ValueError, RecursionError) as exc:  # no JSON, or no UTF-8; nested without end
        raise ModelError(f"{path} cannot be read as JSON: {exc}") from exc
    if not isinstance(raw, dict):
        raise ModelError(f"{path} holds {type(raw).__name__}, not an object of keys and values")
    return raw


def load_config(folder: Path) -> Qwen3Config:
    """Read and check `config.json`.

    Raises `ModelError` naming the key when it is missing, no positive number, or asks for something that the
    decoder does not do (other architectures, attention bias, sliding windows, scaled rotary embeddings, quantized
    weights).
    """
    path = folder / CONFIG_FILE
    raw = read_object(path)
    if raw.get("model_type") != "qwen3":
        raise ModelError(f"{path}: model_type is {raw.get('model_type')!r}; this decoder runs 'qwen3' only")
    _check_supported(path, raw)
    sizes = {name: _size(path, raw, name) for name in _SIZES}
    heads, kv_heads = sizes["num_attention_heads"], sizes["num_key_value_heads"]
    if heads % kv_heads:
        raise ModelError(f"{path}: num_attention_heads {heads} is not a multiple of num_key_value_heads {kv_heads}")
    head_dim = _size(path, raw, "head_dim")
    if head_dim % 2:
        raise ModelError(f"{path}: head_dim {head_dim} is odd; the rotary embedding turns pairs of elements")
    return Qwen3Config(
        **sizes,
        head_dim=head_dim,
        rms_norm_eps=_positive(path, "rms_norm_eps", raw.get("rms_norm_eps")),
        rope_theta=_positive(path, "rope_theta", _rope(raw).get("rope_theta", raw.get("rope_theta"))),
        tie_word_embeddings=bool(raw.get("tie_word_embeddings", False)),
        eos_token_ids=_eos_of_generation(folder) or _eos(path, raw.get("eos_token_id")),
    )


def _rope(raw: dict[str, Any]) -> dict[str, Any]:
    """The table of rotary parameters, which older files call `rope_scaling`."""
    table = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    return table if isinstance(table, dict) else {"rope_type": str(table)}


def _check_supported(path: Path, raw: dict[str, Any]) -> None:
    rope_type = _rope(raw).get("rope_type", _rope(raw).get("type", "default"))
    if rope_type != "default":
        raise ModelError(f"{path}: rotary type is {rope_type!r}; this decoder runs 'default' only")
    wanted: tuple[tuple[str, Any], ...] = (
        ("hidden_act", "silu"),
        ("attention_bias", False),
        ("use_sliding_window", False),
    )
    for name, value in wanted:
        if raw.get(name, value) != value:
            raise ModelError(f"{path}: {name} is {raw[name]!r}; this decoder runs {value!r} only")
    if raw.get("quantization_config") is not None:
        raise ModelError(f"{path} has a quantization_config; take the checkpoint that is not quantized")
    kinds = raw.get("layer_types") or []
    others = [kind for kind in kinds if kind != "full_attention"] if isinstance(kinds, list) else [kinds]
    if others:
        raise ModelError(f"{path}: a layer's type is {others[0]!r}; this decoder runs 'full_attention' only")


def _size(path: Path, raw: dict[str, Any], name: str) -> int:
    value = raw.get(name)
    if value is None:
        raise ModelError(f"{path} has no {name}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ModelError(f"{path}: {name} is {value!r}; it must be an integer of at least 1")
    return value


def _positive(path: Path, name: str, value: Any) -> float:
    if value is None:
        raise ModelError(f"{path} has no {name}")
    if not isinstance(value, int | float) or isinstance(value, bool) or not value > 0:
        raise ModelError(f"{path}: {name} is {value!r}; it must be a number above 0")
    return float(value)


def _eos_of_generation(folder: Path) -> tuple[int, ...]:
    path = folder / GENERATION_FILE
    return _eos(path, read_object(path).get("eos_token_id")) if path.exists() else ()


def _eos(path: Path, value: Any) -> tuple[int, ...]:
    found = () if value is None else tuple(value) if isinstance(value, list) else (value,)
    if not all(isinstance(item, int) and not isinstance(item, bool) for item in found):
        raise ModelError(f"{path}: eos_token_id is {value!r}; it must be an integer or a list of integers")
    return found
