"""Graphs of replays against an obvious builder: plain recursion that writes every kernel call out."""

from __future__ import annotations

import os
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from hypothesis import given, reject, settings
from hypothesis import strategies as st

from async_orch._graph_format import FANIN, TASK
from async_orch.graph import (
    Definition,
    Executor,
    GraphBuilder,
    GraphError,
    KernelTable,
    Operand,
    Parameter,
    Recorder,
    TensorPlace,
    unroll,
)
from tests.graph_support import Bytes, pool

EXAMPLES = 2000 if os.environ.get("ASYNC_ORCH_PROOFS") == "full" else 100
WIDTH = 4
REGION_NBYTES = 6 * WIDTH
KERNELS = ("mix", "more")
Call = tuple[str, tuple[TensorPlace | int, ...]]


@dataclass(frozen=True)
class Spot:
    """Bytes of a tensor: of a region (base "a" or "b"), or of the parameter with that number."""

    base: str | int
    offset: int
    length: int


@dataclass(frozen=True)
class Item:
    """A kernel call, or, with an int in `kernel`, a replay of the Definition with that number."""

    kernel: str | int
    spots: tuple[Spot, ...]
    number: int


@dataclass(frozen=True)
class Piece:
    """A Definition: `n_parameters` tensors of `WIDTH` bytes and one int, and what it does with them."""

    n_parameters: int
    items: tuple[Item, ...]


@st.composite
def programs(draw: st.DrawFn) -> tuple[list[Piece], list[Item]]:
    """Up to three Definitions, later ones with replays of earlier ones, and a graph of calls and replays."""
    pieces: list[Piece] = []
    choose: Any = draw  # its type is of one strategy's values only

    def items(n_parameters: int, most: int) -> list[Item]:
        made: list[Item] = []
        for _ in range(choose(st.integers(0, most))):
            number = choose(st.integers(0, 9))
            if pieces and choose(st.booleans()):
                which = choose(st.integers(0, len(pieces) - 1))
                made.append(
                    Item(which, tuple(spot(n_parameters, WIDTH) for _ in range(pieces[which].n_parameters)), number)
                )
            else:
                made.append(Item(choose(st.sampled_from(KERNELS)), tuple(spot(n_parameters) for _ in range(2)), number))
        return made

    def spot(n_parameters: int, length: int | None = None) -> Spot:
        base = choose(st.sampled_from(("a", "b", *range(n_parameters))))
        size = REGION_NBYTES if isinstance(base, str) else WIDTH
        wanted = choose(st.integers(1, WIDTH)) if length is None else length
        return Spot(base, choose(st.integers(0, size - wanted)), wanted)

    for _ in range(choose(st.integers(0, 3))):
        count = choose(st.integers(0, 3))
        pieces.append(Piece(count, tuple(items(count, 4))))
    return pieces, items(0, 6)


class Inlining:
    """A builder whose replays are inlined."""

    def __init__(self, builder: GraphBuilder) -> None:
        self.task = builder.task
        self.replay = builder.inline


def make_table() -> KernelTable:
    table = KernelTable()

    def mix(source: Bytes, number: int, out: Bytes) -> None:
        out[:] = np.resize(source, out.size) * 3 + out + number

    def more(source: Bytes, number: int, out: Bytes) -> None:
        out[:] = np.resize(source, out.size) + 5 * number

    table.add("mix", mix, outputs=(2,))
    table.add("more", more, outputs=(2,))
    return table


def add_items(
    target: Any,
    builder: GraphBuilder,
    recorded: list[Definition],
    items: tuple[Item, ...] | list[Item],
    parameters: list[Parameter],
    number: Parameter | None,
) -> None:
    def operand(spot: Spot) -> Operand | Parameter:
        if isinstance(spot.base, str):
            return builder.tensor(spot.base, spot.offset, (spot.length,), np.uint8)
        part: Parameter = target.part(parameters[spot.base], spot.offset, (spot.length,))
        return part

    for item in items:
        spots = [operand(spot) for spot in item.spots]
        given = number if number is not None and item.number == 0 else item.number
        if isinstance(item.kernel, str):
            target.task(item.kernel, spots[0], given, spots[1])
        else:
            target.replay(recorded[item.kernel], [*spots, given])


def build(builder: GraphBuilder, pieces: list[Piece], items: list[Item], image: Bytes, *, inline: bool = False) -> int:
    """Record the Definitions and write the graph; bytes used."""
    recorded: list[Definition] = []
    for index, piece in enumerate(pieces):

        def function(recorder: Recorder, piece: Piece = piece) -> None:
            parameters = [recorder.parameter(f"p{i}", (WIDTH,), np.uint8) for i in range(piece.n_parameters)]
            add_items(recorder, builder, recorded, piece.items, parameters, recorder.number("number", int))

        recorded.append(builder.record(f"piece{index}", function))
    builder.reset(image)
    add_items(Inlining(builder) if inline else builder, builder, recorded, items, [], None)
    return builder.finish()


def check_inlined(
    builder: GraphBuilder, pieces: list[Piece], items: list[Item], expected: list[tuple[int, Call]], table: KernelTable
) -> None:
    """Written out by `inline`, the calls are the same, and they wait for exactly those that they share bytes with."""
    if any(isinstance(item.kernel, int) for piece in pieces for item in piece.items):
        return  # inline() takes Definitions without replays
    image = np.zeros(1 << 16, np.uint8)
    build(builder, pieces, items, image, inline=True)
    calls = unroll(image, table)
    assert [(call.kernel, call.args) for call in calls] == [call for _, call in expected]
    sharing: list[set[int]] = [set() for _ in expected]
    for (first, (_, early)), (second, (_, late)) in combinations(enumerate(expected), 2):
        if conflict(early, late):
            sharing[second].add(first)
    assert closure([set(call.after) for call in calls]) == closure(sharing)


def obvious(pieces: list[Piece], items: list[Item]) -> list[tuple[int, Call]]:
    """Every kernel call in order, with the task of the graph that it comes from."""
    calls: list[tuple[int, Call]] = []

    def write(item: Item, origin: int, bound: list[TensorPlace], number: int | None) -> None:
        places = []
        for spot in item.spots:
            if isinstance(spot.base, str):
                places.append(TensorPlace(spot.base, spot.offset, (spot.length,), "uint8"))
            else:
                whole = bound[spot.base]
                places.append(TensorPlace(whole.region, whole.offset + spot.offset, (spot.length,), "uint8"))
        given = number if number is not None and item.number == 0 else item.number
        if isinstance(item.kernel, str):
            calls.append((origin, (item.kernel, (places[0], given, places[1]))))
        else:
            for inner in pieces[item.kernel].items:
                write(inner, origin, places, given)

    for origin, item in enumerate(items):
        write(item, origin, [], None)
    return calls


def conflict(first: Call, second: Call) -> bool:
    """Whether two calls touch a byte that one of them writes."""

    def touched(call: Call) -> list[tuple[str, set[int], bool]]:
        return [
            (arg.region, set(range(arg.offset, arg.offset + arg.shape[0])), position == 2)
            for position, arg in enumerate(call[1])
            if isinstance(arg, TensorPlace)
        ]

    return any(
        region == other and bool(here & there) and (written or other_written)
        for region, here, written in touched(first)
        for other, there, other_written in touched(second)
    )


def closure(fanins: list[set[int]]) -> list[set[int]]:
    before: list[set[int]] = []
    for fanin in fanins:
        before.append(fanin.union(*(before[task] for task in fanin)))
    return before


def run_plainly(calls: list[tuple[int, Call]], memory: dict[str, Bytes], table: KernelTable) -> None:
    for _, (kernel, args) in calls:
        values = [
            memory[arg.region][arg.offset : arg.offset + arg.shape[0]] if isinstance(arg, TensorPlace) else arg
            for arg in args
        ]
        table.by_name[kernel].function(*values)


def fresh_memory() -> dict[str, Bytes]:
    return {name: np.arange(REGION_NBYTES, dtype=np.uint8) + ord(name) for name in ("a", "b")}


@given(programs(), st.booleans())
@settings(max_examples=EXAMPLES, deadline=None)
def test_replays_are_the_calls_of_the_obvious_builder(program: tuple[list[Piece], list[Item]], placed: bool) -> None:
    """Unrolled, executed and ordered, a graph of replays is the graph that plain recursion writes out.

    Calls that share bytes keep their order, and tasks of the graph wait for exactly those that they share bytes with.
    """
    pieces, items = program
    table = make_table()
    builder = GraphBuilder(None, table, {"a": REGION_NBYTES, "b": REGION_NBYTES}, infer=True)
    image = np.zeros(1 << 14, np.uint8)
    try:
        build(builder, pieces, items, image)
        definitions = builder.place_definitions() if placed else None
        build(builder, pieces, items, image)
    except GraphError as error:
        if "share bytes" not in str(error):
            raise
        reject()
    expected = obvious(pieces, items)
    found = unroll(image, table, definitions=definitions)
    assert [(call.origin, (call.kernel, call.args)) for call in found] == expected

    before = closure([set(call.after) for call in found])
    for (first, (_, early)), (second, (_, late)) in combinations(enumerate(expected), 2):
        assert first in before[second] or not conflict(early, late)
    check_inlined(builder, pieces, items, expected, table)
    rows, fanin = pool(image, 2, TASK), pool(image, 3, FANIN).tolist()
    waits = [set(fanin[row["fanin_start"] : row["fanin_start"] + row["fanin_count"]]) for row in rows]
    sharing: list[set[int]] = [set() for _ in items]
    for (origin, early), (other, late) in combinations(expected, 2):
        if origin != other and conflict(early, late):
            sharing[other].add(origin)
    assert closure(waits) == closure(sharing)

    run = Executor(table)
    plain, ours = fresh_memory(), fresh_memory()
    run_plainly(expected, plain, table)
    for _ in range(2):
        ours = fresh_memory()
        run(image, ours, definitions=definitions)
        for name, memory in plain.items():
            np.testing.assert_array_equal(ours[name], memory)
