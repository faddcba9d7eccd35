"""Tokens and logits of the example checkpoint as the transformers library computes them.

    pip install -r tests/reference/requirements.txt
    python tests/reference/make_reference.py          # writes the two files below
    python tests/reference/make_reference.py --check  # computes again and compares; 1 if they differ

Every row is decoded on its own: float32 on the CPU, one whole forward pass over prompt and new tokens for
each step, without padding and without a KV cache, greedy, always `NEW_TOKENS` tokens (end-of-text does not
stop it). So nothing that a batch, a mask or a cache does can be in the values.

`qwen3_tiny.json`: versions, sha256 of the checkpoint's files, and for each case ("batch1", "batch4") the
lists `prompts`, `prompt_ids`, `generated_ids` and `generated_text`, one entry a row.

`qwen3_tiny_logits.npz`: for each case, with R rows, G = 64 steps and V tokens in the vocabulary. Step g is
the forward pass that token g of `generated_ids` was chosen from; step 0 ends with the prompt's last token.

    CASE.full_steps   int32   [9]        the steps whose logits are stored whole: 0 to 7 and 63
    CASE.full_logits  float32 [R, 9, V]
    CASE.top_ids      int32   [R, G, 8]  the eight most likely tokens of each step, most likely first
    CASE.top_logits   float32 [R, G, 8]  their logits
"""

import argparse
import hashlib
import json
import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer
from transformers import Qwen3ForCausalLM

HERE = Path(__file__).resolve().parent
CHECKPOINT = HERE.parents[1] / "examples" / "qwen3" / "checkpoint"
JSON_FILE = HERE / "qwen3_tiny.json"
NPZ_FILE = HERE / "qwen3_tiny_logits.npz"
COMMAND = "python tests/reference/make_reference.py"

NEW_TOKENS = 64
TOP = 8
FULL_STEPS = (*range(8), NEW_TOKENS - 1)
TOLERANCE = 1e-4
# Two logits nearer than this could change places between two correct implementations.
SMALLEST_MARGIN = 1e-3

_DRY = (
    "In spring, Rosa found a bean on the road and put it into the ground. She watered it every morning. "
    "But then the well ran dry, and the leaves turned yellow. “It will die,” said Rosa."
)
# Ends so near to the story's end that the new tokens go through end-of-text into another story.
_NEARLY_DONE = (
    "“Who is there?” she called. Nobody answered — only the humming went on. So Chloé lit a candle and woke "
    "Tom the goat. Together they tiptoed down the stairs. It was only the kettle that had been left on the "
    "stove! They put out the fire, and then it was quiet. “What you can see is never so bad,” said Tom. That"
)
CASES: Mapping[str, tuple[str, ...]] = {
    "batch1": ("Once upon a time",),
    "batch4": (
        "Otto",
        "Once upon a time, there was a young otter named Loïc. He lived in the village of",
        _DRY,
        _NEARLY_DONE,
    ),
}

Arrays = dict[str, np.ndarray[Any, Any]]


def _decode(model: Any, prompt_ids: Sequence[int]) -> tuple[list[int], np.ndarray[Any, Any]]:
    """Return the new ids and the logits float32 [NEW_TOKENS, vocabulary] that each was chosen from."""
    ids = list(prompt_ids)
    steps = []
    for _ in range(NEW_TOKENS):
        with torch.no_grad():
            logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, -1]
        steps.append(logits.numpy())
        ids.append(int(logits.argmax()))
    return ids[len(prompt_ids) :], np.stack(steps)


def _describe() -> dict[str, Any]:
    names = ("numpy", "safetensors", "tokenizers", "torch", "transformers")
    files = ("config.json", "model.safetensors", "tokenizer.json")
    return {
        "schema": 1,
        "command": COMMAND,
        "versions": {"python": platform.python_version(), **{name: metadata.version(name) for name in names}},
        "checkpoint_sha256": {name: hashlib.sha256((CHECKPOINT / name).read_bytes()).hexdigest() for name in files},
        "dtype": "float32",
        "new_tokens": NEW_TOKENS,
    }


def compute() -> tuple[dict[str, Any], Arrays, float]:
    """Return the JSON document, the arrays, and the smallest gap between the two best logits of any step."""
    torch.set_num_threads(1)
    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    model = Qwen3ForCausalLM.from_pretrained(
        CHECKPOINT, dtype=torch.float32, attn_implementation="eager", local_files_only=True
    )
    cases: dict[str, Any] = {}
    arrays: Arrays = {}
    margin = float("inf")
    for case, prompts in CASES.items():
        prompt_ids = [tokenizer.encode(prompt).ids for prompt in prompts]
        rows = [_decode(model, ids) for ids in prompt_ids]
        logits = np.stack([row_logits for _, row_logits in rows])
        top_ids = np.argsort(-logits, axis=-1, kind="stable")[..., :TOP]
        top_logits = np.take_along_axis(logits, top_ids, axis=-1)
        margin = min(margin, float((top_logits[..., 0] - top_logits[..., 1]).min()))
        arrays[f"{case}.full_steps"] = np.array(FULL_STEPS, np.int32)
        arrays[f"{case}.full_logits"] = logits[:, list(FULL_STEPS)]
        arrays[f"{case}.top_ids"] = top_ids.astype(np.int32)
        arrays[f"{case}.top_logits"] = top_logits
        cases[case] = {
            "prompts": list(prompts),
            "prompt_ids": prompt_ids,
            "generated_ids": [ids for ids, _ in rows],
            "generated_text": [tokenizer.decode(ids, skip_special_tokens=False) for ids, _ in rows],
        }
    return {**_describe(), "cases": cases}, arrays, margin


def _compare(document: Mapping[str, Any], arrays: Arrays) -> list[str]:
    """Return one line for each difference between the stored values and these."""
    stored = json.loads(JSON_FILE.read_text(encoding="utf-8"))
    differences = [
        f"{key}: stored {stored.get(key)}, computed {document[key]}"
        for key in ("schema", "new_tokens", "dtype", "checkpoint_sha256")
        if stored.get(key) != document[key]
    ]
    for case, values in document["cases"].items():
        differences += [
            f"{case}.{key}: stored {stored['cases'][case][key]}, computed {value}"
            for key, value in values.items()
            if stored["cases"][case][key] != value
        ]
    with np.load(NPZ_FILE) as file:
        if set(file.files) != set(arrays):
            return [*differences, f"arrays: stored {sorted(file.files)}, computed {sorted(arrays)}"]
        for name, values in arrays.items():
            if file[name].shape != values.shape or file[name].dtype != values.dtype:
                differences.append(
                    f"{name}: stored {file[name].dtype}{list(file[name].shape)}, "
                    f"computed {values.dtype}{list(values.shape)}"
                )
            elif name.endswith("_logits"):
                error = float(np.abs(file[name] - values).max())
                print(f"{name}: largest difference {error:.2e} (at most {TOLERANCE:.0e} is right)")
                if not error <= TOLERANCE:  # also when it is NaN
                    differences.append(f"{name}: differs by {error:.3e}, more than {TOLERANCE:.0e}")
            elif name.endswith("full_steps") and not np.array_equal(file[name], values):
                differences.append(f"{name}: stored {file[name].tolist()}, computed {values.tolist()}")
            # top_ids may change places where two logits are equal to the tolerance; top_logits judges them
    return differences


def main(argv: Sequence[str] | None = None) -> int:
    """Write the reference files, or compare with them."""
    parser = argparse.ArgumentParser(prog=COMMAND, description="Make or check the transformers reference.")
    parser.add_argument("--check", action="store_true", help="compare with the stored files, write nothing")
    options = parser.parse_args(argv)
    document, arrays, margin = compute()
    if options.check:
        missing = [str(path) for path in (JSON_FILE, NPZ_FILE) if not path.is_file()]
        differences = [f"missing: {path}" for path in missing] if missing else _compare(document, arrays)
        for line in differences:
            print(f"DIFFERENT {line}", file=sys.stderr)
        if not differences:
            rows = sum(len(prompts) for prompts in CASES.values())
            print(f"equal: {rows} rows of {NEW_TOKENS} tokens")
        return 1 if differences else 0
    if margin < SMALLEST_MARGIN:
        print(
            f"the two best logits of a step are only {margin:.1e} apart, so rounding could choose either; "
            f"take prompts that keep {SMALLEST_MARGIN:.0e}",
            file=sys.stderr,
        )
        return 1
    JSON_FILE.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    np.savez_compressed(NPZ_FILE, allow_pickle=False, **arrays)
    print(f"smallest margin {margin:.4f}; wrote {JSON_FILE.name} and {NPZ_FILE.name}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
