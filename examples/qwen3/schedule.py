"""Which tokens of which rows each decode step works on: known to the host before the first step runs."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from examples.qwen3.config import ModelError
from examples.qwen3.wording import counted

__all__ = ["FROM_DEVICE", "DecodeStep", "Schedule"]

FROM_DEVICE = -1
"""In `DecodeStep.forced`: take the token that the step before left on the device."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class DecodeStep:
    """One token for each of the `n` rows of the batch that still want one.

    Attributes
    ----------
    rows, positions:
        int32 [n]: the rows, and the position that each row's input token gets.
    forced:
        int32 [n]: a row's next token while it is inside its prompt, then `FROM_DEVICE`.
    generates:
        bool [n]: whether the token that the step chooses is one of the row's results; inside the prompt,
        before its last token, it is not, and the next step ignores it.
    """

    rows: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    forced: npt.NDArray[np.int32]
    generates: npt.NDArray[np.bool_]


class Schedule:
    """The steps that generate ``tokens`` tokens for each prompt.

    A prompt of length L takes L - 1 + tokens steps: its tokens go in one a step, the last of them yields the
    first result. Shorter prompts yield earlier; a row that has its results leaves the batch, so later steps
    are smaller. Nothing is padded.

    Raises `ModelError` if a prompt is empty, or if a prompt and its results do not fit ``max_positions``.
    """

    def __init__(self, prompts: Sequence[Sequence[int]], tokens: int, max_positions: int) -> None:
        if tokens < 1:
            raise ModelError(f"tokens must be at least 1, got {tokens}")
        if not prompts:
            raise ModelError("there is no prompt; give at least one")
        for number, prompt in enumerate(prompts, 1):
            if not prompt:
                raise ModelError(f"prompt {number} is empty; give it at least one character")
            if len(prompt) + tokens > max_positions:
                raise ModelError(
                    f"prompt {number} is too long: {counted(len(prompt), 'token')} and {tokens} to generate, but the "
                    f"model has {max_positions} positions; shorten it or ask for fewer tokens"
                )
        self.prompts = tuple(tuple(prompt) for prompt in prompts)
        self.tokens = tokens
        self._lengths = np.array([len(prompt) for prompt in prompts], dtype=np.int32)

    @property
    def batch(self) -> int:
        """Rows of the batch."""
        return len(self.prompts)

    @property
    def capacity(self) -> int:
        """Positions that the key-value cache needs for each row; also the number of steps."""
        return int(self._lengths.max()) - 1 + self.tokens

    def __len__(self) -> int:
        return self.capacity

    def __iter__(self) -> Iterator[DecodeStep]:
        for position in range(len(self)):
            rows = np.flatnonzero(position < self._lengths - 1 + self.tokens).astype(np.int32)
            forced = [self.prompts[row][position] if position < len(self.prompts[row]) else FROM_DEVICE for row in rows]
            yield DecodeStep(
                rows=rows,
                positions=np.full(len(rows), position, np.int32),
                forced=np.array(forced, np.int32),
                generates=position >= self._lengths[rows] - 1,
            )
