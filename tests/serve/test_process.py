"""The server as its users start it: a process of its own, on the shipped checkpoint."""

from __future__ import annotations

import json
import signal
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from async_orch import Orchestrator
from examples.qwen3.options import CHECKPOINT
from examples.qwen3.paged import PagedModel
from examples.qwen3.paged_run import Request, generate
from examples.qwen3.tokenizer import GrowingText, TextCodec
from examples.serve.__main__ import main
from tests.serve.process import started

PROMPTS = ["Once upon a time", "There was once a clever fox", "One night there was a terrible storm", "A"]
TOKENS = 30


def ask(url: str, **body: Any) -> dict[str, Any]:
    """A completion, with nothing but the standard library."""
    data = json.dumps({"model": "qwen3-stories", "temperature": 0} | body).encode()
    with urllib.request.urlopen(f"{url}/v1/completions", data, timeout=30) as answer:  # noqa: S310
        found: dict[str, Any] = json.load(answer)
        return found


async def offline() -> list[str]:
    """What the model says by itself, greedily."""
    model = PagedModel(CHECKPOINT)
    codec = TextCodec(CHECKPOINT, model.config.vocab_size)
    requests = [Request(codec.encode(p), TOKENS, stop_ids=model.config.eos_token_ids) for p in PROMPTS]
    async with Orchestrator(model.programs, "host", max_inflight=2) as orchestrator:
        results = await generate(orchestrator, model, requests)
    texts = []
    for tokens in results:
        text = GrowingText(codec)
        texts.append("".join(text.push(token) for token in tokens))
    return texts


@pytest.mark.parametrize("backend", ["host", "opencl:0"])
async def test_the_shipped_checkpoint_says_what_it_says_offline_and_the_logs_join(tmp_path: Path, backend: str) -> None:
    """Greedy text equals offline decoding on host; status 0 after SIGTERM; the records of steps name each request."""
    if backend != "host":
        pytest.importorskip("pyopencl", reason="pyopencl is not installed: pip install 'async-orch[pocl]'")
    steps, access = tmp_path / "steps.jsonl", tmp_path / "access.jsonl"
    with started("--backend", backend, "--step-log", str(steps), "--access-log", str(access)) as (process, url):
        texts = [ask(url, prompt=prompt, max_tokens=TOKENS)["choices"][0]["text"] for prompt in PROMPTS]
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=20) == 0
    assert texts == await offline()
    lines = [json.loads(line) for line in access.read_text().splitlines()]
    assert [line["status"] for line in lines] == [200] * len(PROMPTS)
    records = [json.loads(line) for line in steps.read_text().splitlines() if '"step.completed"' in line]
    carried = [name for record in records for name in record["attrs"]["requests"]]
    for line in lines:
        assert carried.count(line["request"]) == line["completion_tokens"], "one step for each token"


def test_sigterm_lets_streams_finish() -> None:
    """What runs is finished, what comes is refused, and the exit status is 0."""
    with started("--backend", "host") as (process, url):
        data = json.dumps(
            {"model": "qwen3-stories", "prompt": "Once", "max_tokens": 200, "temperature": 0, "stream": True}
        ).encode()
        with urllib.request.urlopen(f"{url}/v1/completions", data, timeout=60) as answer:  # noqa: S310
            first = answer.readline()
            process.send_signal(signal.SIGTERM)
            rest = answer.read()
        assert first.startswith(b"data: ")
        assert rest.strip().endswith(b"data: [DONE]")
        with pytest.raises(OSError, match="refused"):
            ask(url, prompt="late")
        assert process.wait(timeout=20) == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--model", "/nowhere"], "nowhere"),
        (["--backend", "abacus"], "abacus"),
        (["--backend", "torch:cpu"], "programs exist for host, sim, opencl only"),
        (["--backend", "opencl:0:0"], "opencl"),
        (["--port", "70000"], "70000"),
        (["--batch", "0"], "'0'"),
        (["--context", "100000"], "512"),
        (["--host", "300.1.1.1"], ""),
        (["--kv-blocks", "1000000"], "kv_blocks="),
        (["--mode", "fast"], "fast"),
    ],
)
def test_a_wrong_command_line_is_one_line(arguments: list[str], words: str, capsys: pytest.CaptureFixture[str]) -> None:
    """The command ends with a status and one line that names what is wrong; no traceback."""
    try:
        status = main(["--port", "0", *arguments])
    except SystemExit as exc:
        status = int(str(exc.code))
    out, err = capsys.readouterr()
    assert status in (1, 2)
    assert out == ""
    assert len(err.splitlines()) == 1, err
    assert words in err
