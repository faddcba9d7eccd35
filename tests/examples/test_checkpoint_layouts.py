"""Weights as real checkpoints hold them: shards with an index, bfloat16 and float16; and what is wrong with some."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.qwen3 import weights
from examples.qwen3.config import ModelError, check_folder, load_config
from examples.qwen3.shards import StoredTensor
from examples.qwen3.weights import Checkpoint
from tests.examples.support import Array, make_checkpoint, store_as, stored_weights

INDEX = "model.safetensors.index.json"


def loaded(folder: Path) -> dict[str, Array]:
    """Every tensor as the loader gives it, put together from its parts."""
    checkpoint = Checkpoint(folder, load_config(folder))
    found = {name: np.full(int(np.prod(shape)), np.nan, np.float32) for name, shape in checkpoint.shapes.items()}
    for name, start, values in checkpoint.parts():
        assert values.dtype == np.float32
        assert np.isnan(found[name][start // 4 : start // 4 + values.size]).all()
        found[name][start // 4 : start // 4 + values.size] = values
    return {name: values.reshape(checkpoint.shapes[name]) for name, values in found.items()}


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("shards", [0, 3])
def test_every_value_arrives_exactly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, dtype: str, shards: int) -> None:
    """From one file or from shards, in parts smaller than a tensor, each number is the stored one."""
    monkeypatch.setattr(weights, "PART_NBYTES", 400)
    make_checkpoint(tmp_path, seed=5)
    store_as(tmp_path, dtype, shards=shards)
    check_folder(tmp_path)
    expected, found = stored_weights(tmp_path), loaded(tmp_path)
    assert found.keys() == expected.keys()
    for name, values in found.items():
        np.testing.assert_array_equal(values, expected[name], err_msg=name)


def test_extreme_values_of_bfloat16_are_kept(tmp_path: Path) -> None:
    """Infinities, the largest, the smallest and negative zero are the same numbers in float32."""
    bits = np.array([0x7F80, 0xFF80, 0x7F7F, 0x0001, 0x8000, 0x3F81], np.uint16)
    stored = StoredTensor(tmp_path, "BF16", (6,), 0)
    largest = (2 - 2**-7) * 2.0**127
    np.testing.assert_array_equal(stored.widen(bits), [np.inf, -np.inf, largest, 2.0**-133, -0.0, 1 + 2**-7])
    assert np.signbit(stored.widen(bits)[4])


def change_index(folder: Path, **changes: Any) -> None:
    """Rewrite parts of the index; a value of None takes the key out."""
    document = {**json.loads((folder / INDEX).read_text(encoding="utf-8")), **changes}
    kept = {key: value for key, value in document.items() if value is not None}
    (folder / INDEX).write_text(json.dumps(kept), encoding="utf-8")


def test_an_index_that_does_not_fit_its_shards_is_refused(tmp_path: Path) -> None:
    """The error names the index or the shard, and what is missing there."""
    make_checkpoint(tmp_path)
    store_as(tmp_path, "bfloat16", shards=2)
    config, table = load_config(tmp_path), json.loads((tmp_path / INDEX).read_text(encoding="utf-8"))["weight_map"]
    norm = "model.norm.weight"
    other = next(file for file in table.values() if file != table[norm])
    for changes, message in (
        ({"weight_map": None}, "has no weight_map"),
        ({"weight_map": {}}, "has no weight_map"),
        ({"weight_map": {**table, norm: 3}}, "has no weight_map"),
        ({"weight_map": {**table, norm: "../model.safetensors"}}, "a shard is a file in the model's own folder"),
        ({"weight_map": {**table, norm: "gone.safetensors"}}, "names the shard gone.safetensors, which .* does not"),
        ({"weight_map": {**table, norm: other}}, f"says that {norm} is in {other}, which has no such tensor"),
        ({"weight_map": {name: file for name, file in table.items() if name != norm}}, f"has no tensor {norm}"),
    ):
        change_index(tmp_path, **changes)
        with pytest.raises(ModelError, match=message):
            Checkpoint(tmp_path, config)
    (tmp_path / INDEX).write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be read as JSON"):
        Checkpoint(tmp_path, config)


def test_a_cut_shard_is_refused(tmp_path: Path) -> None:
    """A download that stopped half way is named, before anything is loaded."""
    make_checkpoint(tmp_path)
    store_as(tmp_path, "float16", shards=2)
    shard = tmp_path / "model-00002-of-00002.safetensors"
    shard.write_bytes(shard.read_bytes()[:-10])
    with pytest.raises(ModelError, match=r"model-00002-of-00002\.safetensors cannot be read as safetensors"):
        Checkpoint(tmp_path, load_config(tmp_path))
