"""Choosing a token on the host: temperature, nucleus and seed."""

from __future__ import annotations

import math

import numpy as np

from examples.qwen3.kernels import F32

__all__ = ["TopP"]


class TopP:
    """Draws from the smallest set of tokens whose probabilities reach ``top_p``; a `paged_steps.Sampler`.

    A draw depends on the logits, the seed and the position only, so a sequence's tokens are the same whatever else is
    in its batch, and after a step had to be repeated. Source: Holtzman et al., The Curious Case of Neural Text
    Degeneration, 2020.

    Raises `ValueError` for a temperature that is not above 0 and for a ``top_p`` that is not above 0 and at most 1.
    """

    def __init__(self, *, temperature: float = 1.0, top_p: float = 1.0, seed: int = 0) -> None:
        if not (math.isfinite(temperature) and temperature > 0):
            raise ValueError(f"temperature is {temperature}; it must be above 0 (greedy rows have no sampler)")
        if not 0 < top_p <= 1:
            raise ValueError(f"top_p is {top_p}; it must be above 0 and at most 1")
        self._temperature = temperature
        self._top_p = top_p
        self._seed = seed % 2**64  # a generator takes no negative seed

    def __call__(self, logits: F32, position: int) -> int:
        """The token at ``position``, drawn from its logits [vocab]."""
        scaled = logits.astype(np.float64)
        scaled -= scaled.max()
        scaled /= self._temperature  # the largest is 0 by now, so a tiny temperature cannot overflow
        shares = np.exp(scaled)
        order = np.argsort(-shares, kind="stable")
        reached = np.cumsum(shares[order])
        kept = int(np.searchsorted(reached, self._top_p * reached[-1])) + 1
        limit = reached[min(kept, reached.size) - 1]
        draw = np.random.default_rng((self._seed, position)).random() * limit
        return int(order[np.searchsorted(reached, draw, side="right")])
