"""The tensors of a checkpoint where they lie on disk: one safetensors file, or shards with an index; memory-mapped."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open

from examples.qwen3.config import INDEX_FILE, WEIGHTS_FILE, ModelError, read_object

__all__ = ["READABLE", "StoredTensor", "find_tensors"]

READABLE = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""What is read, and its name for people."""

_RAW: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "BF16": np.dtype("<u2"),
    "F16": np.dtype("<f2"),
}  # numpy has no bfloat16


@dataclasses.dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a safetensors file; ``offset`` is its first byte in the file, ``dtype`` the format's name."""

    path: Path
    dtype: str
    shape: tuple[int, ...]
    offset: int

    @property
    def nbytes(self) -> int:
        """Size on disk of a tensor of a readable dtype."""
        return _RAW[self.dtype].itemsize * math.prod(self.shape)

    def map(self) -> npt.NDArray[Any]:
        """The flat elements, mapped from the file and not read yet; bfloat16 as the uint16 of its bits."""
        size = math.prod(self.shape)
        return np.memmap(self.path, _RAW[self.dtype], mode="r", offset=self.offset, shape=(size,))

    def widen(self, elements: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
        """Elements of `map` as float32, exactly: a bfloat16 is the upper half of the float32 of the same value."""
        if self.dtype == "BF16":
            return (elements.astype(np.uint32) << 16).view(np.float32)
        return elements.astype(np.float32, copy=False)


def find_tensors(folder: Path) -> tuple[Path, dict[str, StoredTensor]]:
    """Every tensor of a model folder, and the file to name in errors: the weights' file, or the index of the shards.

    A folder that has both is read by its single file. Raises `ModelError` if a file cannot be read, or if the index
    and the shards disagree.
    """
    single, index = folder / WEIGHTS_FILE, folder / INDEX_FILE
    if single.exists() or not index.exists():
        return single, _tensors_of(single)
    found: dict[str, StoredTensor] = {}
    shards: dict[str, dict[str, StoredTensor]] = {}
    for name, file in _weight_map(index).items():
        if file not in shards:
            if not (folder / file).is_file():
                raise ModelError(f"{index} names the shard {file}, which {folder} does not have; download it again")
            shards[file] = _tensors_of(folder / file)
        if name not in shards[file]:
            raise ModelError(f"{index} says that {name} is in {file}, which has no such tensor")
        found[name] = shards[file][name]
    return index, found


def _weight_map(index: Path) -> dict[str, str]:
    table = read_object(index).get("weight_map")
    if not isinstance(table, dict) or not table or not all(isinstance(file, str) for file in table.values()):
        raise ModelError(f"{index} has no weight_map from tensor names to file names")
    for file in table.values():
        if Path(file).name != file:
            raise ModelError(f"{index} names the shard {file!r}; a shard is a file in the model's own folder")
    return table


def _tensors_of(path: Path) -> dict[str, StoredTensor]:
    """The tensors of one file. The library checks its header; only where the tensors lie, it does not tell."""
    try:
        with safe_open(path, framework="numpy"):
            pass
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
    except OSError as exc:
        raise ModelError(f"{path} cannot be read: {exc.strerror or exc}") from exc
    except (SafetensorError, ValueError) as exc:
        raise ModelError(f"{path} cannot be read as safetensors: {exc}") from exc
    return {
        name: StoredTensor(path, entry["dtype"], tuple(entry["shape"]), 8 + length + entry["data_offsets"][0])
        for name, entry in header.items()
        if name != "__metadata__"
    }
