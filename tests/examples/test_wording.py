"""Words for people: what a terminal would obey is written out, a number agrees with its noun."""

import pytest

from examples.qwen3.wording import counted, one_line, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[31mred\x07", r"\x1b[31mred\x07"),
        ("\x9b31m \x7f \r", r"\x9b31m \x7f \r"),
        ("\u202etxt.exe", r"\u202etxt.exe"),
        ("name\udcff", r"name\udcff"),
        ("Zoë\tfox\n狐 👩\u200d🚀", "Zoë\tfox\n狐 👩\u200d🚀"),
    ],
)
def test_control_characters_are_written_out(text: str, shown: str) -> None:
    """Controls, half surrogates and reordering marks become escapes; letters, breaks, tabs and joiners stay."""
    assert visible(text) == shown


def test_one_line_has_neither_breaks_nor_controls() -> None:
    """A quoted value cannot begin a line of its own."""
    assert one_line("a\nb\x1b[1m\x0b c") == r"a b\x1b[1m c"


def test_numbers_agree_with_their_noun() -> None:
    """One is singular, all others plural, thousands are set apart."""
    assert [counted(n, "token") for n in (0, 1, 2, 1000)] == ["0 tokens", "1 token", "2 tokens", "1,000 tokens"]
