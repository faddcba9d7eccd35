"""Text and token ids: characters that are split over tokens, special tokens, files that do not fit."""

from pathlib import Path

import pytest
from tokenizers import Tokenizer, models

from examples.qwen3.config import ModelError
from examples.qwen3.tokenizer import GrowingText, TextCodec
from tests.examples.support import END_OF_TEXT, make_checkpoint

TEXT = "Zoë ate — “crème” 🦊!"


@pytest.fixture
def codec(tmp_path: Path) -> TextCodec:
    make_checkpoint(tmp_path)
    return TextCodec(tmp_path, 259)


def test_growing_text_never_shows_half_a_character(codec: TextCodec) -> None:
    """Fed byte by byte, each part that shows is whole characters, and together they are the text."""
    ids = codec.encode(TEXT)
    assert len(ids) == len(TEXT.encode())
    growing = GrowingText(codec)
    for index, token in enumerate(ids, 1):
        growing.push(token)
        shown = str(growing)
        assert TEXT.startswith(shown)
        assert "\ufffd" not in shown
        assert len(TEXT.encode()[:index]) - len(shown.encode()) < 4
    assert str(growing) == TEXT == codec.decode(ids)


def test_bytes_that_are_no_text_do_not_hold_later_text_back(codec: TextCodec) -> None:
    """A first byte without its rest shows as U+FFFD as soon as another character follows."""
    fox = codec.encode("🦊")
    growing = GrowingText(codec)
    assert growing.push(fox[0]) == ""
    assert growing.push(codec.encode("a")[0]) == "\ufffda"


def test_text_ends_at_a_stop_token(codec: TextCodec) -> None:
    """The stop token and what follows show nothing."""
    growing = GrowingText(codec, [END_OF_TEXT])
    for token in (*codec.encode("ab"), END_OF_TEXT, *codec.encode("c")):
        growing.push(token)
    assert str(growing) == "ab"
    assert growing.stopped


def test_special_and_unused_ids_show_nothing(codec: TextCodec) -> None:
    """Special tokens, and rows of the embedding without a token, have no bytes."""
    assert codec.token_bytes(END_OF_TEXT) == b""
    assert codec.token_bytes(258) == b""


def test_a_prompt_that_is_no_text_is_refused(codec: TextCodec) -> None:
    """Bytes of a command line that were no UTF-8 are refused, saying where."""
    with pytest.raises(ModelError, match="not valid UTF-8 at character 2"):
        codec.encode(b"a\xff".decode(errors="surrogateescape"))


def test_tokenizers_that_do_not_fit_are_refused(tmp_path: Path) -> None:
    """A broken file, a tokenizer that is not byte level, and one larger than the vocabulary are refused."""
    make_checkpoint(tmp_path)
    with pytest.raises(ModelError, match="has 257 tokens, more than the model's vocab_size 200"):
        TextCodec(tmp_path, 200)
    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(path))  # noqa: S106  no secret
    with pytest.raises(ModelError, match="decoder is None; this decoder needs 'ByteLevel'"):
        TextCodec(tmp_path, 259)
    path.write_text("{", encoding="utf-8")
    with pytest.raises(ModelError, match="cannot be read as a tokenizer"):
        TextCodec(tmp_path, 259)
