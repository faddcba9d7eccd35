"""Drawing tokens on the host."""

import numpy as np
import pytest

from examples.qwen3.sampling import TopP

LOGITS = np.log(np.array([0.1, 0.4, 0.2, 0.3], np.float32))


def test_draws_follow_the_probabilities() -> None:
    """Over many positions each token comes as often as its probability says, at temperature 1 and at 2."""
    for temperature in (1.0, 2.0):
        sampler = TopP(temperature=temperature, seed=3)
        counts = np.bincount([sampler(LOGITS, position) for position in range(4000)], minlength=4)
        shares = np.exp(LOGITS / temperature)
        np.testing.assert_allclose(counts / 4000, shares / shares.sum(), atol=0.03)


def test_top_p_keeps_the_smallest_set_that_reaches_it() -> None:
    """Tokens outside of the set never come, those within all do; the largest alone is always in it."""
    for top_p, kept in ((0.3, {1}), (0.39, {1}), (0.5, {1, 3}), (0.69, {1, 3}), (0.8, {1, 2, 3}), (1.0, {0, 1, 2, 3})):
        sampler = TopP(top_p=top_p)
        assert {sampler(LOGITS, position) for position in range(300)} == kept


def test_a_draw_depends_on_seed_and_position_only() -> None:
    """Asked again, in another order, it is the same; with another seed the draws differ."""
    forwards = [TopP(seed=-5)(LOGITS, position) for position in range(50)]
    again = TopP(seed=-5)
    assert [again(LOGITS, position) for position in reversed(range(50))] == forwards[::-1]
    assert [TopP(seed=6)(LOGITS, position) for position in range(50)] != forwards


def test_a_tiny_temperature_gives_the_most_likely_token() -> None:
    """Nothing overflows, and nothing else is drawn."""
    assert {TopP(temperature=1e-300)(LOGITS, position) for position in range(50)} == {1}


@pytest.mark.parametrize(("temperature", "top_p"), [(0.0, 1.0), (float("nan"), 1.0), (1.0, 0.0), (1.0, 1.1)])
def test_values_that_cannot_be_are_refused(temperature: float, top_p: float) -> None:
    """The message has the value and its bounds."""
    with pytest.raises(ValueError, match=r"(temperature|top_p) is .*; it must be above 0"):
        TopP(temperature=temperature, top_p=top_p)
