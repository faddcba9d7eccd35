"""Text up to a stop string, whatever pieces it comes in."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from examples.serve.text import OutputText
from tests.serve.hash_model import Characters

ALPHABET = st.sampled_from("ab")


def given_out(text: str, stop: list[str]) -> tuple[str, bool]:
    """What comes out when the text goes in by one character a token."""
    output = OutputText(Characters(), stop)
    out = "".join(output.push(token) for token in Characters().encode(text))
    return out + output.rest(), output.stopped


@given(text=st.text(ALPHABET, max_size=30), stop=st.lists(st.text(ALPHABET, min_size=1, max_size=4), max_size=4))
def test_text_ends_before_the_first_stop_string(text: str, stop: list[str]) -> None:
    """As searching the whole text at each step finds it: the earliest end of a stop string decides."""
    ends = [(text.find(each) + len(each), text.find(each)) for each in stop if each in text]
    wanted = text[: min(start for end, start in ends if end == min(ends)[0])] if ends else text
    assert given_out(text, stop) == (wanted, bool(ends))


def test_what_may_be_a_stop_string_is_held_back_and_then_given_out() -> None:
    """No character of a stop string is ever shown, and none is lost when it turns out to be something else."""
    output = OutputText(Characters(), ["END"])
    tokens = Characters().encode("an EN or END!")
    assert [output.push(token) for token in tokens] == ["a", "n", " ", "", "", "EN ", "o", "r", " ", "", "", "", ""]
    assert output.stopped


def test_a_stop_token_gives_out_what_was_held_back() -> None:
    """The text ended by itself: what looked like a stop string was none."""
    output = OutputText(Characters(), ["END"])
    assert [output.push(token) for token in [*Characters().encode("EN"), 0]] == ["", "", "EN"]
    assert output.stopped
