"""The Qwen3 decoder as a step program: resident weights and cache, one task graph and one launch a step."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from async_orch import Built, Device, Slot, SlotSpec, StepProgram
from async_orch.abc import Backend, Buffer, ByteArray, Stream
from async_orch.exceptions import GraphOverflow
from async_orch.graph import execute
from examples.qwen3.config import load_config
from examples.qwen3.decode_graph import REGIONS, DecodeGraph
from examples.qwen3.kernels import kernel_table
from examples.qwen3.memory import MemoryEstimate, estimate
from examples.qwen3.schedule import DecodeStep
from examples.qwen3.weights import ROPE_COS, ROPE_SIN, Checkpoint, Progress, rope_tables

__all__ = ["NATURAL", "REPORT", "DecodeOutput", "Qwen3Decode", "SlotMemory"]

_PROBE_NBYTES = 4096  # of image a task, far above what a task takes; only the size probe at start uses it


@dataclasses.dataclass(frozen=True, slots=True)
class SlotMemory:
    """Sizes of a step's image and workspace in bytes; None for what the graph needs."""

    image_nbytes: int | None = None
    workspace_nbytes: int | None = None


NATURAL = SlotMemory()
REPORT = SlotMemory(image_nbytes=5_543_943, workspace_nbytes=66_488_960)
"""What one Qwen3-14B decode step copied and allocated in the report of hw-native-sys/simpler #1841."""


class DecodeOutput(NamedTuple):
    """Result of a step.

    ``tokens`` int32 [batch] is each active row's greedy token, -1 for the others; ``logits`` float32 [n,
    vocab] of the active rows, None unless the program keeps them.
    """

    tokens: npt.NDArray[np.int32]
    logits: npt.NDArray[np.float32] | None


class Qwen3Decode(StepProgram[DecodeStep, DecodeOutput]):
    """Decodes one token a step for each active row of a batch, greedily.

    Weights, key-value cache and each row's newest token stay on the device; a step's image is its task graph,
    which names them by offset. The token that a step chooses is read there by the next, so a step can be
    built, copied and launched before the one before it is done.

    Parameters
    ----------
    folder:
        A model folder in the Hugging Face layout.
    batch, capacity:
        Rows, and positions that the key-value cache holds for each. See `Schedule`.
    keep_logits:
        Return the logits too.
    memory:
        Sizes of the slots. A larger image is padded: all of it is copied every step.
    progress:
        Called with loaded and total bytes while the weights are loaded, on the thread that opens the program.

    Raises `ModelError` for a folder that cannot be used and `GraphOverflow` if a step does not fit
    ``memory``.
    """

    def __init__(
        self,
        folder: Path,
        *,
        batch: int,
        capacity: int,
        keep_logits: bool = False,
        memory: SlotMemory = NATURAL,
        progress: Progress | None = None,
    ) -> None:
        self._progress = progress
        self.config = load_config(folder)
        self.checkpoint = Checkpoint(folder, self.config)
        self.table = kernel_table()
        self.graph = DecodeGraph(self.config, self.table, batch=batch, capacity=capacity, keep_logits=keep_logits)
        self.graph_nbytes = self._probe(batch)
        self._padded_nbytes = memory.image_nbytes
        self.slot = SlotSpec(
            image_nbytes=_fitting("image", memory.image_nbytes, self.graph_nbytes),
            workspace_nbytes=_fitting("workspace", memory.workspace_nbytes, self.graph.region_nbytes["workspace"]),
            output_nbytes=self.graph.region_nbytes["output"],
            image_at="shared",
        )
        self.resident: dict[str, Buffer] = {}

    def _probe(self, batch: int) -> int:
        """Bytes of the largest graph: that of a step with every row active."""
        rows = np.arange(batch, dtype=np.int32)
        zeros = np.zeros(batch, np.int32)
        step = DecodeStep(rows, positions=zeros, forced=zeros, generates=np.ones(batch, np.bool_))
        scratch = np.empty(self.graph.max_tasks * _PROBE_NBYTES + 64 * batch, np.uint8)
        return self.graph.build(step, scratch)

    def check_memory(self, backend: Backend, *, slots: int, queue_depth: int) -> MemoryEstimate:
        """What the program will take with the rings of an orchestrator of these options.

        Raises `ModelError`, with needed and free memory and what to lower, if it does not fit.
        """
        needed = estimate(
            weights=self.graph.weights,
            weights_nbytes=self.graph.region_nbytes["weights"],
            cache_nbytes=self.graph.region_nbytes["kv"],
            slot=self.slot,
            slots=slots,
            staging=queue_depth + 2,
        )
        needed.check(
            backend.free_nbytes(), "decode fewer prompts or tokens at once, or have fewer slots and places in queues"
        )
        return needed

    def open(self, device: Device) -> None:
        """Allocate the resident regions and bring the weights and rotary tables there."""
        for name in ("weights", "kv", "state"):
            self.resident[name] = device.alloc(self.graph.region_nbytes[name], name=name)
        weights, placed = self.resident["weights"], self.graph.weights
        self.checkpoint.upload(device, weights, placed, self._progress)
        cosine, sine = rope_tables(self.config, self.graph.capacity)
        device.upload(weights, cosine, offset=placed[ROPE_COS].offset)
        device.upload(weights, sine, offset=placed[ROPE_SIN].offset)

    def build(self, step: DecodeStep, image: ByteArray) -> Built:
        """Write the step's graph; needs no earlier step's result.

        All of it is the step's task table; padding counts as the part of recorded graphs, of which there are none.
        """
        used = self.graph.build(step, image)
        return Built(used if self._padded_nbytes is None else self._padded_nbytes, sm_nbytes=used)

    def launch(self, step: DecodeStep, slot: Slot, stream: Stream) -> None:
        """Enqueue one kernel, which runs the graph from the image in device memory."""
        resident = self.resident
        stream.launch(
            self.run,
            slot.image,
            slot.workspace,
            slot.output,
            resident["weights"],
            resident["kv"],
            resident["state"],
        )

    def run(self, image: ByteArray, *regions: ByteArray) -> None:
        """On the device: check and run the graph in ``image`` over the regions, in the order of `REGIONS`."""
        execute(image, dict(zip(REGIONS, regions, strict=True)), self.table)

    def collect(self, step: DecodeStep, output: ByteArray) -> DecodeOutput:
        """Copy the step's tokens, and its logits if kept, out of the output."""
        tokens = output[: 4 * self.graph.batch].view(np.int32).copy()
        if not self.graph.keep_logits:
            return DecodeOutput(tokens, None)
        shape = (len(step.rows), self.config.vocab_size)
        start = self.graph.logits_offset
        logits = output[start : start + 4 * shape[0] * shape[1]].view(np.float32).reshape(shape).copy()
        return DecodeOutput(tokens, logits)

    def close(self) -> None:
        """Forget the resident buffers; the orchestrator frees them."""
        self.resident.clear()


def _fitting(resource: str, given: int | None, needed: int) -> int:
    if given is None:
        return needed
    if given < needed:
        raise GraphOverflow(
            f"a step's {resource} needs {needed} B, but the slot's {resource} has {given} B; decode fewer "
            "prompts at once or give the slot more memory (--memory natural)"
        )
    return given
