"""The two programs of a `PagedModel`: what they build, launch, feed and collect."""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from async_orch import Built, Device, Slot, SlotSpec, StepProgram
from async_orch.abc import Buffer, ByteArray, Stream
from async_orch.graph import Executor
from examples.qwen3.paged_checks import check_decode, check_prefill
from examples.qwen3.paged_graph import DecodeGraphs, PagedGraphs, PrefillGraphs
from examples.qwen3.paged_shape import PagedShape
from examples.qwen3.paged_steps import (
    FROM_FEED,
    TILE,
    BatchOutput,
    DecodeBatch,
    DecodeRow,
    PrefillBatch,
    PrefillChunk,
    Sampler,
)

__all__ = ["Latest", "PagedDecode", "PagedPrefill", "PagedProgram"]

BatchT = TypeVar("BatchT", bound=DecodeBatch | PrefillBatch)


class Latest:
    """Each row's newest token on the host, and its position: what `FROM_FEED` gives."""

    def __init__(self, rows: int) -> None:
        self._tokens = [0] * rows
        self._positions = [-1] * rows

    def put(self, row: int, position: int, token: int) -> None:
        """A step chose a row's token at ``position``."""
        self._tokens[row], self._positions[row] = token, position

    def get(self, row: int, position: int) -> int:
        """The token at ``position``. Raises `ValueError` if the newest one is another."""
        if self._positions[row] != position:
            raise ValueError(
                f"row {row}: no token for position {position}, the newest one is for {self._positions[row]}; submit "
                "the step with after= the last step that the row was in"
            )
        return self._tokens[row]

    def forget(self) -> None:
        """No row has a token."""
        self._positions = [-1] * len(self._positions)


class Owner(Protocol):
    """What the programs share: a `PagedModel`."""

    shape: PagedShape
    resident: dict[str, Buffer]
    latest: Latest

    def open(self, device: Device) -> None: ...

    def close(self) -> None: ...


class _Sizes:
    """An owner without a model, in a worker process."""

    def __init__(self, shape: PagedShape) -> None:
        self.shape = shape
        self.resident: dict[str, Buffer] = {}
        self.latest = Latest(shape.max_batch)

    def open(self, device: Device) -> None:
        raise TypeError("a program of a worker process builds; it is opened in the process of its orchestrator")

    def close(self) -> None:
        pass


class PagedProgram(StepProgram[BatchT, BatchOutput], Generic[BatchT]):
    """What both programs have in common; see `paged` for their use."""

    def __init__(self, owner: Owner, *, keep_logits: bool = False) -> None:
        self.owner = owner
        self.keep_logits = keep_logits
        self.graphs = self.make_graphs(owner.shape)
        self._execute = Executor(self.graphs.table)
        self.slot = SlotSpec(
            image_nbytes=self._probe(),
            workspace_nbytes=self.graphs.region_nbytes["workspace"],
            output_nbytes=owner.shape.output_nbytes,
            feed_nbytes=self.graphs.region_nbytes.get("feed", 0),
            image_at="shared",
        )

    def __reduce__(self) -> tuple[Any, ...]:
        """For builds in worker processes: a program that can build, and nothing else."""
        return partial(type(self), keep_logits=self.keep_logits), (_Sizes(self.owner.shape),)

    @abstractmethod
    def make_graphs(self, shape: PagedShape) -> PagedGraphs[BatchT]:
        """What writes the steps' graphs."""

    @abstractmethod
    def largest(self) -> BatchT:
        """A step with the largest image."""

    @abstractmethod
    def outcomes(self, batch: BatchT) -> list[tuple[int, int, Sampler | None]]:
        """For each place in the step the row, the position of the token that it chooses or -1, and its sampler."""

    def _probe(self) -> int:
        batch = self.largest()
        return self.graphs.write(batch, self.graphs.scratch(), range(len(self.outcomes(batch))))

    def _returned(self, batch: BatchT) -> list[int]:
        """Places whose logits the host gets."""
        return [
            place
            for place, (_, position, sampler) in enumerate(self.outcomes(batch))
            if position >= 0 and (self.keep_logits or sampler is not None)
        ]

    def open(self, device: Device) -> None:
        """Load the model, if the other program has not had that done."""
        self.owner.open(device)

    def build(self, step: BatchT, image: ByteArray) -> Built:
        """Check the step and write its graph. Raises `ValueError` for a step that the model was not made for."""
        self.check(step)
        used = self.graphs.write(step, image, self._returned(step))
        return Built(used, sm_nbytes=used)

    @abstractmethod
    def check(self, batch: BatchT) -> None:
        """Raise `ValueError` for a step that the model was not made for."""

    def launch(self, step: BatchT, slot: Slot, stream: Stream) -> int:
        """Enqueue one kernel, which runs the graph, and record the fence behind it."""
        try:
            self.enqueue(step, slot, stream)
        finally:
            step.fence = stream.record()
        return self.output_nbytes(step)

    def enqueue(self, step: BatchT, slot: Slot, stream: Stream) -> None:
        """Launch the kernel."""
        stream.launch(self.run, slot.image, *self.memory(slot).values())

    def memory(self, slot: Slot) -> dict[str, Buffer]:
        """The graphs' regions, in their order: resident ones and the slot's."""
        resident = self.owner.resident
        return {name: resident[name] if name in resident else getattr(slot, name) for name in self.graphs.region_nbytes}

    def output_nbytes(self, step: BatchT) -> int:
        """Output that the host needs: tokens, and the logits returned."""
        return self.owner.shape.logits_offset + len(self._returned(step)) * self.owner.shape.logits_nbytes

    def run(self, image: ByteArray, *memory: ByteArray) -> None:
        """On the device: check and run the graph in ``image`` over the regions, in the graphs' order."""
        self._execute(image, memory)

    def collect(self, step: BatchT, output: ByteArray) -> BatchOutput:
        """Tokens and kept logits out of the output; tokens of rows with a sampler are chosen here."""
        shape, outcomes, returned = self.owner.shape, self.outcomes(step), self._returned(step)
        tokens = output[: 4 * len(outcomes)].view(np.int32).copy()
        start, vocab = shape.logits_offset, shape.config.vocab_size
        rows = output[start : start + len(returned) * shape.logits_nbytes].view(np.float32).reshape(-1, vocab)
        for place, logits in zip(returned, rows, strict=True):
            _, position, sampler = outcomes[place]
            if sampler is not None:
                tokens[place] = sampler(logits, position)
        for place, (row, position, _) in enumerate(outcomes):
            if position >= 0:
                self.owner.latest.put(row, position, int(tokens[place]))
        if not self.keep_logits:
            return BatchOutput(tokens, None)
        kept: npt.NDArray[np.float32] = np.zeros((len(outcomes), vocab), np.float32)
        kept[returned] = rows
        return BatchOutput(tokens, kept)

    def close(self) -> None:
        """Forget the resident memory."""
        self.owner.close()


class PagedPrefill(PagedProgram[PrefillBatch]):
    """Puts prompts into the cache, and chooses the first token after each."""

    def make_graphs(self, shape: PagedShape) -> PrefillGraphs:
        return PrefillGraphs(shape)

    def check(self, batch: PrefillBatch) -> None:
        check_prefill(self.owner.shape, batch)

    def largest(self) -> PrefillBatch:
        shape = self.owner.shape
        tiles, count = shape.max_prefill_tokens // TILE, shape.max_batch
        table = [0] * shape.table_width
        length = TILE * max(1, tiles - count + 1)
        first = PrefillChunk(0, shape.max_context - length, [0] * length, table)
        reach = [PrefillChunk(row, shape.max_context - 1, [0], table) for row in range(1, min(count, tiles))]
        return PrefillBatch([first, *reach])

    def outcomes(self, batch: PrefillBatch) -> list[tuple[int, int, Sampler | None]]:
        return [(c.row, c.start + len(c.tokens) if c.last else -1, c.sampler) for c in batch.chunks]


class PagedDecode(PagedProgram[DecodeBatch]):
    """Decodes one token of each of a batch of sequences."""

    def __init__(self, owner: Owner, *, keep_logits: bool = False) -> None:
        super().__init__(owner, keep_logits=keep_logits)
        self._fed: DecodeBatch | None = None

    def make_graphs(self, shape: PagedShape) -> DecodeGraphs:
        return DecodeGraphs(shape)

    def check(self, batch: DecodeBatch) -> None:
        check_decode(self.owner.shape, batch)

    def largest(self) -> DecodeBatch:
        shape = self.owner.shape
        table = [0] * shape.table_width
        return DecodeBatch([DecodeRow(row, shape.max_context - 1, table) for row in range(shape.max_batch)])

    def outcomes(self, batch: DecodeBatch) -> list[tuple[int, int, Sampler | None]]:
        return [(row.row, row.position + 1, row.sampler) for row in batch.rows]

    def feed(self, step: DecodeBatch, previous: Any, feed: ByteArray) -> int:
        """Bind the tokens that the host has chosen by now. Raises `ValueError` for one that it has not."""
        tokens = feed[: 4 * len(step.rows)].view(np.int32)
        for place, row in enumerate(step.rows):
            if row.token == FROM_FEED:
                tokens[place] = self.owner.latest.get(row.row, row.position)
        self._fed = step
        return tokens.nbytes

    def launch(self, step: DecodeBatch, slot: Slot, stream: Stream) -> int:
        fed, self._fed = self._fed, None
        if fed is not step and any(row.token == FROM_FEED for row in step.rows):
            raise ValueError("a row's token is FROM_FEED, but the step was submitted without after=")
        return super().launch(step, slot, stream)
