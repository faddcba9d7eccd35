"""Model folders that cannot be used: each error names the file and what was found and expected, in one line."""

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from examples.qwen3.config import ModelError, check_folder, load_config
from examples.qwen3.tokenizer import TextCodec
from examples.qwen3.weights import Checkpoint
from tests.examples.support import make_checkpoint


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_without_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """The error names the missing file and all that a folder needs."""
    make_checkpoint(tmp_path)
    check_folder(tmp_path)
    (tmp_path / name).unlink()
    with pytest.raises(
        ModelError, match=f"has no {name}; it needs the files config.json, model.safetensors, tokenizer"
    ):
        check_folder(tmp_path)


def test_a_folder_that_does_not_exist_is_refused(tmp_path: Path) -> None:
    """The error names the folder."""
    with pytest.raises(ModelError, match="nowhere does not exist"):
        check_folder(tmp_path / "nowhere")


def test_a_file_in_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    """A file is not said to be missing: it is no folder."""
    (tmp_path / "notes").write_text("x", encoding="utf-8")
    with pytest.raises(ModelError, match="notes is not a folder; pass --model the folder"):
        check_folder(tmp_path / "notes")


@pytest.mark.parametrize("name", ["config.json", "model.safetensors", "tokenizer.json"])
def test_a_folder_in_place_of_a_file_is_refused(tmp_path: Path, name: str) -> None:
    """A folder, and a pipe, with the name of a model's file is not said to be missing: it is no file."""
    make_checkpoint(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    with pytest.raises(ModelError, match=f"{name} is a folder, not a regular file"):
        check_folder(tmp_path)
    (tmp_path / name).rmdir()
    os.mkfifo(tmp_path / name)
    with pytest.raises(ModelError, match=f"{name} is a special file, not a regular file"):
        check_folder(tmp_path)


def test_a_file_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """What the system says about an unreadable file is repeated, and not taken for a fault in its content."""
    make_checkpoint(tmp_path)
    config = load_config(tmp_path)
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (tmp_path / name).unlink()
    with pytest.raises(ModelError, match=r"config.json cannot be read: No such file"):
        load_config(tmp_path)
    with pytest.raises(ModelError, match=r"tokenizer.json cannot be read: No such file"):
        TextCodec(tmp_path, 259)
    with pytest.raises(ModelError, match=r"model.safetensors cannot be read: No such file"):
        Checkpoint(tmp_path, config)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model_type": "llama"}, "model_type is 'llama'"),
        ({"hidden_size": None}, "has no hidden_size"),
        ({"hidden_size": 0}, "hidden_size is 0; it must be an integer of at least 1"),
        ({"vocab_size": 3.5}, "vocab_size is 3.5; it must be an integer"),
        ({"num_key_value_heads": 3}, "num_attention_heads 4 is not a multiple of num_key_value_heads 3"),
        ({"head_dim": 9}, "head_dim 9 is odd"),
        ({"rms_norm_eps": -1}, "rms_norm_eps is -1; it must be a number above 0"),
        ({"rope_theta": None}, "has no rope_theta"),
        ({"attention_bias": True}, "attention_bias is True; this decoder runs False only"),
        ({"use_sliding_window": True}, "use_sliding_window is True"),
        ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; this decoder runs 'silu' only"),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4}}, "rotary type is 'yarn'"),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, "rotary type is 'linear'"),
        ({"rope_parameters": {"rope_type": "llama3"}}, "rotary type is 'llama3'"),
        ({"quantization_config": {"quant_method": "fp8"}}, "has a quantization_config; take the checkpoint that"),
        ({"layer_types": ["full_attention", "sliding_attention"]}, "a layer's type is 'sliding_attention'"),
        ({"layer_types": "linear_attention"}, "a layer's type is 'linear_attention'"),
        ({"model_type": "qwen3_moe"}, "model_type is 'qwen3_moe'; this decoder runs 'qwen3' only"),
        ({"eos_token_id": "end"}, "eos_token_id is 'end'"),
    ],
)
def test_a_config_that_the_decoder_cannot_run_is_refused(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """The error names the key, its value and what it must be."""
    config = make_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        load_config(tmp_path)


@pytest.mark.parametrize(
    ("text", "message"),
    [("{", "cannot be read as JSON"), ("[" * 100_000, "cannot be read as JSON"), ("[]", "holds list")],
)
def test_a_config_that_is_no_object_is_refused(tmp_path: Path, text: str, message: str) -> None:
    """Broken JSON, and JSON that is no object, are refused."""
    make_checkpoint(tmp_path)
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ModelError, match=message):
        load_config(tmp_path)


def test_the_newer_form_of_rotary_parameters_is_read(tmp_path: Path) -> None:
    """`rope_parameters` gives the same config as `rope_theta`; a list of end-of-text ids is kept."""
    config = make_checkpoint(tmp_path)
    before = load_config(tmp_path)
    theta = config.pop("rope_theta")
    config["rope_parameters"] = {"rope_type": "default", "rope_theta": theta}
    config["eos_token_id"] = [256]
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    assert load_config(tmp_path) == before


def test_what_real_configs_hold_beside_is_read(tmp_path: Path) -> None:
    """Keys of current checkpoints that change nothing are accepted; ends of text come from the generation config."""
    config = make_checkpoint(tmp_path)
    before = load_config(tmp_path)
    kept = {
        "architectures": ["Qwen3ForCausalLM"],
        "layer_types": ["full_attention"] * config["num_hidden_layers"],
        "rope_scaling": None,
        "sliding_window": None,
        "max_window_layers": config["num_hidden_layers"],
        "dtype": "bfloat16",
    }
    (tmp_path / "config.json").write_text(json.dumps({**config, **kept}), encoding="utf-8")
    assert load_config(tmp_path) == before
    generation = tmp_path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [256, 257], "top_p": 0.95}), encoding="utf-8")
    assert load_config(tmp_path).eos_token_ids == (256, 257)
    generation.write_text(json.dumps({"top_p": 0.95}), encoding="utf-8")
    assert load_config(tmp_path) == before
    generation.write_text("[]", encoding="utf-8")
    with pytest.raises(ModelError, match=r"generation_config\.json holds list"):
        load_config(tmp_path)


def test_a_tensor_of_another_shape_is_refused(tmp_path: Path) -> None:
    """The error names the tensor, the shape found and the shape expected."""
    make_checkpoint(tmp_path)
    config = load_config(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    name = "model.layers.1.mlp.up_proj.weight"
    save_file({**tensors, name: np.zeros((41, 24), np.float32)}, path)
    with pytest.raises(ModelError, match=rf"{name} has shape \[41, 24\], but config.json asks for \[40, 24\]"):
        Checkpoint(tmp_path, config)


def test_missing_unknown_and_unreadable_tensors_are_refused(tmp_path: Path) -> None:
    """The error names the tensor that is missing, unknown or of a dtype that is not read."""
    make_checkpoint(tmp_path)
    config = load_config(tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = load_file(path)
    save_file({**tensors, "extra.weight": np.zeros(2, np.float32)}, path)
    with pytest.raises(ModelError, match=r"1 tensor does not belong to config.json, the first is extra.weight"):
        Checkpoint(tmp_path, config)
    save_file({**tensors, "model.norm.weight": np.zeros(24, np.int8)}, path)
    with pytest.raises(ModelError, match=r"model.norm.weight has dtype I8; this decoder reads F32, BF16, F16"):
        Checkpoint(tmp_path, config)
    del tensors["model.norm.weight"]
    save_file(tensors, path)
    with pytest.raises(ModelError, match=r"has no tensor model.norm.weight of shape \[24\]"):
        Checkpoint(tmp_path, config)
    path.write_bytes(b"no tensors")
    with pytest.raises(ModelError, match="cannot be read as safetensors"):
        Checkpoint(tmp_path, config)
