"""Lines read many at a time, by the template that one of them is, are what the JSON decoder reads in them."""

from __future__ import annotations

import io
import json
import random
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from async_orch.analysis import LogFrames, Scanner, StepFrame, _templates, read_frames
from async_orch.analysis._fields import FIGURE_FIELDS, KIND_FIELDS, OPTIONAL_FIGURES, Figures, figures_of
from async_orch.analysis._template import Template, record_of
from async_orch.analysis._templates import Templates
from async_orch.analysis._texts import MAX_TEXT_NBYTES
from async_orch.analysis._words import MAX_DIGITS, MAX_STRING_NBYTES
from async_orch.logs import encode_line, encode_lines
from tests.unit.step_records import step_record

decode = msgspec.json.Decoder(Figures).decode


def figure(chance: random.Random) -> int:
    """An integer of any number of digits up to 16."""
    return chance.randrange(10 ** chance.randint(1, 16))


def lines_of(chance: random.Random, count: int) -> list[bytes]:
    """Lines of two programs, with and without some of the figures, and with texts of the caller's."""
    names = [name for name in FIGURE_FIELDS if name.endswith(("_ns", "_nbytes")) and name != "bubble_ns"]
    lines = []
    for seq in range(count):
        figures = {name: figure(chance) for name in names if name != "staging_copy_ns"}
        figures |= {"seq": seq, "bubble_ns": chance.randint(-10_000, 10_000) or 1}
        if chance.random() < 0.2:
            figures["after"] = seq
        attrs = {"request": f"r{chance.randrange(999)}", "tokens": [chance.randrange(99), 7]}
        record = step_record(
            **figures,
            step_id=chance.choice([f"step {seq}", seq]),
            program=chance.choice(["prefill", "decode", "decode"]),
            timestamp=f"2026-08-04T10:{chance.randrange(60):02}:00.{chance.randrange(10**6):06}Z",
            attrs=chance.choice([None, attrs]),
        )
        lines.append(encode_line(record))
    return lines


def check(block: bytes, templates: Templates) -> int:
    """Compare what is taken of a block with what the decoder says of each line; give how many lines are taken."""
    rows = templates.read(block)
    lines = block.splitlines(keepends=True)
    assert [line[-1:] for line in lines] == [b"\n"] * len(lines)
    assert (rows.ends + 1).tolist() == np.cumsum([len(line) for line in lines]).tolist()
    taken = np.flatnonzero(rows.taken).tolist()
    assert rows.columns.shape == (len(FIGURE_FIELDS), len(taken))
    for row, number in enumerate(taken):
        record: Any = decode(lines[number])  # raises if it is none
        sample = rows.samples[rows.kinds[row]]
        assert all(getattr(record, name) == getattr(sample, name) for name in KIND_FIELDS)
        assert rows.columns[:, row].tolist() == figures_of(record)
    return len(taken)


def damaged(chance: random.Random, line: bytes) -> bytes:
    """A line in which something is changed, added or left out, without a line end more or less."""
    body = bytearray(line[:-1])
    for _ in range(chance.randint(1, 3)):
        place = chance.randrange(len(body))
        piece = bytes(chance.choices(b'0123456789-+.,:{}[]"\\ aen\x00\x1f\x7f\xc3\xa9', k=chance.randint(1, 4)))
        match chance.randrange(4):
            case 0:
                body[place : place + len(piece)] = piece
            case 1:
                body[place:place] = piece
            case 2:
                del body[place : place + chance.randint(1, 30)]
            case _:
                other = chance.randrange(len(body))
                body[place : place + 9] = body[other : other + 9]
        body = body or bytearray(b"x")
    return bytes(body).replace(b"\n", b"") + b"\n"


@pytest.mark.parametrize("seed", range(12))
def test_what_is_taken_is_what_the_decoder_reads(seed: int) -> None:
    """Of lines good and damaged, those that are taken are good, with the decoder's figures and texts."""
    chance = random.Random(seed)
    templates = Templates()
    for _ in range(3):
        lines = lines_of(chance, 400)
        share = chance.choice([0.0, 0.02, 0.3])
        block = b"".join(damaged(chance, line) if chance.random() < share else line for line in lines)
        check(block, templates)


def test_good_lines_are_taken() -> None:
    """Lines of one program that differ in figures, times and ids are all taken, the first of them too."""
    chance = random.Random(1)
    records = [
        step_record(seq=seq, step_id=f"s{seq}", build_ns=figure(chance), bubble_ns=seq - 200 or 1, attrs={"n": seq})
        for seq in range(400)
    ]
    assert check(encode_lines(records), Templates()) == 400


def test_lines_of_two_kinds_are_taken_in_their_places() -> None:
    """Where two templates share a block, and one had the block before to itself, each gives its own lines' figures."""
    lines = [
        encode_line(step_record(seq=seq, program="pd"[seq % 2] * (1 + seq % 2), build_ns=seq * 7)) for seq in range(400)
    ]
    templates = Templates()
    assert check(b"".join(lines[::2]), templates) == 200
    for _ in range(3):
        assert check(b"".join(lines), templates) == 400
    assert check(b"".join(lines[1::2]), templates) == 200


@pytest.mark.parametrize(
    ("plain", "other"),
    [
        (b'"ab"', b'"a\\n"'),
        (b'"bubble_ns":7', b'"bubble_ns":-0'),
        (b'"build_ns":3678950', b'"build_ns":3678950,"build_ns":1'),
        (b'"build_ns":3678950', b'"build_ns":"3678950"'),
        (b'"ab"', b'"' + b"a" * MAX_TEXT_NBYTES + b'"'),
    ],
    ids=["an escape", "minus zero", "a key twice", "no record", "a long line"],
)
def test_a_line_that_is_not_understood_makes_no_template(plain: bytes, other: bytes) -> None:
    """A line makes a template only if what is read by it is, for the line itself, what the decoder reads."""
    text = "a text, of no figure's, that is longer than those that may differ"
    attrs = {"build_ns": 5, "of": {"seq": [1, -2]}, "text": text}
    line = encode_line(step_record(step_id="ab", build_ns=3678950, bubble_ns=7, attrs=attrs))
    assert Template.of(line) is not None
    assert line.count(plain) == 1
    assert Template.of(line.replace(plain, other)) is None


def test_a_line_that_makes_no_template_does_not_keep_others_from_it() -> None:
    """Noise in front of good lines is left to the decoder, and all of those are taken."""
    lines = [encode_line(step_record(seq=seq)) for seq in range(100)]
    assert check(b"noise\n" + b"".join(lines), Templates()) == 100


def test_the_templates_that_fit_most_lines_are_kept() -> None:
    """Of six programs' templates the four that took most lines of the last block are known, the first of them first."""
    lines = [encode_line(step_record(program=f"p{number}")) * (60 + 20 * number) for number in range(6)]
    templates = Templates()
    for _ in range(3):
        templates.read(b"".join(lines))
    assert [template.sample.program for template in templates._known] == ["p5", "p4", "p3", "p2"]


def test_lines_that_are_taken_one_by_one_are_not_worth_it() -> None:
    """Steps that take turns with something else are decoded as fast; a few such lines make no difference."""
    step = encode_line(step_record())
    templates = Templates()
    assert not templates.read((step + b"noise\n") * 200).is_worth_it
    assert templates.read(((step * 30) + b"noise\n") * 10).is_worth_it
    assert not templates.read(step * 90 + b"noise\n" * 110).is_worth_it


EDITS: dict[str, Callable[[bytes], bytes]] = {
    "a 0 in front": lambda line: line.replace(b'"build_ns":', b'"build_ns":0'),
    "a sign": lambda line: line.replace(b'"build_ns":', b'"build_ns":-'),
    "a plus": lambda line: line.replace(b'"build_ns":', b'"build_ns":+'),
    "a fraction": lambda line: line.replace(b',"acquire_start_ns"', b'.5,"acquire_start_ns"'),
    "an exponent": lambda line: line.replace(b',"acquire_start_ns"', b'e1,"acquire_start_ns"'),
    "nothing": lambda line: line.replace(b'"build_ns":3678950', b'"build_ns":'),
    "null where a figure must be": lambda line: re.sub(rb'"seq":\d+', b'"seq":null', line),
    "half a null": lambda line: line.replace(b'"build_ns":3678950', b'"build_ns":nul'),
    "more than null": lambda line: line.replace(b'"build_ns":3678950', b'"build_ns":nulls'),
    "another null": lambda line: line.replace(b'"build_ns":3678950', b'"build_ns":nuLL'),
    "no attributes": lambda line: line.replace(b'"attrs":null', b'"attrs":'),
    "attributes that do not end": lambda line: line.replace(b'"attrs":null', b'"attrs":{"a":[1,2}'),
    "attributes with something behind": lambda line: line.replace(b'"attrs":null', b'"attrs":{},1'),
    "attributes and a figure twice": lambda line: line.replace(b'"attrs":null', b'"attrs":1,"seq":5'),
    "attributes with a control character": lambda line: line.replace(b'"attrs":null', b'"attrs":"\x01"'),
    "a text": lambda line: line.replace(b'"build_ns":3678950', b'"build_ns":"3678950"'),
    "a letter among digits": lambda line: line.replace(b"3678950", b"36789S0"),
    "a byte beyond ASCII": lambda line: line.replace(b"3678950", b"3678\xb950"),
    "a byte far beyond ASCII": lambda line: line.replace(b"3678950", b"3678\xf050"),
    "more digits than fit": lambda line: line.replace(b"3678950", b"9" * (MAX_DIGITS + 1)),
    "minus nothing": lambda line: line.replace(b'"bubble_ns":7', b'"bubble_ns":-'),
    "minus zero": lambda line: line.replace(b'"bubble_ns":7', b'"bubble_ns":-0'),
    "another key": lambda line: line.replace(b'"h2d_ns"', b'"h3d_ns"'),
    "a key less": lambda line: line.replace(b'"build_ns":3678950,', b""),
    "a key twice": lambda line: line.replace(b'"build_ns":3678950', b'"build_ns":3678950,"build_ns":1'),
    "a space": lambda line: line.replace(b'"build_ns":', b'"build_ns": '),
    "a quote in a text": lambda line: line.replace(b'"ab"', b'"a"b"'),
    "an escape in a text": lambda line: line.replace(b'"ab"', b'"a\\n"'),
    "a control character in a text": lambda line: line.replace(b'"ab"', b'"a\x01"'),
    "a comma in a text": lambda line: line.replace(b'"ab"', b'"a,b"'),
    "a text beyond ASCII": lambda line: line.replace(b'"ab"', '"\u00e9"'.encode()),
    "a long text": lambda line: line.replace(b'"ab"', b'"' + b"a" * (MAX_STRING_NBYTES + 1) + b'"'),
    "another process": lambda line: line.replace(b'"pid":4242', b'"pid":4243'),
    "another schema": lambda line: line.replace(b'"schema":', b'"schema":1'),
    "another event": lambda line: line.replace(b"step.completed", b"step.cancelled"),
    "something behind it": lambda line: line.replace(b"}\n", b"}}\n"),
    "a carriage return": lambda line: line.replace(b"\n", b"\r\n"),
    "cut off": lambda line: line[:-200] + b"\n",
    "empty": lambda line: b"\n",
}


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("place", [0, 100, 199])
def test_whatever_differs_in_more_than_figures_is_left_to_the_decoder(
    edit: str, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line among others that is edited fits no template, wherever it stands; it is taken if it can be decoded."""
    lines = [encode_line(step_record(seq=seq, step_id="ab", build_ns=3678950, bubble_ns=7)) for seq in range(200)]
    templates = Templates()
    check(b"".join(lines), templates)
    edited = EDITS[edit](lines[place])
    assert edited != lines[place]
    lines[place] = edited
    block = b"".join(lines)
    assert check(block, templates) == 199 + (record_of(edited) is not None)
    monkeypatch.setattr(_templates, "_LEAST_TAKEN_TO_ONE_LEFT", 1000)
    assert check(block, templates) == 199
    assert not templates.read(block).taken[place]


ATTRS: list[Any] = [
    None,
    {},
    [],
    7,
    "a",
    {"requests": ["r1", "r,2"]},
    {"x": ',"after":1,"slot":2'},
    {"a": [1.5, {"after": None}]},
]


@pytest.mark.parametrize("first", ATTRS)
def test_attributes_and_figures_that_are_missing_make_no_other_form(first: Any) -> None:
    """Lines with any attributes, and with or without any figure that may be missing, share the template of one."""
    chance = random.Random(2)
    optional = sorted(OPTIONAL_FIGURES)
    whole = {name: figure(chance) for name in optional}
    lines = [encode_line(step_record(seq=0, attrs=first, **whole))]
    for seq in range(1, 300):
        figures = {name: None if chance.random() < 0.1 else figure(chance) for name in optional}
        lines.append(encode_line(step_record(seq=seq, attrs=chance.choice(ATTRS), **figures)))
    templates = Templates()
    assert check(b"".join(lines), templates) == 300
    assert len(templates._known) == 1


def fed(text: bytes, nbytes: int) -> LogFrames:
    scanner = Scanner()
    for start in range(0, len(text), nbytes):
        scanner.feed(text[start : start + nbytes])
    scanner.end()
    return scanner.frames()


@pytest.mark.parametrize("seed", range(4))
def test_frames_are_the_same_with_and_without_templates(seed: int) -> None:
    """A log of two megabytes with strangers in it gives the same rows, order and counts in small and large pieces."""
    chance = random.Random(seed)
    lines = lines_of(chance, 1800)
    strangers = [
        b"noise\n",
        b'{"event":"ring.grown","run_id":"run-a"}\n',
        b'{"event":"step.completed","schema":1}\n',
        b"\n",
    ]
    for _ in range(chance.choice([0, 3, 300])):
        lines.insert(chance.randrange(len(lines)), chance.choice(strangers))
    text = b"".join(lines)
    small, large, whole = fed(text, 50_000), fed(text, len(text)), read_frames(io.BytesIO(text))
    for other in (large, whole):
        assert other.reading == small.reading
        assert [other.steps.kinds[kind] for kind in other.steps.kind] == [
            small.steps.kinds[kind] for kind in small.steps.kind
        ]
        for name in StepFrame([], []):
            assert other.steps.column(name).tolist() == small.steps.column(name).tolist()


def other_writers_lines(separators: tuple[str, str], count: int) -> list[bytes]:
    """Keys in another order, fields of schema 1 only, keys that we do not know, and other spaces between them."""
    chance = random.Random(3)
    lines = []
    for line in lines_of(chance, count):
        record = json.loads(line)
        del record["staging_copy_ns"], record["delta_ns"], record["after"]
        record |= {"schema": 1, "after": None, "attrs": None, "program": "p", "step_id": 1, "logger": "x"}
        lines.append(json.dumps(dict(sorted(record.items())), separators=separators).encode() + b"\n")
    return lines


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": "), (" , ", " : "), (",", "\t:")])
def test_records_of_other_writers_are_taken_too(separators: tuple[str, str]) -> None:
    """Whatever order and spaces a writer has, its lines make templates, and the figures are the decoder's."""
    assert check(b"".join(other_writers_lines(separators, 300)), Templates()) == 300


@pytest.mark.parametrize(
    ("compact", "other"),
    [
        (b'"device_ns":', b'"device_ns" : '),
        (b',"device_start_ns"', b' ,"device_start_ns"'),
        (b"}\n", b" }\n"),
        (b'"device_ns":', b'"device_ns": '),
        (b"{", b"{ "),
        (b'"logger"', b'"device_ns":5,"logger"'),
        (b'"logger"', b'"device_ns":null,"logger"'),
        (b'"bubble_ns":', b'"device_ns":5,"bubble_ns": '),
        (b'"logger":"x"', b'"logger":{"device_ns":7,"a":["b",-1,{"seq":1.5}]}'),
        (b'"logger":"x"', b'"logger":[]'),
        (b'"logger"', b'"log\\u0067er"'),
    ],
)
def test_a_writer_with_one_oddity_is_read_as_the_decoder_does(compact: bytes, other: bytes) -> None:
    """Lines that all have a space, a key twice or something nested in one place are taken right, or not at all."""
    lines = [line.replace(compact, other) for line in other_writers_lines((",", ":"), 300)]
    assert all(other in line for line in lines)
    check(b"".join(lines), Templates())


def test_a_template_that_fits_nothing_any_more_is_forgotten() -> None:
    """A log of a hundred runs, one after the other, keeps few templates, and takes the lines of each."""
    templates = Templates()
    for run in range(100):
        block = encode_lines([step_record(run_id=f"run-{run}", seq=seq) for seq in range(100)])
        assert templates.read(block).taken.all()
    assert len(templates._known) <= 4


@pytest.mark.parametrize("nbytes", [700, 50_000, 1 << 20])
def test_of_two_records_of_a_step_the_first_counts_however_the_bytes_come(nbytes: int) -> None:
    """A record behind a prefix stands where it stood in the log, before a later one that has a line to itself."""
    first = b"[worker 3] " + encode_line(step_record(seq=0, build_ns=1000))
    between = encode_lines([step_record(seq=seq) for seq in range(1, 400)])
    frames = fed(b"start\n" + first + between + b"noise\n" + encode_line(step_record(seq=0, build_ns=999)), nbytes)
    assert frames.steps.column("seq").tolist() == list(range(400))
    assert frames.steps.column("build_ns")[0] == 1000
    assert frames.reading.skipped == {"foreign": 2, "duplicate": 1}


def test_records_that_are_added_between_lines_stay_between_them() -> None:
    """A record that was read already stands in front of the lines that are fed after it, read by templates or not."""
    steps = [step_record(seq=seq) for seq in range(400)]
    scanner = Scanner()
    scanner.feed(encode_lines(steps[:1]))
    scanner.add(steps[1:2])
    scanner.feed(encode_lines(steps[2:]))
    assert scanner.frames().steps.column("seq").tolist() == list(range(400))


@pytest.mark.parametrize("nbytes", [100, 1 << 20])
def test_what_is_read_of_a_line_does_not_depend_on_its_neighbours(nbytes: int) -> None:
    """A record that is broken over two lines is torn, also where the next line makes up for it with two."""
    one, two, three = (encode_line(step_record(seq=seq)) for seq in range(3))
    broken = one.replace(b',"seq"', b'\n,"seq"')
    frames = fed(two + broken + two[:-1] + three, nbytes)
    assert frames.steps.column("seq").tolist() == [1, 2]
    assert frames.reading.skipped == {"torn": 1, "foreign": 1, "duplicate": 1}
    spaced = b"".join(b" " + line for line in other_writers_lines((",", ":"), 50))
    assert fed(spaced, nbytes).reading.skipped == fed(spaced + b"noise\n", nbytes).reading.skipped | {"foreign": 50}


def test_a_log_that_templates_do_not_suit_is_tried_less_and_less_often() -> None:
    """Of blocks of a hundred programs between each other one in 65 is tried in the end; later ones of one are taken."""
    templates = Templates()
    mixed = encode_lines([step_record(seq=seq, program=f"p{seq % 100}") for seq in range(300)])
    assert [templates.try_block(mixed) for _ in range(132)] == [None] * 132
    assert templates._not_worth_it == 6
    assert [templates.try_block(mixed) for _ in range(2 * 65)] == [None] * 130
    assert templates._not_worth_it == 8
    plain = encode_lines([step_record(seq=seq) for seq in range(300)])
    tried = [templates.try_block(plain) is not None for _ in range(100)]
    assert tried == sorted(tried)
    assert tried[-1]
    assert templates.try_block(mixed) is None
    assert [templates.try_block(plain) is not None for _ in range(3)] == [False, False, True]


def test_a_block_of_short_lines_costs_no_memory() -> None:
    """A megabyte of line ends is not tried: columns for a million lines would take half a gigabyte."""
    templates = Templates()
    rows = templates.read(b"\n" * (1 << 20))
    assert len(rows.taken) == 1 << 20
    assert not rows.taken.any()
    assert not rows.is_worth_it
    assert templates._columns.shape[1] == 0
    assert fed(b"x\n" * (1 << 18), 1 << 19).reading.skipped == {"foreign": 1 << 18}
