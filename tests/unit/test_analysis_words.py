"""Integers, strings and texts at many places of a text at once are what a look at each place finds."""

from __future__ import annotations

import random

import numpy as np
import pytest

from async_orch.analysis._texts import MAX_TEXT_NBYTES, PIECE_NBYTES, Texts
from async_orch.analysis._words import MAX_DIGITS, MAX_STRING_NBYTES, Text


@pytest.mark.parametrize("digits", range(1, MAX_DIGITS + 1))
def test_integers_of_every_width(digits: int) -> None:
    """An integer is read at every distance from a word's start, up to the first and the last byte of the text."""
    value = int("918273645546372819"[:digits])
    for before in range(9):
        line = b"x" * before + str(value).encode()
        text = Text()
        text.load(line)
        values, good = text.integers(np.array([[before]]), np.array([[len(line)]]))
        assert good.all()
        assert values.tolist() == [[value]]
        _, good = text.integers(np.array([[before - 1], [before]]), np.array([[len(line)], [len(line) + 1]]))
        assert not good.any()


@pytest.mark.parametrize("odd", [b'"', b"\\", b"\x00", b"\x1f", b"\x80", b"\xff"])
def test_a_string_is_plain_to_its_last_byte(odd: bytes) -> None:
    """A byte that a string cannot have as it is is seen at any place inside it, and not looked at behind it."""
    for nbytes in range(MAX_STRING_NBYTES + 1):
        text = Text()
        text.load(b" ~!#[]az" * 4 + odd)
        start = np.array([[MAX_STRING_NBYTES - nbytes]])
        assert text.plain_strings(start, start + nbytes).tolist() == [[True]]
        for place in range(nbytes):
            text.load(b"a" * place + odd + b"a" * (MAX_STRING_NBYTES - place))
            assert text.plain_strings(np.array([[0]]), np.array([[nbytes]])).tolist() == [[False]]


@pytest.mark.parametrize("lengths", [(10, 8), (16, 17), (32, 1), (64, 65), (150, 128)])
def test_texts_are_compared_to_their_last_byte(lengths: tuple[int, int]) -> None:
    """Two texts of any length are found where both stand; another byte anywhere in one, and they are not."""
    texts = [bytes(random.Random(length).choices(b"abcdefgh", k=length)) for length in lengths]
    wanted = Texts(texts)
    line = b"-" + b"-".join(texts) + b"-"
    places = np.array([[1], [lengths[0] + 2]])
    for number in range(len(line)):
        text = Text()
        text.load(line[:number] + b"*" + line[number + 1 :])
        inside = line[number : number + 1] != b"-"
        assert text.equals(places, wanted).tolist() == [not inside]


def test_places_outside_a_text_may_be_looked_at() -> None:
    """Where a line is not what it was taken for, places as far outside as a text is long find nothing there."""
    text = Text()
    text.load(b"7")
    outside = np.array([[-MAX_TEXT_NBYTES, -1, 1, 1 + MAX_TEXT_NBYTES]])
    assert not text.equals(outside, Texts([b"7" * PIECE_NBYTES])).any()
    assert not text.equals(outside[:, :-1], Texts([b"7" * MAX_TEXT_NBYTES])).any()
    assert not text.integers(outside, np.full((1, 4), 1))[1].any()
    assert not text.integers(np.full((1, 4), 1), outside)[1].any()
    assert text.plain_strings(outside, outside - 1).tolist() == [[False] * 4]
    assert text.plain_strings(outside, outside + MAX_STRING_NBYTES + 1).tolist() == [[False] * 4]


def test_a_zero_stands_outside_every_text() -> None:
    """It can be read in place of what is no integer, whatever text is held."""
    text = Text()
    for line in (b"7", b"null" * 9, b"12345678", b"x" * 30_000, b"7"):
        text.load(line)
        start, end = text.zero
        values, good = text.integers(np.array([[start], [0]]), np.array([[end], [1]]))
        assert values[0] == [0]
        assert good.tolist() == [line[:1].isdigit()]


@pytest.mark.parametrize("before", range(9))
def test_null_is_found_as_a_whole_only(before: int) -> None:
    """Neither a part of it nor what is longer or alike is ``null``, wherever it begins."""
    text = Text()
    for word in (b"null", b"nul", b"nulls", b"Null", b"nulL", b"mull", b"123", b""):
        text.load(b"x" * before + word)
        found = text.are_null(np.array([[before]]), np.array([[before + len(word)]]))
        assert found.tolist() == [[word == b"null"]]
    text.load(b"x" * before + b"null")
    assert not text.are_null(np.array([before, before + 1]), np.array([before + 3, before + 4])).any()
